"""Rows in the binary protocol from real servers: in pieces, in several packets, and with errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.server import prepared
from backlog_spark.connectors.mysql_cdc.server.connection import open_connection, query
from backlog_spark.connectors.mysql_cdc.server.prepared import fetch
from backlog_spark.connectors.mysql_cdc.snapshot import reading as snapshot
from backlog_spark.errors import SettingError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, read, reader, take

MIB = 1 << 20


@pytest.fixture(scope="module")
def table(mysql: MySQLServer) -> str:
    mysql.execute("CREATE DATABASE IF NOT EXISTS prepared")
    mysql.execute("DROP TABLE IF EXISTS prepared.t")
    mysql.execute("CREATE TABLE prepared.t (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET latin1)")
    values = ",".join(f"({n}, IF({n} % 7 = 0, NULL, REPEAT('{n % 10}', {n} % 300)))" for n in range(3000))
    mysql.execute(f"INSERT INTO prepared.t VALUES {values}")
    return "prepared.t"


@pytest.fixture
def connection(mysql: MySQLServer, table: str) -> Iterator[Connection[Any]]:
    mysql.execute(f"SET GLOBAL max_allowed_packet = {64 * MIB}")
    found = open_connection(MySqlOptions.parse(options(mysql, table, **{"ssl.mode": "disabled"})), conv={})
    yield found
    found._force_close()


def rows(connection: Connection[Any], statement: str) -> tuple[list[tuple[Any, ...]], int]:
    """All rows of a statement, and in how many pieces they came."""
    found: list[tuple[Any, ...]] = []
    pieces = 0
    for columns in fetch(connection, statement, lambda columns: None):
        found += zip(*(column.to_pylist() for column in columns), strict=True)
        pieces += 1
    return found, pieces


@pytest.mark.parametrize("size", [64, 100, 1000, 4 * MIB])
def test_rows_are_the_same_in_pieces_of_any_size(
    connection: Connection[Any], table: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(prepared, "PIECE_BYTES", size)
    found, pieces = rows(connection, f"SELECT id, v FROM {table} ORDER BY id")
    written = [(n, None if n % 7 == 0 else str(n % 10).encode() * (n % 300)) for n in range(3000)]
    assert found == written
    assert pieces == 1 if size == 4 * MIB else pieces > 10
    # The connection is at the end of the result, and the statement is closed.
    assert query(connection, "SELECT 1") == [("1",)]


def test_without_rows_there_is_no_piece(connection: Connection[Any], table: str) -> None:
    assert rows(connection, f"SELECT id, v FROM {table} WHERE id < 0") == ([], 0)


# A row is a byte, a bitmap of one, two integers of four, and the text's length in three or four, and text.
_IN_FRONT = 1 + 1 + 4 + 4 + 4


@pytest.mark.parametrize("packets", [1, 2])
def test_rows_of_several_packets_are_whole(connection: Connection[Any], table: str, packets: int) -> None:
    """Rows that fill their packets to the last byte, or nearly, or not quite."""
    for more in (-1, 0, 1, 5000):
        length = packets * 0xFFFFFF - _IN_FRONT + more
        statement = f"SELECT id, CONCAT(REPEAT('x', {length - 1}), 'y'), id FROM {table} WHERE id IN (3, 4)"
        found, _ = rows(connection, statement)
        assert [(one, len(text), last) for one, text, last in found] == [(3, length, 3), (4, length, 4)]
        assert all(text == b"x" * (length - 1) + b"y" for _, text, _ in found)


def test_an_error_amid_the_rows_is_raised(mysql: MySQLServer, connection: Connection[Any], table: str) -> None:
    number = connection.thread_id()

    def kill() -> None:
        time.sleep(0.5)
        mysql.execute(f"KILL QUERY {number}")

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(pymysql.err.OperationalError, match=r"1317|1969"):
        rows(connection, f"SELECT a.id, SLEEP(0.01) FROM {table} a")
    killer.join()


def test_a_connection_that_is_lost_is_told(mysql: MySQLServer, connection: Connection[Any], table: str) -> None:
    pieces = fetch(connection, f"SELECT a.id, a.v FROM {table} a, {table} b", lambda columns: None)
    next(pieces)
    mysql.execute(f"KILL {connection.thread_id()}")
    with pytest.raises(pymysql.err.MySQLError) as caught:
        list(pieces)
    assert caught.value.args[0] in (2013, 1927, 1317)


def test_a_server_that_allows_no_statements_is_told_what_to_set(
    mysql: MySQLServer, connection: Connection[Any], table: str
) -> None:
    before = int(query(connection, "SELECT @@global.max_prepared_stmt_count")[0][0])
    mysql.execute("SET GLOBAL max_prepared_stmt_count = 0")
    try:
        with pytest.raises(SettingError, match=r"max_prepared_stmt_count.*Raise it on the server"):
            rows(connection, f"SELECT id FROM {table}")
    finally:
        mysql.execute(f"SET GLOBAL max_prepared_stmt_count = {before}")


def test_a_piece_has_few_rows_where_there_are_many_columns(
    connection: Connection[Any], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NULL is next to nothing in a row, and as large as any value in a column."""
    monkeypatch.setattr(prepared, "_CELLS", 1_000)
    sizes = [
        len(columns[0]) for columns in fetch(connection, f"SELECT id, NULL, id FROM {table}", lambda columns: None)
    ]
    assert sum(sizes) == 3_000
    assert max(sizes) == 333


def test_after_a_large_row_pieces_are_as_small_as_before(connection: Connection[Any], table: str) -> None:
    statement = (
        f"SELECT id, IF(id = 1, REPEAT('x', {9 * MIB}), REPEAT('y', 2000)) FROM {table} WHERE id > 0 ORDER BY id"
    )
    sizes = [columns[1].nbytes for columns in fetch(connection, statement, lambda columns: None)]
    assert sizes[0] >= 9 * MIB
    # What came with the large row may be as much again.
    assert all(size <= 5 * MIB for size in sizes[2:])
    assert sum(sizes) > 9 * MIB + 2_998 * 2_000


@pytest.mark.parametrize("key", [" PRIMARY KEY", ""], ids=["key", "none"])
@pytest.mark.parametrize("evolve", ["evolve", "fail"])
def test_an_alter_table_between_the_log_and_the_read_of_a_large_chunk_is_noticed(
    mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch, evolve: str, key: str
) -> None:
    """On MariaDB an older view too has another column's values; MySQL refuses the read."""
    mysql.execute("CREATE DATABASE IF NOT EXISTS prepared")
    mysql.execute("DROP TABLE IF EXISTS prepared.held")
    mysql.execute(f"CREATE TABLE prepared.held (id INT{key}, a INT, b INT)")
    mysql.execute("INSERT INTO prepared.held VALUES (1, 10, 20)")
    monkeypatch.setattr(snapshot, "_large", [])
    monkeypatch.setattr(snapshot, "_AHEAD", 1)
    what = "TouchedKeys" if key else "Surplus"
    made = getattr(snapshot, what)

    def alter(*given: Any) -> Any:
        """Called when the log has been read, and before the table is."""
        monkeypatch.undo()
        mysql.execute("ALTER TABLE prepared.held CHANGE a c INT, ADD COLUMN a INT DEFAULT 9")
        return made(*given)

    monkeypatch.setattr(snapshot, what, alter)
    stream = reader(options(mysql, "prepared.held", schemaChange=evolve))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10))
    (partition,) = stream.partitions(start, end)
    with pytest.raises(SchemaChanged, match=r"prepared\.held was (altered|changed by)"):
        read(stream, partition)
    again = reader(options(mysql, "prepared.held", schemaChange=evolve))
    if evolve == "evolve" and key:
        # The column that is called so now was not there at the low watermark, and the other was.
        (partition,) = again.partitions(start, end)
        assert [row[:4] for row in read(again, partition)] == [(1, 10, 20, None)]


def test_nothing_is_held_while_the_log_is_read(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ALTER TABLE need not wait for that, nor may what reads the log wait for an ALTER TABLE that does."""
    mysql.execute("CREATE DATABASE IF NOT EXISTS prepared")
    mysql.execute("DROP TABLE IF EXISTS prepared.free")
    mysql.execute("CREATE TABLE prepared.free (id INT PRIMARY KEY, a INT)")
    mysql.execute("INSERT INTO prepared.free VALUES (1, 10)")
    end_position = snapshot.end_position

    def alter(*given: Any) -> Any:
        with mysql.connect() as other, other.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 1")
            cursor.execute("ALTER TABLE prepared.free ADD COLUMN c INT")
        return end_position(*given)

    monkeypatch.setattr(snapshot, "end_position", alter)
    stream = reader(options(mysql, "prepared.free"))
    _, found = take(stream, stream.initialOffset())
    assert [row[:2] for row in found] == [(1, 10)]


def test_a_row_above_the_bound_is_refused_by_its_tables_name(mysql: MySQLServer, table: str) -> None:
    """In the snapshot and in the log; just below the bound it is read."""
    mysql.execute(f"SET GLOBAL max_allowed_packet = {64 * MIB}")
    mysql.execute("DROP TABLE IF EXISTS prepared.wide")
    mysql.execute("CREATE TABLE prepared.wide (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET latin1)")
    given = options(mysql, "prepared.wide", maxRowBytes=16 * MIB)
    mysql.execute(f"INSERT INTO prepared.wide VALUES (1, REPEAT('x', {16 * MIB - 100}))")
    mysql.execute(f"SET GLOBAL max_allowed_packet = {MIB}")  # rows that are there are sent all the same
    stream = reader(given)
    offset, rows_read = take(stream, stream.initialOffset())
    assert [len(row[1]) for row in rows_read] == [16 * MIB - 100]
    mysql.execute(f"SET GLOBAL max_allowed_packet = {64 * MIB}")
    mysql.execute(f"UPDATE prepared.wide SET v = REPEAT('y', {16 * MIB - 100})")
    mysql.execute(f"SET GLOBAL max_allowed_packet = {MIB}")
    offset, rows_read = take(stream, offset)
    assert [row[1][0] for row in rows_read] == ["x", "y"]
    mysql.execute(f"SET GLOBAL max_allowed_packet = {64 * MIB}")
    mysql.execute(f"INSERT INTO prepared.wide VALUES (2, REPEAT('x', {33 * MIB}))")
    with pytest.raises(SettingError, match=r"maxRowBytes = 16777216: A change of prepared\.wide has at least"):
        take(stream, offset)
    again = reader(given)
    with pytest.raises(SettingError, match=r"maxRowBytes = 16777216: A row of prepared\.wide has at least"):
        take(again, again.initialOffset())
    mysql.execute("DROP TABLE prepared.wide")
