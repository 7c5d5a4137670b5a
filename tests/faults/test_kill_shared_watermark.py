"""SIGKILL of the driver while snapshot batches share a low watermark, as they do after 512 batches.

``tests/torture`` has them in every run, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.connectors.mysql_cdc.offsets import Offset
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS, Writers, options

from .test_kill_driver import ROWS, Job, create, finish, run_and_kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Run by each Python process of Spark at its start: batches share a watermark after four of them.
_SHARES_EARLY = """
from backlog_spark.connectors.mysql_cdc.snapshot import planner

planner._SHARE = 4
"""


@pytest.fixture(scope="module", params=SERVERS)
def mysql(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    with request.param(fast=True) as server:
        yield server


def shares(job: Job) -> bool:
    """The planned batch goes on at the watermark of the one before it."""
    last = job.newest("offsets")
    if not job.running().get("isProcessingBacklog") or last < 1:
        return False
    before, planned = (Offset.from_json(job.offset(batch)) for batch in (last - 1, last))
    return len(before.ranges) == len(planned.ranges) and before.ranges[-1].low == planned.ranges[-1].low


def is_planned_and_shares(job: Job) -> bool:
    return shares(job) and job.newest("offsets") not in job.transactions()


def is_written_and_shares(job: Job) -> bool:
    return shares(job) and job.newest("offsets") in job.transactions()


@pytest.mark.grid
def test_a_driver_that_is_killed_between_batches_at_one_watermark(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    table = "faults.shared"
    create(mysql, table)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_SHARES_EARLY)
    job = Job(tmp_path, options(mysql, table, chunkSize=500, maxRowsPerBatch=1_500), None)
    job.environment["PYTHONPATH"] = str(tmp_path / "site")
    # Else Spark's processes come from one that was started before, and have its own sitecustomize.
    job.described["conf"] = {"spark.backlog.fastPythonStart": "false"}
    writers = Writers(mysql, table, 3, threads=1, keys=ROWS, pause=0.02)
    with writers:
        for moment in (is_planned_and_shares, is_written_and_shares):
            run_and_kill(job, moment, tmp_path / "driver.log")
        finish(spark, mysql, table, job, writers)
    assert writers.commits > 0
