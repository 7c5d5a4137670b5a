"""Online schema change: another table takes the captured one's name, on real servers."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.ddl import evolution
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.source import check
from tests.connectors.mysql_cdc.online import PlainWriters, online
from tests.connectors.mysql_cdc.replay import apply, options, read, reader, table_rows, take

from .test_evolution import ALL, TABLE, names, new, rows, started, until_stopped
from .test_evolution import table as table

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

# How each way of swapping names its tables, and the statements that swap.
HOW = {
    "gh-ost": ("_t_gho", "_t_del", ["rename /* gh-ost */ table `evolving`.`t` to {old}, {new} to `evolving`.`t`"]),
    "gh-ost --cut-over=two-step": (
        "_t_gho",
        "_t_del",
        ["alter /* gh-ost */ table evolving.t rename `_t_del`", "alter /* gh-ost */ table {new} rename `t`"],
    ),
    "pt-online-schema-change": ("_t_new", "_t_old", ["RENAME TABLE `evolving`.`t` TO {old}, {new} TO `evolving`.`t`"]),
    "by hand": ("t_new", "t_old", ["RENAME TABLE t TO t_old, t_new TO t"]),
    "by hand in steps": ("t_new", "t_old", ["RENAME TABLE t TO t_old", "RENAME TABLE t_new TO t"]),
}
SHADOW = "evolving._t_gho"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backlog_spark.connectors.mysql_cdc.snapshot.new_tables.LOOK_MS", 0)
    monkeypatch.setattr("backlog_spark.connectors.mysql_cdc.binlog.planner.QUIET_MS", -1)


def swap(server: MySQLServer, alter: str, how: str = "gh-ost", copied: str = "id, a, b") -> None:
    """Swap the table for an altered copy; then change the old one."""
    shadow, old, statements = HOW[how]
    with server.connect(database="evolving") as connection, connection.cursor() as cursor:
        for statement in (
            f"CREATE TABLE {shadow} LIKE t",
            f"ALTER TABLE {shadow} {alter}",
            f"INSERT INTO {shadow} ({copied}) SELECT {copied} FROM t",
            *(each.format(new=f"`evolving`.`{shadow}`", old=f"`evolving`.`{old}`") for each in statements),
            f"INSERT INTO {old} ({copied}) SELECT -{copied} FROM {old}",
            f"DROP TABLE {old}",
        ):
            cursor.execute(statement)


@pytest.mark.parametrize("how", HOW)
def test_the_stream_goes_on_with_the_table_that_has_the_name(
    mysql: MySQLServer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream, offset = started(mysql, tableSwap="follow")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    with caplog.at_level(logging.WARNING):
        swap(mysql, "MODIFY b VARCHAR(20) FIRST, ADD INDEX (a)", how)
        mysql.execute(f"INSERT INTO {TABLE} VALUES ('four', 4, 4)")
        start = offset
        offset, found = rows(stream, offset)
    assert found == [(3, 3, "three"), (4, 4, "four")], "no row of the copy, none of the old table after the swap"
    assert ("evolving.t is another table, evolving.t_new before" in caplog.text) is how.startswith("by hand")
    # Other processes that have only the offsets read the same. They are declared with the columns in today's order.
    again: list[tuple[Any, ...]] = []
    while start != offset:
        other = new(mysql, tableSwap="follow")
        end = other.latestOffset(start, ALL)
        again += [row[:-3] for p in other.partitions(start, end) for row in read(other, p)]
        start = end
    assert again == [("three", 3, 3), ("four", 4, 4)]
    mysql.execute(f"DELETE FROM {TABLE} WHERE id = 1")
    assert rows(new(mysql), offset)[1] == [("one", 1, 1)]


@pytest.mark.parametrize("how", [how for how in HOW if how.startswith("by hand")])
@pytest.mark.parametrize("alter", ["", "ADD INDEX (a)"])
def test_another_table_with_the_name_is_read_from_its_beginning(mysql: MySQLServer, how: str, alter: str) -> None:
    """It may have other rows than the old one: then its changes alone would leave the target wrong."""
    stream, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    mysql.execute("CREATE TABLE evolving.t_new (id INT PRIMARY KEY, a INT, b VARCHAR(20))")
    mysql.execute("INSERT INTO evolving.t_new VALUES (1, 10, 'other'), (4, 4, 'four')")
    if alter:
        mysql.execute(f"ALTER TABLE {TABLE} {alter}")
    with mysql.connect(database="evolving") as connection, connection.cursor() as cursor:
        for statement in HOW[how][2]:
            cursor.execute(statement)
        cursor.execute("INSERT INTO t_old VALUES (5, 5, 'of the old one')")
        cursor.execute("INSERT INTO t VALUES (6, 6, 'six')")
        cursor.execute("DELETE FROM t WHERE id = 4")
    found = []
    while (end := take(stream, offset))[0] != offset:
        offset, found = end[0], found + end[1]
    assert [row[:4] for row in found[:2]] == [(3, 3, "three", "insert"), (None, None, None, "drop")]
    target = {row[0]: row[:3] for row in found[2:] if row[3] == "insert"}
    assert target == table_rows(mysql, TABLE) == {1: (1, 10, "other"), 6: (6, 6, "six")}
    assert all(row[3] == "insert" for row in found[2:]), "what its snapshot includes is not read of the log"
    mysql.execute(f"UPDATE {TABLE} SET a = 7 WHERE id = 6")
    assert rows(new(mysql), offset)[1] == [(6, 6, "six"), (6, 7, "six")]


def test_a_new_column_stops_after_all_before_and_is_there_in_the_next_start(mysql: MySQLServer) -> None:
    stream, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    swap(mysql, "ADD c INT NOT NULL DEFAULT 7 AFTER id, MODIFY a BIGINT")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 40, 4, 'four')")
    offset, found = until_stopped(stream, offset)
    assert found == [(3, 3, "three")]
    assert names(mysql) == ["id", "c", "a", "b"]
    assert rows(new(mysql), offset)[1] == [(4, 40, 4, "four")]


def test_swapped_while_stopped(mysql: MySQLServer) -> None:
    """Twice, and altered in between. The log names the columns."""
    _, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    swap(mysql, "ADD c INT, MODIFY a BIGINT")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 4000000000, 'four', 40)")
    mysql.execute(f"ALTER TABLE {TABLE} DROP c")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (5, 5000000000, 'five')")
    _, found = rows(new(mysql), offset)
    assert found == [(3, 3, "three"), (4, 4000000000, "four"), (5, 5000000000, "five")]


def test_swapped_while_stopped_without_column_names_in_the_log(nameless: MySQLServer) -> None:
    """The log has how the copies were made."""
    table = "alters.swapped"
    nameless.execute(f"DROP TABLE IF EXISTS {table}")
    nameless.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT, b VARCHAR(20))")
    stream = reader(options(nameless, table))
    offset = take(stream, stream.initialOffset())[0]
    for alter, row in (
        ("ADD c INT FIRST, MODIFY a BIGINT UNSIGNED", "40, 4, 4000000000, 'four'"),
        ("DROP c, MODIFY b VARCHAR(40) AFTER id", "5, 'five', 5000000000"),
        ("ADD INDEX (a)", "6, 'six', 6000000000"),
    ):
        shadow, old = "`alters`.`_swapped_gho`", "`alters`.`_swapped_del`"
        for statement in (
            f"create /* gh-ost */ table {shadow} like `alters`.`swapped`",
            f"alter /* gh-ost */ table {shadow} {alter}",
            f"rename /* gh-ost */ table {table} to {old}, {shadow} to {table}",
            f"drop /* gh-ost */ table if exists {old}",
            f"INSERT INTO {table} VALUES ({row})",
        ):
            nameless.execute(statement)
    found = rows(reader(options(nameless, table)), offset)[1]
    assert found == [(4, "four", 4000000000), (5, "five", 5000000000), (6, "six", 6000000000)]


def test_a_column_that_the_tool_renamed_is_another_one(mysql: MySQLServer) -> None:
    _, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    swap(mysql, "CHANGE b d VARCHAR(20)", copied="id, a")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 4, 'four')")
    assert names(mysql) == ["id", "a", "d"]
    assert rows(new(mysql), offset)[1] == [(3, 3, None), (4, 4, "four")]


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        ("MODIFY a VARCHAR(9)", "cannot be converted without loss.*new checkpoint"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)", r"primary key.*was \(id\) and is \(id, a\) now.*new checkpoint"),
        ("ENGINE = MyISAM", "MyISAM"),
    ],
)
def test_a_form_that_the_stream_cannot_hold_gives_the_error_of_an_alter(
    mysql: MySQLServer, alter: str, why: str
) -> None:
    stream, offset = started(mysql)
    swap(mysql, alter)
    until_stopped(stream, offset, why)


def test_a_table_that_was_renamed_away(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolution, "_NAMELESS_S", 0.5)
    stream, offset = started(mysql, tableSwap="follow")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    mysql.execute(f"RENAME TABLE {TABLE} TO evolving.away")
    mysql.execute("INSERT INTO evolving.away VALUES (4, 4, 'four')")
    offset, found = until_stopped(stream, offset, r"evolving\.t was renamed or dropped.*start the query again")
    assert found == [(3, 3, "three")]
    mysql.execute(f"ALTER TABLE evolving.away RENAME TO {TABLE}")
    mysql.execute(f"DELETE FROM {TABLE} WHERE id = 4")
    assert rows(new(mysql, tableSwap="follow"), offset)[1] == [(4, 4, "four")]


def test_two_captured_tables_swap_their_names(mysql: MySQLServer) -> None:
    mysql.execute("CREATE TABLE evolving.u LIKE evolving.t")
    mysql.execute("INSERT INTO evolving.u VALUES (7, 7, 'seven')")
    stream = reader(options(mysql, f"{TABLE},evolving.u"))
    offset = start = take(stream, stream.initialOffset())[0]
    mysql.execute("RENAME TABLE evolving.t TO evolving.x, evolving.u TO evolving.t, evolving.x TO evolving.u")
    found: list[tuple[Any, ...]] = []
    while (end := take(stream, offset))[0] != offset:
        offset, found = end[0], found + end[1]
    assert sorted(row[-1] for row in found if row[3] == "drop") == ["t", "u"]
    assert sorted((row[-1], row[0]) for row in found if row[3] == "insert") == [("t", 7), ("u", 1), ("u", 2)]
    follows = reader(options(mysql, f"{TABLE},evolving.u", tableSwap="follow"))
    until_stopped(follows, start, r"evolving\.t is another captured table.*new target")


def test_only_swaps_of_the_tools_are_followed_if_so_asked(mysql: MySQLServer) -> None:
    stream, offset = started(mysql, tableSwap="tools")
    swap(mysql, "ADD INDEX (a)", "pt-online-schema-change")
    swap(mysql, "ADD INDEX (b)")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    offset, found = rows(stream, offset)
    assert found == [(3, 3, "three")]
    swap(mysql, "ADD INDEX (a, b)", "by hand")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 4, 'four')")
    for more in ({"tableSwap": "tools"}, {"tableEvents": "fail"}):
        until_stopped(new(mysql, **more), offset, r"another table, evolving\.t_new before.*tableSwap=follow")
    assert rows(new(mysql, tableSwap="follow"), offset)[1] == [(4, 4, "four")]


def test_a_swap_by_hand_between_a_chunks_watermark_and_its_read(mysql: MySQLServer) -> None:
    """The chunk has the rows that the log has changes of, and the new table comes later."""
    stream = new(mysql)
    start = stream.initialOffset()
    offset = stream.latestOffset(start, ALL)
    mysql.execute(f"UPDATE {TABLE} SET a = 10 WHERE id = 1")
    mysql.execute("CREATE TABLE evolving.t_new (id INT PRIMARY KEY, a INT, b VARCHAR(20))")
    mysql.execute("INSERT INTO evolving.t_new VALUES (2, 20, 'other'), (3, 3, 'three')")
    mysql.execute("RENAME TABLE evolving.t TO evolving.t_old, evolving.t_new TO evolving.t")
    found = [row[:4] for p in stream.partitions(start, offset) for row in read(stream, p)]
    assert found == [(1, 1, "one", "insert")]
    found = []
    while (end := take(stream, offset))[0] != offset:
        offset, found = end[0], found + [row[:4] for row in end[1]]
    assert found == [
        (1, 1, "one", "update_preimage"), (1, 10, "one", "update_postimage"), (None, None, None, "drop"),
        (2, 20, "other", "insert"), (3, 3, "three", "insert"),
    ]  # fmt: skip


def test_a_swap_between_a_chunks_watermark_and_its_read(mysql: MySQLServer) -> None:
    stream = new(mysql)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    mysql.execute(f"UPDATE {TABLE} SET a = 10 WHERE id = 1")
    swap(mysql, "ADD c INT NOT NULL DEFAULT 9 FIRST")
    mysql.execute(f"UPDATE {TABLE} SET a = 20, c = 5 WHERE id = 2")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 3, 'three')")
    found = [row[:-3] for p in stream.partitions(start, end) for row in read(stream, p)]
    assert sorted(found) == [(1, 1, "one"), (2, 2, "two")]
    discard_rewind_log()
    found = [row[:-3] for p in new(mysql).partitions(start, end) for row in read(new(mysql), p)]
    assert sorted(found, key=str) == [(None, 1, 1, "one"), (None, 2, 2, "two")]


def test_the_tools_tables_are_not_captured_by_a_pattern(mysql: MySQLServer, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("_t_gho", "__t_new", "_t_ghc", "_t_20261126134500_del", "_u_new", "t_new"):
        mysql.execute(f"CREATE TABLE evolving.{name} LIKE evolving.t")
    given = {**options(mysql, ""), "tablePattern": r"evolving\..*"}
    with caplog.at_level(logging.WARNING):
        assert sorted(t.table for t in check(given)) == ["_u_new", "t", "t_new"]
    assert "evolving._t_gho" in caplog.text
    found = {t.table for t in check({**given, "tablePattern": r"evolving\._.*"})}
    assert found >= {"_t_gho", "__t_new"}, "asked for"
    for name in ("_t_gho", "__t_new", "_t_ghc", "_t_20261126134500_del", "_u_new", "t_new"):
        mysql.execute(f"DROP TABLE evolving.{name}")
    stream = reader({**given, "scanNewlyAddedTables": "true", "metadataColumns": "_change_type,_table"})
    offset = take(stream, stream.initialOffset())[0]
    swap(mysql, "ADD INDEX (a)")
    mysql.execute("CREATE TABLE evolving._t_gho LIKE evolving.t")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    while (end := stream.latestOffset(offset, ALL)) != offset:
        offset = end
    assert [t[1] for t in offset["tables"]] == ["t"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.grid) for n in range(1, 4))])
def test_swaps_under_writers_give_the_exact_table(mysql: MySQLServer, seed: int) -> None:
    table = f"evolving.w{seed}"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    mysql.execute(f"INSERT INTO {table} VALUES " + ",".join(f"({i}, {i}, 's{i}')" for i in range(0, 400, 2)))
    mysql.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    chance = random.Random(seed)
    stream = reader(options(mysql, table, chunkSize=40))
    state: dict[int, tuple[Any, ...]] = {}
    misfits: list[str] = []
    read_once: list[tuple[Any, list[tuple[Any, ...]]]] = []
    with PlainWriters(mysql, table, seed) as writers:
        offset, swaps = stream.initialOffset(), 0
        while offset["isProcessingBacklog"]:
            end = stream.latestOffset(offset, ReadMaxRows(90))
            for partition in stream.partitions(offset, end):
                if chance.random() < 0.3 and swaps < 3:
                    online(mysql, table, chance.choice(["ENGINE=InnoDB", "ADD INDEX (n)", "ADD INDEX (v), FORCE"]))
                    swaps += 1
                found = read(stream, partition)
                read_once.append((partition, sorted(found)))
                misfits += apply(state, found)
            offset = end
        for _ in range(6):
            if chance.random() < 0.5:
                online(mysql, table, "FORCE")
            end = stream.latestOffset(offset, ReadMaxRows(chance.choice([20, 200])))
            for partition in stream.partitions(offset, end) if end is not offset else []:
                misfits += apply(state, read(stream, partition))
            offset = end
        online(mysql, table, "ADD INDEX (n, v)")
        time.sleep(0.1)
    for partition, first in read_once:
        discard_rewind_log()
        assert sorted(read(stream, partition)) == first
    assert writers.commits > 20
    while (end := stream.latestOffset(offset, ReadMaxRows(300))) is not offset:
        for partition in stream.partitions(offset, end):
            misfits += apply(state, read(stream, partition))
        offset = end
    assert misfits == []
    assert state == table_rows(mysql, table)
