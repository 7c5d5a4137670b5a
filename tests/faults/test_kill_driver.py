"""SIGKILL of the whole driver, or of a worker, at every phase; then the same query again: the exact table.

Each case starts the job as a process group of its own, kills the group at a moment read off the checkpoint and the
target, and starts the job anew from the checkpoint alone, while writers go on changing the table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, Writers, options, table_rows

from .job import start
from .watching import newest, transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 20_000
LIMIT_S = 300


@pytest.fixture(params=SERVERS_IN_GRID)
def mysql(request: pytest.FixtureRequest, pool: Callable[..., MySQLServer]) -> MySQLServer:
    """A real server of each kind that the source reads."""
    return pool(request.param)


class Job:
    """The files of a running job."""

    def __init__(self, root: Path, source: dict[str, str], during: str | None) -> None:
        self.checkpoint, self.target = root / "checkpoint", root / "target"
        self.environment: dict[str, str] = {}
        self.described: dict[str, Any] = {
            "source": source,
            "interval": "500 ms",
            "during": during,
            "checkpoint": str(self.checkpoint),
            "target": str(self.target),
        }

    def newest(self, log: str) -> int:
        return newest(self.checkpoint / log)

    def offset(self, batch: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
        except (OSError, IndexError):
            return {}
        return found

    def running(self) -> dict[str, Any]:
        """The end offset of the batch that is planned but not committed, or {}."""
        planned = self.newest("offsets")
        return self.offset(planned) if planned > self.newest("commits") else {}

    def transactions(self) -> list[int]:
        """Batch ids in the target's log, in order of its versions."""
        return transactions(self.target)


def in_snapshot(job: Job) -> bool:
    return job.newest("commits") >= 1 and job.running().get("isProcessingBacklog") is True


def in_last_snapshot_batch(job: Job) -> bool:
    running = job.running()
    return running.get("isProcessingBacklog") is False and running.get("isBacklog") is True


def after_the_switch(job: Job) -> bool:
    return job.offset(job.newest("commits")).get("isProcessingBacklog") is False


def in_binary_log(job: Job) -> bool:
    return job.running().get("isBacklog") is False and job.newest("commits") >= 2


def between_the_two_commits_in_backlog(job: Job) -> bool:
    """The target has the batch, Spark's commit log does not."""
    return bool(job.running().get("isBacklog")) and job.newest("offsets") in job.transactions()


def between_the_two_commits_in_binary_log(job: Job) -> bool:
    return in_binary_log(job) and job.newest("offsets") in job.transactions()


def before_the_commits_in_binary_log(job: Job) -> bool:
    """The planner has read rows that are not committed. The next life reads them from the log again."""
    return in_binary_log(job) and job.newest("offsets") not in job.transactions()


def create(server: MySQLServer, table: str) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS faults")
    server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    for first in range(0, ROWS, 5_000):
        server.execute(
            f"INSERT INTO {table} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(first, first + 5_000))
        )


def wait_for(condition: Callable[[], bool], what: str, pause: float = 0.005) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, f"{what} did not come"
        time.sleep(pause)


def started(job: Job, log: Path, program: str = "tests.faults.job") -> subprocess.Popen[bytes]:
    """The job, as the leader of a process group of its own."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", program, json.dumps(job.described)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **job.environment},
        )


def run_and_kill(job: Job, moment: Callable[[Job], bool], log: Path, program: str = "tests.faults.job") -> None:
    def done() -> tuple[int, int, int]:
        return job.newest("offsets"), job.newest("commits"), len(job.transactions())

    # What an earlier life has left may look like the moment: this one must have done something first.
    before = done()
    process = started(job, log, program)
    try:

        def reached() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            return moment(job) and done() != before

        wait_for(reached, moment.__name__)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(spark: SparkSession, server: MySQLServer, table: str, job: Job, writers: Writers) -> None:
    """Start again from the checkpoint, follow the writers into the binary log, compare."""
    # The batches were small for the kill to hit one; a restart may ask for larger ones, and is done sooner.
    query = start(spark, {**job.described, "source": {**job.described["source"], "maxRowsPerBatch": "100000"}})
    try:
        wait_for(
            lambda: query.backlogProgress.commits_after > 0 or not query.isActive, "a batch after the backlog", 0.1
        )
        assert query.isActive, query.exception()
        writers.__exit__()
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    found = Counter(tuple(row) for row in spark.read.format("delta").load(str(job.target)).collect())
    assert found == Counter(table_rows(server, table).values())
    batches = job.transactions()
    assert batches == sorted(set(batches)), "a batch was written twice"


Moment = Callable[[Job], bool]
# One life after another on one checkpoint: a phase of backlog each, and the first after it.
LIVES: list[Moment] = [
    in_snapshot,
    between_the_two_commits_in_backlog,
    in_last_snapshot_batch,
    after_the_switch,
]
CASES = [
    # moments, interval during backlog
    # Killed swaps and table events have a case in the binary log each.
    pytest.param([between_the_two_commits_in_backlog], "1 second", id="between_the_two_commits_in_backlog"),
    pytest.param(LIVES, "1 second", id="all lives", marks=pytest.mark.grid),
    pytest.param(
        [between_the_two_commits_in_binary_log],
        None,
        id="between_the_two_commits_in_binary_log",
        marks=pytest.mark.grid,
    ),
    pytest.param([in_last_snapshot_batch], "0", id="in_last_snapshot_batch of one commit", marks=pytest.mark.grid),
    pytest.param(
        [before_the_commits_in_binary_log, between_the_two_commits_in_binary_log],
        "1 second",
        id="two lives in the binary log",
        marks=pytest.mark.grid,
    ),
    *(
        pytest.param([moment], "1 second", id=moment.__name__, marks=pytest.mark.grid)
        for moment in LIVES
        if moment is not between_the_two_commits_in_backlog
    ),
]


@pytest.mark.parametrize(("moments", "during"), CASES)
def test_a_killed_driver_loses_and_repeats_nothing(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, moments: list[Moment], during: str | None
) -> None:
    table = f"faults.{moments[-1].__name__}_{len(moments)}{'_one' if during == '0' else ''}"
    create(mysql, table)
    source = options(mysql, table, chunkSize=1_000, maxRowsPerBatch=4_000)
    job = Job(tmp_path, source, during)
    writers = Writers(mysql, table, 3, threads=1, keys=ROWS, pause=0.02)
    with writers:
        for moment in moments:
            run_and_kill(job, moment, tmp_path / "driver.log")
        finish(spark, mysql, table, job, writers)
    assert writers.commits > 0
    if during == "0":
        flags = [job.offset(batch).get("isBacklog") for batch in range(job.newest("commits") + 1)]
        assert flags[0] is True
        assert not any(flags[1:]), "one commit in backlog"


@pytest.mark.slow
def test_killed_workers_lose_and_repeat_nothing(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    table = "faults.workers"
    create(mysql, table)
    job = Job(tmp_path, options(mysql, table, chunkSize=500, maxRowsPerBatch=5_000), "1 second")
    killed = 0
    writers = Writers(mysql, table, 4, threads=1, keys=ROWS, pause=0.02)
    with writers:
        query = start(spark, job.described)
        try:
            while killed < 3 and query.isProcessingBacklog:
                before = len(task_workers())
                for worker in task_workers()[:1]:
                    os.kill(worker, signal.SIGKILL)
                    killed += 1
                time.sleep(1.0 if before else 0.01)
        finally:
            query.stop()
        finish(spark, mysql, table, job, writers)
    assert killed > 0


def task_workers() -> list[int]:
    """Process ids of the Python workers that run tasks: children of ``pyspark.daemon``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            mine = (Path("/proc") / str(parent) / "cmdline").read_bytes()
            own = (entry / "cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            continue
        if b"pyspark.daemon" in mine and b"pyspark.daemon" in own and _is_ours(parent):
            found.append(int(entry.name))
    return found


def _is_ours(pid: int) -> bool:
    """Whether a process descends from this one, so that another session's workers are left alone."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False
