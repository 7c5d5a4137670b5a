"""SIGKILL of the driver while online schema changes swap the table: then the same query again gives the exact table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.online import PlainWriters, online
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, options

from .test_kill_driver import (
    ROWS,
    Job,
    Moment,
    before_the_commits_in_binary_log,
    between_the_two_commits_in_backlog,
    between_the_two_commits_in_binary_log,
    create,
    finish,
    in_snapshot,
    run_and_kill,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=SERVERS_IN_GRID)
def mysql(request: pytest.FixtureRequest, pool: Callable[..., MySQLServer]) -> Iterator[MySQLServer]:
    server = pool(request.param, fast=True)
    server.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    yield server
    server.execute("SET GLOBAL log_bin_trust_function_creators = 0")


class Swappers(PlainWriters):
    """Writers, and a thread that swaps the table for a copy again and again."""

    def __init__(self, server: MySQLServer, table: str) -> None:
        super().__init__(server, table, 5, threads=1, keys=ROWS, pause=0.02)
        self._swap = threading.Thread(target=self._swap_on)
        self._threads.append(self._swap)
        self.swaps = 0

    def _swap_on(self) -> None:
        while not self._stop.is_set():
            online(self._server, self._table, ("ENGINE=InnoDB", "ADD INDEX (n)", "DROP INDEX n")[self.swaps % 3])
            self.swaps += 1
            self._stop.wait(1.0)


@pytest.mark.grid
@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([before_the_commits_in_binary_log], id="before the commits in the log"),
        pytest.param(
            [between_the_two_commits_in_backlog, before_the_commits_in_binary_log],
            id="snapshot and log",
            marks=pytest.mark.grid,
        ),
        pytest.param([in_snapshot, in_snapshot], id="snapshot", marks=pytest.mark.grid),
        pytest.param([between_the_two_commits_in_binary_log] * 2, id="log", marks=pytest.mark.grid),
    ],
)
def test_a_driver_that_is_killed_around_swaps_loses_and_repeats_nothing(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, moments: list[Moment]
) -> None:
    table = f"faults.swapped_{moments[-1].__name__}"
    create(mysql, table)
    job = Job(tmp_path, options(mysql, table, chunkSize=1_000, maxRowsPerBatch=4_000), "1 second")
    writers = Swappers(mysql, table)
    with writers:
        for moment in moments:
            swaps = writers.swaps
            run_and_kill(job, swapped_since(writers, swaps, moment), tmp_path / "driver.log")
        finish(spark, mysql, table, job, writers)
    assert writers.swaps >= len(moments)


def swapped_since(writers: Swappers, swaps: int, moment: Moment) -> Moment:
    """The moment, after another swap."""

    def reached(job: Job) -> bool:
        return writers.swaps > swaps and moment(job)

    return reached
