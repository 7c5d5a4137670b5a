"""SIGKILL of a driver between two targets of a query: each target has each batch once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import Writers, options, table_rows

from .targets_job import start
from .test_kill_driver import ROWS, create, wait_for
from .watching import transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 300


def killed(job: dict[str, Any], log: Path) -> None:
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tests.faults.targets_job", json.dumps(job)]
        died = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, timeout=LIMIT_S, check=False
        )
    assert died.returncode == -signal.SIGKILL, log.read_text()[-3000:]


@pytest.mark.slow
def test_each_target_has_each_batch_once(spark: SparkSession, pool: Callable[..., MySQLServer], tmp_path: Path) -> None:
    mysql, table = pool(MySQLServer), "faults.targets"
    create(mysql, table)
    places = {name: str(tmp_path / name) for name in ("checkpoint", "target", "log", "second log")}
    job = {"source": options(mysql, table, chunkSize=1_000, maxRowsPerBatch=4_000), "die_at": None, **places}
    writers = Writers(mysql, table, 3, threads=1, keys=ROWS, pause=0.02)
    with writers:
        # In the snapshot, and in the binary log.
        for batch in (2, 9):
            killed({**job, "die_at": batch}, tmp_path / "driver.log")
            written = [max(transactions(Path(job[name]))) for name in ("target", "log", "second log")]
            assert written == [batch, batch - 1, batch - 1]
        query = start(spark, job)
        try:
            wait_for(lambda: query.backlogProgress.commits_after > 1 or not query.isActive, "live batches", 0.1)
            assert query.isActive, query.exception()
            writers.__exit__()
            query.processAllAvailable()
        finally:
            query.stop()
    assert query.exception() is None
    for name in ("target", "log", "second log"):
        batches = transactions(Path(job[name]))
        assert batches == list(range(len(batches))), name
    rows = {name: spark.read.format("delta").load(job[name]) for name in ("target", "log", "second log")}
    assert Counter(map(tuple, rows["target"].collect())) == Counter(table_rows(mysql, table).values())
    logged = Counter(map(tuple, rows["log"].collect()))
    assert logged == Counter(map(tuple, rows["second log"].collect()))
    assert set(logged.values()) == {1}, "a change twice"
    ids = rows["log"].groupBy("id").agg({"_commit_seq": "max"}).collect()
    newest = {row[0]: row[1] for row in ids}
    kept = rows["log"].where("_change_type <> 'update_preimage'")
    changes = {(row.id, row._commit_seq): row for row in kept.collect()}
    replayed = (changes[key, seq] for key, seq in newest.items() if changes[key, seq]._change_type != "delete")
    assert Counter((row.id, row.n, row.v) for row in replayed) == Counter(table_rows(mysql, table).values())
