"""Wrong options of the source hybrid are refused before `start` returns. A later start does not check them again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from servers.kafka import KafkaServer
from tests.operators.conftest import Collect

from .topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_mistakes_are_reported_before_the_start_returns(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = Topic(kafka, "told_at_once", 1)
    (tmp_path / "old").mkdir()
    (tmp_path / "old/a.json").write_text('{"n": 1}\n')
    right = {
        "path": str(tmp_path / "old"), "fileFormat": "json", "subscribe": topic.name, "valueFormat": "json",
        "kafka.bootstrap.servers": kafka.address(), "startingOffsets": "earliest", "schema": "n BIGINT",
    }  # fmt: skip

    def start(**options: str) -> bs.BacklogQuery:
        given = right | {name.replace("__", "."): value for name, value in options.items()}
        return (
            bs.source("hybrid", name="numbers", options=given).write("numbers")
            .trigger(processing_time="300 ms", interval_during_backlog="0")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .to(Collect()).start(spark)
        )  # fmt: skip

    for options, told in (
        ({"path": str(tmp_path / "odl")}, r"path = '.*odl': is not there"),
        ({"path": str(tmp_path / "old/*.csv")}, r"path = '.*\.csv': no file is there"),
        ({"subscribe": "told_at_onse"}, r"has no told_at_onse\. Create it, or correct subscribe"),
        ({"kafka__bootstrap__servers": "127.0.0.1:1", "kafka__default__api__timeout__ms": "2000"}, "did not answer"),
        ({"phases": "files, kafka", "fileFormat": "parquet"}, r"a\.json cannot be read as parquet.*Set fileFormat"),
        ({"valueFormat": "raw"}, r"With valueFormat=raw there is no column 'n'"),
    ):
        with pytest.raises(bs.BacklogError, match=told):
            start(**options)
    query = start()
    try:
        query.processAllAvailable()
        assert query.isActive, query.exception()
    finally:
        query.stop()
    # What has been read is not needed again.
    shutil.rmtree(tmp_path / "old")
    query = start()
    try:
        query.processAllAvailable()
        assert query.isActive, query.exception()
    finally:
        query.stop()
