"""Several tables in one stream, on real servers."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.snapshot import new_tables as joining
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.source import MySqlCdcDataSource, check, inspect
from backlog_spark.errors import BacklogError, SettingError

from .replay import Writers, apply, options, read, reader, table_rows, take

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

SHARDS = ("orders_0", "orders_1", "orders_2")
PATTERN = r"many\.orders_\d+"
ROWS = 120


def several(server: MySQLServer, **more: object) -> dict[str, str]:
    given = options(server, "", tablePattern=PATTERN, **more)
    return {k: v for k, v in given.items() if v}


@pytest.fixture
def shards(mysql: MySQLServer) -> Iterator[None]:
    mysql.execute("DROP DATABASE IF EXISTS many")
    mysql.execute("CREATE DATABASE many")
    for i, name in enumerate(SHARDS):
        mysql.execute(f"CREATE TABLE many.{name} (id INT PRIMARY KEY, n INT, v VARCHAR({20 + i}))")
        rows = ",".join(f"({k}, {k}, '{name}')" for k in range(ROWS))
        mysql.execute(f"INSERT INTO many.{name} VALUES {rows}")
    mysql.execute("CREATE TABLE many.customers (id INT PRIMARY KEY, name TEXT)")
    yield
    discard_rewind_log()


def by_table(rows: list[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    """Rows as of one table's stream, by the table."""
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SHARDS}
    for row in rows:
        assert row[-2] == "many"
        found[row[-1]].append(row[:-2])
    return found


@pytest.mark.usefixtures("shards")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.grid)])
def test_tables_under_writers_are_each_exact(mysql: MySQLServer, seed: int) -> None:
    chance = random.Random(seed)
    stream = reader(several(mysql, chunkSize=25))
    states: dict[str, dict[int, tuple[Any, ...]]] = {name: {} for name in SHARDS}
    misfits: list[str] = []

    def consume(offset: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
        for partition in stream.partitions(offset, end):
            time.sleep(chance.random() * 0.03)
            found = read(stream, partition)
            discard_rewind_log()
            assert sorted(read(stream, partition)) == sorted(found)
            for name, rows in by_table(found).items():
                misfits.extend(f"{name}: {misfit}" for misfit in apply(states[name], rows))
        return end

    writers = [Writers(mysql, f"many.{name}", seed + i, threads=1, keys=ROWS) for i, name in enumerate(SHARDS)]
    with writers[0], writers[1], writers[2]:
        offset = stream.initialOffset()
        batches = 0
        while offset["isProcessingBacklog"]:
            # Ends in the middle of tables, and takes the rest of one with the beginning of the next.
            offset = consume(offset, stream.latestOffset(offset, ReadMaxRows(chance.choice([50, 150, 170]))))
            batches += 1
        assert batches > 1
        assert {r[0] for r in offset["ranges"]} == {0, 1, 2}
        for _ in range(3):
            time.sleep(0.05)
            end = stream.latestOffset(offset, ReadMaxRows(50))
            offset = consume(offset, end) if end is not offset else offset
    while (end := stream.latestOffset(offset, ReadMaxRows(300))) is not offset:
        offset = consume(offset, end)
    assert misfits == []
    assert {name: table_rows(mysql, f"many.{name}") for name in SHARDS} == states


@pytest.mark.usefixtures("shards")
def test_in_one_batch_with_interval_during_backlog_zero(mysql: MySQLServer) -> None:
    stream = reader(several(mysql, intervalDuringBacklog=0))
    offset, rows = take(stream, stream.initialOffset())
    assert not offset["isProcessingBacklog"]
    assert {name: len(found) for name, found in by_table(rows).items()} == dict.fromkeys(SHARDS, ROWS)
    assert len(offset["lows"]) == 1


@pytest.mark.usefixtures("shards")
def test_a_list_of_tables_and_their_key(mysql: MySQLServer) -> None:
    given = options(mysql, "many.orders_2, many.orders_0")
    assert [t.name for t in check(given)] == ["many.orders_2", "many.orders_0"]
    assert inspect(given).key == ("_database", "_table", "id")
    assert inspect({**given, "metadataColumns": "_change_type"}).key == (), "rows of two tables would be one"
    assert inspect(options(mysql, "many.orders_0")).key == ("id",)
    names = MySqlCdcDataSource(given).schema().names
    assert names == ["id", "n", "v", "_change_type", "_commit_timestamp", "_commit_seq", "_database", "_table"]


@pytest.mark.usefixtures("shards")
def test_tables_of_other_columns_do_not_go_into_one_stream(mysql: MySQLServer) -> None:
    with pytest.raises(SettingError, match=r"many\.customers has other .* it has name string and it has no n int"):
        check(options(mysql, "many.orders_0,many.customers"))
    check(options(mysql, "many.orders_0,many.customers", format="debezium"))


@pytest.mark.usefixtures("shards")
def test_what_the_checkpoint_is_about_stays(mysql: MySQLServer, caplog: pytest.LogCaptureFixture) -> None:
    offset, _ = take(reader(several(mysql)), reader(several(mysql)).initialOffset())
    mysql.execute("CREATE TABLE many.orders_3 LIKE many.orders_0")
    mysql.execute("INSERT INTO many.orders_3 VALUES (1, 1, '')")
    mysql.execute("DELETE FROM many.orders_1 WHERE id = 7")
    _, rows = take(reader(several(mysql)), offset)
    assert [(row[0], row[-1]) for row in rows] == [(7, "orders_1")]
    assert "not among them: many.orders_3" in caplog.text


@pytest.mark.usefixtures("shards")
def test_a_change_of_any_of_them_is_told(mysql: MySQLServer) -> None:
    stream = reader(several(mysql, tableEvents="fail"))
    offset, _ = take(stream, stream.initialOffset())
    mysql.execute("CREATE TABLE many.elsewhere (id INT)")
    mysql.execute("TRUNCATE many.customers")
    assert take(stream, offset)[1] == []
    mysql.execute("TRUNCATE many.orders_1")
    with pytest.raises(SchemaChanged, match=r"many\.orders_1 was changed by .*TRUNCATE"):
        take(stream, offset)
    mysql.execute("DROP DATABASE many")
    with pytest.raises(BacklogError, match="matches none of the"):
        check(several(mysql))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "table = None: mysql_cdc needs this option or tablePattern"),
        ({"table": "a.b", "tablePattern": "a.b"}, "and not both"),
        ({"table": "a.b,,c.d"}, "'' is not database.table"),
        ({"table": "a.b, a.b"}, "names a.b twice"),
        ({"table": "`a.x`.b,a.x.b,`a.x`.`b`"}, "names `a.x`.b twice"),
        ({"tablePattern": "a.(b"}, "not a regular expression"),
        ({"tablePattern": "(" * 5000 + ")" * 5000}, "not a regular expression"),
        ({"table": "a.b", "format": "json"}, "format = 'json': is none of row, debezium"),
    ],
)
def test_what_cannot_be_meant(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        check({"host": "h", "user": "u", **given})


@pytest.mark.usefixtures("shards")
def test_the_first_batch_is_the_same_with_a_table_that_came_after_it_was_planned(mysql: MySQLServer) -> None:
    """Spark asks for the initial offset at every start, as long as no batch is committed."""
    stream = reader(several(mysql))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10**6))
    rows = [row for p in stream.partitions(start, end) for row in read(stream, p)]
    mysql.execute("CREATE TABLE many.orders_00 LIKE many.orders_0")
    mysql.execute("INSERT INTO many.orders_00 SELECT * FROM many.orders_1")
    discard_rewind_log()
    again = reader(several(mysql))
    assert [row for p in again.partitions(again.initialOffset(), end) for row in read(again, p)] == rows


# -- tables that come later --------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for tables at every batch."""
    monkeypatch.setattr(joining, "LOOK_MS", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("shards", "at_once")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.grid)])
def test_a_new_table_joins_while_the_others_go_on(mysql: MySQLServer, seed: int) -> None:
    chance = random.Random(seed)
    given = several(mysql, chunkSize=20, maxRowsPerBatch=40, scanNewlyAddedTables="true")
    stream = reader(given)
    names = (*SHARDS, "orders_7", "orders_8")
    states: dict[str, dict[int, tuple[Any, ...]]] = {name: {} for name in names}
    misfits: list[str] = []
    live: list[bool] = []

    def consume(offset: dict[str, Any], limit: int) -> dict[str, Any]:
        nonlocal stream
        end = stream.latestOffset(offset, ReadMaxRows(limit))
        if chance.random() < 0.2:
            stream = reader(given)  # as after a kill: the batch is replayed by another process
        found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
        for partition in stream.partitions(offset, end) if end is not offset else []:
            rows = read(stream, partition)
            discard_rewind_log()
            assert sorted(read(stream, partition), key=str) == sorted(rows, key=str)
            for row in rows:
                found[row[-1]].append(row[:-2])
        for name, rows in found.items():
            # Within a batch the snapshot comes first.
            misfits.extend(f"{name}: {m}" for m in apply(states[name], sorted(rows, key=lambda row: row[-1])))
        return end

    offset = stream.initialOffset()
    while offset["isProcessingBacklog"]:
        offset = consume(offset, 10_000)
    writers = [Writers(mysql, f"many.{name}", seed + i, threads=1, keys=ROWS) for i, name in enumerate(names)]
    with writers[0], writers[1]:
        for _ in range(3):
            offset = consume(offset, 40)
        for name in names[-2:]:
            mysql.execute(f"CREATE TABLE many.{name} LIKE many.orders_0")
            mysql.execute(f"INSERT INTO many.{name} SELECT * FROM many.orders_0")
        with writers[3], writers[4]:
            for _ in range(14):
                time.sleep(0.02)
                offset = consume(offset, 40)
                live.append(bool(offset.get("joining")))
                assert not offset["isProcessingBacklog"]
        assert sum(live) > 2, "in several batches"
        assert not offset.get("joining")
    while (end := consume(offset, 1000)) != offset:
        offset = end
    assert misfits == []
    assert {name: table_rows(mysql, f"many.{name}") for name in names} == states
    assert offset["ranges"] == [], "the filter is gone once it is passed"


@pytest.mark.usefixtures("shards", "at_once")
def test_a_table_that_is_named_later_joins(mysql: MySQLServer) -> None:
    stream = reader(options(mysql, "many.orders_0,many.orders_1"))
    offset, _ = take(stream, stream.initialOffset())
    mysql.execute("UPDATE many.orders_0 SET n = -1 WHERE id = 1")
    offset, _ = take(stream, offset)
    given = options(mysql, "many.orders_0,many.orders_1,many.orders_2", scanNewlyAddedTables="true")
    given["metadataColumns"] = "_change_type,_commit_timestamp,_commit_seq,_database,_table"
    stream = reader(given)
    found: list[tuple[Any, ...]] = []
    for _ in range(4):
        end, rows = take(stream, offset)
        offset, found = end, found + rows
    assert {row[-1] for row in found} == {"orders_2"}
    assert len(found) == ROWS
    mysql.execute("UPDATE many.orders_2 SET n = -1 WHERE id = 1")
    assert [row[1] for row in take(stream, offset)[1]] == [1, -1]


@pytest.mark.usefixtures("shards", "at_once")
def test_a_new_table_of_other_columns_is_refused_in_rows_and_joins_as_envelopes(mysql: MySQLServer) -> None:
    for form in ("row", "debezium"):
        stream = reader(several(mysql, format=form, scanNewlyAddedTables="true"))
        offset, _ = take(stream, stream.initialOffset())
        mysql.execute("UPDATE many.orders_0 SET n = n + 1 WHERE id = 1")
        mysql.execute("CREATE TABLE many.orders_9 (k INT PRIMARY KEY)")
        mysql.execute("INSERT INTO many.orders_9 VALUES (5)")
        if form == "row":
            offset, _ = take(stream, offset)
            with pytest.raises(SettingError, match=r"many\.orders_9 has other columns"):
                take(stream, offset)
        else:
            keys: list[str] = []
            for _ in range(3):
                offset, rows = take(stream, offset)
                keys += [row[0] for row in rows]
            assert keys == ['{"id":1}', '{"k":5}']
        mysql.execute("DROP TABLE many.orders_9")


def test_new_tables_are_for_streams_that_begin_with_a_snapshot() -> None:
    given = {"host": "h", "user": "u", "table": "a.b", "startup.mode": "latest", "scanNewlyAddedTables": "true"}
    with pytest.raises(SettingError, match=r"scanNewlyAddedTables.*startup\.mode=initial"):
        check(given)
