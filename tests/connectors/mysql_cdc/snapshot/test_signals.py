"""What signals do to the state in the offset, and signals from a table of a real server."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from backlog_spark.connectors.mysql_cdc.binlog import planner
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.snapshot.requests import RangeRequest, Requests
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.snapshot.signals import applied, check_condition
from backlog_spark.connectors.mysql_cdc.source import check, check_signal
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.signals import Signal
from servers.mysql import MySQLServer

from ..replay import options, reader, table_rows, take
from ..test_table_events import Target
from .test_requests import drained, live

ID = Column("id", "int", "int", nullable=False)
TABLES = tuple(TableSchema("shop", name, (ID,), ("id",), ("id",)) for name in ("orders", "users"))
KEYLESS = TableSchema("shop", "log", (ID,))
CODE = Column("code", "varchar", "varchar(9)", charset="utf8mb4", collation="utf8mb4_bin", nullable=False)
BYTES, DAY = Column("b", "varbinary", "varbinary(9)", nullable=False), Column("day", "date", "date", nullable=False)
KEYED = TableSchema("shop", "keyed", (CODE, BYTES, DAY), ("code", "b", "day"), ("code", "b", "day"))


def signal(kind: str, **data: Any) -> Signal:
    return Signal("s", kind, json.dumps({name.replace("_", "-"): value for name, value in data.items()}))


def execute(*names: str, **more: Any) -> Signal:
    return signal("execute-snapshot", data_collections=list(names), **more)


# -- the state ---------------------------------------------------------------------------------------------


def test_tables_are_queued_paused_resumed_and_stopped() -> None:
    state = applied(execute(r"shop\.(orders|users)", type="incremental"), Requests(), TABLES)
    assert [r.table for r in state.queue] == [("shop", "orders"), ("shop", "users")]
    assert applied(execute("shop.orders"), state, TABLES) == state, "it waits already"
    paused = applied(signal("pause-snapshot"), state, TABLES)
    assert paused.is_paused
    assert applied(signal("resume-snapshot", type="INCREMENTAL"), paused, TABLES) == state
    left = applied(signal("stop-snapshot", data_collections=["shop.orders"]), paused, TABLES)
    assert [r.table for r in left.queue] == [("shop", "users")]
    assert applied(Signal("s", "stop-snapshot"), paused, TABLES).queue == ()


def test_conditions_and_ranges() -> None:
    each = [{"data-collection": "shop.users", "filter": "id > 3 AND (v = ')' OR v = \"it's\")"}]
    state = applied(execute("shop.orders", "shop.users", additional_conditions=each), Requests(), TABLES)
    assert [r.condition for r in state.queue] == ["", each[0]["filter"]]
    state = applied(execute("shop.orders", ranges=[[None, 5], [7, 9, [8]]]), Requests(), TABLES)
    name = ("shop", "orders")
    assert state.queue == (RangeRequest("s", name, None, (5,)), RangeRequest("s", name, (7,), (9,), "", ((8,),)))
    given = ["a", {"hex": "00ff"}, 19_000]
    (request,) = applied(execute("shop.keyed", ranges=[[None, given, [given]]]), Requests(), (KEYED,)).queue
    assert (request.last, request.in_target) == (("a", b"\0\xff", 19_000), (("a", b"\0\xff", 19_000),))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Signal("s", "snapshot"), "no signal of type 'snapshot'.*execute-snapshot"),
        (Signal("s", "execute-snapshot", "{"), "is not JSON"),
        (Signal("s", "execute-snapshot", "[]"), "is not a JSON object"),
        (Signal("s", "log", json.dumps({"message": "x" * 70_000})), "has 70,015 characters"),
        (Signal("s", "execute-snapshot"), '"data-collections" is not a list'),
        (execute(), '"data-collections" is not a list'),
        (execute("shop.(orders"), "invalid regular expression"),
        (execute("shop.orders", "shop.carts"), r"No captured table matches 'shop.carts'.*shop\.orders, shop\.users"),
        (execute("shop.orders", type="BLOCKING"), "no snapshot of type 'BLOCKING'"),
        (execute("shop.orders", surrogate_key="v"), "has no 'surrogate-key' in its data.*data-collections"),
        (execute("shop.log"), "has no primary key.*messageKeyColumns"),
        (execute("shop.orders", additional_conditions=[{"filter": "x"}]), "is not a list of"),
        (
            execute("shop.orders", additional_conditions=[{"data-collection": "shop.users", "filter": "1"}]),
            "'shop.users' in .* is none of",
        ),
        (execute("shop.orders", ranges=[[1]]), '"ranges" is not a list'),
        (execute("shop.orders", ranges=[]), '"ranges" is not a list'),
        (execute("shop.orders", ranges={"a": 1}), '"ranges" is not a list'),
        (
            execute("shop.orders", ranges=[[[1, 2], 3]]),
            '"ranges" has a chunk key of shop.orders that has 2 values.*: id',
        ),
        (execute("shop.orders", ranges=[[1, 2, 3]]), '"ranges" has keys that are no list'),
        (execute("shop.orders", ranges=[[1, 2, "12"]]), '"ranges" has keys that are no list'),
        (
            execute("shop.orders", ranges=[[1, 2, [None]]]),
            r"a key of shop\.orders .* that the column id \(int\) cannot have",
        ),
        *(
            (
                execute("shop.orders", ranges=[[None, bad]]),
                r"a chunk key of shop\.orders .* that the column id \(int\) cannot",
            )
            for bad in ("12", True, {"hex": "00"}, {"id": 1}, [[1]], [None], [{}], 1.5, 2**31)
        ),
        *(
            (execute("shop.keyed", ranges=[[None, bad]]), rf"that the column {column} \(.*\) cannot have")
            for column, bad in (
                ("code", [1, {"hex": "00"}, 1]),
                ("code", ["\ud800", {"hex": "00"}, 1]),
                ("b", ["a", "00", 1]),
                ("b", ["a", {"hex": "xx"}, 1]),
                ("b", ["a", {"hex": 1}, 1]),
                ("day", ["a", {"hex": "00"}, "2024-01-01"]),
                ("day", ["a", {"hex": "00"}, 10**9]),
            )
        ),
        (execute("a{99999999999999}"), "invalid regular expression"),
        (Signal("s", "execute-snapshot", "[" * 50_000), "is not JSON"),
        (execute("shop.orders", additional_condition=0), "is not SQL text"),
        (execute("shop.orders", additional_condition="v = '\ud800'"), "UTF-8"),
        (execute("shop.orders", ranges=[[1, 2]], additional_condition="1"), "need a chunk key.*no condition"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(found: Signal, message: str) -> None:
    with pytest.raises(BacklogError, match=message):
        applied(found, Requests(), (*TABLES, KEYLESS, KEYED))


@pytest.mark.parametrize("condition", ["n = 1", "(a) = (b)", "v LIKE 'it\\'s (--;#%'", "`a;b` > 1", 'v = "a""b("'])
def test_a_condition_is_sql_within_brackets(condition: str) -> None:
    check_condition(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "",
        " ",
        "1) OR (1",
        "((1)",
        "n = 1;",
        "n = 1 -- ",
        "1 /* ",
        "1 # ",
        "v = 'a",
        "v = 'a\\'",
        "v = '\ud800'",
        "x" * 2_049,
        None,
        0,
    ],
)
def test_a_condition_that_could_leave_its_brackets_is_refused(condition: Any) -> None:
    with pytest.raises(BacklogError):
        check_condition(condition)


# -- the signal table --------------------------------------------------------------------------------------

SIGNALS = "CREATE TABLE asks.signals (id VARCHAR(42) PRIMARY KEY, type VARCHAR(32) NOT NULL, data VARCHAR(2048))"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, mysql: MySQLServer) -> Iterator[dict[str, str]]:
    monkeypatch.setattr(planner, "QUIET_MS", -1)
    mysql.execute("DROP DATABASE IF EXISTS asks")
    mysql.execute("CREATE DATABASE asks")
    mysql.execute(SIGNALS)
    mysql.execute("CREATE TABLE asks.t (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    mysql.execute("INSERT INTO asks.t VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(100)))
    yield options(mysql, "asks.t", **{"signal.table": "asks.signals", "chunkSize": 30})
    discard_rewind_log()


def send(server: MySQLServer, kind: str, data: Any = None, name: str = "") -> None:
    text = data if data is None or isinstance(data, str) else json.dumps(data)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO asks.signals VALUES (%s, %s, %s)", (name or f"{kind}-{hash(text)}"[:42], kind, text)
        )


T = {"data-collections": ["asks.t"]}


def test_a_row_asks_for_a_snapshot(mysql: MySQLServer, given: dict[str, str]) -> None:
    offset, rows = live(given)
    assert len(rows) == 100
    mysql.execute("UPDATE asks.t SET n = -1 WHERE id = 50")
    send(mysql, "execute-snapshot", T)
    mysql.execute("DELETE FROM asks.t WHERE id = 51")
    batches = drained(given, offset, target := Target())
    again = [row for rows in batches for row in rows if row[3] == "update_postimage" and row[0] != 50]
    assert len(again) == 98
    assert all(len(rows) <= 35 for rows in batches)
    assert target.tables[""] == table_rows(mysql, "asks.t")


@pytest.mark.both
def test_pause_resume_and_stop(mysql: MySQLServer, given: dict[str, str]) -> None:
    offset, _ = live(given)
    send(mysql, "execute-snapshot", T)
    send(mysql, "pause-snapshot")
    stream = reader(given)
    for _ in range(3):
        offset, rows = take(stream, offset)
        assert not rows
    assert Offset.from_json(offset).requests == Requests((RangeRequest(_id(mysql), ("asks", "t")),), (), is_paused=True)
    send(mysql, "resume-snapshot")
    read = 0
    while read < 30:
        offset, rows = take(stream, offset)
        read += len(rows)
    assert read == 30
    send(mysql, "stop-snapshot", T)
    offset, rows = take(stream, offset)
    assert Offset.from_json(offset).requests.queue == ()
    assert sum(map(len, drained(given, offset, Target()))) == 0


def _id(server: MySQLServer) -> str:
    return str(server.execute("SELECT id FROM asks.signals WHERE type = 'execute-snapshot'")[0][0])


def test_two_at_once_and_bad_ones_between(
    mysql: MySQLServer, given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    offset, _ = live(given)
    condition = {**T, "additional-conditions": [{"data-collection": "asks.t", "filter": "n < 10"}]}
    wrong = {**T, "additional-conditions": [{"data-collection": "asks.t", "filter": "no_column = 1"}]}
    with caplog.at_level(logging.WARNING):
        for number, (kind, data) in enumerate(
            [
                ("execute-snapshot", condition),
                ("make-coffee", None),
                ("execute-snapshot", "{broken"),
                ("execute-snapshot", {"data-collections": ["asks.other"]}),
                ("execute-snapshot", wrong),
                ("execute-snapshot", {"data-collections": ["a{99999999999999}"]}),
                ("execute-snapshot", "[" * 2_000),
                ("execute-snapshot", T),
            ]
        ):
            send(mysql, kind, data, str(number))
        mysql.execute("INSERT INTO asks.t VALUES (1000, 0, 'goes on')")
        batches = drained(given, offset, target := Target())
    told = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert [text.split("'")[1] for text in told] == ["1", "2", "3", "4", "5", "6"]
    assert "no_column" in told[3]
    assert target.tables[""] == table_rows(mysql, "asks.t")
    again = sum(row[3] == "update_postimage" for rows in batches for row in rows)
    assert again in (10 + 101, 10 + 102)  # with row 1000 if it was committed before its range was read


def test_what_is_done_to_the_signal_table_does_not_stop_the_stream(
    mysql: MySQLServer, given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    offset, _ = live(given)
    send(mysql, "execute-snapshot", T)
    mysql.execute("UPDATE asks.signals SET data = NULL")
    mysql.execute("DELETE FROM asks.signals")
    mysql.execute("TRUNCATE asks.signals")
    stream, rows = reader(given), []
    while not rows:
        offset, rows = take(stream, offset)
    mysql.execute("ALTER TABLE asks.signals ADD COLUMN more INT FIRST")
    mysql.execute("INSERT INTO asks.signals VALUES (1, 'x', 'execute-snapshot', '{}')")
    mysql.execute("INSERT INTO asks.t VALUES (1000, 0, 'goes on')")
    while all(row[0] != 1000 for row in rows):
        offset, rows = take(stream, offset)
    assert any("Rows of the signal table asks.signals are ignored" in r.getMessage() for r in caplog.records)
    mysql.execute("DROP TABLE asks.signals")
    mysql.execute("INSERT INTO asks.t VALUES (1001, 0, 'goes on')")
    while all(row[0] != 1001 for row in rows):
        offset, rows = take(stream, offset)
    stream.stop()
    mysql.execute(SIGNALS)
    drained(given, offset, target := Target())
    # The last range of the first signal may still come. It has the row too.
    assert target.tables.get("", {}).get(1001) in (None, (1001, 0, "goes on"))


def test_options_and_signals_that_are_refused_at_once(mysql: MySQLServer, given: dict[str, str]) -> None:
    for more, message in (
        ({"signal.table": "asks"}, "is not database.table"),
        ({"signal.table": "asks.t"}, "is captured"),
        ({"startup.mode": "snapshot"}, "no meaning with startup.mode=snapshot"),
        ({"signal.table": "asks.none"}, "none"),
    ):
        with pytest.raises(SettingError, match=message):
            check({**given, **more})
    mysql.execute("CREATE TABLE asks.numbers (id INT PRIMARY KEY, type INT, data INT)")
    with pytest.raises(SettingError, match=r"three columns must be texts.*CREATE TABLE asks\.numbers"):
        check({**given, "signal.table": "asks.numbers"})
    check_signal(given, Signal("s", "execute-snapshot", json.dumps(T)))
    wrong = {**T, "additional-condition": "no_column = 1"}
    with pytest.raises(BacklogError, match=r"'no_column = 1' does not work for asks\.t"):
        check_signal(given, Signal("s", "execute-snapshot", json.dumps(wrong)))
    # A pattern that matches the signal table too does not capture it.
    pattern = {**given, "tablePattern": r"asks\..*"}
    del pattern["table"]
    assert [t.name for t in check({**pattern, "format": "debezium"})] == ["asks.numbers", "asks.t"]
