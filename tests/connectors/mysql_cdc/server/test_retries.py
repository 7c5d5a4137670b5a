"""Which errors are temporary, and that every connection retries after them."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog.dump import explained, open_dump
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.binlog.reading import TransactionEnd, read_changes
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.server.connection import connect, open_connection, query
from backlog_spark.connectors.mysql_cdc.server.retries import ConnectionLost, Retries, is_transient, retrying
from backlog_spark.connectors.mysql_cdc.snapshot import reading
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.errors import BacklogError, SettingError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, options, read, reader, take

TABLE = "patient.t"


def parse(**more: object) -> MySqlOptions:
    base = {"host": "127.0.0.1", "user": "u", "table": "a.b"}
    return MySqlOptions.parse({k: str(v) for k, v in {**base, **more}.items()})


# -- pure -------------------------------------------------------------------------------------------------------


def server_error(code: int, text: str = "") -> pymysql.err.MySQLError:
    kind = pymysql.err.error_map.get(code, pymysql.err.OperationalError)
    return kind(code, text)


def of_network(cause: OSError) -> pymysql.err.MySQLError:
    error = pymysql.err.OperationalError(2003, f"Can't connect ({cause})")
    error.original_exception = cause
    return error


def test_an_event_that_the_server_may_not_send_names_the_setting() -> None:
    told = explained(server_error(1236, "log event entry exceeded max_allowed_packet; Increase it"), "log.000001:4")
    assert "cannot read its binary log after log.000001:4" in told.problem
    assert told.hint.startswith("If an event is that large, raise max_allowed_packet. If the server was reset")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (server_error(1205), True),  # lock wait timeout
        (server_error(1213), True),  # deadlock
        (server_error(2006), True),  # gone
        (server_error(2013), True),  # lost
        (server_error(1040), True),  # too many connections
        (server_error(1203), True),  # of this user
        (server_error(1053), True),  # shutdown in progress
        (server_error(3032), True),  # offline mode
        (server_error(4031), True),  # idle for wait_timeout
        (server_error(1927), True),  # MariaDB: killed
        (server_error(1317), True),  # interrupted
        (server_error(1836), True),  # read-only mode
        (server_error(1290, "The MySQL server is running with the --super-read-only option"), True),
        (server_error(1290, "The MySQL server is running with the --secure-file-priv option"), False),
        (server_error(1615), True),  # prepare again
        (pymysql.err.InterfaceError(0, ""), True),  # a closed connection
        (of_network(ConnectionRefusedError(111, "Connection refused")), True),
        (of_network(socket.gaierror(-3, "Temporary failure in name resolution")), True),
        (of_network(ssl.SSLCertVerificationError(1, "certificate verify failed")), False),
        (ConnectionResetError(104, "reset"), True),
        (OSError(113, "No route to host"), True),
        (OSError(28, "No space left on device"), False),
        (ConnectionLost("x"), True),
        (server_error(1045), False),  # access denied
        (server_error(1146), False),  # no such table
        (server_error(1064), False),
        (server_error(1236, "purged"), False),
        (BacklogError("x"), False),
        (ValueError("x"), False),
    ],
)
def test_what_may_pass(error: Exception, passes: bool) -> None:
    assert is_transient(error) is passes


def test_waits_double_up_to_half_a_minute_and_begin_anew_after_a_success() -> None:
    waits: list[float] = []
    retries = Retries(parse(**{"connect.max-retries": 9, "connect.backoff": "200 ms"}), waits.append)
    assert [retries.again() for _ in range(3)] == [True] * 3
    retries.succeeded()
    assert [retries.again() for _ in range(10)] == [True] * 9 + [False]
    assert waits == [0.2, 0.4, 0.8, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    assert not Retries(parse(**{"connect.max-retries": 0}), waits.append).again()


def test_what_was_given_up_is_not_tried_again_by_another() -> None:
    attempts = []

    def fails() -> None:
        attempts.append(1)
        raise ConnectionLost("gone", "hint")

    given = parse(**{"connect.max-retries": 2})
    with pytest.raises(BacklogError, match=r"gone\. hint") as caught:
        retrying(given, fails, wait=lambda _: None)
    assert len(attempts) == 3
    assert not is_transient(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("connect.timeout", "100 ms", "not between 250 ms and 1 h"),
        ("connect.timeout", "10", "no unit"),
        ("connect.max-retries", "-1", r"0\.\.1000"),
        ("connect.backoff", "1 min", "not between 0 and 30 s"),
        ("heartbeat.interval", "0", "not between 1 s and 1 h"),
    ],
)
def test_refused_options(name: str, value: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        parse(**{name: value})


def test_options_as_flink_names_them() -> None:
    found = parse(**{"connect.timeout": "PT5S", "Connect.Max-Retries": 2, "heartbeat.interval": "3s"})
    assert (found.connect_timeout_ms, found.max_retries, found.heartbeat_ms) == (5_000, 2, 3_000)
    assert found.connect_arguments()["connect_timeout"] == 5.0


class Silent:
    """Takes connections, and says nothing."""

    def __enter__(self) -> Silent:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def test_a_server_that_takes_a_connection_and_says_nothing_is_left() -> None:
    """Without a limit on the login too, this would take the five minutes of a long statement."""
    with Silent() as server, pytest.raises(ConnectionLost, match="sent no greeting of MySQL"):
        open_connection(parse(port=server.port, **{"connect.timeout": "250 ms"}))


# -- on servers -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SERVERS_IN_GRID)
def fragile(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    """A server that ends connections that are idle for a second."""
    with request.param(fast=True, options={"wait-timeout": "1", "interactive-timeout": "1"}) as server:
        yield server


@pytest.fixture
def table(fragile: MySQLServer) -> str:
    discard_rewind_log()
    fragile.execute("DROP DATABASE IF EXISTS patient")
    fragile.execute("CREATE DATABASE patient")
    fragile.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n INT)")
    fragile.execute(f"INSERT INTO {TABLE} VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    return TABLE


def wait_for(found: Callable[[], object]) -> None:
    limit = time.monotonic() + 60
    while not found():
        assert time.monotonic() < limit
        time.sleep(0.05)


def idle(server: MySQLServer, stream: Any) -> None:
    """The planner's connection, with the server's own limit, until the server has ended it."""
    connection = stream._planner.session._connection
    number = connection.thread_id()
    with contextlib.suppress(pymysql.err.MySQLError):  # it may be dead from the last time
        query(connection, "SET SESSION wait_timeout = @@global.wait_timeout")
    wait_for(lambda: not server.execute(f"SELECT 1 FROM information_schema.processlist WHERE id = {number}"))


def test_a_planner_that_was_idle_goes_on_in_the_snapshot_and_in_the_log(fragile: MySQLServer, table: str) -> None:
    stream = reader(options(fragile, table, **{"connect.backoff": "10 ms"}))
    offset, rows = stream.initialOffset(), []
    lost = 0
    while len(rows) < 5 or offset["isProcessingBacklog"]:
        idle(fragile, stream)
        lost += 1
        end = stream.latestOffset(offset, ReadMaxRows(2))
        assert end is not offset
        idle(fragile, stream)
        rows += [row[:2] for p in stream.partitions(offset, end) for row in read(stream, p)]
        offset = end
        if not offset["isProcessingBacklog"]:
            fragile.execute(f"INSERT INTO {table} VALUES ({10 + lost}, 0)")
    assert rows[:4] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert len(rows) == len(set(rows)) >= 5


def test_sessions_of_the_source_outlive_a_short_wait_timeout(fragile: MySQLServer, table: str) -> None:
    stream = reader(options(fragile, table))
    offset, _ = take(stream, stream.initialOffset())
    connection = stream._planner.session._connection
    number = connection.thread_id()
    with connect(MySqlOptions.parse(options(fragile, table))) as other, fragile.connect() as limited:
        # One that has the limit shows that the time is over.
        cursor = limited.cursor()
        cursor.execute("SELECT CONNECTION_ID()")
        (short,) = cursor.fetchone()
        wait_for(lambda: not fragile.execute(f"SELECT 1 FROM information_schema.processlist WHERE id = {short}"))
        assert query(other, "SELECT 1") == [(1,)]
        limited._force_close()
    fragile.execute(f"INSERT INTO {table} VALUES (9, 9)")
    assert [row[:2] for row in take(stream, offset)[1]] == [(9, 9)]
    assert stream._planner.session._connection.thread_id() == number


@pytest.mark.parametrize("code", [1205, 1213, 1040, 1053, 1836, 2013])
def test_a_planner_goes_on_after_an_error_that_passes(fragile: MySQLServer, table: str, code: int) -> None:
    stream = reader(options(fragile, table, **{"connect.backoff": "0"}))
    failures = [server_error(code, "passes")]

    def action(connection: Any) -> Any:
        if failures:
            raise failures.pop()
        return query(connection, "SELECT 1")

    assert stream._planner.session.run(action) == [(1,)]
    with pytest.raises(pymysql.err.MySQLError, match="no such thing"):
        stream._planner.session.run(lambda _: (_ for _ in ()).throw(server_error(1146, "no such thing")))


def test_a_chunk_is_read_again_unless_spark_has_rows_of_it(
    fragile: MySQLServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = reader(options(fragile, table, **{"connect.backoff": "0"}))
    start = stream.initialOffset()
    (partition,) = stream.partitions(start, stream.latestOffset(start, ReadMaxRows(10)))
    select, failures = reading._select, [server_error(1205, "locked"), server_error(2013, "lost")]

    def fails(*given: Any, **more: Any) -> Iterator[Any]:
        yield from select(*given, **more)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(reading, "_select", fails)
    assert [row[:2] for row in read(stream, partition)] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert not failures
    failures.append(server_error(2013, "lost"))
    monkeypatch.setattr(reading, "_AHEAD", 0)  # so that rows go on to Spark while they are read
    discard_rewind_log()
    with pytest.raises(BacklogError, match=r"was lost while a part of patient\.t was read"):
        read(stream, partition)
    reading._large.clear()


class Hole:
    """Forwards to a server. Its first connection falls silent, as when a firewall has forgotten it."""

    def __init__(self, port: int, silent_after: int) -> None:
        self._to = port
        self._left = silent_after
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self._to))
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, self.connections == 1), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, falls_silent: bool) -> None:
        try:
            while data := source.recv(4_096):
                self._left -= len(data) if falls_silent else 0
                if falls_silent and self._left < 0:
                    return  # neither closed nor continued
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_a_dump_that_is_silent_is_dead(fragile: MySQLServer, table: str) -> None:
    """After three heartbeats it is opened again, and no row is lost or repeated."""
    fragile.execute(f"ALTER TABLE {table} ADD COLUMN v VARCHAR(2000)")
    start = BinlogPosition(*fragile.binlog_end())
    for first in range(100, 2_100, 500):
        values = ",".join(f"({i}, 0, REPEAT('x', 2000))" for i in range(first, first + 500))
        fragile.execute(f"INSERT INTO {table} VALUES {values}")
    hole = Hole(fragile.port, silent_after=1_300_000)  # inside the second transaction
    try:
        given = options(fragile, table, port=hole.port, **{"heartbeat.interval": "1 s", "connect.backoff": "0"})
        (schema,) = reader(options(fragile, table))._planner.tables.every()
        changes = read_changes(MySqlOptions.parse(given), (schema,), start)
        found = [change for change in changes if not isinstance(change, TransactionEnd)]
        assert [new[0] for change in found for _, _, new in change.rows] == list(range(100, 2_100))
        assert hole.connections == 2
    finally:
        hole.close()


def test_the_server_is_asked_for_heartbeats(fragile: MySQLServer, table: str) -> None:
    given = MySqlOptions.parse(options(fragile, table, **{"heartbeat.interval": "7 s"}))
    fragile.execute("SET GLOBAL log_output = 'TABLE', GLOBAL general_log = ON")
    dump = open_dump(given, BinlogPosition(*fragile.binlog_end()))
    connection = dump.open()
    try:
        assert connection._read_timeout == 21
        found = fragile.execute("SELECT argument FROM mysql.general_log WHERE argument LIKE 'SET @master_heartbeat%%'")
        assert "SET @master_heartbeat_period = 7000000000" in str(found)
    finally:
        dump.abandon()
        fragile.execute("SET GLOBAL general_log = OFF")
