"""TRUNCATE, DROP and CREATE of captured tables while a stream reads them, on real servers."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog import planner
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.snapshot import new_tables as joining
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.source import check_start
from backlog_spark.errors import BacklogError, SettingError
from servers.mysql import MySQLServer

from .replay import Writers, options, read, reader, table_rows, take

Row = tuple[Any, ...]
ROWS = 60


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, mysql: MySQLServer) -> Iterator[None]:
    monkeypatch.setattr(joining, "LOOK_MS", 0)
    monkeypatch.setattr(planner, "QUIET_MS", -1)
    mysql.execute("DROP DATABASE IF EXISTS events")
    mysql.execute("CREATE DATABASE events")
    yield
    discard_rewind_log()


def made(server: MySQLServer, name: str, rows: int = ROWS, key: str = "PRIMARY KEY") -> str:
    server.execute(f"CREATE TABLE events.{name} (id INT {key}, n INT, v VARCHAR(20))")
    fill(server, name, rows)
    return f"events.{name}"


def fill(server: MySQLServer, name: str, rows: int = ROWS) -> None:
    if rows:
        server.execute(f"INSERT IGNORE INTO events.{name} VALUES {','.join(f'({k}, {k}, {k})' for k in range(rows))}")


class Target:
    """The rows of each table as `DeltaUpsert` would keep them, and the number of times that a snapshot row came."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, Row]] = {}
        self.events: list[tuple[str, str]] = []

    def take(self, rows: list[Row], *, several: bool = True) -> None:
        """A batch: the newest change of each key after the last statement that emptied its table."""
        names = [row[-1] if several else "" for row in rows]
        changes = [(name, row[:-2] if several else row) for name, row in zip(names, rows, strict=True)]
        for name, (*values, kind, _, sequence) in sorted(changes, key=lambda change: change[1][-1]):
            state = self.tables.setdefault(name, {})
            if kind in ("truncate", "drop"):
                assert values == [None] * len(values)
                assert sequence > 0
                self.events.append((kind, name))
                state.clear()
            elif kind in ("delete", "update_preimage"):
                state.pop(values[0], None)
            else:
                state[values[0]] = tuple(values)


def follow(given: dict[str, str], offset: dict[str, Any] | None, target: Target, batches: int = 50) -> dict[str, Any]:
    """Read until nothing comes any more, each batch by a reader of its own, as after a kill."""
    offset = reader(given).initialOffset() if offset is None else offset
    for _ in range(batches):
        stream = reader(given)
        end, rows = take(stream, offset)
        stream.stop()
        if end == offset:
            break
        target.take(rows, several="," in given["table"])
        offset = end
    return offset


# -- the log -----------------------------------------------------------------------------------------------


def test_a_truncate_is_a_row_between_those_before_and_after_it(mysql: MySQLServer) -> None:
    given = options(mysql, made(mysql, "t"))
    stream = reader(given)
    offset, _ = take(stream, stream.initialOffset())
    mysql.execute("UPDATE events.t SET n = -1 WHERE id = 3")
    mysql.execute("TRUNCATE TABLE events.t")
    mysql.execute("INSERT INTO events.t VALUES (3, 0, 'new')")
    end, rows = take(stream, offset)
    assert [row[3] for row in rows] == ["update_preimage", "update_postimage", "truncate", "insert"]
    assert rows[2][:3] == (None, None, None)
    assert [row[-1] for row in rows] == sorted(row[-1] for row in rows)
    assert abs(rows[2][4].timestamp() - time.time()) < 3600
    assert (end["hasTableEvents"], end["tableEvents"]) == (True, ["truncate"])
    assert [tuple(row) for p in reader(given).partitions(offset, end) for row in read(reader(given), p)] == rows
    mysql.execute("INSERT INTO events.t VALUES (4, 0, 'new')")
    later, rows = take(stream, end)
    assert len(rows) == 1
    assert "hasTableEvents" not in later


def test_it_is_passed_by_or_stops_the_query_which_then_goes_on(mysql: MySQLServer) -> None:
    table = made(mysql, "t")
    offset, _ = take(stream := reader(options(mysql, table)), stream.initialOffset())
    mysql.execute("INSERT INTO events.t VALUES (100, 0, 'a')")
    mysql.execute("TRUNCATE events.t")
    mysql.execute("INSERT INTO events.t VALUES (101, 0, 'b')")
    stops = reader(options(mysql, table, tableEvents="fail"))
    offset, rows = take(stops, offset)
    assert [row[0] for row in rows] == [100], "what came before it"
    for _ in range(2):
        with pytest.raises(SchemaChanged, match=r"events\.t was changed by .*TRUNCATE.*tableEvents=emit"):
            take(stops, offset)
    for policy, keys in (("skip", [101]), ("emit", [None, 101])):
        end, rows = take(reader(options(mysql, table, tableEvents=policy)), offset)
        assert [row[0] for row in rows] == keys
        assert end.get("hasTableEvents", False) is (policy == "emit")


def test_truncates_may_be_skipped_and_drops_not(mysql: MySQLServer) -> None:
    """A batch that is read again has the same rows, whatever the options say by then."""
    every = options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}")
    given = {**every, "skipped.operations": "u,t"}
    offset, _ = take(stream := reader(given), reader(given).initialOffset())
    mysql.execute("UPDATE events.a SET n = -1 WHERE id = 3")
    mysql.execute("TRUNCATE events.a")
    mysql.execute("INSERT INTO events.a VALUES (100, 0, 'a')")
    mysql.execute("DROP TABLE events.b")
    end, rows = take(stream, offset)
    assert [(row[3], row[-1]) for row in rows] == [("insert", "a"), ("drop", "b")]
    assert (end["hasTableEvents"], end["tableEvents"]) == (True, ["drop"])
    again = reader({**every, "skipped.operations": "u"})
    assert [row for p in again.partitions(offset, end) for row in read(again, p)] == rows
    told, rows = take(again, offset)
    assert [row[3] for row in rows] == ["truncate", "insert", "drop"]
    stops = reader({**given, "tableEvents": "fail"})
    _, rows = take(stops, offset)
    assert [row[3] for row in rows] == ["insert"], "a TRUNCATE passes, a DROP stops"
    assert told["tableEvents"] == ["drop", "truncate"]


def test_events_as_debezium_has_them(mysql: MySQLServer) -> None:
    given = options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}", format="debezium")
    stream = reader(given)
    offset, _ = take(stream, stream.initialOffset())
    mysql.execute("UPDATE events.b SET n = -1 WHERE id = 3")
    mysql.execute("TRUNCATE TABLE events.b")
    mysql.execute("DELETE FROM events.a WHERE id = 3")
    mysql.execute("DROP TABLE events.b")
    _, rows = take(stream, offset)
    (truncated,) = [row for row in rows if row[2] == "truncate"]
    assert truncated[0] is None
    value = json.loads(truncated[1])
    assert (value["op"], value["before"], value["after"], value["source"]["table"]) == ("t", None, None, "b")
    assert value["source"]["pos"] > 0
    (dropped,) = [row for row in rows if row[2] == "drop"]
    assert json.loads(dropped[0]) == {"databaseName": "events"}
    value = json.loads(dropped[1])
    assert value["tableChanges"] == [{"type": "DROP", "id": '"events"."b"', "table": None}]
    assert value["ddl"].upper().startswith("DROP TABLE")
    assert value["source"]["db"] == "events"
    ops = [json.loads(row[1])["op"] for row in rows if row[2] != "drop"]
    assert sorted(ops) == ["d", "t", "u"]


def test_tables_of_other_databases_spellings_and_sessions_are_not_meant(mysql: MySQLServer) -> None:
    given = options(mysql, made(mysql, "t"))
    offset = follow(given, None, Target())
    with mysql.connect(database="events") as connection, connection.cursor() as cursor:
        for statement in (
            "CREATE TABLE T (id INT)",
            "TRUNCATE T",
            "DROP TABLE T",
            "CREATE TEMPORARY TABLE t (id INT)",
            "INSERT INTO t VALUES (1)",
            "TRUNCATE TABLE t",
            "DROP TABLE t",
            "CREATE TEMPORARY TABLE t (id INT)",
            "DROP TABLE IF EXISTS t, no_such_table",
            "CREATE TABLE IF NOT EXISTS t (id INT)",
        ):
            cursor.execute(statement)
    mysql.execute("DELETE FROM events.t WHERE id = 1")
    _, rows = take(reader(given), offset)
    assert [row[3] for row in rows] == ["delete"]


def test_the_only_table_goes_and_comes_back(mysql: MySQLServer) -> None:
    given, target = options(mysql, made(mysql, "t")), Target()
    stream = reader(given)
    offset, rows = take(stream, stream.initialOffset())
    target.take(rows, several=False)
    mysql.execute("DELETE FROM events.t WHERE id = 5")
    mysql.execute("DROP TABLE events.t")
    offset, rows = take(stream, offset)
    target.take(rows, several=False)
    assert (offset["tables"], offset["gone"]) == ([], [["events", "t"]])
    assert target.tables[""] == {}
    assert take(stream, offset)[0] == offset, "it waits"
    with pytest.raises(SettingError, match="no such table"):
        reader(given)
    made(mysql, "t", rows=7)
    offset = follow(given, offset, target)
    assert target.tables[""] == table_rows(mysql, "events.t")
    mysql.execute("UPDATE events.t SET n = 0")
    offset = follow(given, offset, target)
    assert target.tables[""] == table_rows(mysql, "events.t")
    assert "gone" not in offset
    assert target.events == [("drop", "")]


@pytest.mark.parametrize("policy", ["emit", "skip"])
def test_what_happened_while_the_query_was_stopped(mysql: MySQLServer, policy: str) -> None:
    given = options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}", tableEvents=policy)
    target = Target()
    offset = follow(given, None, target)
    mysql.execute("UPDATE events.a SET n = -1")
    mysql.execute("INSERT INTO events.a VALUES (1000, 0, 'x')")
    mysql.execute("DROP TABLE events.a")
    mysql.execute("DELETE FROM events.b WHERE id < 10")
    made(mysql, "a", rows=5)
    mysql.execute("INSERT INTO events.a VALUES (2000, 0, 'y')")
    follow(given, offset, target)
    assert target.tables["b"] == table_rows(mysql, "events.b")
    assert target.events == ([("drop", "a")] if policy == "emit" else [])
    kept = {k: v for k, v in target.tables["a"].items() if k in table_rows(mysql, "events.a")}
    assert kept == table_rows(mysql, "events.a")
    assert (1000 in target.tables["a"]) is (policy == "skip"), "the target's rows stay with skip"


ALTERED_AND_GONE = [
    # the statements, a row after them, and its columns in the stream after the key
    (["ALTER TABLE events.a ADD INDEX (n)"], (1000, 1, "x"), (1, "x")),
    (["ALTER TABLE events.a DROP n"], (1000, "x"), (None, "x")),
    (["ALTER TABLE events.a ADD c INT FIRST"], (7, 1000, 1, "x"), (1, "x")),
    (["ALTER TABLE events.a DROP n", "ALTER TABLE events.a ADD INDEX (v)"], (1000, "x"), (None, "x")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("alters", "row", "read_as"), ALTERED_AND_GONE)
@pytest.mark.parametrize("gone", ["DROP TABLE events.a", "RENAME TABLE events.a TO events.away"])
def test_it_was_altered_and_then_dropped_before_either_was_read(
    mysql: MySQLServer, alters: list[str], row: Row, read_as: Row, gone: str
) -> None:
    given, target = options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}"), Target()
    offset = follow(given, None, target)
    for statement in alters:
        mysql.execute(statement)
    mysql.execute(f"INSERT INTO events.a VALUES {row}")
    mysql.execute(gone)
    stream = reader(given)
    found: list[Row] = []
    while (end := take(stream, offset))[0] != offset:
        offset, found = end[0], found + end[1]
    assert [row[:4] for row in found] == [(1000, *read_as, "insert"), (None, None, None, "drop")]
    assert offset["gone"] == [["events", "a"]]


@pytest.mark.parametrize("alter", ["MODIFY n BIGINT", "RENAME COLUMN n TO m", "DROP n, ADD n BIGINT"])
def test_altered_to_what_nothing_tells_and_then_dropped(mysql: MySQLServer, alter: str) -> None:
    given = options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}")
    offset = follow(given, None, Target())
    mysql.execute(f"ALTER TABLE events.a {alter}")
    mysql.execute("INSERT INTO events.a (id) VALUES (1000)")
    mysql.execute("DROP TABLE events.a")
    with pytest.raises(SchemaChanged, match=r"events\.a was altered by .* and then dropped.*without the table"):
        follow(given, offset, Target())
    target = Target()
    mysql.execute("UPDATE events.b SET n = -5")
    fewer = {
        **given,
        "table": "events.b",
        "metadataColumns": "_change_type,_commit_timestamp,_commit_seq,_database,_table",
    }
    stream = reader(fewer)
    for _ in range(3):
        offset, rows = take(stream, offset)
        target.take(rows)
    assert target.tables["b"] == table_rows(mysql, "events.b")


def test_a_dropped_table_does_not_hold_up_the_others(mysql: MySQLServer, caplog: pytest.LogCaptureFixture) -> None:
    given, target = options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}"), Target()
    offset = follow(given, None, target)
    mysql.execute("UPDATE events.a SET n = 5")
    mysql.execute("DROP TABLE events.a")
    mysql.execute("DELETE FROM events.b WHERE id = 1")
    offset = follow(given, offset, target)
    assert target.events == [("drop", "a")]
    assert target.tables["b"] == table_rows(mysql, "events.b")
    assert offset["gone"] == [["events", "a"]]
    assert "The table events.a was dropped or renamed: sinks remove its rows (tableEvents=emit)." in caplog.text
    mysql.execute("TRUNCATE events.b")
    follow(given, offset, target)
    assert target.tables == {"a": {}, "b": {}}


def test_a_dropped_database(mysql: MySQLServer) -> None:
    given = options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}")
    stream, target = reader(given), Target()
    offset, rows = take(stream, stream.initialOffset())
    mysql.execute("DROP DATABASE events")
    offset, rows = take(stream, offset)
    target.take(rows)
    assert sorted(target.events) == [("drop", "a"), ("drop", "b")]
    mysql.execute("CREATE DATABASE events")
    made(mysql, "b", rows=3)
    follow(given, offset, target)
    assert target.tables["b"] == table_rows(mysql, "events.b")


def test_a_table_comes_back_with_other_columns(mysql: MySQLServer) -> None:
    given, target = options(mysql, made(mysql, "t")), Target()
    offset = follow(given, None, target)
    stream = reader(given)
    mysql.execute("INSERT INTO events.t VALUES (1000, 0, 'x')")
    mysql.execute("DROP TABLE events.t")
    offset, rows = take(stream, offset)
    mysql.execute("CREATE TABLE events.t (id INT PRIMARY KEY, n INT, w TEXT)")
    mysql.execute("INSERT INTO events.t VALUES (1, 1, 'w')")
    with pytest.raises(BacklogError, match=r"has other columns.*Start the query again, as it is"):
        take(stream, offset)
    target.take(rows, several=False)
    follow(given, offset, target)
    assert target.tables[""] == {1: (1, 1, "w")}
    mysql.execute("DROP TABLE events.t")
    mysql.execute("CREATE TABLE events.t (id INT, n INT PRIMARY KEY, w TEXT)")


def test_a_table_of_another_shape_is_read_up_to_its_drop(mysql: MySQLServer) -> None:
    """Dropped and made anew while the query was stopped: the rows before come in the stream's present columns."""
    for form in ("row", "debezium"):
        given = options(mysql, made(mysql, f"t_{form}"), format=form)
        offset, _ = take(stream := reader(given), stream.initialOffset())
        mysql.execute(f"INSERT INTO events.t_{form} VALUES (1000, 7, 'x')")
        mysql.execute(f"DROP TABLE events.t_{form}")
        mysql.execute(f"CREATE TABLE events.t_{form} (w TEXT, id INT PRIMARY KEY, n INT)")
        mysql.execute(f"INSERT INTO events.t_{form} VALUES ('w', 1, 1)")
        stream = reader(given)
        found: list[Row] = []
        for _ in range(4):
            offset, rows = take(stream, offset)
            found += rows
        if form == "row":
            assert [row[:4] for row in found] == [
                (None, 1000, 7, "insert"), (None, None, None, "drop"), ("w", 1, 1, "insert"),
            ]  # fmt: skip
        else:
            after = [json.loads(row[1]).get("after") for row in found]
            assert after == [{"id": 1000, "n": 7, "v": "x"}, None, {"w": "w", "id": 1, "n": 1}]


# -- the snapshot ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
@pytest.mark.parametrize("statements", [["TRUNCATE {t}"], ["DROP TABLE {t}"], ["DROP TABLE {t}", "CREATE TABLE {t}"]])
def test_it_falls_between_a_chunks_watermark_and_its_read(mysql: MySQLServer, key: str, statements: list[str]) -> None:
    table = made(mysql, "t", key=key)
    other = made(mysql, "other")
    given = options(mysql, f"{table},{other}")
    stream = reader(given)
    start = stream.initialOffset()
    offset = stream.latestOffset(start, ReadMaxRows(10**6))
    mysql.execute("DELETE FROM events.t WHERE id = 3")
    mysql.execute("INSERT INTO events.t VALUES (1000, 0, 'x')")
    for statement in statements:
        more = " (n TEXT, id INT PRIMARY KEY)" if statement.startswith("CREATE") else ""
        mysql.execute(statement.format(t=table) + more)
    rows = [row for p in stream.partitions(start, offset) for row in read(stream, p)]
    assert sorted(row[0] for row in rows if row[-1] == "t") == [3], "of which the log has a change"
    assert sum(row[-1] == "other" for row in rows) == ROWS
    counts: dict[int, int] = {}
    while not any(row[3] in ("truncate", "drop") for row in rows):
        offset, rows = take(stream, offset)
        for row in rows:
            if row[-1] == "t" and row[3] in ("insert", "delete"):
                counts[row[0]] = counts.get(row[0], 0) + (1 if row[3] == "insert" else -1)
    assert counts == {3: -1, 1000: 1}
    stops = reader({**given, "tableEvents": "fail"}) if statements == ["TRUNCATE {t}"] else None
    discard_rewind_log()
    if stops is not None:
        end = stops.latestOffset(start, ReadMaxRows(10**6))
        mysql.execute("TRUNCATE events.t")
        with pytest.raises(SchemaChanged, match="tableEvents=emit"):
            [read(stops, p) for p in stops.partitions(start, end)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.grid) for seed in range(2, 13))])
def test_tables_come_and_go_under_writers(mysql: MySQLServer, seed: int) -> None:
    """In the snapshot and in the log, with restarts and replays: the target ends up with the tables' rows."""
    chance = random.Random(seed)
    names = ("a", "b", "c")
    given = options(mysql, ",".join(made(mysql, name) for name in names), chunkSize=15)
    target = Target()

    def batch(offset: dict[str, Any], *, changes: bool = True) -> dict[str, Any]:
        stream = reader(given)
        end = stream.latestOffset(offset, ReadMaxRows(chance.choice([20, 45, 1000])))
        if end != offset:
            found = []
            for partition in stream.partitions(offset, end):
                if changes and chance.random() < 0.3:
                    change()
                discard_rewind_log()
                found += read(stream, partition)
            target.take(found)
            stream.stop()
        return end

    def change() -> None:
        name, what = chance.choice(names), chance.random()
        if what < 0.5:
            mysql.execute(f"TRUNCATE events.{name}")
        else:
            mysql.execute(f"DROP TABLE events.{name}")
            if what < 0.75:
                time.sleep(0.02)
            mysql.execute(f"CREATE TABLE events.{name} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
        fill(mysql, name, chance.choice([0, 10, 50]))

    writers = [Patient(mysql, f"events.{name}", seed + i, threads=1, keys=ROWS) for i, name in enumerate(names)]
    with writers[0], writers[1], writers[2]:
        offset = reader(given).initialOffset()
        for _ in range(25):
            if chance.random() < 0.3:
                change()
            offset = batch(offset)
            time.sleep(0.02)
    while (end := batch(offset, changes=False)) != offset or offset.get("gone") or offset.get("joining"):
        offset = end
    assert {name: table_rows(mysql, f"events.{name}") for name in names} == target.tables


class Patient(Writers):
    """Writers that go on when their table is away for a moment."""

    def _statement(self, cursor: Any, chance: random.Random) -> None:
        try:
            super()._statement(cursor, chance)
        except Exception as error:
            if error.args[0] not in (1146, 1305, 1412):
                raise


# -- tables that are no longer asked for -------------------------------------------------------------------


def test_a_table_is_taken_off_the_list_and_put_on_it_again(
    mysql: MySQLServer, caplog: pytest.LogCaptureFixture
) -> None:
    both, target = options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}"), Target()
    offset = follow(both, None, target)
    metadata = "_change_type,_commit_timestamp,_commit_seq,_database,_table"
    fewer = {**both, "table": "events.b", "metadataColumns": metadata}
    mysql.execute("UPDATE events.a SET n = -1")
    mysql.execute("UPDATE events.b SET n = -1")
    stream = reader(fewer)
    for _ in range(3):
        offset, rows = take(stream, offset)
        target.take(rows)
    assert "do not ask for events.a any more" in caplog.text
    assert target.tables["b"] == table_rows(mysql, "events.b")
    assert {row[1] for row in target.tables["a"].values()} == set(range(ROWS)), "its rows stay"
    mysql.execute("DROP TABLE events.b")
    mysql.execute("DROP TABLE events.a")
    made(mysql, "a", rows=9)
    made(mysql, "b", rows=9)
    offset = follow({**both, "scanNewlyAddedTables": "true"}, offset, target)
    assert target.tables["b"] == table_rows(mysql, "events.b")
    assert [target.tables["a"][k] for k in range(9)] == [table_rows(mysql, "events.a")[k] for k in range(9)]


@pytest.mark.parametrize("reads", [0, 1, 2])
def test_it_is_taken_off_in_the_middle_of_the_snapshot(mysql: MySQLServer, reads: int) -> None:
    given, target = options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}", chunkSize=10), Target()
    stream = reader(given)
    offset = stream.initialOffset()
    for _ in range(1 + reads):
        end = stream.latestOffset(offset, ReadMaxRows(40))
        target.take([row for p in stream.partitions(offset, end) for row in read(stream, p)])
        offset = end
    mysql.execute("DROP TABLE events.b")
    metadata = "_change_type,_commit_timestamp,_commit_seq,_database,_table"
    fewer = reader({**given, "table": "events.a", "metadataColumns": metadata})
    for _ in range(6):
        offset, rows = take(fewer, offset)
        target.take(rows)
    assert not offset["isProcessingBacklog"]
    mysql.execute("DELETE FROM events.a WHERE id = 3")
    offset, rows = take(fewer, offset)
    target.take(rows)
    assert target.tables["a"] == table_rows(mysql, "events.a")


def test_none_of_the_checkpoints_tables_is_asked_for(mysql: MySQLServer) -> None:
    offset = follow(options(mysql, made(mysql, "a")), None, Target())
    with pytest.raises(BacklogError, match=r"table = 'events\.b': the checkpoint is of events\.a \(server"):
        take(reader(options(mysql, made(mysql, "b"))), offset)


def test_a_new_stream_needs_all_of_its_tables(mysql: MySQLServer) -> None:
    given = options(mysql, f"{made(mysql, 'a')},events.missing")
    with pytest.raises(SettingError, match=r"events\.missing.*no such table"):
        reader(given).initialOffset()
    with pytest.raises(SettingError, match=r"events\.missing.*no such table"):
        check_start(given)
    for more in ({"format": "debezium"}, {"startup.mode": "latest"}):
        with pytest.raises(SettingError, match=r"events\.missing.*no such table"):
            reader({**given, **more}).initialOffset()


def test_a_bounded_snapshot_ends_though_a_table_was_truncated_or_dropped_meanwhile(mysql: MySQLServer) -> None:
    given = options(mysql, ",".join(made(mysql, n) for n in "abc"), chunkSize=10, **{"startup.mode": "snapshot"})
    target = Target()
    stream = reader(given)
    offset = stream.initialOffset()
    for n in range(12):
        end = stream.latestOffset(offset, ReadMaxRows(25))
        target.take([row for p in stream.partitions(offset, end) for row in read(stream, p)])
        offset = end
        if n == 1:
            mysql.execute("TRUNCATE events.a")
            fill(mysql, "a", 15)
        if n == 3:
            mysql.execute("DROP TABLE events.b")
        if offset.get("isFinished"):
            break
    assert offset["isFinished"]
    assert target.tables["a"] == table_rows(mysql, "events.a")
    assert target.tables["b"] == {}
    assert target.tables["c"] == table_rows(mysql, "events.c")


def test_a_table_comes_back_to_a_stream_in_which_nothing_else_happens(
    mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot needs a place after the statements about it. A batch goes there; while it is away there is none."""
    monkeypatch.setattr(planner, "QUIET_MS", 60_000)
    stream, target = reader(options(mysql, f"{made(mysql, 'a')},{made(mysql, 'b')}")), Target()
    offset = stream.initialOffset()

    def batches() -> int:
        nonlocal offset
        found = looks = 0
        while looks < 2:  # the first look may find that there is something to read up to
            end, rows = take(stream, offset)
            found, looks = (found, looks + 1) if end is offset else (found + 1, 0)
            assert found < 20
            target.take(rows)
            offset = end
        return found

    batches()
    mysql.execute("UPDATE events.b SET n = n + 1")
    batches()
    mysql.execute("RENAME TABLE events.a TO events.away")
    batches()
    assert target.tables["a"] == {}
    assert batches() == 0
    mysql.execute("RENAME TABLE events.away TO events.a")
    assert batches() > 0
    assert target.tables["a"] == table_rows(mysql, "events.a")
    assert batches() == 0
