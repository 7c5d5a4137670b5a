"""A query of any source and any operator of the grid: the same at each start."""

from __future__ import annotations

from typing import Any

import backlog_spark as bs

from .operators import OPERATORS, Operator

__all__ = ["BATCH_ROWS", "start"]

BATCH_ROWS = 60
COLUMNS = "k LONG, v LONG, seq LONG, ts TIMESTAMP"


def start(spark: Any, job: dict[str, Any]) -> Any:
    """Start the query.

    Parameters
    ----------
    spark : SparkSession
    job : dict
        ``source`` and ``operator``: their names. ``inputs``: what each input's source needs. ``checkpoint``,
        ``target``. ``finishes``: whether the sources have an end.
    """
    for name, value in job.get("conf", {}).items():
        spark.conf.set(name, value)
    operator = OPERATORS[job["operator"]]
    inputs = [SOURCES[job["source"]](spark, operator, f"in{n}", given) for n, given in enumerate(job["inputs"])]
    out = operator.build(spark, *inputs)
    if job["source"] == "mysql_cdc" and not operator.is_keyed:
        sink: bs.Sink = bs.DeltaUpsert(job["target"], keys=list(operator.keys))
    elif operator.is_keyed and operator.keys:
        sink = bs.DeltaUpsert(job["target"], keys=list(operator.keys))
    else:
        sink = bs.DeltaAppend(job["target"])
    writer = out.write("grid").to(sink).option("checkpointLocation", job["checkpoint"])
    return writer.trigger(**job["trigger"]).start(spark)


def _mysql_cdc(spark: Any, operator: Operator, name: str, given: dict[str, Any]) -> Any:
    options = {
        "host": "127.0.0.1", "user": "root", "chunkSize": 30, "maxRowsPerBatch": BATCH_ROWS,
        "backlogLagThreshold": "1 s", **given,
    }  # fmt: skip
    if not operator.takes_changes:
        options["metadataColumns"] = "_commit_seq"  # the table only grows
    stream = bs.source("mysql_cdc", name=name, options=options)
    return stream if operator.takes_changes else stream.map("k", "v", "seq", "ts")


def _hybrid(spark: Any, operator: Operator, name: str, given: dict[str, Any]) -> Any:
    options = {"schema": COLUMNS, "maxRowsPerBatch": BATCH_ROWS, **given}
    if "subscribe" in given:
        options |= {
            "valueFormat": "json", "startingOffsets": "earliest", "backlogOffsetsThreshold": 2 * BATCH_ROWS,
        }  # fmt: skip
    return bs.source("hybrid", name=name, options=options)


def _spark(spark: Any, operator: Operator, name: str, given: dict[str, Any]) -> Any:
    reader = spark.readStream.format("kafka").options(**given).option("startingOffsets", "earliest")
    frame = reader.option("maxOffsetsPerTrigger", BATCH_ROWS).load()
    return bs.stream(frame.selectExpr(f"from_json(cast(value AS string), '{COLUMNS}') AS r").select("r.*"))


SOURCES = {"mysql_cdc": _mysql_cdc, "hybrid": _hybrid, "spark": _spark}
