"""SIGKILL of the driver while a table is read again, or filled, after an ALTER TABLE: the target equals the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.connectors.mysql_cdc.offsets import Offset
from tests.connectors.mysql_cdc.replay import options

from .job import start
from .test_kill_driver import Job, after_the_switch, run_and_kill, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

ROWS = 3_000


def offset(job: Job, log: str) -> Offset:
    found = job.offset(job.newest(log))
    return Offset.from_json(found) if found else Offset("")


def is_planned(job: Job) -> bool:
    """A batch that reads again, or fills, is planned and not committed."""
    running = job.running()
    return bool(running) and bool(Offset.from_json(running).requests.reads or running.get("fills"))


def is_written(job: Job) -> bool:
    """The target has such a batch, Spark's commit log does not."""
    return is_planned(job) and job.newest("offsets") in job.transactions()


def is_committed(job: Job) -> bool:
    """Such a batch is committed, and there is more to read."""
    return bool(offset(job, "commits").requests.reads) and offset(job, "commits").requests.is_backlog


def is_emptied(job: Job) -> bool:
    """A batch whose statement changed the key is planned and not committed."""
    return bool(job.running().get("emptied"))


ROUNDED = "ALTER TABLE faults.altered MODIFY d DATETIME"
FILLED = "ALTER TABLE faults.altered ADD c DECIMAL(9,2) NOT NULL DEFAULT 1.5"
REKEYED = "ALTER TABLE faults.altered MODIFY id INT AUTO_INCREMENT"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "moment"),
    [
        (ROUNDED, is_written),
        pytest.param(FILLED, is_written, marks=pytest.mark.grid),
        pytest.param(ROUNDED, is_planned, marks=pytest.mark.grid),
        pytest.param(ROUNDED, is_committed, marks=pytest.mark.grid),
        pytest.param(FILLED, is_planned, marks=pytest.mark.grid),
        pytest.param(REKEYED, is_emptied, marks=pytest.mark.grid),
    ],
)
def test_killed_after_an_alter(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, statement: str, moment: Callable[[Job], bool]
) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS faults")
    mysql.execute("DROP TABLE IF EXISTS faults.altered")
    mysql.execute("CREATE TABLE faults.altered (id INT PRIMARY KEY, d DATETIME(6), n INT)")
    # Key 1 is free: an AUTO_INCREMENT gives it to the row with 0.
    values = ",".join(f"({i}, '2020-01-01 00:00:00.{i % 10}', {i})" for i in range(ROWS) if i != 1)
    mysql.execute("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
    mysql.execute(f"INSERT INTO faults.altered VALUES {values}")
    source = options(mysql, "faults.altered", chunkSize=500, maxRowsPerBatch=1_000)
    job = Job(tmp_path, source, None)
    job.described |= {"merges_schema": True, "interval": "200 ms"}
    altered: list[bool] = []

    def reached(job: Job) -> bool:
        if not altered and after_the_switch(job):
            altered.append(True)
            mysql.execute(statement)
            mysql.execute("UPDATE faults.altered SET n = -n WHERE id % 7 = 3")
            mysql.execute("DELETE FROM faults.altered WHERE id % 11 = 5")
        return bool(altered) and moment(job)

    run_and_kill(job, reached, tmp_path / "log")
    query = start(spark, job.described)
    try:

        def rows() -> Counter[tuple[Any, ...]]:
            columns = [row[0] for row in mysql.execute("SHOW COLUMNS FROM faults.altered")]
            there = spark.read.format("delta").load(str(job.target))
            if set(columns) - set(there.columns):
                return Counter()
            return Counter(tuple(row) for row in there.select(*columns).collect())

        def done() -> bool:
            assert query.isActive, query.exception()
            return not query.isProcessingBacklog and rows() == Counter(mysql.execute("SELECT * FROM faults.altered"))

        wait_for(done, "equality", 0.2)
        query.processAllAvailable()
        assert done()
    finally:
        query.stop()
    assert job.transactions() == sorted(set(job.transactions())), "a batch was written twice"
