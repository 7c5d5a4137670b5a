"""Two drivers on one checkpoint: the newer one goes on, the older one ends with an error, every row is there once."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import Writers, options
from tests.operators.scripted import append

from .keyed_job import start as start_keyed
from .native_job import start as start_native
from .test_kill_driver import (
    ROWS,
    Job,
    Moment,
    after_the_switch,
    create,
    finish,
    in_binary_log,
    in_snapshot,
    wait_for,
)
from .test_kill_keyed import compare, wait_for_rows
from .test_kill_keyed import rows as keyed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Driver:
    """A driver in a process of its own."""

    def __init__(self, job: Job, log: Path, module: str) -> None:
        self.job, self.log = job, log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(job.described)],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until(self, moment: Moment) -> None:
        def reached() -> bool:
            assert self.process.poll() is None, self.text()
            return moment(self.job)

        wait_for(reached, moment.__name__)

    def text(self) -> str:
        return self.log.read_text()[-3000:]

    def is_fenced(self) -> None:
        """It ends, and says why and what to do."""
        assert self.process.wait(120) == 1, self.text()
        found = self.log.read_text()
        where = self.job.described["checkpoint"]
        assert f"Another driver has started a query on the checkpoint {where}" in found
        assert "Run one driver at a time" in found
        assert "is restarted" not in found, "it does not come back by itself"


@contextmanager
def driver(job: Job, log: Path, module: str = "tests.faults.job") -> Iterator[Driver]:
    found = Driver(job, log, module)
    try:
        yield found
    finally:
        with suppress(ProcessLookupError):
            os.killpg(found.process.pid, signal.SIGKILL)
        found.process.wait()


@pytest.fixture
def table(request: pytest.FixtureRequest, mysql: MySQLServer) -> str:
    """A table with rows."""
    name = f"faults.{re.sub(r'[^a-z_]+', '_', request.node.name)[:60]}"
    create(mysql, name)
    return name


def job_on(root: Path, mysql: MySQLServer, table: str, during: str = "1 second") -> Job:
    return Job(root, options(mysql, table, chunkSize=1_000, maxRowsPerBatch=2_000), during)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", [in_snapshot, pytest.param(in_binary_log, marks=pytest.mark.grid)], ids=lambda moment: moment.__name__
)
def test_the_newest_driver_goes_on(
    spark: SparkSession, mysql: MySQLServer, table: str, tmp_path: Path, moment: Moment
) -> None:
    job = job_on(tmp_path, mysql, table)
    writers = Writers(mysql, table, 3, threads=1, keys=ROWS, pause=0.02)
    with writers, driver(job, tmp_path / "first.log") as first:
        first.until(moment)
        finish(spark, mysql, table, job, writers)
        first.is_fenced()


@pytest.mark.grid
@pytest.mark.parametrize("moment", [in_snapshot, in_binary_log], ids=lambda moment: moment.__name__)
def test_a_paused_driver_that_comes_back(
    spark: SparkSession, mysql: MySQLServer, table: str, tmp_path: Path, moment: Moment
) -> None:
    """It is stopped within a batch for longer than a newer driver waits, as by a long garbage collection."""
    job = job_on(tmp_path, mysql, table)
    writers = Writers(mysql, table, 4, threads=1, keys=ROWS, pause=0.02)
    with writers, driver(job, tmp_path / "first.log") as first:
        first.until(moment)
        os.killpg(first.process.pid, signal.SIGSTOP)
        with driver(job, tmp_path / "second.log") as second:
            before = job.newest("commits")
            second.until(lambda job: job.newest("commits") > before + 1)
            os.killpg(first.process.pid, signal.SIGCONT)
            first.is_fenced()
            second.until(after_the_switch)
            finish(spark, mysql, table, job, writers)
            second.is_fenced()


@pytest.mark.grid
def test_a_newcomer_that_is_killed_at_once(spark: SparkSession, mysql: MySQLServer, table: str, tmp_path: Path) -> None:
    job = job_on(tmp_path, mysql, table)
    writers = Writers(mysql, table, 5, threads=1, keys=ROWS, pause=0.02)

    def claims(job: Job) -> set[str]:
        return {path.name for path in (job.checkpoint / "backlog" / "drivers").glob("*.json")}

    with writers, driver(job, tmp_path / "first.log") as first:
        first.until(in_snapshot)
        before = claims(job)
        with driver(job, tmp_path / "second.log") as second:
            second.until(lambda job: bool(claims(job) - before))
        first.is_fenced()
        finish(spark, mysql, table, job, writers)


@pytest.mark.grid
def test_keyed_operators(spark: SparkSession, tmp_path: Path) -> None:
    """One driver is overtaken before the state is handed over, the next one in stream mode."""
    chance = random.Random(17)
    paths = {name: str(tmp_path / name) for name in ("script", "checkpoint", "target")}
    tables = [keyed_rows(chance, 20_000) for _ in range(6)]
    for number, rows in enumerate(tables[:4]):
        append(Path(paths["script"]), rows, backlog=number < 3)
    job = Job(tmp_path, {}, "0")
    job.described = paths
    keyed = "tests.faults.keyed_job"

    def has_planned(job: Job) -> bool:
        return job.newest("offsets") >= 0

    def streams(job: Job) -> bool:
        return job.newest("commits") >= 1

    with driver(job, tmp_path / "first.log", keyed) as first:
        first.until(has_planned)
        with driver(job, tmp_path / "second.log", keyed) as second:
            first.is_fenced()
            second.until(streams)
            append(Path(paths["script"]), tables[4], backlog=False)
            query = start_keyed(spark, paths)
            try:
                second.is_fenced()
                append(Path(paths["script"]), tables[5], backlog=False)
                wait_for_rows(query, tables[5].num_rows)
            finally:
                query.stop()
    compare(spark, paths, tables)


@pytest.mark.grid
def test_a_query_of_sparks_own_source_and_sink(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, {}, None)
    job.described = {**job.described, "source": str(tmp_path / "files"), "interval": "1 second"}
    (tmp_path / "files").mkdir()
    written = 0

    def write(files: int) -> None:
        nonlocal written
        for _ in range(files):
            new = tmp_path / f"{written}.json"
            new.write_text("".join(f'{{"id": {written * 100 + i}}}\n' for i in range(100)))
            new.rename(tmp_path / "files" / new.name)
            written += 1

    def commits(number: int) -> Moment:
        return lambda job: job.newest("commits") >= number

    write(20)
    with driver(job, tmp_path / "first.log", "tests.faults.native_job") as first:
        first.until(commits(2))
        with driver(job, tmp_path / "second.log", "tests.faults.native_job") as second:
            first.is_fenced()
            write(20)
            second.until(commits(8))
            query = start_native(spark, job.described)
            try:
                second.is_fenced()
                write(4)
                query.processAllAvailable()
            finally:
                query.stop()
    found = Counter(row.id for row in spark.read.format("delta").load(str(job.target)).collect())
    assert found == Counter(range(written * 100))
