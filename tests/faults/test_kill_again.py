"""SIGKILL of the driver while it reads tables again whose log was purged (``snapshot.mode=when_needed``)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, Writers, forget_log, options

from .test_kill_driver import (
    LIVES,
    ROWS,
    Job,
    Moment,
    before_the_commits_in_binary_log,
    between_the_two_commits_in_binary_log,
    create,
    finish,
    run_and_kill,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module", params=SERVERS_IN_GRID)
def mysql(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    with request.param() as server:  # one of its own, since its log is purged
        yield server


def is_noticed(job: Job) -> bool:
    """The batch is planned in which only the flag changes."""
    return "toEmpty" in job.running()


def is_flagged(job: Job) -> bool:
    """That batch is committed, and the next one is not planned."""
    return "toEmpty" in job.offset(job.newest("offsets")) and not job.running()


def empties(job: Job) -> bool:
    """The batch is planned that empties the target."""
    return job.running().get("hasTableEvents") is True


def has_emptied(job: Job) -> bool:
    """The target has that batch, Spark's commit log does not."""
    return empties(job) and job.newest("offsets") in job.transactions()


def reads_rows(job: Job) -> bool:
    """A later batch of the new snapshot is planned."""
    return job.offset(job.newest("commits")).get("hasTableEvents") is True and bool(job.running())


@pytest.mark.grid
@pytest.mark.parametrize(
    ("before", "moments"),
    [
        pytest.param(before_the_commits_in_binary_log, [has_emptied], id="emptied"),
        pytest.param(
            between_the_two_commits_in_binary_log,
            [is_noticed, empties, reads_rows],
            id="planned and rows",
            marks=pytest.mark.grid,
        ),
        pytest.param(
            before_the_commits_in_binary_log,
            [is_flagged, has_emptied],
            id="flagged and emptied",
            marks=pytest.mark.grid,
        ),
    ],
)
@pytest.mark.parametrize("purges", [False, pytest.param(True, marks=pytest.mark.grid)])
def test_a_driver_that_is_killed_while_it_reads_again_loses_and_repeats_nothing(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, before: Moment, moments: list[Moment], purges: bool
) -> None:
    table = f"faults.again_{moments[-1].__name__}_{len(moments)}_{purges}"
    create(mysql, table)
    given = {"snapshot.mode": "when_needed", "chunkSize": 1_000, "maxRowsPerBatch": 4_000}
    job = Job(tmp_path, options(mysql, table, **given), "1 second")
    writers = Writers(mysql, table, 3, threads=1, keys=ROWS, pause=0.02)
    with writers:
        run_and_kill(job, before, tmp_path / "driver.log")
        mysql.execute(f"DELETE FROM {table} WHERE id % 7 = 0")
        mysql.execute(f"UPDATE {table} SET id = id + {2 * ROWS} WHERE id % 11 = 0")
        forget_log(mysql)
        for moment in moments:
            run_and_kill(job, moment, tmp_path / "driver.log")
            if purges:  # also what the new snapshot needs
                mysql.execute(f"DELETE FROM {table} WHERE id % 13 = 0")
                forget_log(mysql)
        finish(spark, mysql, table, job, writers)
    ends = [job.offset(batch) for batch in range(job.newest("commits") + 1)]
    assert sum(end.get("hasTableEvents", False) for end in ends) >= 1
    for start, end in itertools.pairwise(ends):
        assert end["isBacklog"] == start["isProcessingBacklog"]


@pytest.mark.grid
def test_a_driver_that_is_killed_reads_on_if_all_that_was_purged_meanwhile_was_read(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    table = "faults.purged"
    create(mysql, table)
    given = {"snapshot.mode": "when_needed", "chunkSize": 1_000, "maxRowsPerBatch": 4_000}
    job = Job(tmp_path, options(mysql, table, **given), "1 second")
    for moment in LIVES[:3]:
        run_and_kill(job, moment, tmp_path / "driver.log")
        forget_log(mysql)
    with Writers(mysql, table, 3, threads=1, keys=ROWS, pause=0.02) as writers:
        finish(spark, mysql, table, job, writers)
    assert not any(job.offset(batch).get("hasTableEvents", False) for batch in range(job.newest("commits") + 1))
