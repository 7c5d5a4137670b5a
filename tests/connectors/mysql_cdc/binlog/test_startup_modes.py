"""Streams that start without a snapshot, on real servers."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.source import inspect
from backlog_spark.errors import BacklogError, SettingError
from tests.connectors.mysql_cdc.replay import forget_log, is_mariadb, options, reader, take

if TYPE_CHECKING:
    from servers.mysql import MySQLServer


def create(server: MySQLServer, name: str, *, in_new_log: bool = False) -> str:
    server.execute("CREATE DATABASE IF NOT EXISTS starts")
    table = f"starts.{name}"
    server.execute(f"DROP TABLE IF EXISTS {table}")
    if in_new_log:
        forget_log(server)
    server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))")
    return table


def status(server: MySQLServer) -> tuple[str, int]:
    file, position = server.binlog_end()
    return str(file), int(position)


def follow(given: dict[str, str], offset: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """All that there is from an offset on, by a reader of its own; the first batch has no rows."""
    stream = reader(given)
    rows: list[tuple[Any, ...]] = []
    if offset is None:
        start = stream.initialOffset()
        assert (start["phase"], start["isProcessingBacklog"]) == ("start", False)
        offset, found = take(stream, start)
        assert not found
        assert (offset["phase"], offset["isProcessingBacklog"], offset["isBacklog"]) == ("binlog", False, False)
    while True:
        end, found = take(stream, offset)
        if end == offset:
            return end, [(row[2], row[0], row[1]) for row in rows]
        offset = end
        rows += found


def test_latest(mysql: MySQLServer) -> None:
    table = create(mysql, "latest")
    mysql.execute(f"INSERT INTO {table} VALUES (1, 'before')")
    given = options(mysql, table, **{"startup.mode": "latest"})
    stream = reader(given)
    start = stream.initialOffset()
    decided, rows = take(stream, start)
    assert not rows
    mysql.execute(f"INSERT INTO {table} VALUES (2, 'after')")
    mysql.execute(f"UPDATE {table} SET v = 'changed' WHERE id = 1")
    # The first batch was planned and not committed: its start is asked for again, and its end stays.
    again = reader(given)
    assert again.initialOffset() == start
    assert not again.partitions(start, decided)
    end, rows = follow(given, decided)
    assert rows == [
        ("insert", 2, "after"), ("update_preimage", 1, "before"), ("update_postimage", 1, "changed"),
    ]  # fmt: skip
    mysql.execute(f"DELETE FROM {table}")
    assert [row[:2] for row in follow(given, end)[1]] == [("delete", 1), ("delete", 2)]
    info = inspect(given)
    assert (info.starts_in_backlog, info.unique_in_backlog, info.key) == (False, False, ("id",))


def test_earliest_reads_all_that_the_log_has(mysql: MySQLServer) -> None:
    table = create(mysql, "earliest", in_new_log=True)
    mysql.execute(f"INSERT INTO {table} VALUES (1, 'one')")
    mysql.execute("FLUSH BINARY LOGS")
    mysql.execute(f"REPLACE INTO {table} VALUES (1, 'uno')")
    given = options(mysql, table, **{"startup.mode": "earliest"})
    _, rows = follow(given)
    assert rows == [("insert", 1, "one"), ("update_preimage", 1, "one"), ("update_postimage", 1, "uno")]
    mysql.execute(f"ALTER TABLE {table} ADD COLUMN later INT FIRST")
    with pytest.raises(SchemaChanged):  # rows of another shape are never read as if they were of this one
        follow(given)


def test_timestamp(mysql: MySQLServer) -> None:
    table = create(mysql, "timed", in_new_log=True)
    seconds = []
    for number in range(4):
        if number % 2:
            mysql.execute("FLUSH BINARY LOGS")
        # In a second of its own, which the session then keeps.
        time.sleep(1.5 - time.time() % 1)
        with mysql.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SET TIMESTAMP = UNIX_TIMESTAMP()")
            cursor.execute("SELECT UNIX_TIMESTAMP()")
            seconds.append(int(cursor.fetchone()[0]))
            cursor.execute(f"INSERT INTO {table} VALUES ({number}, 'x')")

    def found(at: int) -> list[int]:
        given = options(mysql, table, **{"startup.mode": "timestamp", "startup.timestampMillis": at})
        return [row[1] for row in follow(given)[1]]

    for number, second in enumerate(seconds):
        assert found(second * 1000) == found(second * 1000 + 999) == list(range(number, 4))
    assert found(0) == [0, 1, 2, 3]
    assert found((seconds[-1] + 3600) * 1000) == []


def test_specific_position(mysql: MySQLServer) -> None:
    table = create(mysql, "positioned")
    mysql.execute(f"INSERT INTO {table} VALUES (1, 'before')")
    file, position = status(mysql)
    mysql.execute(f"INSERT INTO {table} VALUES (2, 'after')")
    specific = {"startup.mode": "specific", "startup.file": file, "startup.position": position}
    assert follow(options(mysql, table, **specific))[1] == [("insert", 2, "after")]
    end = {**specific, "startup.position": status(mysql)[1]}
    assert follow(options(mysql, table, **end))[1] == []
    events = [(int(row[1]), str(row[2])) for row in mysql.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {position}")]
    inside = next(at for at, kind in events if kind == "Table_map")
    for changed, problem in (
        ({"startup.position": inside}, "a table_map event is there"),
        ({"startup.position": 10**9}, "not between two transactions"),
        ({"startup.file": "no.000001"}, r"no binary log file 'no.000001'"),
    ):
        with pytest.raises(BacklogError, match=problem):
            follow(options(mysql, table, **{**specific, **changed}))


def test_specific_gtids(mysql: MySQLServer) -> None:
    table = create(mysql, "gtids")
    given = options(mysql, table, **{"startup.mode": "specific", "startup.gtidSet": "0-1-1"})
    if is_mariadb(mysql):
        with pytest.raises(SettingError, match=r"is for MySQL.*startup.file"):
            follow(given)
        return
    mysql.execute(f"INSERT INTO {table} VALUES (1, 'before')")
    executed = str(mysql.execute("SELECT @@gtid_executed")[0][0])
    mysql.execute(f"INSERT INTO {table} VALUES (2, 'after')")
    given["startup.gtidSet"] = executed.replace(",", ",\n")
    assert follow(given)[1] == [("insert", 2, "after")]
    given["startup.gtidSet"] = f"{executed},3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5"
    with pytest.raises(SettingError, match="transactions that the server has not"):
        follow(given)
    forget_log(mysql)
    given["startup.gtidSet"] = executed.rpartition(":")[0] + ":1"
    with pytest.raises(BacklogError, match="has purged binary logs that are still needed"):
        follow(given)


def test_a_snapshot_alone_is_consistent_and_ends(mysql: MySQLServer) -> None:
    table = create(mysql, "alone")
    mysql.execute(f"INSERT INTO {table} VALUES {', '.join(f'({n}, 0)' for n in range(200))}")
    given = options(mysql, table, **{"startup.mode": "snapshot"})
    assert inspect(given).starts_in_backlog
    stream = reader(given)
    offset, state, batches = stream.initialOffset(), {}, 0
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            mysql.execute(f"REPLACE INTO {table} VALUES ({number % 200}, {number}), ({(number + 100) % 200}, {number})")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while True:
            end = stream.latestOffset(offset, ReadMaxRows(40))
            if end == offset:
                break
            batches += 1
            for partition in stream.partitions(offset, end):
                for batch in stream.read(partition):
                    for row in batch.to_pylist():
                        if row["_change_type"] in ("insert", "update_postimage"):
                            state[row["id"]] = row["v"]
            offset = end
    finally:
        stop.set()
        writer.join()
    assert (offset["isFinished"], offset["isProcessingBacklog"]) == (True, False)
    assert batches > 5
    # Both rows of a statement change together: as of one position in the log they are the same.
    assert len(state) == 200
    assert all(state[n] == state[n + 100] for n in range(100))
    mysql.execute(f"DELETE FROM {table}")
    later = reader(given)
    assert later.latestOffset(offset, ReadMaxRows(40)) == offset, "finished is finished, after a restart too"
