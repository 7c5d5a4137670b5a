"""With a threshold the binary log is backlog while the stream lags far behind it, on real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.source import inspect
from backlog_spark.connectors.mysql_cdc.stream.reader import MySqlCdcStreamReader
from backlog_spark.errors import SettingError
from tests.connectors.mysql_cdc.replay import forget_log, options, read, reader

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

LAG = {"backlogLagThreshold": "5 min"}


@pytest.fixture
def table(mysql: MySQLServer) -> str:
    mysql.execute("CREATE DATABASE IF NOT EXISTS behind")
    for name in ("t", "other"):
        mysql.execute(f"DROP TABLE IF EXISTS behind.{name}")
        mysql.execute(f"CREATE TABLE behind.{name} (id INT PRIMARY KEY, v INT)")
    mysql.execute("INSERT INTO behind.t VALUES (0, 0)")
    return "behind.t"


def insert(server: MySQLServer, table: str, first: int, *, ago: int) -> None:
    """Two rows in a transaction of so many seconds ago."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET TIMESTAMP = UNIX_TIMESTAMP() - {ago}")
        cursor.execute(f"INSERT INTO {table} VALUES ({first}, 0), ({first + 1}, 0)")
        connection.commit()


def after_snapshot(stream: MySqlCdcStreamReader) -> dict[str, Any]:
    return stream.latestOffset(stream.initialOffset(), ReadMaxRows(100))


def follow(stream: MySqlCdcStreamReader, offset: dict[str, Any], rows: int) -> list[tuple[list[int], bool, bool]]:
    """Ids of each batch, ``isBacklog`` and ``isProcessingBacklog`` at its end."""
    found = []
    while (end := stream.latestOffset(offset, ReadMaxRows(rows))) != offset:
        ids = [row[0] for p in stream.partitions(offset, end) for row in read(stream, p)]
        found.append((ids, end["isBacklog"], end["isProcessingBacklog"]))
        offset = end
    return found


def test_behind_the_threshold_is_backlog(mysql: MySQLServer, table: str) -> None:
    given = options(mysql, table, **LAG)
    offset = after_snapshot(reader(given))
    assert not offset["isProcessingBacklog"], "that took less than five minutes"
    for first, ago in ((1, 3600), (3, 3600), (5, 60), (7, 0)):
        insert(mysql, table, first, ago=ago)
    assert follow(reader(given), offset, 2) == [
        ([1, 2], False, True), ([3, 4], True, True), ([5, 6], True, False), ([7, 8], False, False),
    ]  # fmt: skip
    # What was planned is read again as it was, and the flags are what the offsets say.
    assert follow(reader(given), offset, 6) == [([1, 2, 3, 4, 5, 6], False, False), ([7, 8], False, False)]
    assert follow(reader(options(mysql, table)), offset, 2) == [
        ([1, 2], False, False), ([3, 4], False, False), ([5, 6], False, False), ([7, 8], False, False),
    ]  # fmt: skip
    assert inspect(options(mysql, table)).unique_in_backlog
    assert not inspect(given).unique_in_backlog, "updates and deletes are among it"


def test_the_end_of_the_log_is_its_end(mysql: MySQLServer, table: str) -> None:
    """However old the last rows are, and though other tables' changes follow."""
    given = options(mysql, table, **LAG)
    offset = after_snapshot(reader(given))
    insert(mysql, table, 1, ago=3600)
    insert(mysql, "behind.other", 1, ago=3600)
    assert follow(reader(given), offset, 100) == [([1, 2], False, True), ([], True, False)]


def test_with_no_commit_during_backlog_the_rest_is_one_batch(mysql: MySQLServer, table: str) -> None:
    given = options(mysql, table, **LAG, intervalDuringBacklog="0")
    offset = after_snapshot(reader(given))
    for first in range(1, 21, 2):
        insert(mysql, table, first, ago=3600)
    assert follow(reader(given), offset, 2) == [([1, 2], False, True), (list(range(3, 21)), True, False)]
    capped = {**given, "maxRowsPerBatch": "8"}
    assert [ids for ids, _, _ in follow(reader(capped), offset, 8)] == [
        list(range(1, 9)), list(range(9, 17)), list(range(17, 21)),
    ]  # fmt: skip


def test_a_run_that_ends_with_the_backlog_reads_what_lags(mysql: MySQLServer, table: str) -> None:
    given = options(mysql, table, **LAG, availableNowTarget="backlogEnd")
    offset = after_snapshot(reader(given))
    for first, ago in ((1, 3600), (3, 3600), (5, 0)):
        insert(mysql, table, first, ago=ago)
    lagging = reader(options(mysql, table, **LAG)).latestOffset(offset, ReadMaxRows(2))
    for start, expected in ((offset, []), (lagging, [[3, 4], [5, 6]])):
        stream = reader(given)
        stream.prepareForTriggerAvailableNow()
        assert [ids for ids, _, _ in follow(stream, start, 2)] == expected


@pytest.mark.parametrize(("ago", "lags"), [(3600, True), (60, False)])
def test_a_stream_without_a_snapshot_finds_out_before_its_first_row(
    mysql: MySQLServer, table: str, ago: int, lags: bool
) -> None:
    """Then a backlog that begins with it is the first one of keyed operators."""
    forget_log(mysql)
    insert(mysql, "behind.other", 1, ago=7200)
    insert(mysql, table, 1, ago=ago)
    stream = reader(options(mysql, table, **LAG, **{"startup.mode": "earliest"}))
    given: list[tuple[int, bool, bool]] = []
    offset = stream.initialOffset()
    while (end := stream.latestOffset(offset, ReadMaxRows(100))) != offset:
        rows = sum(len(read(stream, p)) for p in stream.partitions(offset, end))
        given.append((rows, end["isProcessingBacklog"], end.get("noRowsYet", False)))
        offset = end
    assert given == [(0, lags, True), (2, False, False)]


def test_the_threshold_is_checked() -> None:
    for text, problem in (("0 s", "must be above 0"), ("5", "no unit"), ("long", "backlogLagThreshold")):
        with pytest.raises(SettingError, match=problem):
            MySqlOptions.parse({"host": "h", "user": "u", "table": "a.b", "backlogLagThreshold": text})
