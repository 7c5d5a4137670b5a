"""Rows that the planner sends with a partition equal those that its task would read. Only sent if that is sure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog import prefetched_rows as ahead
from backlog_spark.connectors.mysql_cdc.binlog.prefetched_rows import carried, packed
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.connectors.mysql_cdc.stream.reader import BinlogPartition, MySqlCdcStreamReader
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, read, reader, take

Row = tuple[Any, ...]


def at_the_log(server: MySQLServer, **more: object) -> tuple[MySqlCdcStreamReader, dict[str, Any]]:
    """A table of three rows, whose snapshot was read, and the reader's offset behind the first batch of the log."""
    server.execute("CREATE DATABASE IF NOT EXISTS ahead")
    server.execute("DROP TABLE IF EXISTS ahead.t")
    server.execute(
        "CREATE TABLE ahead.t (id INT PRIMARY KEY, v VARCHAR(3000), d DECIMAL(38, 10), at TIMESTAMP(6) NULL)"
    )
    server.execute("INSERT INTO ahead.t VALUES (1, 'a', 1, NOW(6)), (2, NULL, NULL, NULL), (3, 'c', -3, NOW(6))")
    stream = reader(options(server, "ahead.t", **more))
    offset, rows = take(stream, stream.initialOffset())
    server.execute("INSERT INTO ahead.t VALUES (4, 'd', 4, NOW(6))")
    offset, rows = take(stream, offset)
    assert len(rows) == 1
    return stream, offset


def planned(stream: MySqlCdcStreamReader, start: dict[str, Any]) -> tuple[BinlogPartition, dict[str, Any]]:
    end = stream.latestOffset(start, ReadMaxRows(10**6))
    (partition,) = stream.partitions(start, end)
    assert isinstance(partition, BinlogPartition)
    return partition, end


def read_again(server: MySQLServer, start: dict[str, Any], end: dict[str, Any], **more: object) -> list[Row]:
    """The same batch, planned by a reader that knows nothing of it, as after a restart."""
    other = reader(options(server, "ahead.t", **more))
    (partition,) = other.partitions(start, end)
    assert isinstance(partition, BinlogPartition)
    assert partition.rows is None
    return read(other, partition)


@pytest.mark.parametrize("form", ["row", "debezium"])
def test_the_rows_are_those_of_the_log(mysql: MySQLServer, form: str) -> None:
    stream, offset = at_the_log(mysql, format=form)
    with mysql.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE ahead.t SET v = CONCAT(v, 'é'), d = d / 3")
        cursor.execute("UPDATE ahead.t SET id = 9 WHERE id = 1")
        cursor.execute("DELETE FROM ahead.t WHERE id = 2")
        connection.commit()
    mysql.execute(
        "INSERT INTO ahead.t VALUES (5, REPEAT('x', 3000), 1e27, '1969-12-31 23:59:59.999999' + INTERVAL 2 SECOND)"
    )
    partition, end = planned(stream, offset)
    assert partition.rows
    expected = read_again(mysql, offset, end, format=form)
    assert read(stream, partition) == expected
    assert len(expected) == (7 if form == "debezium" else 10)
    # Spark plans a batch again for each action on it.
    again = stream.partitions(offset, end)
    assert [read(stream, p) for p in again] == [expected]


def test_a_batch_that_is_too_large_is_read_from_the_log(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, offset = at_the_log(mysql)
    monkeypatch.setattr(ahead, "_MOST_CARRIED", 100)
    mysql.execute("UPDATE ahead.t SET v = 'z'")
    partition, end = planned(stream, offset)
    assert partition.rows is None
    monkeypatch.undo()
    mysql.execute("UPDATE ahead.t SET v = UUID()")
    assert read(stream, partition) == read_again(mysql, offset, end)
    following, last = planned(stream, end)
    assert following.rows
    assert read(stream, following) == read_again(mysql, end, last)


def test_no_more_is_kept_than_agreed(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, offset = at_the_log(mysql)
    monkeypatch.setattr("backlog_spark.connectors.mysql_cdc.binlog.planner.KEPT_BYTES", 2_000)
    mysql.execute("UPDATE ahead.t SET v = REPEAT('y', 900)")
    mysql.execute("DELETE FROM ahead.t WHERE id = 3")
    partition, end = planned(stream, offset)
    assert partition.rows is None
    mysql.execute("DELETE FROM ahead.t WHERE id = 4")
    partition, end = planned(stream, end)
    assert partition.rows, "what was too much was handed out"
    assert len(read(stream, partition)) == 1


def test_limited_batches_have_their_own_rows(mysql: MySQLServer) -> None:
    stream, offset = at_the_log(mysql)
    for number in range(10, 20):
        mysql.execute(f"INSERT INTO ahead.t (id) VALUES ({number})")
    found = []
    for _ in range(5):
        end = stream.latestOffset(offset, ReadMaxRows(2))
        (partition,) = stream.partitions(offset, end)
        assert partition.rows is not None
        found.append([row[0] for row in read(stream, partition)])
        offset = end
    assert found == [[10, 11], [12, 13], [14, 15], [16, 17], [18, 19]]


def test_batches_without_a_limit_of_the_users_grow_while_they_leave_rows_behind(mysql: MySQLServer) -> None:
    _, offset = at_the_log(mysql)
    given = options(mysql, "ahead.t")
    stream = MySqlCdcStreamReader(replace(MySqlOptions.parse(given), max_rows=200), check(given))
    for number in range(10, 1_000):
        mysql.execute(f"INSERT INTO ahead.t (id) VALUES ({number})")
    taken, ids = [], []
    while (end := stream.latestOffset(offset, stream.getDefaultReadLimit())) is not offset:
        (partition,) = stream.partitions(offset, end)
        rows = [row[0] for row in read(stream, partition)]
        taken.append(len(rows))
        ids += rows
        offset = end
    assert ids == list(range(10, 1_000))
    assert taken == [200, 400, 390]
    stream = reader(options(mysql, "ahead.t", maxRowsPerBatch=100))
    for number in range(1_000, 1_300):
        mysql.execute(f"INSERT INTO ahead.t (id) VALUES ({number})")
    end = stream.latestOffset(offset, stream.getDefaultReadLimit())
    assert [len(read(stream, p)) for p in stream.partitions(offset, end)] == [100]


def test_around_an_alter_table_the_log_is_read(mysql: MySQLServer) -> None:
    stream, offset = at_the_log(mysql)
    mysql.execute("INSERT INTO ahead.t (id) VALUES (5)")
    mysql.execute("ALTER TABLE ahead.t MODIFY v VARCHAR(2999)")
    mysql.execute("INSERT INTO ahead.t (id, v) VALUES (6, 'f')")
    found = []
    for _ in range(2):
        partition, end = planned(stream, offset)
        assert partition.rows is None
        found += [row[:2] for row in read(stream, partition)]
        offset = end
    assert found == [(5, None), (6, "f")]


def test_packing() -> None:
    batches = [pa.record_batch({"n": list(range(k, k + 10))}) for k in (0, 10)]
    rows = packed(iter(batches))
    assert rows is not None
    assert list(carried(rows)) == batches
    assert packed([]) == b""
    assert list(carried(b"")) == []
    assert packed([pa.record_batch({"n": [str(hash((k, 7))) for k in range(200_000)]})]) is None
