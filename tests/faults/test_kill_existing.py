"""SIGKILL of the driver while a new checkpoint replaces the rows of an existing target: the exact table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import Writers, options

from .test_kill_driver import (
    ROWS,
    Job,
    Moment,
    between_the_two_commits_in_backlog,
    create,
    finish,
    in_last_snapshot_batch,
    in_snapshot,
    run_and_kill,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def keys_of(job: Job) -> set[int]:
    """The batches whose keys are in the checkpoint, complete or not."""
    return {int(path.name.removeprefix("batch-")) for path in (job.checkpoint / "backlog/sink/keys").glob("batch-*")}


def writes_keys(job: Job) -> bool:
    """The keys of the batch are being written, or the MERGE that follows them runs."""
    planned = job.newest("offsets")
    return planned in keys_of(job) and planned not in job.transactions()


def has_replaced(job: Job) -> bool:
    """The target has the last batch of the snapshot, Spark's commit log does not."""
    return in_last_snapshot_batch(job) and job.newest("offsets") in job.transactions()


@pytest.mark.grid
@pytest.mark.parametrize(
    ("moments", "during"),
    [
        pytest.param([writes_keys, has_replaced], "1 second", id="keys and last"),
        pytest.param(
            [
                writes_keys,
                between_the_two_commits_in_backlog,
                writes_keys,
                in_snapshot,
                in_last_snapshot_batch,
                has_replaced,
            ],
            "1 second",
            id="many lives",
            marks=pytest.mark.grid,
        ),
        pytest.param(
            [in_last_snapshot_batch, has_replaced], "0", id="one commit", marks=pytest.mark.grid
        ),
    ],
)  # fmt: skip
def test_a_killed_driver_replaces_exactly_the_rows_that_were_there(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, moments: list[Moment], during: str
) -> None:
    table = f"faults.existing_{len(moments)}_{during[0]}"
    mysql.execute(f"DROP TABLE IF EXISTS {table}")
    create(mysql, table)
    mysql.execute(f"DELETE FROM {table} WHERE id % 3 = 0")
    job = Job(
        tmp_path, options(mysql, table, chunkSize=1_000, maxRowsPerBatch=4_000 if len(moments) > 2 else 8_000), during
    )
    # Rows that the source still has, has no more, and never had.
    old = spark.range(0, 2 * ROWS, 2).selectExpr("CAST(id AS INT) id", "-1 n", "'old' v")
    old.write.format("delta").save(str(job.target))
    writers = Writers(mysql, table, 3, threads=1, keys=ROWS, pause=0.02)
    with writers:
        for moment in moments:
            run_and_kill(job, moment, tmp_path / "driver.log")
        finish(spark, mysql, table, job, writers)
    assert not keys_of(job)
