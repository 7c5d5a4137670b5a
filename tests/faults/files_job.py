"""A sink whose driver is killed at a given point of a backlog batch. Rows are computed from batch ids."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import LongType, StructType

from backlog_spark.sinks import BatchInfo, DeltaAppend, SinkContext
from backlog_spark.sinks.delta_direct import DirectTable
from backlog_spark.spark import delta_log

from .session import job_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType().add("id", LongType())
ROWS = 40
MOMENTS = ("before", "during", "between", "after")


def batch(spark: SparkSession, batch_id: int) -> DataFrame:
    """In two tasks."""
    return spark.range(ROWS * batch_id, ROWS * (batch_id + 1), 1, 2)


def opened(spark: SparkSession, table: Path, noted: Path, small_batch_rows: int) -> tuple[DeltaAppend, int]:
    """The sink, opened like in a query, and the first batch not recorded as committed."""
    first = int(noted.read_text()) + 1 if noted.exists() else 0
    # Whether a batch was planned is not written down; so the next one may have been.
    planned, committed = (first, first - 1) if first else (0, None)
    sink = DeltaAppend(str(table), small_batch_rows=small_batch_rows)
    sink.open(SinkContext(spark, "app", SCHEMA, True, planned, committed))
    return sink, first


def note(noted: Path, batch_id: int) -> None:
    """Record a commit after the sink's, like Spark's commit log."""
    noted.with_suffix(".new").write_text(str(batch_id))
    noted.with_suffix(".new").rename(noted)


def main() -> None:
    """Write a batch, and die within the next one."""
    table, noted, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    spark = job_session()
    sink, first = opened(spark, table, noted, 1000)
    sink.write(batch(spark, first), BatchInfo(first, True))
    note(noted, first)
    group = os.getpgrp()

    def die(*_: Any) -> None:
        os.killpg(group, signal.SIGKILL)

    def half(batches: Iterator[Any]) -> Iterator[Any]:
        """Die in the second task after the first one's file exists."""
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        while context is not None and context.partitionId() == 1:
            if len(list(table.glob("part-00000*.parquet"))) > before:
                os.killpg(group, signal.SIGKILL)
            time.sleep(0.01)

    rows, before = batch(spark, first + 1), len(list(table.glob("part-00000*.parquet")))
    write_files, add_files = delta_log.write_files, DirectTable.add_files
    if moment == "before":
        delta_log.write_files = die  # type: ignore[assignment]
    elif moment == "during":
        rows = rows.mapInArrow(half, SCHEMA)
    elif moment == "between":
        delta_log.write_files = lambda *given: die(write_files(*given))  # type: ignore[assignment]
    else:
        DirectTable.add_files = lambda *given: die(add_files(*given))  # type: ignore[method-assign]
    sink.write(rows, BatchInfo(first + 1, True))


if __name__ == "__main__":
    main()
