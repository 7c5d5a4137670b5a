"""Which transactions a target contains at an offset (pure), and a table's rows at that offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.stream.tables_at import as_of, tables_at
from backlog_spark.errors import BacklogError, SettingError
from servers.mysql import MySQLServer

from .replay import Writers, apply, forget_log, options, reader, table_rows, take

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
AT = BinlogPosition("log.000007", 400)


@pytest.mark.parametrize(
    ("offset", "low", "expected"),
    [
        (Offset("s", complete=True, start=f"{A}:1-5"), "", f"{A}:1-5"),
        (Offset("s", complete=True, start=f"{A}:1-5"), f"{A}:1-9", f"{A}:1-9"),
        (Offset("s", complete=True, position=AT, gtid=f"{A}:1-7"), f"{A}:1-9", f"{A}:1-9"),
        (Offset("s", complete=True, position=AT, gtid=f"{A}:1-12"), f"{A}:1-9", f"{A}:1-12"),
        (Offset("s", complete=True, position=AT, gtid=f"{A}:1-7,{B}:3"), f"{A}:1-9", f"{A}:1-9,{B}:3"),
        (Offset("s", complete=True, position=AT), "", "@log.000007:400"),
        (Offset("s", complete=True, position=AT), "@log.000008:4", "@log.000008:4"),
        (Offset("mariadb-1", complete=True, position=AT, gtid="0-1-7"), "0-1-9@log.000007:900", "0-1-9@log.000007:900"),
        (Offset("mariadb-1", complete=True, position=AT, gtid="0-1-7"), "0-1-5@log.000007:100", "0-1-7@log.000007:400"),
        (Offset("mariadb-1", complete=True, position=AT, gtid="0-1-7"), "", "0-1-7@log.000007:400"),
    ],
)  # fmt: skip
def test_rows_hold_their_snapshot_and_the_log_that_was_read(offset: Offset, low: str, expected: str) -> None:
    assert as_of(offset, low) == expected


def test_watermarks_of_two_kinds_have_no_common_place() -> None:
    with pytest.raises(BacklogError, match="with and without GTIDs"):
        as_of(Offset("s", complete=True, position=AT), f"{A}:1-9")


def _rows(given: dict[str, str], offset: dict[str, Any], **more: Any) -> list[tuple[Any, ...]]:
    found = tables_at(given, offset, **more)
    rows = []
    for chunk in range(found.chunks):
        for batch in found.read(chunk):
            rows += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    discard_rewind_log()
    return rows


@pytest.mark.slow
def test_the_rows_at_each_offset_are_those_that_the_changes_up_to_it_give(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS at_offset")
    mysql.execute("DROP TABLE IF EXISTS at_offset.t")
    mysql.execute("CREATE TABLE at_offset.t (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    mysql.execute("INSERT INTO at_offset.t VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(400)))
    given = options(mysql, "at_offset.t", chunkSize=60, maxRowsPerBatch=90)
    stream, state, points = reader(given), dict[int, tuple[Any, ...]](), []
    with Writers(mysql, "at_offset.t", 11, threads=3):
        at = stream.initialOffset()
        with pytest.raises(BacklogError, match="does not have the whole snapshot yet"):
            tables_at(given, at)
        for _ in range(40):
            end = stream.latestOffset(at, ReadMaxRows(90))
            if end == at:
                continue
            _, rows = take_between(stream, at, end)
            assert not list(apply(state, rows))
            at = end
            if Offset.from_json(at).complete:
                points.append((at, sorted(state.values())))
        checks = [points[i] for i in {0, 1, len(points) // 2, len(points) - 1}]
        for offset, expected in checks:
            assert sorted(_rows(given, offset, rows_per_chunk=70)) == expected
    assert sorted(_rows(given, *[take(reader(given), points[-1][0])[0]])) == sorted(
        table_rows(mysql, "at_offset.t").values()
    )


def take_between(stream: Any, start: dict[str, Any], end: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    from .replay import read

    return end, [row for p in stream.partitions(start, end) for row in read(stream, p)]


def test_a_purged_log_is_a_clear_error(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS at_offset")
    mysql.execute("DROP TABLE IF EXISTS at_offset.p")
    mysql.execute("CREATE TABLE at_offset.p (id INT PRIMARY KEY, n INT)")
    mysql.execute("INSERT INTO at_offset.p VALUES (1, 1)")
    given = options(mysql, "at_offset.p")
    stream = reader(given)
    at, _ = take(stream, stream.initialOffset())
    mysql.execute("UPDATE at_offset.p SET n = 2")
    assert _rows(given, at) == [(1, 1)]
    with pytest.raises(SettingError, match="is not in the checkpoint"):
        tables_at(given, at, table="at_offset.q")
    mysql.execute("UPDATE at_offset.p SET n = 3")
    forget_log(mysql)
    with pytest.raises(BacklogError, match="purged"):
        tables_at(given, at)


@pytest.fixture
def own() -> Iterator[MySQLServer]:
    with MySQLServer() as server:  # one of its own, since it is reset
        yield server


@pytest.mark.slow
def test_keys_are_not_looked_for_in_another_log(own: MySQLServer) -> None:
    """The server was reset, and the tables were read again: its log has the same names and other changes."""
    own.execute("CREATE DATABASE at_offset")
    own.execute("CREATE TABLE at_offset.again (id INT AUTO_INCREMENT PRIMARY KEY, n INT)")
    given = options(own, "at_offset.again", **{"snapshot.mode": "when_needed"})

    def followed(offset: dict[str, Any]) -> dict[str, Any]:
        for _ in range(2):  # before a snapshot, and after it
            own.execute("INSERT INTO at_offset.again (n) VALUES (1)")
            while (end := take(reader(given), offset)[0]) != offset:
                offset = end
        return offset

    own.execute("RESET MASTER")
    before = followed(reader(given).initialOffset())
    found = tables_at(given, before)
    assert [b.to_pylist() for b in found.keys_changed(before, followed(before))] != []
    own.execute("RESET MASTER")
    after = followed(before)
    for _ in range(9):
        own.execute("UPDATE at_offset.again SET n = n + 1")
    after = followed(after)
    assert after["position"] > before["position"]
    assert after["shift"] > before.get("shift", 0)
    with pytest.raises(BacklogError, match=r"read again.*Verify again"):
        list(found.keys_changed(before, after))
    discard_rewind_log()
