"""Which columns identify a table's rows and cut its snapshot, and which keys are refused."""

from __future__ import annotations

import pytest

from backlog_spark.connectors.mysql_cdc.source import check, inspect
from backlog_spark.errors import BacklogError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, read, reader
from tests.connectors.mysql_cdc.test_refusals import LIMIT, refusal


@pytest.fixture(autouse=True)
def database(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS keyed")


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        ("x", ["no such column", "Columns that can be: id, at, s."]),
        ("plain", ["no index of keyed.odd begins with it", "CREATE INDEX", "(`plain`)"]),
        ("second", ["no index of keyed.odd begins with it"]),
        ("prefixed", ["no index of keyed.odd begins with it"]),
        ("e", ["enum('a')", "cannot be cut", "id, at, s"]),
        ("j", ["double"]),
        ("maybe", ["type datetime."]),  # a zero date could not be told from NULL
        ("czech", ["cp1250_czech_cs"]),
    ],
)
def test_a_chunk_key_column_that_cannot_cut_the_table_is_refused(
    mysql: MySQLServer, wanted: str, parts: list[str]
) -> None:
    mysql.execute("DROP TABLE IF EXISTS keyed.odd")
    mysql.execute(
        "CREATE TABLE keyed.odd (id INT PRIMARY KEY, plain INT, second INT, at DATETIME NOT NULL, maybe DATETIME, "
        "e ENUM('a'), j DOUBLE, s VARCHAR(9), prefixed VARCHAR(9), czech VARCHAR(9) COLLATE cp1250_czech_cs, "
        "KEY (at, second), KEY (maybe), KEY (e), KEY (j), KEY (s), KEY (prefixed(3)), KEY (czech))"
    )
    text = refusal(options(mysql, "keyed.odd", chunkKeyColumn=wanted))
    for part in ("chunkKeyColumn", repr(wanted), *parts):
        assert part in text
    for name in ("id", "AT", "s"):
        assert check(options(mysql, "keyed.odd", chunkKeyColumn=name))[0].chunk_key == (name.lower(),)


@pytest.mark.parametrize(
    ("columns", "key", "chunk_key"),
    [
        ("a INT, b INT, PRIMARY KEY (b, a)", ("b", "a"), ("b", "a")),
        ("a INT, e ENUM('x'), c INT, PRIMARY KEY (a, e, c)", ("a", "e", "c"), ("a",)),
        ("v VARCHAR(20), PRIMARY KEY (v(5))", ("v",), ()),
        ("v VARCHAR(20) COLLATE cp1250_czech_cs PRIMARY KEY", ("v",), ()),
        ("id INT NOT NULL UNIQUE", (), ()),  # an index may be dropped while the query runs
        ("id INT", (), ()),
    ],
)
def test_what_rows_are_known_by_and_cut_by(
    mysql: MySQLServer, columns: str, key: tuple[str, ...], chunk_key: tuple[str, ...]
) -> None:
    mysql.execute("DROP TABLE IF EXISTS keyed.odd")
    mysql.execute(f"CREATE TABLE keyed.odd ({columns})")
    (schema,) = check(options(mysql, "keyed.odd"))
    assert (schema.key, schema.chunk_key) == (key, chunk_key)
    info = inspect(options(mysql, "keyed.odd"))
    assert (info.key, info.unique_in_backlog) == (key, bool(key))
    mysql.execute("DROP TABLE keyed.odd")


@pytest.mark.parametrize("key", ["DATE", "DATETIME(3)", "TIMESTAMP"])
def test_a_zero_date_in_the_key_is_refused_wherever_it_is_met(mysql: MySQLServer, key: str) -> None:
    def with_zero() -> None:
        with mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
            cursor.execute("INSERT INTO keyed.zero VALUES ('0000-00-00', 1)")

    mysql.execute("DROP TABLE IF EXISTS keyed.zero")
    mysql.execute(f"CREATE TABLE keyed.zero (k {key} PRIMARY KEY, n INT)")
    stream = reader(options(mysql, "keyed.zero"))
    start = stream.initialOffset()
    live = stream.latestOffset(start, LIMIT)
    partitions = stream.partitions(start, live)
    assert [row for p in partitions for row in read(stream, p)] == []
    with_zero()
    said = "zero or partial date"
    with pytest.raises(BacklogError, match=said):  # in the snapshot's rows
        [row for p in partitions for row in read(stream, p)]
    with pytest.raises(BacklogError, match=said):  # in the binary log
        stream.latestOffset(live, LIMIT)
    again = reader(options(mysql, "keyed.zero", chunkSize=1))
    with pytest.raises(BacklogError, match=said):  # at a chunk's end
        again.latestOffset(again.initialOffset(), LIMIT)
