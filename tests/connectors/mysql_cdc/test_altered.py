"""ALTER TABLEs that change old rows: what each value of ``rewritingAlter`` does, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from servers.mysql import MySQLServer

from .altered import Target, snapshot_of
from .replay import options


@pytest.fixture
def run(pool: Callable[..., MySQLServer]) -> Callable[..., None]:
    server = pool(MySQLServer)
    server.execute("DROP DATABASE IF EXISTS altered")
    server.execute("CREATE DATABASE altered")
    connection = server.connect(database="altered", autocommit=True)

    def run(*statements: str) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    return run


@pytest.fixture
def given(pool: Callable[..., MySQLServer]) -> dict[str, str]:
    return options(pool(MySQLServer), "altered.t", chunkSize=1)


CASES = {
    "a key is rounded": (
        "k DATETIME(6) PRIMARY KEY, n INT", "'2020-01-01 00:00:00.4', 1", "MODIFY k DATETIME NOT NULL", 1,
    ),
    "a key loses a blank": ("k VARCHAR(9) PRIMARY KEY, n INT", "'a ', 1", "MODIFY k CHAR(9)", 1),
    "a key is compared in another way": (
        "k VARCHAR(9) CHARACTER SET latin1 PRIMARY KEY, n INT", "'ü', 1", "CONVERT TO CHARACTER SET utf8mb4", 1,
    ),
    "a fraction is rounded": ("k INT PRIMARY KEY, n INT, c TIME(6)", "1, 1, '10:00:00.6'", "MODIFY c TIME", 0),
    "bytes are padded": ("k INT PRIMARY KEY, n INT, c BINARY(4)", "1, 1, 'ab'", "MODIFY c BINARY(8)", 0),
    "labels are sorted": ("k INT PRIMARY KEY, n INT, c SET('x', 'z')", "1, 1, 'x,z'", "MODIFY c SET('z', 'x')", 0),
    "an expression changes": (
        "k INT PRIMARY KEY, n INT, c INT AS (n + 1) STORED", "1, 1, DEFAULT", "MODIFY c INT AS (n + 2) STORED", 0,
    ),
    "names are swapped": (
        "k INT PRIMARY KEY, n INT, c INT, d INT", "1, 1, 2, 3", "RENAME COLUMN c TO d, RENAME COLUMN d TO c", 0,
    ),
    "a name is used again": ("k INT PRIMARY KEY, n INT, c INT", "1, 1, 2", "DROP c, ADD c INT", 0),
    "a column is new": ("k INT PRIMARY KEY, n INT", "1, 1", "ADD c DECIMAL(9, 2) NOT NULL DEFAULT 1.5", 0),
    "there is no key": ("k INT, n INT, c DATETIME(3)", "1, 1, '2020-01-01 00:00:00.6'", "MODIFY c DATETIME", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fills", ["sink", "again"])
def test_the_target_equals_its_source(run: Callable[..., None], given: dict[str, str], case: str, fills: str) -> None:
    columns, row, clauses, emptied = CASES[case]
    run(f"CREATE TABLE t ({columns})", f"INSERT INTO t VALUES ({row})")
    target = Target({**given, "fillsColumns": fills})
    assert target.follow() == ""
    before = dict(target.rows)
    run(f"ALTER TABLE t {clauses}")
    assert target.follow() == ""
    run("UPDATE t SET n = 5")
    assert target.follow() == ""
    assert not target.differences(snapshot_of(given))
    assert target.rows != before
    assert target.emptied == emptied
    assert bool(target.backlogs) is not bool(target.filled)
    assert target.offset is not None
    assert not target.offset["isProcessingBacklog"]


def stopped(target: Target) -> str:
    problem = target.follow()
    assert "rewritingAlter" in problem, problem
    return problem


def test_stop_leaves_the_target_as_it_was(run: Callable[..., None], given: dict[str, str]) -> None:
    run("CREATE TABLE t (k INT PRIMARY KEY, c TIME(6))", "INSERT INTO t VALUES (1, '10:00:00.6')")
    running, started_later = (Target({**given, "rewritingAlter": "stop"}) for _ in range(2))
    assert running.follow() == started_later.follow() == ""
    started_later.restart()
    run("INSERT INTO t VALUES (2, '11:00:00.6')", "ALTER TABLE t MODIFY c TIME", "INSERT INTO t VALUES (3, '12:00')")
    # The running stream reads what comes before the statement.
    problem = stopped(running)
    assert "column 'c': it was time(6) and is time" in problem
    assert "MODIFY c TIME" in problem
    assert texts(running) == {1: "10:00:00.600000", 2: "11:00:00.600000"}
    # A new one cannot convert it. That is no reason for a NULL, as nothing will be read again.
    assert "cannot be converted without loss" in started_later.follow()
    assert texts(started_later) == {1: "10:00:00.600000"}


def texts(target: Target) -> dict[Any, Any]:
    return {row["k"]: row.get("c") for row in target.rows.values()}


def test_ignore_keeps_the_old_values(run: Callable[..., None], given: dict[str, str]) -> None:
    run("CREATE TABLE t (k INT PRIMARY KEY, c BINARY(2))", "INSERT INTO t VALUES (1, 'a')")
    target = Target({**given, "rewritingAlter": "ignore"})
    assert target.follow() == ""
    run("ALTER TABLE t MODIFY c BINARY(4)", "INSERT INTO t VALUES (2, 'b')")
    assert target.follow() == ""
    assert texts(target) == {1: b"a\0", 2: b"b\0\0\0"}
    assert target.backlogs == 0


def test_a_new_column_is_read_again_where_other_changes_stop(run: Callable[..., None], given: dict[str, str]) -> None:
    run("CREATE TABLE t (k INT PRIMARY KEY, n DATETIME(3))", "INSERT INTO t VALUES (1, '2020-01-01 00:00:00.6')")
    target = Target({**given, "rewritingAlter": "stop", "fillsColumns": "again"})
    assert target.follow() == ""
    run("ALTER TABLE t ADD c INT DEFAULT 7")
    assert target.follow() == ""
    assert texts(target) == {1: 7}
    run("ALTER TABLE t MODIFY n DATETIME")
    assert "column 'n'" in stopped(target)


def test_nothing_needs_a_new_column(run: Callable[..., None], given: dict[str, str]) -> None:
    run("CREATE TABLE t (k INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 1)")
    target = Target({**given, "rewritingAlter": "stop", "fillsColumns": "nothing"})
    assert target.follow() == ""
    run("ALTER TABLE t ADD c INT DEFAULT 7", "INSERT INTO t (k) VALUES (2)")
    assert target.follow() == ""
    assert texts(target) == {1: None, 2: 7}


@pytest.mark.parametrize("during", ["0", "1 minute"])
def test_a_table_whose_key_was_changed_is_backlog_until_it_was_read(
    run: Callable[..., None], given: dict[str, str], during: str
) -> None:
    run("CREATE TABLE t (k VARCHAR(9) PRIMARY KEY)", "INSERT INTO t VALUES ('a '), ('b '), ('c '), ('d ')")
    target = Target({**given, "maxRowsPerBatch": "1", "intervalDuringBacklog": during})
    assert target.follow() == ""
    before = target.backlogs
    run("ALTER TABLE t MODIFY k CHAR(9)", "INSERT INTO t VALUES ('e')")
    assert target.follow() == ""
    assert {row["k"] for row in target.rows.values()} == set("abcde")
    # Interval 0 waits for the end of the backlog, so all rows are one batch.
    assert target.backlogs - before == (2 if during == "0" else 6)
    assert target.offset is not None
    assert not target.offset["isProcessingBacklog"]


def test_a_table_that_is_dropped_after_a_change_of_its_key_is_no_backlog(
    run: Callable[..., None], given: dict[str, str]
) -> None:
    run("CREATE TABLE t (k VARCHAR(9) PRIMARY KEY)", "INSERT INTO t VALUES ('a ')")
    target = Target(given)
    assert target.follow() == ""
    run("ALTER TABLE t MODIFY k CHAR(9)")
    assert target.follow(batches=1) == ""
    assert target.offset is not None
    assert target.offset["isProcessingBacklog"]
    run("DROP TABLE t")
    assert target.follow() == ""
    assert not target.rows
    assert not target.offset["isProcessingBacklog"]
    run("CREATE TABLE t (k CHAR(9) PRIMARY KEY)", "INSERT INTO t VALUES ('x')")
    target.restart()
    for _ in range(3):  # it looks for the table, reads beyond the DROP, and looks again
        assert target.follow() == ""
    assert [row["k"] for row in target.rows.values()] == ["x"]


def test_key_changes_need_rows_that_empty_a_table(run: Callable[..., None], given: dict[str, str]) -> None:
    run("CREATE TABLE t (k VARCHAR(9) PRIMARY KEY, c INT)", "INSERT INTO t VALUES ('a ', 1)")
    target = Target({**given, "tableEvents": "skip"})
    assert target.follow() == ""
    run("ALTER TABLE t MODIFY k CHAR(9)")
    assert "tableEvents=emit" in stopped(target)
    assert texts(target) == {"a ": 1}
