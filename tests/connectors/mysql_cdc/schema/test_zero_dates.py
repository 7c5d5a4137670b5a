"""zeroDate: dates that Spark does not have, in the snapshot and in the log."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.stream.reader import MySqlCdcStreamReader
from backlog_spark.errors import BacklogError, SettingError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, read, reader, take

SMALL, LARGE = "", ", t TEXT"  # a table that is fetched as one value, and one that is fetched row by row
CASES = [
    ("DATE", "0000-00-00"),
    ("DATE", "2024-00-10"),
    ("DATE", "2024-02-31"),
    ("DATETIME", "0000-00-00 00:00:00"),
    ("DATETIME(6)", "2024-02-31 01:02:03.500000"),
    ("DATETIME(3)", "0000-03-01 00:00:00.000"),
    ("TIMESTAMP(6)", "0000-00-00 00:00:00.000000"),
]


def create(mysql: MySQLServer, kind: str, more: str = SMALL) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS zero")
    mysql.execute("DROP TABLE IF EXISTS zero.t")
    mysql.execute(f"CREATE TABLE zero.t (id INT PRIMARY KEY, d {kind} NULL{more})")


def put(mysql: MySQLServer, statement: str) -> None:
    with mysql.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        cursor.execute(statement)


def start(mysql: MySQLServer, zero_date: str, **more: object) -> MySqlCdcStreamReader:
    return reader(options(mysql, "zero.t", zeroDate=zero_date, **more))


def snapshot(stream: MySqlCdcStreamReader) -> list[tuple[object, ...]]:
    return [row[:2] for row in take(stream, stream.initialOffset())[1]]


@pytest.mark.parametrize(("kind", "written"), CASES)
def test_an_error_names_the_column_and_the_date_by_either_road(mysql: MySQLServer, kind: str, written: str) -> None:
    said = f"'d' of zero.t holds the date {written.split()[0]}.* zeroDate=null"  # the log's says no time
    create(mysql, kind)
    stream = start(mysql, "error", **{"startup.mode": "latest"})
    before, _ = take(stream, stream.initialOffset())
    put(mysql, f"INSERT INTO zero.t VALUES (1, NULL), (2, '2024-02-29'), (3, '{written}')")
    with pytest.raises(BacklogError, match=said):
        take(stream, before)
    with pytest.raises(BacklogError, match=said):
        snapshot(start(mysql, "error"))


@pytest.mark.parametrize("more", [SMALL, LARGE], ids=["chunk as one value", "row by row"])
def test_only_what_was_not_null_is_an_error(mysql: MySQLServer, more: str) -> None:
    create(mysql, "DATETIME", more)
    stream = start(mysql, "error")
    before, _ = take(stream, stream.initialOffset())
    put(mysql, "INSERT INTO zero.t (id, d) VALUES (1, NULL), (2, '2024-02-29')")
    rows = [(1, None), (2, dt.datetime(2024, 2, 29))]
    before, logged = take(stream, before)
    assert [row[:2] for row in logged] == snapshot(start(mysql, "error")) == rows
    put(mysql, "INSERT INTO zero.t (id, d) VALUES (3, '2024-02-30')")
    with pytest.raises(BacklogError, match="2024-02-30"):
        take(stream, before)
    with pytest.raises(BacklogError, match="2024-02-30"):
        snapshot(start(mysql, "error"))
    assert snapshot(start(mysql, "null")) == [*rows, (3, None)]
    assert [row[:2] for row in take(start(mysql, "null"), before)[1]] == [(3, None)]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_row_that_the_rewind_log_restores(mysql: MySQLServer, keyed: bool) -> None:
    create(mysql, "DATE")
    if not keyed:
        put(mysql, "ALTER TABLE zero.t DROP PRIMARY KEY")
    put(mysql, "INSERT INTO zero.t VALUES (1, '2024-00-10'), (2, NULL)")
    for given in ("null", "error"):
        stream = start(mysql, given)
        first = stream.initialOffset()
        end = stream.latestOffset(first, ReadMaxRows(10**6))
        put(mysql, "UPDATE zero.t SET d = '2024-01-10' WHERE id = 1")
        if given == "null":
            rows = [row[:2] for p in stream.partitions(first, end) for row in read(stream, p)]
            assert sorted(rows) == [(1, None), (2, None)]
        else:
            with pytest.raises(BacklogError, match=r"zero\.t holds the date 2024-00-10"):
                [read(stream, p) for p in stream.partitions(first, end)]
        put(mysql, "UPDATE zero.t SET d = '2024-00-10' WHERE id = 1")


@pytest.mark.parametrize("given", ["null", "error"])
def test_a_zero_date_in_a_key_is_refused_whatever_the_option(mysql: MySQLServer, given: str) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS zero")
    mysql.execute("DROP TABLE IF EXISTS zero.t")
    mysql.execute("CREATE TABLE zero.t (d DATE PRIMARY KEY, n INT)")
    stream = start(mysql, given)
    before, _ = take(stream, stream.initialOffset())
    put(mysql, "INSERT INTO zero.t VALUES ('0000-00-00', 1)")
    with pytest.raises(BacklogError, match="key column 'd' holds a zero or partial date"):
        take(stream, before)
    with pytest.raises(BacklogError, match="zero or partial date"):
        snapshot(start(mysql, given))


def test_year_0_and_dates_at_the_bounds_are_values(mysql: MySQLServer) -> None:
    create(mysql, "DATE", ", y YEAR, m DATETIME(6)")
    stream = start(mysql, "error")
    before, _ = take(stream, stream.initialOffset())
    put(mysql, "INSERT INTO zero.t VALUES (1, '0001-01-01', 0, '9999-12-31 23:59:59.999999')")
    expected = [(1, dt.date(1, 1, 1), 0, dt.datetime(9999, 12, 31, 23, 59, 59, 999_999))]
    assert [row[:4] for row in take(stream, before)[1]] == expected
    other = start(mysql, "error")
    assert [row[:4] for row in take(other, other.initialOffset())[1]] == expected


def test_the_option() -> None:
    given = {"host": "h", "user": "u", "table": "d.t"}
    assert not MySqlOptions.parse(given).zero_date_fails
    assert MySqlOptions.parse({**given, "zerodate": "ERROR"}).zero_date_fails
    with pytest.raises(SettingError, match=r"zeroDate.*is none of null, error"):
        MySqlOptions.parse({**given, "zeroDate": "fail"})
