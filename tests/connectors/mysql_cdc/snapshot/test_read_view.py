"""Tables without a primary key: a read begins when it is known exactly which transactions it sees."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.snapshot import read_view as views
from backlog_spark.errors import BacklogError
from servers.mariadb import MariaDBServer
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS, is_mariadb, options, read, reader

ALL = ReadMaxRows(10**6)


def create(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS views")
    mysql.execute("DROP TABLE IF EXISTS views.t")
    mysql.execute("CREATE TABLE views.t (a INT, b VARCHAR(9), f FLOAT)")
    mysql.execute("INSERT INTO views.t VALUES (1, 'x', 0.1), (1, 'x', 0.1), (2, NULL, NULL), (NULL, NULL, NULL)")


def disturb(
    monkeypatch: pytest.MonkeyPatch, mysql: MySQLServer, times: int, statement: str = "SET @nothing = 1"
) -> list[int]:
    """Commit a change of the table, after another statement, between the lower bound and the view, so many times."""
    begin = views.begin_view
    began: list[int] = []

    def begin_view(connection: Any) -> None:
        began.append(1)
        if len(began) <= times:
            mysql.execute(statement)
            mysql.execute("INSERT INTO views.t VALUES (1, 'x', 0.1)")
        begin(connection)

    monkeypatch.setattr(views, "begin_view", begin_view)
    return began


def test_a_commit_under_way_makes_the_read_begin_again(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    create(mysql)
    stream = reader(options(mysql, "views.t"))
    start = stream.initialOffset()
    live = stream.latestOffset(start, ALL)
    began = disturb(monkeypatch, mysql, 3)
    rows = [r[:3] for p in stream.partitions(start, live) for r in read(stream, p)]
    # MariaDB tells each view's position, so none is refused.
    assert len(began) == (1 if is_mariadb(mysql) else 4)
    assert sorted(rows, key=str) == [
        (1, "x", pytest.approx(0.1)),
        (1, "x", pytest.approx(0.1)),
        (2, None, None),
        (None, None, None),
    ]


@pytest.mark.parametrize("mysql", SERVERS[:1], indirect=True)
def test_a_table_that_is_always_being_changed_is_refused(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    create(mysql)
    stream = reader(options(mysql, "views.t"))
    start = stream.initialOffset()
    live = stream.latestOffset(start, ALL)
    (partition,) = stream.partitions(start, live)
    monkeypatch.setattr(views, "_ATTEMPTS", 5)
    disturb(monkeypatch, mysql, 5)
    with pytest.raises(BacklogError, match=r"views\.t has no primary key .* each of 5 attempts .*Add a primary key"):
        read(stream, partition)


def test_on_mariadb_a_view_in_a_new_log_file_is_begun_again(
    mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that is told to be in a new file may lack the rows of the commit that began the file."""
    create(mariadb)
    stream = reader(options(mariadb, "views.t"))
    start = stream.initialOffset()
    live = stream.latestOffset(start, ALL)
    (partition,) = stream.partitions(start, live)
    began = disturb(monkeypatch, mariadb, 2, "FLUSH BINARY LOGS")
    assert len(read(stream, partition)) == 4
    assert len(began) == 3
    monkeypatch.undo()
    monkeypatch.setattr(views, "_ATTEMPTS", 3)
    disturb(monkeypatch, mariadb, 3, "FLUSH BINARY LOGS")
    with pytest.raises(BacklogError, match=r"views\.t has no primary key .* each of 3 attempts .*max_binlog_size"):
        read(stream, partition)


def test_equal_rows_are_counted_and_an_update_is_a_preimage_and_a_postimage(mysql: MySQLServer) -> None:
    create(mysql)
    stream = reader(options(mysql, "views.t"))
    start = stream.initialOffset()
    live = stream.latestOffset(start, ALL)
    assert ([r[:2] for r in live["ranges"]], live["isProcessingBacklog"]) == ([[0, None]], False)
    assert [low for low, _ in live["lows"]] == [live["start"]]
    mysql.execute("DELETE FROM views.t WHERE a = 1 LIMIT 1")
    mysql.execute("UPDATE views.t SET a = 3 WHERE a = 2")
    snapshot = [r[:2] for p in stream.partitions(start, live) for r in read(stream, p)]
    assert sorted(snapshot, key=str) == [(1, "x"), (1, "x"), (2, None), (None, None)]
    end = stream.latestOffset(live, ALL)
    assert [(r[0], r[3]) for p in stream.partitions(live, end) for r in read(stream, p)] == [
        (1, "delete"),
        (2, "update_preimage"),
        (3, "update_postimage"),
    ]


def test_a_zero_has_a_sign_in_the_log_alone(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS views")
    mysql.execute("DROP TABLE IF EXISTS views.zeros")
    mysql.execute("CREATE TABLE views.zeros (f FLOAT, d DOUBLE)")
    mysql.execute("INSERT INTO views.zeros VALUES (0e0, 0e0), (-0e0, -0e0)")
    stream = reader(options(mysql, "views.zeros"))
    start = stream.initialOffset()
    live = stream.latestOffset(start, ALL)
    mysql.execute("INSERT INTO views.zeros VALUES (-0e0, 0e0), (0e0, -0e0), (-0e0, -0e0), (1, -0e0)")
    mysql.execute("DELETE FROM views.zeros LIMIT 1")
    snapshot = [r[:2] for p in stream.partitions(start, live) for r in read(stream, p)]
    assert snapshot == [(0.0, 0.0)] * 2
    end = stream.latestOffset(live, ALL)
    changes = [r[:3] for p in stream.partitions(live, end) for r in read(stream, p)]
    assert sorted(changes) == [(0.0, 0.0, "delete"), *[(0.0, 0.0, "insert")] * 3, (1.0, 0.0, "insert")]


def test_a_table_may_have_large_columns_alone(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS views")
    mysql.execute("DROP TABLE IF EXISTS views.large")
    mysql.execute("CREATE TABLE views.large (t TEXT, b LONGBLOB)")
    mysql.execute("INSERT INTO views.large VALUES ('x', 'y'), (NULL, NULL), ('', 'z')")
    stream = reader(options(mysql, "views.large"))
    start = stream.initialOffset()
    live = stream.latestOffset(start, ALL)
    mysql.execute("DELETE FROM views.large WHERE t = 'x'")
    snapshot = [r[:2] for p in stream.partitions(start, live) for r in read(stream, p)]
    assert sorted(snapshot, key=str) == [("", b"z"), ("x", b"y"), (None, None)]
