"""SIGKILL of the driver around a TRUNCATE, a DROP and CREATE, or a RENAME by hand: the exact table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, Writers, options, table_rows

from .job import start
from .test_kill_driver import Job, Moment, run_and_kill, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = 2_000
COLUMNS = "(id INT PRIMARY KEY, n INT, v VARCHAR(20))"


@pytest.fixture(params=SERVERS_IN_GRID)
def mysql(request: pytest.FixtureRequest, pool: Callable[..., MySQLServer]) -> MySQLServer:
    return pool(request.param)


def fill(server: MySQLServer, table: str) -> None:
    server.execute(f"INSERT INTO {table} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(KEYS)))


def empty(server: MySQLServer, table: str, how: str) -> None:
    statements = {
        "truncate": [f"TRUNCATE TABLE {table}"],
        "drop": [f"DROP TABLE {table}", f"CREATE TABLE {table} {COLUMNS}"],
        "swap": [
            f"CREATE TABLE {table}_next {COLUMNS}",
            f"INSERT INTO {table}_next VALUES (1, -2, 'other'), ({KEYS + 5}, -2, 'other')",
            f"RENAME TABLE {table} TO {table}_away, {table}_next TO {table}",
        ],
    }
    for statement in statements[how]:
        server.execute(statement)
    server.execute(f"INSERT IGNORE INTO {table} VALUES " + ",".join(f"({i}, -1, 'again')" for i in range(0, KEYS, 3)))


def is_running_with_event(job: Job) -> bool:
    """The batch with the statement is planned and not committed."""
    return job.running().get("hasTableEvents") is True


def is_written_with_event(job: Job) -> bool:
    """The target has that batch, Spark's commit log does not."""
    return is_running_with_event(job) and job.newest("offsets") in job.transactions()


class Patient(Writers):
    """Writers that go on when their table is away for a moment."""

    def _statement(self, cursor: Any, chance: Any) -> None:
        try:
            super()._statement(cursor, chance)
        except Exception as error:
            if error.args[0] not in (1146, 1305, 1412):
                raise


@pytest.mark.grid
@pytest.mark.parametrize(
    ("how", "moment"),
    [
        pytest.param("truncate", is_running_with_event, id="truncate", marks=pytest.mark.grid),
        pytest.param("truncate", is_written_with_event, id="truncate between the commits", marks=pytest.mark.grid),
        pytest.param("drop", is_running_with_event, id="drop", marks=pytest.mark.grid),
        pytest.param("drop", is_written_with_event, id="drop between the commits"),
        pytest.param("swap", is_running_with_event, id="swap", marks=pytest.mark.grid),
        pytest.param("swap", is_written_with_event, id="swap between the commits", marks=pytest.mark.grid),
    ],
)
def test_killed_around_a_statement_that_empties_the_table(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, how: str, moment: Moment
) -> None:
    table = f"faults.{how}_{moment.__name__}"
    mysql.execute("CREATE DATABASE IF NOT EXISTS faults")
    mysql.execute(f"CREATE TABLE {table} {COLUMNS}")
    fill(mysql, table)
    job = Job(tmp_path, options(mysql, table, chunkSize=1_000), None)
    done = []

    def reached(job: Job) -> bool:
        if not done and job.newest("commits") >= 1:
            done.append(empty(mysql, table, how))
        return moment(job)

    writers = Patient(mysql, table, 3, threads=1, keys=KEYS)
    with writers:
        run_and_kill(job, reached, tmp_path / "driver.log")
        query = start(spark, job.described)
        try:
            batch = job.newest("offsets")
            wait_for(lambda: job.newest("commits") > batch or not query.isActive, "a batch after the kill", 0.1)
            wait_for(lambda: not _is_joining(job) or not query.isActive, "the table's snapshot", 0.1)
            assert query.isActive, query.exception()
            writers.__exit__()
            query.processAllAvailable()
        finally:
            query.stop()
    found = sorted(tuple(row) for row in spark.read.format("delta").load(str(job.target)).collect())
    assert found == sorted(table_rows(mysql, table).values())
    assert job.transactions() == sorted(set(job.transactions())), "a batch was written twice"


def _is_joining(job: Job) -> bool:
    offset = job.offset(job.newest("commits"))
    return bool(offset.get("gone") or offset.get("joining"))
