"""Rows of the snapshot from a replica that lags, and the log from its primary, with real replication."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.server import replica
from backlog_spark.connectors.mysql_cdc.snapshot import reading
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.connectors.mysql_cdc.stream.reader import MySqlCdcStreamReader
from backlog_spark.errors import BacklogError, SettingError
from servers.mariadb import MARIADB_SERVERS
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import Writers, apply, is_mariadb, options, read, reader, table_rows
from tests.connectors.mysql_cdc.server.test_failover import ROWS, TABLE, caught_up, replicating, word

Pair = tuple[MySQLServer, MySQLServer]


@pytest.fixture(scope="module", params=[pytest.param(MySQLServer, id="mysql"), MARIADB_SERVERS[0]])
def servers(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        yield replicating(stack, request.param)


@pytest.fixture
def pair(servers: Pair) -> Pair:
    first, second = servers
    first.execute(f"DROP TABLE IF EXISTS {TABLE}")
    first.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    first.execute(f"INSERT INTO {TABLE} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(ROWS)))
    caught_up(first, second)
    return first, second


def given(pair: Pair, **more: object) -> dict[str, str]:
    return options(pair[0], TABLE, **{"snapshot.host": "127.0.0.1", "snapshot.port": pair[1].port, **more})


def stream_of(pair: Pair, **more: object) -> MySqlCdcStreamReader:
    discard_rewind_log()
    return reader(given(pair, **more))


@contextlib.contextmanager
def lagging(server: MySQLServer, seed: int) -> Iterator[None]:
    """Stops and starts the applier of a replica, again and again. It runs at the end."""
    done, chance = threading.Event(), random.Random(seed)

    def stop_and_start() -> None:
        while not done.wait(chance.uniform(0, 0.1)):
            server.execute(f"STOP {word(server)} SQL_THREAD")
            done.wait(chance.uniform(0, 0.5))
            server.execute(f"START {word(server)} SQL_THREAD")

    thread = threading.Thread(target=stop_and_start)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(("seed", "ahead"), [(1, reading._AHEAD), (2, 0)], ids=["in memory", "from a view"])
def test_a_snapshot_of_a_replica_that_lags_is_exact(
    pair: Pair, seed: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_AHEAD", ahead)
    monkeypatch.setattr(reading, "_large", [])
    first, second = pair
    stream = stream_of(pair, chunkSize=40)
    state: dict[int, tuple[Any, ...]] = {}
    misfits: list[str] = []
    offset = stream.initialOffset()
    with Writers(first, TABLE, seed, keys=ROWS), lagging(second, seed):
        while offset["isProcessingBacklog"]:
            end = stream.latestOffset(offset, ReadMaxRows(70))
            rows = [row for p in stream.partitions(offset, end) for row in read(stream, p)]
            discard_rewind_log()  # a task that is tried again gives the same rows
            assert sorted(rows) == sorted(row for p in stream.partitions(offset, end) for row in read(stream, p))
            misfits += apply(state, rows)
            offset = end
    while (end := stream.latestOffset(offset, ReadMaxRows(500))) is not offset:
        misfits += apply(state, [row for p in stream.partitions(offset, end) for row in read(stream, p)])
        offset = end
    assert misfits == []
    assert state == table_rows(first, TABLE)


def test_rows_that_have_not_changed_come_from_the_replica(pair: Pair) -> None:
    first, second = pair
    with second.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"UPDATE {TABLE} SET v = 'replica'")
        connection.commit()
    stream = stream_of(pair)
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10**6))
    first.execute(f"UPDATE {TABLE} SET v = 'later' WHERE id < 10")
    rows = [row for p in stream.partitions(stream.initialOffset(), end) for row in read(stream, p)]
    assert {row[0]: row[2] for row in rows} == {i: "s" if i < 10 else "replica" for i in range(ROWS)}


def test_a_replica_that_does_not_get_there_is_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair
    monkeypatch.setattr(replica, "_LIMIT_S", 0)
    monkeypatch.setattr(replica, "_SLICE_S", 1)
    stream = stream_of(pair)
    second.execute(f"STOP {word(second)}")
    try:
        first.execute(f"UPDATE {TABLE} SET n = 0")
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadMaxRows(10**6))
        with pytest.raises(BacklogError, match=f"replica 127.0.0.1:{second.port} has not applied") as raised:
            read(stream, stream.partitions(start, end)[0])
        assert "leave out snapshot.host" in raised.value.hint
        with pytest.raises(SettingError, match=r"snapshot\.host.*does not replicate"):
            check(given(pair))
    finally:
        second.execute(f"START {word(second)}")
    caught_up(first, second)
    assert len(read(stream, stream.partitions(start, end)[0])) == ROWS


def test_servers_and_tables_that_are_refused(pair: Pair) -> None:
    first, second = pair
    with pytest.raises(SettingError, match=r"snapshot\.host = '127\.0\.0\.1': is no replica"):
        check(given(pair, **{"snapshot.port": first.port}))
    first.execute("CREATE TABLE IF NOT EXISTS moving.keyless (a INT)")
    caught_up(first, second)
    with pytest.raises(SettingError, match="keyless has no primary key"):
        check({**given(pair), "table": "moving.keyless"})
    second.execute("SET GLOBAL read_only = 0")
    with second.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"ALTER TABLE {TABLE} ADD COLUMN more INT")
    with pytest.raises(SettingError, match=r"moving\.t has other columns there"):
        check(given(pair))
    with second.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"ALTER TABLE {TABLE} DROP COLUMN more")
    check(given(pair))
    second.execute(f"STOP {word(second)}")
    try:
        if is_mariadb(second):
            second.execute("SET GLOBAL replicate_ignore_table = 'a.b'")
        else:
            second.execute("CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = (a.b)")
        second.execute(f"START {word(second)}")
        with pytest.raises(SettingError, match=r"leaves out changes: Replicate_Ignore_Table = a\.b"):
            check(given(pair))
    finally:
        second.execute(f"STOP {word(second)}")
        if is_mariadb(second):
            second.execute("SET GLOBAL replicate_ignore_table = ''")
        else:
            second.execute("CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = ()")
        second.execute(f"START {word(second)}")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"snapshot.port": "3307"}, "has no meaning without snapshot.host"),
        ({"snapshot.host": "r", "startup.mode": "latest"}, "has no meaning with startup.mode=latest"),
    ],
)
def test_options_that_need_others(more: dict[str, str], problem: str) -> None:
    base = {"host": "h", "user": "u", "table": "a.b"}
    with pytest.raises(SettingError, match=problem):
        reading.MySqlOptions.parse({**base, **more})
