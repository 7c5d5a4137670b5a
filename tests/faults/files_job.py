"""A sink whose driver is killed at a given point of a backlog batch. Rows are computed from batch ids.

Arguments: the table, a file for the newest committed batch, the point (or ``never``), and optionally, as JSON,
delta-rs's options for a table on S3 and the session's settings.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import LongType, StructType

from backlog_spark.sinks import BatchInfo, DeltaAppend, SinkContext
from backlog_spark.sinks.delta.deltars.commits import DirectTable
from backlog_spark.spark.jvm import delta_log

from .session import job_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType().add("id", LongType())
ROWS = 40
MOMENTS = ("before", "during", "between", "after")


def batch(spark: SparkSession, batch_id: int) -> DataFrame:
    """In two tasks."""
    return spark.range(ROWS * batch_id, ROWS * (batch_id + 1), 1, 2)


def opened(
    spark: SparkSession,
    table: Path | str,
    noted: Path,
    small_batch_rows: int,
    storage_options: Mapping[str, str] | None = None,
) -> tuple[DeltaAppend, int]:
    """The sink, opened like in a query, and the first batch not recorded as committed."""
    first = int(noted.read_text()) + 1 if noted.exists() else 0
    # Whether a batch was planned is not written down; so the next one may have been.
    planned, committed = (first, first - 1) if first else (0, None)
    sink = DeltaAppend(str(table), small_batch_rows=small_batch_rows, storage_options=storage_options or {})
    sink.open(SinkContext(spark, "app", SCHEMA, True, planned, committed))
    return sink, first


def note(noted: Path, batch_id: int) -> None:
    """Record a commit after the sink's, like Spark's commit log."""
    noted.with_suffix(".new").write_text(str(batch_id))
    noted.with_suffix(".new").rename(noted)


def main() -> None:
    """Write a batch, and die within the next one."""
    table, noted, moment = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    storage_options, conf = map(json.loads, sys.argv[4:] or ("{}", "{}"))
    spark = job_session(**conf)
    sink, first = opened(spark, table, noted, 1000, storage_options)
    sink.write(batch(spark, first), BatchInfo(first, True))
    note(noted, first)
    group, files = os.getpgrp(), files_of(table, storage_options)

    def die(*_: Any) -> None:
        os.killpg(group, signal.SIGKILL)

    def half(batches: Iterator[Any]) -> Iterator[Any]:
        """Die in the second task after the first one's file exists."""
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        while context is not None and context.partitionId() == 1:
            if files() > before:
                os.killpg(group, signal.SIGKILL)
            time.sleep(0.01)

    rows, before = batch(spark, first + 1), files()
    write_files, add_files = delta_log.write_files, DirectTable.add_files
    if moment == "before":
        delta_log.write_files = die  # type: ignore[assignment]
    elif moment == "during":
        rows = rows.mapInArrow(half, SCHEMA)
    elif moment == "between":
        delta_log.write_files = lambda *given: die(write_files(*given))  # type: ignore[assignment]
    elif moment == "after":
        DirectTable.add_files = lambda *given: die(add_files(*given))  # type: ignore[method-assign]
    sink.write(rows, BatchInfo(first + 1, True))
    note(noted, first + 1)


def files_of(table: str, storage_options: Mapping[str, str]) -> Callable[[], int]:
    """Counts the files of first tasks, also those of no commit."""
    if not storage_options:
        return lambda: len(list(Path(table).glob("part-00000*.parquet")))

    def count() -> int:
        import s3fs

        store = s3fs.S3FileSystem(
            key=storage_options["AWS_ACCESS_KEY_ID"],
            secret=storage_options["AWS_SECRET_ACCESS_KEY"],
            client_kwargs={"endpoint_url": storage_options["AWS_ENDPOINT_URL"]},
            use_listings_cache=False,
        )
        return len(store.glob(f"{table.partition('://')[2]}/part-00000*.parquet"))

    return count


if __name__ == "__main__":
    main()
