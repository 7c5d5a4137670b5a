"""MySQL shows a position in its log before it sends the log up to there. No change is skipped."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog import planner
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.binlog.reading import read_changes
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.server.mysql import end_position
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import BacklogError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS, options, read, reader, take

pytestmark = pytest.mark.parametrize("mysql", SERVERS[:1], indirect=True)  # MariaDB tells what it has synced

SYNC_DELAY_US = 400_000


@pytest.fixture
def slow(mysql: MySQLServer) -> Iterator[MySQLServer]:
    """A server that writes a transaction to its log and syncs it a while after."""
    mysql.execute("CREATE DATABASE IF NOT EXISTS slow")
    mysql.execute("DROP TABLE IF EXISTS slow.t")
    ((before,),) = mysql.execute("SELECT @@global.sync_binlog")
    mysql.execute("SET GLOBAL sync_binlog = 1")
    yield mysql
    mysql.execute(f"SET GLOBAL binlog_group_commit_sync_delay = 0, GLOBAL sync_binlog = {before}")


@contextmanager
def unsynced(server: MySQLServer, statement: str) -> Iterator[None]:
    """A transaction that is in the log, and neither synced nor visible as the block begins."""

    def end() -> BinlogPosition:
        with server.connect() as connection:
            return end_position(connection, MySqlOptions.parse(options(server, "slow.t")))

    server.execute(f"SET GLOBAL binlog_group_commit_sync_delay = {SYNC_DELAY_US}")
    before = end()
    commit = threading.Thread(target=server.execute, args=(statement,))
    commit.start()
    while end() == before:
        pass
    assert commit.is_alive()
    server.execute("SET GLOBAL binlog_group_commit_sync_delay = 0")  # for those after it
    yield
    commit.join()


def test_a_live_stream_has_each_row_once(slow: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "QUIET_MS", -1)  # where nothing of the table comes, offsets move on at once
    slow.execute("CREATE TABLE slow.t (id INT PRIMARY KEY)")
    stream = reader(options(slow, "slow.t"))
    offset: dict[str, Any] = stream.initialOffset()
    found: list[int] = []

    def follow() -> None:
        nonlocal offset
        offset, rows = take(stream, offset)
        found.extend(row[0] for row in rows)

    while offset["isProcessingBacklog"]:
        follow()
    for key in range(4):
        with unsynced(slow, f"INSERT INTO slow.t VALUES ({key})"):
            follow()
    slow.execute("INSERT INTO slow.t VALUES (4)")
    follow()
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("key", ["PRIMARY KEY", "NULL"])
def test_chunks_that_share_a_log_are_all_as_of_the_watermark(slow: MySQLServer, key: str) -> None:
    slow.execute(f"CREATE TABLE slow.t (id INT {key}, v INT, KEY (id))")
    slow.execute(f"INSERT INTO slow.t VALUES {', '.join(f'({n}, 0)' for n in range(100))}")
    stream = reader(options(slow, "slow.t", chunkSize=20, chunkKeyColumn="id"))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(1000))
    first, *others = stream.partitions(start, end)
    assert others
    with unsynced(slow, "UPDATE slow.t SET v = 1"):
        rows = read(stream, first)
    for partition in others:
        rows += read(stream, partition)
    assert Counter(row[:2] for row in rows) == Counter((n, 0) for n in range(100))


def test_a_bounded_snapshot_does_not_end_before_its_log_does(slow: MySQLServer) -> None:
    slow.execute("CREATE TABLE slow.t (id INT PRIMARY KEY)")
    stream = reader(options(slow, "slow.t", **{"startup.mode": "snapshot"}))
    offset: dict[str, Any] = stream.initialOffset()
    found: list[int] = []
    with unsynced(slow, "INSERT INTO slow.t VALUES (1)"):
        while (following := take(stream, offset))[0] is not offset:
            offset = following[0]
            found += [row[0] for row in following[1]]
    assert offset["isFinished"]
    assert found == [1]


def test_a_log_that_is_not_sent_is_an_error(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS slow")
    mysql.execute("DROP TABLE IF EXISTS slow.t")
    mysql.execute("CREATE TABLE slow.t (id INT PRIMARY KEY)")
    given = options(mysql, "slow.t")
    parsed = MySqlOptions.parse(given)
    with mysql.connect() as connection:
        end = end_position(connection, parsed)
    beyond = BinlogPosition(end.file, end.pos + 1000)
    waits: list[float] = []
    with pytest.raises(BacklogError, match=f"reaches to .*{beyond.pos}.* sent it up to {end.file}:{end.pos} only"):
        list(read_changes(parsed, check(given), end, beyond, wait=waits.append))
    assert 60 <= sum(waits) <= 61
