"""Tables with hidden columns: for indexes on expressions, and for UNIQUE keys that are stored as hashes."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.hidden import hidden_columns
from backlog_spark.connectors.mysql_cdc.schema.table import Hidden, SchemaChanged, TableSchema
from backlog_spark.connectors.mysql_cdc.schema.types import Column
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import BacklogError, SettingError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import is_mariadb, is_mysql_8, options, read, reader
from tests.connectors.mysql_cdc.server.test_unlogged import drained

SECRET = "correct-horse-battery"


def indexes(mysql: MySQLServer) -> str:
    """Two hidden columns."""
    return "UNIQUE (a), UNIQUE (b)" if is_mariadb(mysql) else "KEY ((UPPER(v))), KEY ((n + 1))"


@pytest.fixture
def table(mysql: MySQLServer) -> Iterator[str]:
    mysql.execute("DROP DATABASE IF EXISTS hidden")
    mysql.execute("CREATE DATABASE hidden CHARACTER SET utf8mb4")
    yield "hidden.t"
    mysql.execute("DROP DATABASE hidden")


@pytest.fixture(params=["MINIMAL", "FULL"])
def row_metadata(mysql: MySQLServer, request: pytest.FixtureRequest) -> Iterator[str]:
    mysql.execute(f"SET GLOBAL binlog_row_metadata = '{request.param}'")
    yield request.param
    mysql.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'")


@pytest.fixture
def hidden(mysql: MySQLServer, row_metadata: str, table: str) -> str:
    columns = "id INT PRIMARY KEY, v VARCHAR(300), n INT, a BLOB, b LONGTEXT, k DECIMAL(9,2)"
    mysql.execute(f"CREATE TABLE {table} ({columns}, {indexes(mysql)})")
    mysql.execute(f"INSERT INTO {table} VALUES (1, 'one', 1, 'a1', 'b1', 1.5), (2, NULL, NULL, NULL, NULL, NULL)")
    return table


def values(rows: list[tuple[Any, ...]], columns: int = 6) -> list[tuple[Any, ...]]:
    """What a row is, without how it came about."""
    return [row[:columns] for row in rows]


def test_rows_are_read_beside_hidden_columns(mysql: MySQLServer, hidden: str) -> None:
    given = options(mysql, hidden)
    stream = reader(given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10**6))
    # Behind the low watermark: the chunk takes it back.
    mysql.execute(f"UPDATE {hidden} SET v = 'later', a = 'a1 later', n = NULL WHERE id = 1")
    mysql.execute(f"DELETE FROM {hidden} WHERE id = 2")
    found = [row for p in stream.partitions(start, end) for row in read(stream, p)]
    one = (1, "one", 1, b"a1", "b1", Decimal("1.50"))
    assert sorted(values(found)) == [one, (2, *[None] * 5)]

    end, found = drained(stream, end)
    later = (1, "later", None, b"a1 later", "b1", Decimal("1.50"))
    assert values(found) == [one, later, (2, *[None] * 5)]
    mysql.execute(f"INSERT INTO {hidden} VALUES (3, 'x', 7, NULL, REPEAT('b', 70000), -1)")
    # A new start declares the table anew.
    _, found = drained(reader(given), end)
    assert values(found) == [(3, "x", 7, None, "b" * 70_000, Decimal("-1.00"))]


def test_other_columns_come_beside_hidden_ones(mysql: MySQLServer, hidden: str, row_metadata: str) -> None:
    given = options(mysql, hidden)
    end, _ = drained(stream := reader(given), stream.initialOffset())
    mysql.execute(f"INSERT INTO {hidden} VALUES (3, 'x', 7, 'a3', 'b3', NULL)")
    mysql.execute(f"ALTER TABLE {hidden} ADD COLUMN z INT, ADD COLUMN e INT AFTER v")
    mysql.execute(f"INSERT INTO {hidden} VALUES (4, 'y', 5, 8, 'a4', 'b4', NULL, 6)")
    if is_mysql_8(mysql) and row_metadata == "MINIMAL":  # MySQL 9 does not log them
        with pytest.raises(
            SchemaChanged, match=r"Only with binlog_row_metadata=FULL.*indexes on expressions.*as it is"
        ):
            drained(reader(given), end)
        return
    _, found = drained(reader(given), end)
    assert values(found, 8) == [(3, "x", None, 7, b"a3", "b3", None, None), (4, "y", 5, 8, b"a4", "b4", None, 6)]


@pytest.mark.parametrize(
    "alter",
    [
        "ALTER v SET DEFAULT 'x'",
        "MODIFY v VARCHAR(300) COMMENT 'x'",
        "MODIFY n BIGINT",
        "RENAME COLUMN k TO w",
        "ADD z INT",
    ],
)
def test_columns_stay_beside_hidden_ones(mysql: MySQLServer, hidden: str, alter: str) -> None:
    """Rows from before the statement are read in a start after it, and rows after it by the stream that meets it."""
    given = options(mysql, hidden)
    end, _ = drained(reader(given), reader(given).initialOffset())
    mysql.execute(f"INSERT INTO {hidden} VALUES (3, 'x', 7, 'a3', 'b3', NULL)")
    # A stream has the columns and types that it began with.
    running = None if alter.startswith(("RENAME", "ADD", "MODIFY n")) else reader(given)
    if running is not None:
        end, found = drained(running, end)
        assert values(found, 1) == [(3,)]
    mysql.execute(f"INSERT INTO {hidden} VALUES (4, 'x', 7, 'a4', 'b4', NULL)")
    mysql.execute(f"ALTER TABLE {hidden} {alter}")
    mysql.execute(f"INSERT INTO {hidden} (id, n, a, b) VALUES (5, 8, 'a5', 'b5')")
    for stream in (running, reader(given)):
        if stream is not None:
            _, found = drained(stream, end)
            assert [(row[0], *row[2:5]) for row in found][-2:] == [(4, 7, b"a4", "b4"), (5, 8, b"a5", "b5")]


def test_an_index_that_was_made_again_elsewhere(mysql: MySQLServer, row_metadata: str, table: str) -> None:
    if is_mariadb(mysql):
        columns, index = "id INT PRIMARY KEY, a BLOB", "UNIQUE k (a)"
    else:
        columns, index = "id INT PRIMARY KEY, a INT", "INDEX k ((a + 1))"
    mysql.execute(f"CREATE TABLE {table} ({columns}, {index})")
    mysql.execute(f"ALTER TABLE {table} ADD COLUMN b BIGINT")
    given = options(mysql, table)
    end, _ = drained(reader(given), reader(given).initialOffset())
    mysql.execute(f"INSERT INTO {table} VALUES (1, '1', 1)")
    mysql.execute(f"ALTER TABLE {table} DROP INDEX k")
    mysql.execute(f"ALTER TABLE {table} ADD {index}")
    mysql.execute(f"INSERT INTO {table} VALUES (2, '2', 2)")
    if row_metadata == "MINIMAL" and is_mysql_8(mysql):
        with pytest.raises(BacklogError, match=r"such an index was dropped and made again.*binlog_row_metadata=FULL"):
            drained(reader(given), end)
        return
    _, found = drained(reader(given), end)
    assert [(row[0], int(row[1]), row[2]) for row in found] == [(1, 1, 1), (2, 2, 2)]


def test_an_index_behind_what_the_log_describes_is_none() -> None:
    def columns(count: int) -> tuple[Column, ...]:
        return tuple(Column(f"c{n}", "int", "int") for n in range(count))

    now = TableSchema("d", "t", columns(3), hidden=(Hidden(3),))
    assert hidden_columns(now, ["c0", "c1", "c2"], 4, [], same_order=True) == [Hidden(3)]
    # It had a column less.
    with pytest.raises(SchemaChanged, match="Only with binlog_row_metadata=FULL"):
        hidden_columns(now, ["c0", "c1"], 3, [], same_order=True)


def test_a_hash_cuts_no_chunks(mysql: MySQLServer, table: str) -> None:
    if not is_mariadb(mysql):
        return
    mysql.execute(f"CREATE TABLE {table} (id INT, n INT NOT NULL, UNIQUE (n) USING HASH)")
    with pytest.raises(SettingError, match=r"chunkKeyColumn.*no index of hidden.t begins with it"):
        check(options(mysql, table, chunkKeyColumn="n"))


def test_an_index_that_comes_later(mysql: MySQLServer, row_metadata: str, table: str) -> None:
    """Rows from before it are of the same columns; those after it need a new start, or tell themselves."""
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(300), n INT, a BLOB, b LONGTEXT)")
    given = options(mysql, table)
    end, _ = drained(stream := reader(given), stream.initialOffset())
    mysql.execute(f"INSERT INTO {table} VALUES (1, 'x', 7, 'a', 'b')")
    parts = indexes(mysql).split(", ")
    mysql.execute(f"ALTER TABLE {table} ADD {parts[0]}, ADD {parts[1]}")
    mysql.execute(f"INSERT INTO {table} VALUES (2, 'y', 8, 'c', 'd')")
    if row_metadata == "MINIMAL" and (is_mariadb(mysql) or is_mysql_8(mysql)):
        with pytest.raises(SchemaChanged, match=r"7 columns instead of 5.*index.*start the query again"):
            drained(stream, end)
        stream = reader(given)
    _, found = drained(stream, end)
    assert values(found, 5) == [(1, "x", 7, b"a", "b"), (2, "y", 8, b"c", "d")]


def test_a_user_who_may_not_read_all_columns_is_refused(mysql: MySQLServer, table: str) -> None:
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT, secret INT)")
    mysql.execute(f"CREATE USER IF NOT EXISTS some_columns IDENTIFIED BY '{SECRET}'")
    mysql.execute("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO some_columns")
    mysql.execute(f"GRANT SELECT (id, v) ON {table} TO some_columns")
    given = options(mysql, table, user="some_columns", password=SECRET)
    with pytest.raises(
        BacklogError, match=rf"'some_columns' cannot read {table}.*GRANT SELECT on the whole table"
    ) as e:
        check(given)
    assert SECRET not in str(e.value)
    mysql.execute(f"GRANT SELECT ON {table} TO some_columns")
    assert check(given)[0].key == ("id",)
