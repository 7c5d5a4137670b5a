"""What a query says that was stopped by way of Spark, and two queries on one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from tests.operators.conftest import Collect

from .test_foreign import LIMIT_S, files, wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start(spark: SparkSession, root: Path, name: str, checkpoint: str = "") -> bs.BacklogQuery:
    frame = spark.readStream.schema("n long").parquet(str(root / "in"))
    writer = bs.stream(frame).write(name).trigger(processing_time="200 ms")
    return writer.option("checkpointLocation", checkpoint or str(root / "checkpoint")).to(Collect()).start(spark)


def test_a_query_that_spark_was_told_to_stop_is_canceled(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "in", 0, 1)
    query = start(spark, tmp_path, "outside")
    wait(lambda: query.backlogProgress.rows == 20, query)
    next(each for each in spark.streams.active if each.name == "outside").stop()
    assert query.awaitTermination(LIMIT_S)
    assert (query.jobStatus, query.exception()) == (bs.JobStatus.CANCELED, None)


def test_a_checkpoint_has_one_query_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "in", 0, 1)
    first = start(spark, tmp_path, "first")
    try:
        wait(lambda: first.backlogProgress.rows == 20, first)
        again = f"file://{tmp_path}/checkpoint/"
        with pytest.raises(bs.SettingError, match=r"checkpointLocation = .*'first' runs on it\. Stop that query first"):
            start(spark, tmp_path, "second", again)
        files(tmp_path / "in", 1, 1)
        wait(lambda: first.backlogProgress.rows == 40, first)
    finally:
        first.stop()
    second = start(spark, tmp_path, "second", again)
    try:
        files(tmp_path / "in", 2, 1)
        wait(lambda: second.backlogProgress.rows == 20, second)
    finally:
        second.stop()
