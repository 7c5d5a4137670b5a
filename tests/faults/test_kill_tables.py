"""SIGKILL of ``backlog-spark run`` while it copies a whole database: each Delta table has exactly its table's rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import start
from backlog_spark.sinks.base import BatchInfo
from tests.connectors.mysql_cdc.replay import Writers
from tests.pipelines.test_running import running, settings, wait_for
from tests.sinks.test_put_back import TABLES as PUT_BACK
from tests.sinks.test_put_back import batch_of, context_of, copied, ids

from .watching import newest, transactions

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

ROWS = 3_000
TABLES = ("one", "three", "two")


def create(server: MySQLServer, name: str) -> None:
    server.execute(f"CREATE TABLE killed.{name} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    server.execute(f"INSERT INTO killed.{name} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(ROWS)))


def newest_of(root: Path, name: str) -> int:
    return max(transactions(root / "lake" / "killed" / name), default=-1)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed_again", [False, pytest.param(True, marks=pytest.mark.grid)])
def test_a_killed_copy_of_a_database_is_exact(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, is_killed_again: bool
) -> None:
    mysql.execute("DROP DATABASE IF EXISTS killed")
    mysql.execute("CREATE DATABASE killed")
    for name in TABLES:
        create(mysql, name)
    file, log = tmp_path / "pipeline.yaml", tmp_path / "log"
    file.write_text(f"""\
source: {{type: mysql_cdc, host: 127.0.0.1, port: {mysql.port}, user: root, tables: killed.*, chunkSize: 500,
  maxRowsPerBatch: 4000}}
sink: {{type: delta_tables, path: {tmp_path}/lake}}
pipeline:
  name: killed
  checkpoint: {tmp_path}/c
  interval: 300 ms
  settings:
{settings()}""")

    def run_and_kill(moment: Any, what: str) -> None:
        with running(file, log) as process:

            def reached() -> bool:
                assert process.poll() is None, log.read_text()[-3000:]
                return bool(moment())

            wait_for(reached, what)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        check_notes(tmp_path, TABLES)

    def between_two_tables() -> bool:
        """A batch with two tables is in the first of them; Spark has not committed it."""
        planned = newest(tmp_path / "c" / "offsets")
        return planned > newest(tmp_path / "c" / "commits") and newest_of(tmp_path, "three") == planned

    with Writers(mysql, "killed.one", 5, threads=1, keys=ROWS, pause=0.02):
        run_and_kill(between_two_tables, "a batch in the second table")
        # In the log, with a table that was not there before.
        create(mysql, "later")
        if is_killed_again:
            run_and_kill(lambda: newest_of(tmp_path, "later") >= 0, "the new table")
    pipeline = load(str(file), {})
    (query,) = start(pipeline, spark)
    try:
        wait_for(lambda: not query.isProcessingBacklog or not query.isActive, "the end of the backlog")
        last = ROWS + 1
        mysql.execute(f"INSERT INTO killed.later VALUES ({last}, 0, 'last')")
        wait_for(lambda: not query.isActive or has(spark, tmp_path, last), "the last row")
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    for name in (*TABLES, "later"):
        target = tmp_path / "lake" / "killed" / name
        found = Counter(tuple(row) for row in spark.read.format("delta").load(str(target)).collect())
        assert found == Counter(mysql.execute(f"SELECT * FROM killed.{name}")), name
        batches = transactions(target)
        assert batches == sorted(set(batches)), f"a batch was written twice into {name}"


def check_notes(root: Path, names: tuple[str, ...]) -> None:
    """Each committed batch is noted, and each noted batch is in its tables."""
    files = [*(root / "lake" / "_backlog_tables").glob("*/backlog/batches-*.json")]
    file = max(files, key=lambda each: int(each.stem.partition("-")[2]), default=None)
    found = json.loads(file.read_text()) if file else {"batch": -1, "tables": []}
    noted = {table: batch for _, table, batch in found["tables"]}
    committed = newest(root / "c" / "commits")
    assert found["batch"] >= committed
    for name in names:
        written = transactions(root / "lake" / "killed" / name)
        assert noted.get(name, -1) in (-1, *written), name
        assert noted.get(name, -1) >= max((batch for batch in written if batch <= committed), default=-1), name


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.grid)])
def test_a_kill_around_the_note_of_a_batch(spark: SparkSession, tmp_path: Path, moment: str) -> None:
    """Spark repeats the batch. Until it is noted, a table may be put back as it was before the batch."""
    lake, copy, log = tmp_path / "lake", tmp_path / "copy", tmp_path / "log"
    copied(spark, lake, [list(PUT_BACK), [PUT_BACK[1]]])
    sink = bs.DeltaTables(str(lake))
    own = [sink.path_of(*name) for name in PUT_BACK]
    shutil.copytree(own[0], copy)
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tests.faults.tables_job", str(lake), "2", moment]
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    assert code == -signal.SIGKILL, log.read_text()[-3000:]
    assert all(ids(path)[-1] == 2 for path in own)
    shutil.copytree(own[0], tmp_path / "with batch 2")
    shutil.rmtree(own[0])
    shutil.copytree(copy, own[0])
    context = context_of(spark, lake, 1, planned=2)
    if moment == "after":
        with pytest.raises(bs.BacklogError, match=r"shop\.a: .* lacks batches of this query"):
            sink.open(context)
        shutil.rmtree(own[0])
        shutil.copytree(tmp_path / "with batch 2", own[0])
    sink.open(context)
    sink.write(batch_of(spark, 2, PUT_BACK), BatchInfo(2, is_backlog=False))
    assert [ids(path) for path in own] == [[0, 2], [0, 1, 2], [0, 2]]
    sink.open(context_of(spark, lake, 2))


def has(spark: SparkSession, root: Path, key: int) -> bool:
    if newest_of(root, "later") < 0:
        return False
    return spark.read.format("delta").load(f"{root}/lake/killed/later").where(f"id = {key}").count() == 1


@pytest.mark.grid
def test_a_kill_after_a_column_was_widened(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    """The table is wider then, and lacks the batch whose rows made it so."""
    mysql.execute("DROP DATABASE IF EXISTS killed")
    mysql.execute("CREATE DATABASE killed")
    create(mysql, "one")
    file, log, target = tmp_path / "pipeline.yaml", tmp_path / "log", tmp_path / "lake" / "killed" / "one"
    file.write_text(f"""\
source: {{type: mysql_cdc, host: 127.0.0.1, port: {mysql.port}, user: root, tables: killed.*}}
sink: {{type: delta_tables, path: {tmp_path}/lake, properties: {{delta.enableTypeWidening: "true"}}}}
pipeline:
  name: killed
  checkpoint: {tmp_path}/c
  interval: 300 ms
  settings:
{settings()}""")

    def is_wide() -> bool:
        logs = (path.read_text() for path in (target / "_delta_log").glob("*.json"))
        return any('\\"name\\":\\"n\\",\\"type\\":\\"long\\"' in text for text in logs)

    with running(file, log) as process:
        wait_for(lambda: newest_of(tmp_path, "one") >= 0 or process.poll() is not None, "the snapshot")
        mysql.execute("ALTER TABLE killed.one MODIFY n BIGINT")
        mysql.execute(f"INSERT INTO killed.one VALUES ({ROWS}, 9000000000, 'wide')")
        wait_for(lambda: is_wide() or process.poll() is not None, "the wider column")
        assert process.poll() is None, log.read_text()[-3000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    pipeline = load(str(file), {})
    (query,) = start(pipeline, spark)
    try:
        wait_for(lambda: not query.isProcessingBacklog or not query.isActive, "the end of the backlog")
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    found = Counter(tuple(row) for row in spark.read.format("delta").load(str(target)).collect())
    assert found == Counter(mysql.execute("SELECT * FROM killed.one"))
    batches = transactions(target)
    assert batches == sorted(set(batches))
