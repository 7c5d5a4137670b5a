"""SIGKILL of a driver that dies of a batch: the second replay is Spark's, and the rows are exact."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.common.fault_points import VARIABLE
from tests.connectors.mysql_cdc.replay import options, table_rows

from .job import start
from .test_kill_driver import LIMIT_S, Job, after_the_switch, create, run_and_kill, started
from .watching import versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "threshold", [pytest.param("1 ms", id="backlog"), pytest.param(None, id="live", marks=pytest.mark.grid)]
)
def test_a_batch_of_which_the_driver_dies(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, threshold: str | None
) -> None:
    table, log = f"faults.replays_{threshold is None}", tmp_path / "driver.log"
    create(mysql, table)
    lag = {} if threshold is None else {"backlogLagThreshold": threshold}
    job = Job(tmp_path, options(mysql, table, maxRowsPerBatch=2_000, **lag), "1 second")
    run_and_kill(job, after_the_switch, log)
    for part in range(5):
        mysql.execute(f"UPDATE {table} SET n = n + 100000 WHERE id % 10 = {part}")
        mysql.execute(f"DELETE FROM {table} WHERE id % 100 = {part + 50}")
    job.environment[VARIABLE] = "tests.faults.dies_at_commit"
    for _ in range(2):
        assert started(job, log).wait(LIMIT_S) < 0, log.read_text()[-3000:]
    batch = job.newest("offsets")
    assert job.newest("commits") < batch
    query = start(spark, job.described)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    found = Counter(tuple(row) for row in spark.read.format("delta").load(str(job.target)).collect())
    assert found == Counter(table_rows(mysql, table).values())
    writers = _writers(job.target)
    assert list(writers) == sorted(writers), "a batch was written twice"
    assert writers[batch].startswith("Apache-Spark")
    assert {number: engine for number, engine in writers.items() if number > batch and "delta-rs" not in engine} == {}
    assert max(writers) > batch
    backlog = [number for number in writers if number > batch and job.offset(number).get("isBacklog")]
    assert bool(backlog) == (threshold is not None)


def _writers(table: Path) -> dict[int, str]:
    """Which engine committed each batch."""
    found = {}
    for path in versions(table):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        engine = next((str(a["commitInfo"].get("engineInfo", "delta-rs")) for a in actions if "commitInfo" in a), "")
        found.update({action["txn"]["version"]: engine for action in actions if "txn" in action})
    return found
