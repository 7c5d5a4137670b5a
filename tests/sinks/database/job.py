"""A driver that writes batches into a database, for tests that kill it. Rows are computed from batch ids."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StringType, StructType

from backlog_spark.sinks import BatchInfo, JdbcUpsert, SinkContext

SCHEMA = StructType().add("id", LongType()).add("v", StringType()).add("kind", StringType()).add("seq", LongType())
KEYS = 200
BATCHES = 6
# Always changed, so that a test can hold it.
HELD = -1


def is_backlog(batch_id: int) -> bool:
    return batch_id % 2 == 0


def changes(batch_id: int) -> list[tuple[int, str, str, int]]:
    """Key, value, kind and sequence."""
    drawn = random.Random(batch_id)
    rows = [
        (key, f"{batch_id}", "delete" if drawn.random() < 0.3 else "insert", batch_id)
        for key in drawn.sample(range(KEYS), 60)
    ]
    return [(HELD, f"{batch_id}", "insert", batch_id), *rows]


def after(batches: int) -> dict[int, str]:
    """The table after this many batches, from a model."""
    rows: dict[int, str] = {}
    for batch_id in range(batches):
        for key, value, kind, _ in changes(batch_id):
            if kind == "delete":
                rows.pop(key, None)
            else:
                rows[key] = value
    return rows


def main() -> None:
    """Write the batches after the newest one noted as committed. Stops for ever at the moment ``hold``."""
    from tests.faults.session import job_session

    job: dict[str, Any] = json.loads(sys.argv[1])
    spark, noted = job_session(), Path(job["noted"])
    held, moment = job["hold"]
    reached = job["reached"]

    def stop_at(batch_id: int, name: str) -> None:
        if (batch_id, name) == (held, moment):
            Path(reached).touch()
            time.sleep(3600)

    options = {"change_type": "kind", "sequence": "seq", "metadata_columns": ["kind", "seq"]}
    sink = JdbcUpsert(job["url"], "t", ["id"], user=job["user"], ssl_mode="disabled", **options)
    newest = int(noted.read_text()) if noted.exists() else None
    planned = (
        None if newest is None and not job["planned"] else max(-1 if newest is None else newest, job["planned"] - 1)
    )
    sink.open(SinkContext(spark, "app", SCHEMA, False, planned, newest))
    for batch_id in range(0 if newest is None else newest + 1, BATCHES):
        rows = spark.createDataFrame(changes(batch_id), SCHEMA)
        stop_at(batch_id, "before")
        sink.write(rows, BatchInfo(batch_id, is_backlog(batch_id)))
        stop_at(batch_id, "after")
        # Replaced whole, as Spark's commit log is.
        noted.with_suffix(".new").write_text(str(batch_id))
        noted.with_suffix(".new").rename(noted)


if __name__ == "__main__":
    main()
