"""SIGKILL of a copy of a database whose tables are dropped, and whose log is purged, before it starts again."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import start
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import forget_log
from tests.pipelines.test_running import running, settings, wait_for

from .watching import newest, transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 500


@pytest.fixture(scope="module")
def mysql() -> Iterator[MySQLServer]:
    with MySQLServer() as server:  # one of its own, since its log is purged
        yield server


class Copy:
    """A pipeline that copies the database ``dropped``."""

    def __init__(self, server: MySQLServer, root: Path) -> None:
        self._server, self._root = server, root
        self.lake, self.checkpoint = root / "lake" / "dropped", root / "c"
        self._file = root / "pipeline.yaml"
        self._file.write_text(f"""\
source: {{type: mysql_cdc, host: 127.0.0.1, port: {server.port}, user: root, tables: dropped.*,
  snapshot.mode: when_needed}}
sink: {{type: delta_tables, path: {root}/lake}}
pipeline:
  name: dropped
  checkpoint: {root}/c
  interval: 300 ms
  settings:
{settings(**{"spark.databricks.delta.snapshotPartitions": "2"})}""")

    def create(self, name: str, columns: str) -> None:
        self._server.execute(f"CREATE TABLE dropped.{name} ({columns})")
        width = len(self._server.execute(f"SHOW COLUMNS FROM dropped.{name}"))
        values = (f"({', '.join([str(i)] * width)})" for i in range(ROWS))
        self._server.execute(f"INSERT INTO dropped.{name} VALUES " + ",".join(values))

    def newest_of(self, name: str) -> int:
        return max(transactions(self.lake / name), default=-1)

    def is_planned(self) -> bool:
        return newest(self.checkpoint / "offsets") > newest(self.checkpoint / "commits")

    def killed(self, change: Callable[[], object], moment: Callable[[], bool], what: str) -> None:
        """Run it, change the server when the snapshot is there, and kill it at a moment."""
        log = self._root / "log"
        with running(self._file, log) as process:

            def reached(of: Callable[[], bool]) -> bool:
                assert process.poll() is None, log.read_text()[-3000:]
                return of()

            wait_for(lambda: reached(lambda: newest(self.checkpoint / "commits") >= 0), "the snapshot", every_s=0.001)
            change()
            wait_for(lambda: reached(moment), what, every_s=0.001)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def finished(self, spark: SparkSession, *gone: str) -> None:
        """Run it again, twice, and compare each table with the server's; dropped ones are empty."""
        for last in (9_000, 9_001):
            self._run(spark, last)
        for path in self.lake.iterdir():
            wanted = [] if path.name in gone else self._server.execute(f"SELECT * FROM dropped.{path.name}")
            assert self._rows(spark, path.name) == Counter(wanted), path.name
            batches = transactions(path)
            assert batches == sorted(set(batches)), f"a batch was written twice into {path.name}"

    def _run(self, spark: SparkSession, last: int) -> None:
        (query,) = start(load(str(self._file), {}), spark)
        try:
            self._server.execute(f"INSERT INTO dropped.a VALUES ({last}, 0)")
            wait_for(lambda: not query.isActive or self._has(spark, last), "the last row")
            query.processAllAvailable()
        finally:
            query.stop()
        assert query.exception() is None

    def _rows(self, spark: SparkSession, name: str) -> Counter[tuple[object, ...]]:
        return Counter(tuple(row) for row in spark.read.format("delta").load(str(self.lake / name)).collect())

    def _has(self, spark: SparkSession, last: int) -> bool:
        return any(row[0] == last for row in self._rows(spark, "a"))


@pytest.fixture
def copy(mysql: MySQLServer, tmp_path: Path) -> Copy:
    mysql.execute("DROP DATABASE IF EXISTS dropped")
    mysql.execute("CREATE DATABASE dropped")
    made = Copy(mysql, tmp_path)
    made.create("a", "id INT PRIMARY KEY, n INT")
    return made


@pytest.mark.grid
def test_a_kill_between_the_mark_and_the_first_rows_of_a_table_that_never_comes(
    spark: SparkSession, mysql: MySQLServer, copy: Copy, tmp_path: Path
) -> None:
    """Its only batch is replayed without rows."""
    copy.killed(
        lambda: copy.create("later", "code VARCHAR(9) PRIMARY KEY"),
        lambda: any((tmp_path / "lake" / "_backlog_tables").glob("*/tables/dropped.later.json")),
        "the mark of the new table",
    )
    assert copy.newest_of("later") < 0, "killed too late"
    assert copy.is_planned()
    mysql.execute("DROP TABLE dropped.later")
    forget_log(mysql)
    copy.finished(spark, "later")


@pytest.mark.grid
def test_a_kill_while_the_tables_are_emptied(spark: SparkSession, mysql: MySQLServer, copy: Copy) -> None:
    """The batch with the truncate rows is in one table, and not in those that were dropped."""
    copy.create("b", "code VARCHAR(9) PRIMARY KEY, x INT, y INT")
    copy.create("c", "y BIGINT, x TEXT, id BIGINT PRIMARY KEY")
    copy.killed(lambda: 0, lambda: copy.newest_of("c") >= 0 and not copy.is_planned(), "the last table")
    mysql.execute("DROP TABLE dropped.b, dropped.c")
    mysql.execute("DELETE FROM dropped.a WHERE id % 3 = 0")
    forget_log(mysql)
    before = copy.newest_of("a")
    copy.killed(lambda: 0, lambda: copy.newest_of("a") > before, "the first emptied table")
    assert copy.newest_of("c") <= before, "killed too late"
    copy.finished(spark, "b", "c")
