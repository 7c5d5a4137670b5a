"""A dump and Debezium's topic into Delta, with SIGKILL of the driver and of the connector: equal to the database."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.changing_table import ChangingTable
from tests.integration.debezium import DebeziumEngine
from tests.integration.topics import Topic

from .changes_job import start
from .lives import LIMIT_S, World
from .watching import newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer
    from servers.mysql import MySQLServer

ROWS = 40


def _job(tmp_path: Path, kafka: KafkaServer, topic: str, options: dict[str, str]) -> dict[str, Any]:
    return {
        "files": str(tmp_path / "dump"), "topic": topic, "broker": kafka.address(), "rows": ROWS,
        "options": {"valueFormat": "debezium", **options}, "checkpoint": str(tmp_path / "checkpoint"),
        "target": str(tmp_path / "target"),
    }  # fmt: skip


def _live_until(tmp_path: Path, job: dict[str, Any], planned: int, *, is_written: bool) -> None:
    """One life. It ends when a batch is planned, or when it is written but not committed."""
    world, log = World(tmp_path, "changes_job", **job), tmp_path / "checkpoint" / "offsets"
    least = max(planned, newest(log) + 1)
    world.lives(lambda: newest(log) >= least and (not is_written or world.is_in_target()))


@pytest.mark.slow
def test_the_target_is_equal_to_the_database(
    spark: SparkSession, mysql: MySQLServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    name = "killed_changes"
    table = ChangingTable(mysql, name, random.Random(name))
    topic = Topic(kafka, f"s.{name}.orders")
    with DebeziumEngine(mysql, kafka, f"{name}.orders", "s", {}) as engine:
        table.change(60)
        options = {"startingPosition": table.dump(tmp_path / "dump"), "columnEncodings": "at_us:micros, bits:bits"}
        table.change(60)
        job = _job(tmp_path, kafka, topic.name, options)
        # Batch 1 begins the topic.
        for planned, is_written in ((0, True), (1, False), (2, True)):
            _live_until(tmp_path, job, planned, is_written=is_written)
            table.change(10)
            engine.kill()
            engine.start()  # sends the last changes again
            table.change(10)
        query = start(spark, job)
        try:
            table.change(20)
            _wait_until_equal(spark, job, table, query)
        finally:
            query.stop()
        assert query.exception() is None


def _wait_until_equal(spark: SparkSession, job: dict[str, Any], table: ChangingTable, query: Any) -> None:
    expected = table.rows()
    limit = time.monotonic() + LIMIT_S
    while True:
        assert query.isActive, query.exception()
        rows = spark.read.format("delta").load(job["target"]).orderBy("id").collect()
        found = table.of_target(rows)
        if found == expected:
            return
        if time.monotonic() > limit:
            assert found == expected
        time.sleep(0.5)
