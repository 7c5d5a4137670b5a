"""A driver that writes a batch and is killed within the next one: ``address topic format point flag noted``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from backlog_spark.sinks import BatchInfo, SinkContext
from tests.faults.session import job_session
from tests.sinks.kafka.changes import SCHEMA, Row, batches, frame
from tests.sinks.kafka.killing import KilledSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["batch", "info", "write"]


def batch(number: int) -> list[Row]:
    return batches(17, 40, 60, 30)[number]


def info(number: int) -> BatchInfo:
    return BatchInfo(number, bool(number % 2))


def write(
    spark: SparkSession, options: dict[str, str], topic: str, form: str, noted: Path, point: str, flag: str, count: int
) -> None:
    """Write so many batches after the newest one that is recorded as committed."""
    first = int(noted.read_text()) + 1 if noted.exists() else 0
    # Whether a batch was planned is not written down; so the next one may have been.
    planned, committed = (first, first - 1) if first else (0, None)
    sink = KilledSink(topic, key=["id"], format=form, options=options, tasks=3)
    sink.open(SinkContext(spark, topic, SCHEMA, False, planned, committed))
    for number in range(first, first + count):
        if number > first:
            sink.point, sink.flag, sink.group = point, flag, os.getpgrp()
        sink.write(frame(spark, batch(number)), info(number))
        noted.with_suffix(".new").write_text(str(number))
        noted.with_suffix(".new").rename(noted)


def main() -> None:
    address, topic, form, point, flag, noted = sys.argv[1:]
    write(job_session(), {"kafka.bootstrap.servers": address}, topic, form, Path(noted), point, flag, 2)


if __name__ == "__main__":
    main()
