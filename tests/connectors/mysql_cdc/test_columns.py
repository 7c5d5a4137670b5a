"""Columns that are left out, masked or read as boolean, keys of tables without a primary key, and skipped changes."""

from __future__ import annotations

import hashlib
import json
import random
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.source import check, check_resume, check_start
from backlog_spark.errors import BacklogError, SettingError
from servers.mysql import MySQLServer

from .replay import Writers, apply, is_mariadb, options, read, reader, take

pytestmark = pytest.mark.both

SALT = {"columns.mask.secretSalt": "hush"}


def mask(value: object) -> str:
    return hashlib.sha256(f"hush{value}".encode()).hexdigest()


def fresh(server: MySQLServer, definition: str, values: str = "") -> str:
    """A table columns.t."""
    server.execute("DROP DATABASE IF EXISTS columns_")
    server.execute("CREATE DATABASE columns_")
    server.execute(f"CREATE TABLE columns_.t ({definition})")
    if values:
        server.execute(f"INSERT INTO columns_.t VALUES {values}")
    return "columns_.t"


def unread(server: MySQLServer) -> str:
    """A type that the source does not read, if the server has one."""
    return "VARCHAR(20) COMPRESSED" if is_mariadb(server) else "JSON"


def test_snapshot_and_log_give_the_same_columns_masks_and_booleans(mysql: MySQLServer) -> None:
    table = fresh(
        mysql,
        f"id INT PRIMARY KEY, gone {unread(mysql)}, name VARCHAR(20), price DECIMAL(9,2), at DATETIME(3), f FLOAT, "
        "raw VARBINARY(9), flag TINYINT(1), n INT",
        """(1, '{"a": 1}', 'Ünal', 1.50, '2024-02-03 04:05:06.700', 0.1, x'00ff', 1, 1),
        (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 2), (3, '{}', '', -1, NULL, -0.0, x'', 5, 3),
        (4, '{}', 'Ünal', 1.5, NULL, 1e30, x'', 0, 4)""",
    )
    if is_mariadb(mysql):
        with pytest.raises(BacklogError, match=r"'gone'.*columns\.exclude"):
            check(options(mysql, table))
    given = options(
        mysql, table, **SALT, tinyInt1isBit="true",
        **{"columns.exclude": ".*[.]GONE", "columns.mask": r"columns_\.t\.(name|price|at|f|raw)"},
    )  # fmt: skip
    (schema,) = check(given)
    assert [c.name for c in schema.read] == ["id", "name", "price", "at", "f", "raw", "flag", "n"]
    stream = reader(given)
    start = stream.initialOffset()
    plain = stream.latestOffset(start, ReadMaxRows(100))
    snapshot = [row for p in stream.partitions(start, plain) for row in read(stream, p)]
    assert snapshot[0][1:3] == (mask("Ünal"), mask("1.50"))
    assert snapshot[0][5] == hashlib.sha256(b"hush\0\xff").hexdigest()
    assert [row[6] for row in snapshot] == [True, None, True, False]
    assert snapshot[1][1:7] == (None,) * 6
    assert snapshot[3][1:3] == snapshot[0][1:3]
    # Read again after changes, the rows come from the log's before-images.
    mysql.execute(f"UPDATE {table} SET n = n + 10, gone = NULL, flag = IF(flag = 5, 9, flag)")
    mysql.execute(f"DELETE FROM {table} WHERE id = 2")
    again = [row for p in stream.partitions(start, plain) for row in read(stream, p)]
    assert sorted(again) == sorted(snapshot)
    _, rows = take(stream, plain)
    assert [row[:-3] for row in rows if row[-3] == "update_preimage"] == [row[:-3] for row in snapshot]
    assert [row[:7] for row in rows if row[-3] == "update_postimage"] == [row[:7] for row in snapshot]
    assert rows[-1][:-2] == (2, *snapshot[1][1:7], 12, "delete")
    assert "hush" not in json.dumps(plain)


@pytest.mark.parametrize("has_primary", [True, False], ids=["primary", "unique"])
def test_a_table_of_chosen_columns_is_exact_under_writers(mysql: MySQLServer, has_primary: bool) -> None:
    key = "PRIMARY KEY (id)" if has_primary else "UNIQUE KEY u (id)"
    table = fresh(
        mysql, f"id INT NOT NULL, n INT, v VARCHAR(20), {key}", ",".join(f"({i}, {i}, 's')" for i in range(400))
    )
    keys = {} if has_primary else {"messageKeyColumns": "columns_[.]t:ID"}
    chosen = {"columns.include": "columns_.t.v", "columns.mask": "columns_.t.v"}
    stream = reader(options(mysql, table, chunkSize=40, **SALT, **keys, **chosen))
    chance = random.Random(3)
    state: dict[int, tuple[Any, ...]] = {}
    misfits: list[str] = []
    with Writers(mysql, table, seed=3):
        offset, batches = stream.initialOffset(), 0
        while offset["isProcessingBacklog"]:
            end = stream.latestOffset(offset, ReadMaxRows(90))
            for partition in stream.partitions(offset, end):
                time.sleep(chance.random() * 0.03)
                misfits += apply(state, read(stream, partition))
            offset, batches = end, batches + 1
        assert batches > 2, "the snapshot is cut by the key"
        time.sleep(0.1)
        offset, rows = take(stream, offset)
        misfits += apply(state, rows)
    misfits += apply(state, take(stream, offset)[1])
    assert misfits == []
    now = mysql.execute(f"SELECT id, v FROM {table}")
    assert state == {i: (i, None if v is None else mask(v)) for i, v in now}


def test_a_masked_key_identifies_rows_and_is_not_in_the_checkpoint(mysql: MySQLServer) -> None:
    table = fresh(mysql, "mail VARCHAR(30) PRIMARY KEY, n INT", "('ann@x', 1), ('bob@x', 2)")
    given = options(mysql, table, **SALT, **{"columns.mask": ".*mail"})
    stream = reader(given)
    offset, rows = take(stream, stream.initialOffset())
    assert offset["phase"] == "binlog", "one batch"
    assert sorted(rows)[0][:2] == min((mask("ann@x"), 1), (mask("bob@x"), 2))
    mysql.execute(f"UPDATE {table} SET mail = 'cleo@x' WHERE n = 1")
    mysql.execute(f"UPDATE {table} SET n = 3 WHERE n = 2")
    offset, rows = take(stream, offset)
    bob, cleo = mask("bob@x"), mask("cleo@x")
    assert [(row[0], row[-3]) for row in rows] == [
        (mask("ann@x"), "delete"), (cleo, "insert"), (bob, "update_preimage"), (bob, "update_postimage"),
    ]  # fmt: skip
    assert "@x" not in json.dumps(offset)
    with pytest.raises(SettingError, match=r"chunkKeyColumn = 'mail'.*columns\.mask"):
        check({**given, "chunkKeyColumn": "mail"})


def test_envelopes_have_the_chosen_columns(mysql: MySQLServer) -> None:
    table = fresh(mysql, "id INT PRIMARY KEY, gone INT, n INT, flag TINYINT(1)", "(1, 2, 3, 1)")
    given = options(
        mysql, table, format="debezium", tinyInt1isBit="true", **SALT,
        **{"columns.exclude": ".*gone", "columns.mask": ".*[.]n"},
    )  # fmt: skip
    stream = reader(given)
    offset, rows = take(stream, stream.initialOffset())
    first = {"id": 1, "n": mask(3), "flag": True}
    assert json.loads(rows[0][1])["after"] == first
    mysql.execute(f"UPDATE {table} SET flag = 0, gone = 9")
    _, rows = take(stream, offset)
    change = json.loads(rows[0][1])
    assert (change["before"], change["after"]) == (first, {**first, "flag": False})


@pytest.mark.parametrize(
    ("definition", "wanted", "said"),
    [
        ("id INT PRIMARY KEY, u INT NOT NULL UNIQUE", "u", "has a primary key"),
        ("u INT UNIQUE, n INT", "u", "'u' of columns_.t may be NULL"),
        ("u INT NOT NULL, n INT NOT NULL, KEY (u), UNIQUE (u, n)", "u", "no UNIQUE key of exactly the columns u"),
        ("u VARCHAR(9) NOT NULL, UNIQUE (u(4))", "u", "no UNIQUE key of exactly the columns u"),
        ("u INT NOT NULL UNIQUE", "w", "no column 'w'"),
    ],
)
def test_a_key_that_does_not_identify_rows_is_refused(
    mysql: MySQLServer, definition: str, wanted: str, said: str
) -> None:
    table = fresh(mysql, definition)
    with pytest.raises(SettingError, match=f"messageKeyColumns = .*{said}"):
        check(options(mysql, table, messageKeyColumns=f"columns_.t:{wanted}"))


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP INDEX u",
        "DROP INDEX `u` ON columns_.t",
        "ALTER TABLE t RENAME INDEX u TO w",
        "ALTER TABLE t MODIFY b INT NULL",
        "ALTER TABLE t DROP INDEX u, ADD UNIQUE KEY u (a, b)",
    ],
)
def test_a_stream_stops_where_its_unique_key_is_dropped(mysql: MySQLServer, statement: str) -> None:
    table = fresh(mysql, "a INT NOT NULL, b INT NOT NULL, UNIQUE KEY u (a, b)", "(1, 1)")
    mysql.execute("CREATE TABLE columns_.o (a INT NOT NULL, UNIQUE KEY u (a))")
    stream = reader(options(mysql, table, messageKeyColumns="columns_.t:b,a"))
    offset, _ = take(stream, stream.initialOffset())
    mysql.execute("ALTER TABLE columns_.o DROP INDEX u")
    mysql.execute(f"INSERT INTO {table} VALUES (1, 2)")
    offset, rows = take(stream, offset)
    assert [row[:2] for row in rows] == [(1, 2)]
    with mysql.connect(database="columns_") as connection, connection.cursor() as cursor:
        cursor.execute(statement)
    with pytest.raises(SchemaChanged, match=r"unique key u|UNIQUE|may be NULL"):
        take(stream, offset)


def test_skipped_operations_are_dropped_from_the_log_alone(mysql: MySQLServer) -> None:
    table = fresh(mysql, "id INT PRIMARY KEY, n INT", "(1, 1), (2, 2)")
    stream = reader(options(mysql, table, **{"skipped.operations": "c, D"}))
    offset, rows = take(stream, stream.initialOffset())
    assert len(rows) == 2
    mysql.execute(f"INSERT INTO {table} VALUES (3, 3)")
    mysql.execute(f"UPDATE {table} SET n = 4 WHERE id = 3")
    mysql.execute(f"DELETE FROM {table} WHERE id < 3")
    _, rows = take(stream, offset)
    assert [(row[:2], row[-3]) for row in rows] == [((3, 3), "update_preimage"), ((3, 4), "update_postimage")]
    with pytest.raises(SettingError, match=r"skipped\.operations = 'x'"):
        check(options(mysql, table, **{"skipped.operations": "x"}))


def test_excluded_tables_are_not_captured(mysql: MySQLServer) -> None:
    fresh(mysql, "id INT PRIMARY KEY")
    mysql.execute("CREATE TABLE columns_.t_old (id INT PRIMARY KEY)")
    mysql.execute("CREATE TABLE columns_._t_gho (id INT PRIMARY KEY)")
    given = {**options(mysql, ""), "tablePattern": r"columns_\..*", "tables.exclude": r".*_old, columns_\._.*"}
    given.pop("table")
    assert [t.name for t in check(given)] == ["columns_.t"]
    with pytest.raises(SettingError, match=r"tables\.exclude = '\.\*'.*leaves none"):
        check({**given, "tables.exclude": ".*"})


def test_an_excluded_column_may_come_and_change_while_the_stream_goes_on(mysql: MySQLServer) -> None:
    table = fresh(mysql, "id INT PRIMARY KEY, n INT, big_a VARCHAR(9)", "(1, 1, 'a')")
    given = options(mysql, table, **{"columns.exclude": ".*[.]big_.*"})
    stream = reader(given)
    offset, rows = take(stream, stream.initialOffset())
    mysql.execute(f"ALTER TABLE {table} ADD COLUMN big_b {unread(mysql)} FIRST")
    mysql.execute(f"INSERT INTO {table} VALUES ('{{}}', 2, 2, 'b')")
    mysql.execute(f"ALTER TABLE {table} DROP COLUMN big_a")
    mysql.execute(f"INSERT INTO {table} VALUES ('{{}}', 3, 3)")
    found = []
    while (end := stream.latestOffset(offset, ReadMaxRows(100))) is not offset:
        found += [row for p in stream.partitions(offset, end) for row in read(stream, p)]
        offset = end
    assert [row[:2] for row in rows + found] == [(1, 1), (2, 2), (3, 3)]
    restarted = reader(given)
    mysql.execute(f"DELETE FROM {table}")
    assert [row[:2] for row in take(restarted, offset)[1]] == [(1, 1), (2, 2), (3, 3)]
    # A column that is to be read needs another declaration.
    mysql.execute(f"ALTER TABLE {table} ADD COLUMN m INT")
    mysql.execute(f"INSERT INTO {table} VALUES ('{{}}', 4, 4, 4)")
    offset, _ = take(restarted, offset)
    with pytest.raises(SchemaChanged, match="without the column 'm'"):
        take(restarted, offset)


def test_options_that_choose_otherwise_are_refused_on_the_same_checkpoint(mysql: MySQLServer) -> None:
    table = fresh(mysql, "id INT NOT NULL, a INT, b TINYINT(1), UNIQUE KEY (id)", "(1, 1, 1)")
    given = options(mysql, table, **SALT, **{"columns.mask": ".*[.]a", "messageKeyColumns": ".*:id"})
    stream = reader(given)
    offset, _ = take(stream, stream.initialOffset())
    check_start(given)
    check_resume(given, offset)
    check_resume({**given, "columns.mask": "COLUMNS_.t.a", "skipped.operations": "d"}, offset)
    for change, said in (
        ({"columns.exclude": ".*[.]b"}, r"columns\.exclude = 'b'.*were none when the checkpoint was made, and are b"),
        ({"columns.mask": ".*[.]b"}, r"columns\.mask = 'b'.*were a when the checkpoint was made, and are b now"),
        ({"columns.mask.secretSalt": "loud"}, r"columns\.mask\.secretSalt = '\*\*\*'"),
        ({"tinyInt1isBit": "true"}, r"tinyInt1isBit = 'b'"),
        ({"messageKeyColumns": ""}, r"messageKeyColumns = 'unset'.*was \(id\) when .* is \(\) now"),
    ):
        other = {**given, **change}
        with pytest.raises(SettingError, match=said) as error:
            check_resume(other, offset)
        assert not {"hush", "loud"} & set(str(error.value).split("'"))
        with pytest.raises(SettingError, match=said):
            take(reader(other), offset)
    with pytest.raises(SettingError, match=r"columns\.mask = .*'nothing' matches no column of columns_\.t"):
        check_start({**given, "columns.mask": "nothing"})
