"""A stream that continues on a replica, with real replication."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog.reading import TransactionEnd, read_changes
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.stream.reader import BinlogPartition, MySqlCdcStreamReader
from backlog_spark.errors import BacklogError
from servers.mariadb import MariaDBServer
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.proxy import Proxy
from tests.connectors.mysql_cdc.replay import (
    EVERY_MARIADB,
    Writers,
    apply,
    is_mariadb,
    options,
    read,
    reader,
    table_rows,
    take,
)

TABLE = "moving.t"
ROWS = 300
# MySQL's word for it until 8.0.22, and the one since.
REPLICA = "slave" if MySQLServer.own_executable() is None else "replica"


@pytest.fixture(scope="module", params=[pytest.param(MySQLServer, id="mysql"), *EVERY_MARIADB])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[MySQLServer, MySQLServer]]:
    with contextlib.ExitStack() as stack:
        yield replicating(stack, request.param)


def replicating(stack: contextlib.ExitStack, kind: type[MySQLServer]) -> tuple[MySQLServer, MySQLServer]:
    """A server and its replica, which has several appliers."""
    replica: dict[str, str | None]
    if issubclass(kind, MariaDBServer):
        replica = {"server-id": "2", "log-slave-updates": "ON", "slave-parallel-threads": "4"}
        delay, statement, name = "binlog_commit_wait_usec", "MASTER", "MASTER"
        more = "MASTER_USE_GTID = slave_pos, MASTER_SSL = 0, MASTER_SSL_VERIFY_SERVER_CERT = 0"
    else:
        # No order among the appliers: transactions are in another order in the replica's log.
        replica = {"server-id": "2", f"{REPLICA}-parallel-workers": "4"}
        delay, statement, name = "binlog_group_commit_sync_delay", "MASTER", "MASTER"
        if REPLICA == "slave":
            replica["slave-parallel-type"] = "LOGICAL_CLOCK"  # the only one there is today
        else:
            statement, name = "REPLICATION SOURCE", "SOURCE"
        more = f"{name}_AUTO_POSITION = 1"
    first, second = stack.enter_context(kind()), stack.enter_context(kind(options=replica))
    first.execute("CREATE DATABASE moving")
    first.execute(f"SET GLOBAL {delay} = 2000")
    second.execute(
        f"CHANGE {statement} TO {name}_HOST = '127.0.0.1', {name}_PORT = {first.port}, {name}_USER = 'root', {more}"
    )
    second.execute(f"START {word(first)}")
    return first, second


def word(server: MySQLServer) -> str:
    """For a replica in its statements."""
    return "slave" if is_mariadb(server) else REPLICA


@pytest.fixture
def pair(servers: tuple[MySQLServer, MySQLServer]) -> tuple[MySQLServer, MySQLServer]:
    first, second = servers
    first.execute(f"DROP TABLE IF EXISTS {TABLE}")
    first.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    first.execute(f"INSERT INTO {TABLE} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(ROWS)))
    caught_up(first, second)
    return first, second


def with_one_row(stack: contextlib.ExitStack, kind: type[MariaDBServer]) -> tuple[MySQLServer, MySQLServer]:
    first, second = replicating(stack, kind)
    first.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n INT)")
    first.execute(f"INSERT INTO {TABLE} VALUES (1, 1)")
    return first, second


def caught_up(first: MySQLServer, second: MySQLServer) -> None:
    if is_mariadb(first):
        done = str(first.execute("SELECT @@gtid_binlog_pos")[0][0])
        assert second.execute(f"SELECT MASTER_GTID_WAIT('{done}', 60)")[0][0] == 0
        return
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
        # Of each key in the same order; transactions of other keys may have been reordered.
        assert sorted(here, key=lambda row: row[0]) == sorted(there, key=lambda row: row[0])
    # Repeated there, or planned there: the sequence grows, and is the same another time, in whatever file it is.
    begin, end = ends[-2:]
    before = max(row[-1] for p in stream.partitions(begin, end) for row in read(stream, p))
    repeated = [row for p in at(second).partitions(begin, end) for row in read(other, p)]
    sequences = [row[-1] for row in repeated]
    first.execute(f"UPDATE {TABLE} SET n = -9 WHERE id = 1")
    caught_up(first, second)
    second.execute("FLUSH BINARY LOGS")
    assert [row[-1] for p in at(second).partitions(begin, end) for row in read(other, p)] == sequences
    _, rows = take(at(second), end)
    assert rows
    assert min(row[-1] for row in (*repeated, *rows)) > before
    # Of one key; other transactions that come later may stand before them in this log.
    newest = {row[0]: row[-1] for row in sorted(repeated, key=lambda row: row[-1])}
    assert all(row[-1] > newest.get(row[0], 0) for row in rows)


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
    second.execute(f"STOP {word(first)}")
    try:
        first.execute(f"UPDATE {TABLE} SET n = -1 WHERE id = 1")
        offset, rows = take(stream, offset)
        assert len(rows) == 2
        with pytest.raises(BacklogError, match=r"lacks transactions that it includes.*when it has caught up"):
            take(at(second), offset)
    finally:
        second.execute(f"START {word(first)}")
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


def test_an_address_that_moves_under_a_planner_is_followed(pair: tuple[MySQLServer, MySQLServer]) -> None:
    """The planner's own connection is to the first server still, and its dumps lead to the other one."""
    first, second = pair
    with Proxy(first.port, bytes_per_second=100_000_000, stall_s=0) as proxy:
        given = {"port": proxy.port, "connect.backoff": "0", "connect.max-retries": 1}
        stream = at(first, **given)
        offset, rows = take(stream, stream.initialOffset())
        assert len(rows) == ROWS
        for n, server in ((-4, second), (-5, first)):
            first.execute(f"UPDATE {TABLE} SET n = {n} WHERE id = 1")
            caught_up(first, second)
            proxy.to = server.port
            before = offset["server"]
            offset, rows = take(stream, offset)
            assert [row[1] for row in rows][1:] == [n]
            assert offset["server"] != before


@pytest.mark.parametrize("inside", [False, True], ids=["between transactions", "inside one"])
def test_what_starts_by_gtid_resumes_by_gtid_at_whatever_server_comes_back(
    pair: tuple[MySQLServer, MySQLServer], inside: bool
) -> None:
    """The two servers have the same transactions at other positions."""
    first, second = pair
    if is_mariadb(first):
        return  # its GTIDs are no set: a read by GTID only finds a position
    start = str(first.execute("SELECT @@gtid_executed")[0][0])
    second.execute("FLUSH BINARY LOGS")
    for n in range(30):
        first.execute(f"UPDATE {TABLE} SET n = {1000 + n}, v = REPEAT('y', 20) WHERE id < 200")
    caught_up(first, second)
    with Proxy(first.port, bytes_per_second=100_000_000, stall_s=0) as proxy:
        stream = at(first)
        given = MySqlOptions.parse(options(first, TABLE, port=proxy.port, **{"connect.backoff": "0"}))
        found: list[tuple[int, int]] = []
        ends = 0
        for change in read_changes(given, stream._planner.tables.every(), start):
            if isinstance(change, TransactionEnd):
                ends += 1
            else:
                found += [(after[1], after[0]) for _, _, after in change.rows]
            if ends == 10 and proxy.to == first.port and isinstance(change, TransactionEnd) is not inside:
                proxy.to = second.port
                proxy.cut()
        assert proxy.to == second.port
    assert found == [(1000 + n, i) for n in range(30) for i in range(200)]
    assert ends == 30


@pytest.mark.process
@pytest.mark.parametrize("kind", EVERY_MARIADB)
def test_a_mariadb_with_transactions_of_its_own_is_refused(kind: type[MariaDBServer]) -> None:
    """Between those of the first server: there is no position in its log that has the same transactions before it."""
    with contextlib.ExitStack() as stack:
        first, second = with_one_row(stack, kind)
        stream = at(first)
        offset, _ = take(stream, stream.initialOffset())
        caught_up(first, second)
        with second.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET gtid_domain_id = 7")
            cursor.execute("CREATE TABLE moving.own (id INT PRIMARY KEY)")
        first.execute(f"INSERT INTO {TABLE} VALUES (2, 2)")
        caught_up(first, second)
        # What came before the other's is a position there still, and its transactions are read from there on.
        assert [row[:2] for row in take(at(second), offset)[1]] == [(2, 2)]
        offset, rows = take(stream, offset)
        assert len(rows) == 1
        with pytest.raises(BacklogError, match=r"has no such position: binlog.* is after 0-1-\d+\. .*of its own"):
            take(at(second), offset)


@pytest.mark.process
@pytest.mark.parametrize("kind", EVERY_MARIADB)
def test_a_position_far_back_in_the_log_of_a_mariadb(kind: type[MariaDBServer]) -> None:
    """Files back, and a log that has been purged up to there."""
    with contextlib.ExitStack() as stack:
        first, second = with_one_row(stack, kind)
        stream = at(first)
        offset, _ = take(stream, stream.initialOffset())
        offset, _ = take(stream, offset)
        for n in range(2, 5):
            first.execute(f"INSERT INTO {TABLE} VALUES ({n}, {n})")
            caught_up(first, second)
            second.execute("FLUSH BINARY LOGS")
        assert [row[0] for row in take(at(second), offset)[1]] == [2, 3, 4]
        second.execute(f"PURGE BINARY LOGS TO '{second.execute('SHOW BINARY LOGS')[-1][0]}'")
        with pytest.raises(BacklogError, match=r"lacks transactions that it includes, or has purged them"):
            take(at(second), offset)
