"""SIGKILL of the driver while its server purges the log that the snapshot needs, as soon as that is staged."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, Writers, options

from .test_kill_driver import (
    ROWS,
    Job,
    Moment,
    after_the_switch,
    before_the_commits_in_binary_log,
    between_the_two_commits_in_backlog,
    create,
    finish,
    in_last_snapshot_batch,
    in_snapshot,
    run_and_kill,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module", params=SERVERS_IN_GRID)
def mysql(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    with request.param(fast=True) as server:  # one of its own, since its log is purged
        yield server


def segments(job: Job) -> list[str]:
    """The names of the segments, with the file in which each ends as its last but one part."""
    return [path.name.removesuffix(".zst") for path in job.checkpoint.rglob("binlog/*/*.zst")]


class PurgedWriters(Writers):
    """Writers whose server begins a new log file once a second, and purges those that are staged."""

    def __init__(self, server: MySQLServer, table: str, job: Job) -> None:
        super().__init__(server, table, 3, threads=1, keys=ROWS, pause=0.02)
        self._job = job
        self._threads.append(threading.Thread(target=self._purge))
        self.purged = 0

    def _purge(self) -> None:
        connection = self._server.connect()
        cursor = connection.cursor()
        while not self._stop.wait(1.0):
            cursor.execute("FLUSH BINARY LOGS")
            ends = [name.rsplit("_", 3) for name in segments(self._job)]
            if not ends:
                continue
            before = self._files(cursor)
            base = ends[0][0].rpartition(".")[0]
            with contextlib.suppress(pymysql.err.MySQLError):  # that file is gone
                cursor.execute(f"PURGE BINARY LOGS TO '{base}.{max(end[2] for end in ends)}'")
                self.purged += before - self._files(cursor)
        connection.close()

    @staticmethod
    def _files(cursor: Any) -> int:
        cursor.execute("SHOW BINARY LOGS")
        return len(cursor.fetchall())


def is_staging(job: Job) -> bool:
    """Segments are written while rows of the snapshot are read."""
    return len(segments(job)) > 1 and in_snapshot(job)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([is_staging, between_the_two_commits_in_backlog], id="staging"),
        pytest.param(
            [is_staging, in_last_snapshot_batch, after_the_switch, before_the_commits_in_binary_log],
            id="all lives",
            marks=pytest.mark.grid,
        ),
    ],
)
def test_a_killed_driver_whose_log_is_purged_loses_and_repeats_nothing(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, moments: list[Moment]
) -> None:
    table = f"faults.staged_{len(moments)}"
    create(mysql, table)
    source = options(mysql, table, chunkSize=1_000, maxRowsPerBatch=4_000)
    job = Job(tmp_path, source, "1 second")
    writers = PurgedWriters(mysql, table, job)
    with writers:
        for moment in moments:
            run_and_kill(job, moment, tmp_path / "driver.log")
        finish(spark, mysql, table, job, writers)
    assert writers.commits > 0
    assert writers.purged > 3
    assert not any(job.offset(batch).get("hasTableEvents") for batch in range(job.newest("commits") + 1))
