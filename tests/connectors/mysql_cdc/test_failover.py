"""A stream that goes on at a replica, by real replication."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.embedded.mysql import MySQLServer
from backlog_spark.errors import BacklogError
from connectors.mysql_cdc.reader import BinlogPartition, MySqlCdcStreamReader
from connectors.mysql_cdc.rewind import discard_rewind_log

from .replay import Writers, apply, options, read, reader, table_rows, take

TABLE = "moving.t"
ROWS = 300
# MySQL's word for it until 8.0.22, and the one since.
REPLICA = "slave" if MySQLServer.own_executable() is None else "replica"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[MySQLServer, MySQLServer]]:
    # Several appliers and no order among them: transactions are in another order in the replica's log.
    replica: dict[str, str | None] = {"server-id": "2", f"{REPLICA}-parallel-workers": "4"}
    if REPLICA == "slave":
        replica["slave-parallel-type"] = "LOGICAL_CLOCK"  # the only one there is today
    with MySQLServer() as first, MySQLServer(options=replica) as second:
        first.execute("CREATE DATABASE moving")
        first.execute("SET GLOBAL binlog_group_commit_sync_delay = 2000")
        statement, name = ("MASTER", "MASTER") if REPLICA == "slave" else ("REPLICATION SOURCE", "SOURCE")
        second.execute(
            f"CHANGE {statement} TO {name}_HOST = '127.0.0.1', {name}_PORT = {first.port}, {name}_USER = 'root', "
            f"{name}_AUTO_POSITION = 1"
        )
        second.execute(f"START {REPLICA}")
        yield first, second


@pytest.fixture
def pair(servers: tuple[MySQLServer, MySQLServer]) -> tuple[MySQLServer, MySQLServer]:
    first, second = servers
    first.execute(f"DROP TABLE IF EXISTS {TABLE}")
    first.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    first.execute(f"INSERT INTO {TABLE} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(ROWS)))
    caught_up(first, second)
    return first, second


def caught_up(first: MySQLServer, second: MySQLServer) -> None:
    done = str(first.execute("SELECT @@gtid_executed")[0][0])
    assert second.execute(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{done}', 60)")[0][0] == 0


def at(server: MySQLServer, **more: object) -> MySqlCdcStreamReader:
    discard_rewind_log()
    return reader(options(server, TABLE, **more))


def test_the_log_goes_on_at_the_replica_and_back(pair: tuple[MySQLServer, MySQLServer]) -> None:
    first, second = pair
    state: dict[int, tuple[Any, ...]] = {}
    misfits: list[str] = []
    sequences: list[int] = []
    stream = at(first)

    def consume(rows: list[tuple[Any, ...]]) -> None:
        sequences.extend(row[-1] for row in rows if row[-1])
        misfits.extend(apply(state, rows))

    offset, rows = take(stream, stream.initialOffset())
    consume(rows)
    with Writers(first, TABLE, 5, keys=ROWS) as writers:
        for number in range(12):
            limit, wanted = time.monotonic() + 60, writers.commits + 20
            while writers.commits < wanted:
                assert time.monotonic() < limit
                time.sleep(0.01)
            if number in (4, 8):
                caught_up(first, second)
                stream = at(second if number == 4 else first)
                assert offset["server"] != stream.initialOffset()["server"]
            end = stream.latestOffset(offset, ReadMaxRows(60))
            if end is not offset:
                consume([row for p in stream.partitions(offset, end) for row in read(stream, p)])
                offset = end
    while (end := stream.latestOffset(offset, ReadMaxRows(500))) is not offset:
        consume([row for p in stream.partitions(offset, end) for row in read(stream, p)])
        offset = end
    assert misfits == []
    assert state == table_rows(first, TABLE)
    assert sequences == sorted(set(sequences)), "grows across the servers"


def test_a_batch_that_the_first_server_planned_is_the_same_at_the_replica(
    pair: tuple[MySQLServer, MySQLServer],
) -> None:
    first, second = pair
    stream = at(first)
    start = stream.initialOffset()
    middle = stream.latestOffset(start, ReadMaxRows(100))
    with Writers(first, TABLE, 6, keys=ROWS) as writers:
        snapshot = [row for p in stream.partitions(start, middle) for row in read(stream, p)]
        offset = middle
        while offset["isProcessingBacklog"]:
            offset = stream.latestOffset(offset, ReadMaxRows(100))
        ends = [offset]
        while len(ends) < 4:
            found = stream.latestOffset(offset, ReadMaxRows(40))
            if found is not offset:
                ends.append(offset := found)
        assert writers.commits
    caught_up(first, second)
    other = at(second)
    assert sorted(row for p in other.partitions(start, middle) for row in read(other, p)) == sorted(snapshot)
    for begin, end in itertools.pairwise(ends):
        there = [row[:-1] for p in stream.partitions(begin, end) for row in read(stream, p)]
        here = [row[:-1] for p in at(second).partitions(begin, end) for row in read(other, p)]
        # Of each key in the same order; transactions of other keys may have changed places.
        assert sorted(here, key=lambda row: row[0]) == sorted(there, key=lambda row: row[0])


def test_a_snapshot_goes_on_at_the_replica(pair: tuple[MySQLServer, MySQLServer]) -> None:
    first, second = pair
    stream = at(first)
    state: dict[int, tuple[Any, ...]] = {}
    misfits: list[str] = []
    offset = stream.initialOffset()
    with Writers(first, TABLE, 7, keys=ROWS):
        for _ in range(3):
            end = stream.latestOffset(offset, ReadMaxRows(70))
            misfits += apply(state, [row for p in stream.partitions(offset, end) for row in read(stream, p)])
            offset = end
    assert offset["isProcessingBacklog"]
    caught_up(first, second)
    stream = at(second)
    while (end := stream.latestOffset(offset, ReadMaxRows(70))) is not offset:
        misfits += apply(state, [row for p in stream.partitions(offset, end) for row in read(stream, p)])
        offset = end
    assert misfits == []
    assert state == table_rows(first, TABLE)


def test_a_replica_that_lags_is_refused_until_it_has_caught_up(pair: tuple[MySQLServer, MySQLServer]) -> None:
    first, second = pair
    stream = at(first)
    offset, _ = take(stream, stream.initialOffset())
    second.execute(f"STOP {REPLICA}")
    try:
        first.execute(f"UPDATE {TABLE} SET n = -1 WHERE id = 1")
        offset, rows = take(stream, offset)
        assert len(rows) == 2
        with pytest.raises(BacklogError, match=r"lacks transactions that it includes.*when it has caught up"):
            take(at(second), offset)
    finally:
        second.execute(f"START {REPLICA}")
    caught_up(first, second)
    first.execute(f"UPDATE {TABLE} SET n = -2 WHERE id = 1")
    caught_up(first, second)
    assert [row[1] for row in take(at(second), offset)[1]] == [-1, -2]


def test_a_task_is_not_led_to_another_server(pair: tuple[MySQLServer, MySQLServer]) -> None:
    """As when the address moves while a batch is read."""
    first, second = pair
    stream = at(first)
    start = stream.initialOffset()
    offset, _ = take(stream, start)
    first.execute(f"UPDATE {TABLE} SET n = -3 WHERE id = 1")
    end = stream.latestOffset(offset, ReadMaxRows(10))
    caught_up(first, second)
    for partition in (*stream.partitions(start, offset), *stream.partitions(offset, end)):
        discard_rewind_log()
        with pytest.raises(BacklogError, match=f"led to the server .* while a batch was read from {offset['server']}"):
            read(at(second), partition)
    (binlog,) = stream.partitions(offset, end)
    assert isinstance(binlog, BinlogPartition)
