"""SIGKILL of ``backlog-spark run`` while it copies a whole database: each Delta table has exactly its table's rows."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import start
from tests.connectors.mysql_cdc.replay import Writers
from tests.pipelines.test_running import running, settings, wait_for

from .watching import newest, transactions

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from backlog_spark.embedded.mysql import MySQLServer

ROWS = 3_000
TABLES = ("one", "three", "two")


def create(server: MySQLServer, name: str) -> None:
    server.execute(f"CREATE TABLE killed.{name} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    server.execute(f"INSERT INTO killed.{name} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(ROWS)))


def newest_of(root: Path, name: str) -> int:
    return max(transactions(root / "lake" / "killed" / name), default=-1)


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

    def between_two_tables() -> bool:
        """A batch with two tables is in the first of them; Spark has not committed it."""
        planned = newest(tmp_path / "c" / "offsets")
        return planned > newest(tmp_path / "c" / "commits") and newest_of(tmp_path, "three") == planned

    with Writers(mysql, "killed.one", 5, threads=1, keys=ROWS):
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
