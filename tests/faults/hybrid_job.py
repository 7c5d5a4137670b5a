"""A program that copies files, then a topic, into Delta, with our source or Spark's readers, for tests that kill it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import backlog_spark as bs
from backlog_spark.spark.checkpoint.logs import Checkpoint

from .session import job_session

__all__ = ["start"]


def start(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery | bs.NativeQuery:
    """Start the query that ``job`` describes: the same here and after the kill."""
    if job["kind"] in ("source", "csv", "rule"):
        return _source(spark, job)
    return _native(spark, job, hands_over=job["kind"] == "handover")


def _source(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery:
    options = {
        "path": job["files"],
        "schema": "n BIGINT",
        "valueFormat": "json",
        "kafka.bootstrap.servers": job["broker"],
        "subscribe": job["topic"],
        "startingOffsets": "earliest",
        "maxRowsPerBatch": job["rows"],
    }
    if job["kind"] == "csv":
        options |= {"fileFormat": "csv", "header": "true", "filePartitionBytes": "1k"}
    numbers = bs.source("hybrid", name="numbers", options=options)
    if job["kind"] == "rule":
        # Its rows are old, so what it has not read is backlog by spark.backlog.rule.watermarkLag.
        topic = {name: value for name, value in options.items() if name != "path"}
        numbers = bs.source("hybrid", name="numbers", phases="kafka", options=topic)
        numbers = numbers.map("n", "timestamp'2020-01-01 00:00:00' AS t").with_watermark("t", "1 second")
    return (
        numbers.write("numbers")
        .trigger(processing_time="300 ms", interval_during_backlog=job["during"])
        .option("checkpointLocation", job["checkpoint"])
        .to(bs.DeltaAppend(job["target"]))
        .start(spark)
    )


def _native(spark: Any, job: dict[str, Any], *, hands_over: bool) -> bs.NativeQuery:
    columns = "n long, at timestamp" if hands_over else "n long"
    options: dict[str, Any] = {}
    if hands_over:
        options = {"timestamp_column": "at", "starting_overlap": "100 seconds", "dedup_key": "n"}

    def live(reader: Any, ctx: bs.RunContext) -> Any:
        kafka = (
            reader.format("kafka").option("kafka.bootstrap.servers", job["broker"]).option("subscribe", job["topic"])
        )
        kafka = kafka.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", job["rows"])
        if hands_over:
            kafka = kafka.option("startingTimestamp", str(ctx.starting_timestamp or 0))
        return kafka.load().selectExpr(f"from_json(cast(value AS string), '{columns}') AS r").select("r.*")

    def files(reader: Any, ctx: bs.RunContext) -> Any:
        return reader.schema(columns).option("maxFilesPerTrigger", 1).parquet(job["files"])

    def later_files(reader: Any, ctx: bs.RunContext) -> Any:
        return reader.schema(columns).parquet(job["later"])

    phases = {"old": files, "live": later_files if "later" in job else live}
    return bs.backlog_query(
        lambda ctx: ctx.frame.select("n").writeStream.format("delta").option("path", job["target"]),
        checkpoint=job["checkpoint"],
        spark=spark,
        source=bs.hybrid(spark, "numbers", phases=phases, **options),
        interval="300 ms",
        interval_during_backlog=job["during"],
    )


def _die_when_the_log_is_mended(how: str) -> None:
    """Kill while an entry of Spark's log is being replaced.

    Parameters
    ----------
    how : str
        ``"deleted"``: the filesystem has deleted the old entry, and the new one is not in its place yet.
        ``"checksum"``: the new one is, and beside it the checksum of the old one.
    """
    write_file = Checkpoint.write_file

    def dies(checkpoint: Checkpoint, name: str, text: str) -> None:
        if name == "offsets/1":
            entry = Path(checkpoint.location_of(name).removeprefix("file:"))
            if how == "deleted":
                checkpoint.delete(name)
            else:
                shutil.copy(entry.with_name(".0.crc"), entry.with_name(".1.crc"))
                entry.write_text(text)
            os.kill(os.getpid(), signal.SIGKILL)
        write_file(checkpoint, name, text)

    Checkpoint.write_file = dies  # type: ignore[method-assign]


def main() -> None:
    from servers.jars import spark_kafka_jars

    job = json.loads(sys.argv[1])
    if how := job.get("dies_when_the_log_is_mended"):
        _die_when_the_log_is_mended(how)
    session = job_session(**{"spark.jars": ",".join(map(str, spark_kafka_jars())), **job.get("settings", {})})
    start(session, job).awaitTermination()


if __name__ == "__main__":
    main()
