"""What is large, many or odd: rows, transactions, columns, tables and names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog.row_decoder import RowDecoder, TableMap
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged, TableSchema
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import SettingError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, read, reader, take
from tests.connectors.mysql_cdc.test_memory import MOST, worker
from tests.fuzz.row_images import table_map

MIB = 1 << 20


@pytest.fixture
def limits(mysql: MySQLServer) -> Iterator[MySQLServer]:
    """A server that takes large packets, with an empty database."""
    (before,) = mysql.execute("SELECT @@global.max_allowed_packet")[0]
    mysql.execute(f"SET GLOBAL max_allowed_packet = {256 * MIB}")
    mysql.execute("DROP DATABASE IF EXISTS limits")
    mysql.execute("CREATE DATABASE limits")
    yield mysql
    mysql.execute(f"SET GLOBAL max_allowed_packet = {before}")
    mysql.execute("DROP DATABASE IF EXISTS limits")


def columns(count: int) -> tuple[Column, ...]:
    return tuple(Column(f"c{n}", "int", "int") for n in range(count))


def test_ten_thousand_columns_in_the_log_are_refused() -> None:
    """No server has more than 4,096: a log with more is not of this table."""
    described = TableMap.parse(table_map([(column, 3, 0) for column in columns(10_000)]))
    with pytest.raises(SchemaChanged, match=r"d.t was altered.*10,000 columns.*4,096 columns") as refused:
        RowDecoder(TableSchema("d", "t", columns(4_096)), described)
    assert len(str(refused.value)) < 1_000


def test_a_table_of_all_columns_that_a_server_allows() -> None:
    schema = TableSchema("d", "t", columns(4_096), ("c0",), ("c0",))
    decoder = RowDecoder(schema, TableMap.parse(table_map([(column, 3, 0) for column in schema.columns])))
    image = bytes(512) + b"".join(n.to_bytes(4, "little") for n in range(4_096))
    assert decoder.read_row(image, 0) == (list(range(4_096)), len(image))
    offset = Offset("s", (schema,))
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.slow
def test_a_row_of_64_mib(limits: MySQLServer) -> None:
    limits.execute("CREATE TABLE limits.t (id INT PRIMARY KEY, v LONGBLOB)")
    limits.execute(f"INSERT INTO limits.t VALUES (1, REPEAT('a', {64 * MIB}))")
    stream = reader(options(limits, "limits.t"))
    start = stream.initialOffset()
    end, rows = take(stream, start)
    assert [(row[0], len(row[1])) for row in rows] == [(1, 64 * MIB)]
    limits.execute(f"UPDATE limits.t SET v = REPEAT('b', {64 * MIB - 1})")
    end, rows = take(stream, end)
    assert [(row[0], len(row[1]), row[1][:1], row[-3]) for row in rows] == [
        (1, 64 * MIB, b"a", "update_preimage"), (1, 64 * MIB - 1, b"b", "update_postimage"),
    ]  # fmt: skip
    small = reader(options(limits, "limits.t", maxRowBytes=32 * MIB))
    for from_, until in ((start, small.latestOffset(start, ReadMaxRows(10))),):
        with pytest.raises(SettingError, match=r"maxRowBytes = 33554432: .*limits.t"):
            [read(small, partition) for partition in small.partitions(from_, until)]


ODD = [
    "a b",
    "q`t",
    "s'q",
    'd"q',
    "per%cent",
    "semi;--",
    "back\\slash",
    "é漢字",
    "{json}",
    "<b>&",
    "$x",
    "tab\tx",
    "nul?*[",
    "/* c */",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ODD, "".join(ODD)[:60]], ids=range(len(ODD) + 1))
def test_names_of_odd_characters(limits: MySQLServer, name: str) -> None:
    quoted = "`{}`".format(name.replace("`", "``"))
    with limits.connect(charset="utf8mb4", autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE limits.{quoted} ({quoted} INT PRIMARY KEY, `{name.replace('`', '``')[:50]}2` INT)"
        )
        cursor.execute(f"INSERT INTO limits.{quoted} VALUES (1, 2)")
        stream = reader(options(limits, f"limits.{name}"))
        end, rows = take(stream, stream.initialOffset())
        assert [row[:2] for row in rows] == [(1, 2)]
        cursor.execute(f"UPDATE limits.{quoted} SET {quoted} = 5")
        end, rows = take(stream, end)
        assert [(*row[:2], row[-3]) for row in rows] == [(1, 2, "delete"), (5, 2, "insert")]
        assert Offset.from_json(json.loads(json.dumps(end))).tables[0].table == name


@pytest.mark.grid
def test_a_transaction_of_a_gigabyte_takes_no_more_memory(limits: MySQLServer) -> None:
    limits.execute("CREATE TABLE limits.t (id INT PRIMARY KEY, v LONGBLOB)")
    given = options(limits, "limits.t")
    stream = reader(given)
    before, _ = take(stream, stream.initialOffset())
    with limits.connect(autocommit=False) as connection, connection.cursor() as cursor:
        for first in range(0, 1024, 64):
            numbers = (
                f"WITH RECURSIVE s (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM s WHERE i + 1 < {first + 64})"
            )
            cursor.execute(f"INSERT INTO limits.t {numbers} SELECT i, REPEAT('x', {MIB}) FROM s")
        connection.commit()
    after = stream.latestOffset(before, ReadMaxRows(10**6))
    rows, peak = worker((given, before, after))
    assert rows == 1024
    assert peak < MOST


@pytest.mark.grid
def test_tables_of_a_server_with_very_many(limits: MySQLServer) -> None:
    """As many as it makes in three minutes, up to 100,000."""
    made, until = 0, time.monotonic() + 180
    with limits.connect(autocommit=True) as connection, connection.cursor() as cursor:
        while made < 100_000 and time.monotonic() < until:
            cursor.execute(f"CREATE TABLE limits.t{made} (id INT PRIMARY KEY)")
            made += 1
    print(f"{made:,} tables")
    assert made > 1_000
    given = {k: v for k, v in options(limits, "").items() if k != "table"}
    tables = check({**given, "tablePattern": r"limits\.t\d*00"})
    assert len(tables) == (made + 99) // 100
