"""SIGKILL of the driver while ``bs.verify`` repairs the target of the running query."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import Writers, options, table_rows

from .job import start
from .test_kill_driver import Job, create, mysql, run_and_kill, wait_for
from .watching import versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["mysql"]


@functools.cache
def is_repair(version: Path) -> bool:
    return "repair after a verification" in version.read_text()


def repairs(job: Job) -> int:
    return sum(map(is_repair, versions(job.target)))


def is_repaired(job: Job) -> bool:
    """A repair is committed, and the query's next batch is not."""
    return any(map(is_repair, versions(job.target)[-1:]))


def is_corrupted(job: Job) -> bool:
    """The target is corrupted for the second time, and not repaired."""
    done = repairs(job)
    return done > 0 and not is_repaired(job)


@pytest.mark.grid
@pytest.mark.parametrize("moment", [is_repaired, pytest.param(is_corrupted, marks=pytest.mark.grid)])
def test_a_driver_that_is_killed_around_a_repair_loses_and_repeats_nothing(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, moment: object
) -> None:
    table = f"faults.{moment.__name__}"  # type: ignore[attr-defined]
    create(mysql, table)
    job = Job(tmp_path, options(mysql, table, chunkSize=5_000), None)
    writers = Writers(mysql, table, 3, threads=1, keys=2_000, pause=0.02)
    with writers:
        run_and_kill(job, moment, tmp_path / "driver.log", "tests.faults.repair_job")  # type: ignore[arg-type]
        query = start(spark, job.described)
        try:
            batch = job.newest("offsets")
            wait_for(lambda: job.newest("commits") > batch or not query.isActive, "a batch after the kill", 0.1)
            bs.verify(query, repair=True)
            assert bs.verify(query).is_equal
            writers.__exit__()
            query.processAllAvailable()
        finally:
            query.stop()
    found = Counter(tuple(row) for row in spark.read.format("delta").load(str(job.target)).collect())
    assert found == Counter(table_rows(mysql, table).values())
    assert job.transactions() == sorted(set(job.transactions())), "a batch was written twice"
