"""SIGKILL of a driver that keeps versions, or marks deleted rows: exactly what a replay of the source's log has."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import Writers, options
from tests.sinks.keeping_rows import Change, marked, plain_rows, versions

from .job import start
from .test_kill_driver import (
    Job,
    Moment,
    before_the_commits_in_binary_log,
    between_the_two_commits_in_backlog,
    between_the_two_commits_in_binary_log,
    create,
    mysql,
    run_and_kill,
    wait_for,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["mysql"]

FORMS: dict[str, dict[str, Any]] = {
    "scd2": {"history": "scd2"},
    "soft": {"deletes": "soft", "deleted_at_column": "gone_at"},
}


def copy_log(spark: SparkSession, job: Job) -> None:
    """Append all rows of the stream to another table."""
    source = bs.source("mysql_cdc", name="log", options={**job.described["source"], "maxRowsPerBatch": "100000"})
    made = source.write("log").trigger(available_now=True).option("checkpointLocation", f"{job.checkpoint}_log")
    assert made.to(bs.DeltaAppend(f"{job.target}_log")).start(spark).awaitTermination(300)


@pytest.mark.slow
@pytest.mark.parametrize("form", [f if f == "scd2" else pytest.param(f, marks=pytest.mark.grid) for f in FORMS])
@pytest.mark.parametrize(
    "moments",
    [
        [between_the_two_commits_in_backlog, before_the_commits_in_binary_log, between_the_two_commits_in_binary_log],
        pytest.param([between_the_two_commits_in_binary_log] * 6, marks=pytest.mark.grid),
    ],
)
def test_a_killed_driver_keeps_exactly_the_versions_of_the_log(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, form: str, moments: list[Moment]
) -> None:
    table = f"faults.kept_{form}_{len(moments)}"
    mysql.execute(f"DROP TABLE IF EXISTS {table}")
    create(mysql, table)
    job = Job(tmp_path, options(mysql, table, chunkSize=4_000, maxRowsPerBatch=8_000), "1 second")
    job.described["sink"] = FORMS[form]
    copy_log(spark, job)
    if moments[0] is between_the_two_commits_in_backlog:
        run_and_kill(job, moments[0], tmp_path / "driver.log")
    query = start(spark, job.described)
    try:
        wait_for(lambda: not query.isProcessingBacklog, "the end of the snapshot", 0.1)
        query.processAllAvailable()
    finally:
        query.stop()
    time.sleep(1.1)  # times in the binary log are whole seconds
    (begin,) = mysql.execute("SELECT UNIX_TIMESTAMP()")[0]
    writers = Writers(mysql, table, 3, threads=2, keys=2_000, pause=0.02)
    with writers:
        for moment in moments:
            if moment is not between_the_two_commits_in_backlog:
                run_and_kill(job, moment, tmp_path / "driver.log")
        query = start(spark, job.described)
        try:
            batch = job.newest("offsets")
            wait_for(lambda: job.newest("commits") > batch or not query.isActive, "a batch after the kill", 0.1)
            writers.__exit__()
            query.processAllAvailable()
        finally:
            query.stop()
    assert query.exception() is None
    copy_log(spark, job)
    log = spark.read.format("delta").load(f"{job.target}_log")
    rows = log.select("id", "v", "n", "_change_type", "_commit_timestamp", "_commit_seq").collect()
    changes = [Change(*row) for row in rows]
    found = spark.read.format("delta").load(str(job.target))
    names = ["valid_from", "valid_to", "is_current"] if form == "scd2" else ["_is_deleted", "gone_at"]
    kept = found.select("id", "v", "n", *names).collect()
    expected = versions(changes) if form == "scd2" else marked(changes)
    assert plain_rows(since(kept, begin)) == plain_rows(since(expected.elements(), begin))
    assert len(kept) > len({row["id"] for row in kept}) or form == "soft"
    assert job.transactions() == sorted(set(job.transactions())), "a batch was written twice"


def since(rows: Iterable[Any], begin: int) -> list[list[object]]:
    """Times of the two snapshots differ: they count as none."""
    return [[None if hasattr(each, "timestamp") and each.timestamp() < begin else each for each in row] for row in rows]
