"""A driver that is killed around the files of a batch: ``path noted point``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

import backlog_spark as bs
from backlog_spark.sinks import BatchInfo, SinkContext
from tests.faults.session import job_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POINTS = ("before", "in", "after")
ROWS = 20
SCHEMA = StructType().add("id", LongType())


def batch(spark: SparkSession, number: int) -> DataFrame:
    return spark.range(ROWS * number, ROWS * (number + 1), 1, 2)


def opened(spark: SparkSession, path: str, noted: Path) -> tuple[bs.FilesSink, int]:
    first = int(noted.read_text()) + 1 if noted.exists() else 0
    planned, committed = (first, first - 1) if first else (0, None)
    sink = bs.FilesSink(path).for_output()
    sink.open(SinkContext(spark, "app", SCHEMA, True, planned, committed))
    return sink, first


def main() -> None:
    path, noted, point = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    spark = job_session()
    sink, first = opened(spark, path, noted)
    sink.write(batch(spark, first), BatchInfo(first, True))
    noted.write_text(str(first))
    group, there = os.getpgrp(), len(list(Path(path).glob("part-*")))

    @F.udf("bigint")
    def dying(value: int) -> int:
        """The second task kills the driver when the first one has written its file, and never ends."""
        if value % ROWS >= ROWS // 2:
            while len(list(Path(path).glob("part-*"))) == there:
                time.sleep(0.05)
            os.killpg(group, signal.SIGKILL)
            time.sleep(600)
        return value

    rows = batch(spark, first + 1)
    if point != "before":
        sink.write(rows.select(dying("id").alias("id")) if point == "in" else rows, BatchInfo(first + 1, True))
    os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
