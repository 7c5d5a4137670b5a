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


Moment = Callable[[Job], bool]
ROUNDED = "ALTER TABLE faults.altered MODIFY {} DATETIME"
FILLED = "ALTER TABLE faults.altered ADD {} DECIMAL(9,2) NOT NULL DEFAULT 1.5"
REKEYED = "ALTER TABLE faults.altered MODIFY id INT AUTO_INCREMENT"


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param([(ROUNDED.format("d"), is_written)], id="one life"),
        # Each life begins where the one before it was killed.
        pytest.param(
            [
                (FILLED.format("f"), is_planned),
                (ROUNDED.format("d"), is_planned),
                (FILLED.format("g"), is_written),
                (ROUNDED.format("e"), is_committed),
                (REKEYED, is_emptied),
            ],
            id="five lives",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_killed_after_an_alter(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, lives: list[tuple[str, Moment]]
) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS faults")
    mysql.execute("DROP TABLE IF EXISTS faults.altered")
    mysql.execute("CREATE TABLE faults.altered (id INT PRIMARY KEY, d DATETIME(6), e DATETIME(6), n INT)")
    # Key 1 is free: an AUTO_INCREMENT gives it to the row with 0.
    time = "'2020-01-01 00:00:00.{}'"
    rows_of = (f"({i}, {time.format(i % 10)}, {time.format(i % 9)}, {i})" for i in range(ROWS) if i != 1)
    mysql.execute("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
    mysql.execute(f"INSERT INTO faults.altered VALUES {','.join(rows_of)}")
    source = options(mysql, "faults.altered", chunkSize=500, maxRowsPerBatch=1_000)
    job = Job(tmp_path, source, None)
    job.described |= {"merges_schema": True, "interval": "200 ms"}
    for life, (statement, moment) in enumerate(lives):
        run_and_kill(job, Altering(mysql, statement, moment, life), tmp_path / "log")
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


class Altering:
    """A moment after a statement, which is executed when the life before it is made up for."""

    def __init__(self, server: MySQLServer, statement: str, moment: Moment, life: int) -> None:
        self.server, self.statement, self.moment, self.life = server, statement, moment, life
        self.__name__ = f"{moment.__name__} of life {life}"
        self.is_altered, self.began = False, -2

    def __call__(self, job: Job) -> bool:
        if self.began == -2:
            self.began = job.newest("commits")
        goes_on = job.newest("commits") > self.began and after_the_switch(job)
        if not self.is_altered and goes_on and not offset(job, "commits").requests.reads:
            self.is_altered = True
            self.server.execute(self.statement)
            self.server.execute(f"UPDATE faults.altered SET n = -n WHERE id % 7 = {self.life}")
            self.server.execute(f"DELETE FROM faults.altered WHERE id % 11 = {5 + self.life}")
        return self.is_altered and self.moment(job)
