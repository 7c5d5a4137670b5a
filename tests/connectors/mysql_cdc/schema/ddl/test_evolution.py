"""ALTER TABLE while a stream runs, and while it is stopped, on real servers."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.ddl import evolution
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.source import MySqlCdcDataSource
from backlog_spark.connectors.mysql_cdc.stream.reader import MySqlCdcStreamReader
from tests.connectors.mysql_cdc.replay import is_mariadb, options, read, reader, take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.mysql import MySQLServer

TABLE = "evolving.t"
ALL = ReadMaxRows(10**6)
AGAIN = r"evolving\.t was altered: .*Start the query again, as it is"


@pytest.fixture(autouse=True)
def table(mysql: MySQLServer) -> Iterator[None]:
    mysql.execute("DROP DATABASE IF EXISTS evolving")
    mysql.execute("CREATE DATABASE evolving CHARACTER SET utf8mb4")
    mysql.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, a INT, b VARCHAR(20))")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (1, 1, 'one'), (2, 2, 'two')")
    yield
    discard_rewind_log()


def new(server: MySQLServer, **more: object) -> MySqlCdcStreamReader:
    return reader(options(server, TABLE, **more))


def names(server: MySQLServer) -> list[str]:
    return MySqlCdcDataSource(options(server, TABLE, metadataColumns="")).schema().names


def rows(stream: MySqlCdcStreamReader, offset: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """All that can be read, batch by batch, without the metadata."""
    found: list[tuple[Any, ...]] = []
    while True:
        end, batch = take(stream, offset)
        if end == offset:
            return offset, found
        offset, found = end, found + [row[:-3] for row in batch]


def until_stopped(stream: MySqlCdcStreamReader, offset: dict[str, Any], why: str = AGAIN) -> tuple[Any, list[Any]]:
    """All that can be read before the stream stops."""
    found: list[tuple[Any, ...]] = []
    while True:
        try:
            end, batch = take(stream, offset)
        except SchemaChanged as error:
            told = str(error)
            break
        assert end != offset, "nothing stopped it"
        offset, found = end, found + [row[:-3] for row in batch]
    assert re.search(why, told), told
    return offset, found


def started(server: MySQLServer, **more: object) -> tuple[MySqlCdcStreamReader, dict[str, Any]]:
    stream = new(server, **more)
    return stream, take(stream, stream.initialOffset())[0]


@pytest.mark.both
def test_an_added_column_stops_after_all_before_and_is_there_in_the_next_start(mysql: MySQLServer) -> None:
    stream, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN c INT DEFAULT 7 AFTER id")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 40, 4, 'four')")
    offset, found = until_stopped(stream, offset)
    assert found == [(3, 3, "three")]
    assert names(mysql) == ["id", "c", "a", "b"]
    again = new(mysql)
    start = offset
    offset, found = rows(again, offset)
    assert found == [(4, 40, 4, "four")]
    # Another process that has only the offsets reads the same.
    other = new(mysql)
    end = other.latestOffset(start, ALL)
    while end != offset:
        start, end = end, other.latestOffset(end, ALL)
    assert [row[:-3] for p in new(mysql).partitions(start, end) for row in read(other, p)] == [(4, 40, 4, "four")]


def test_altered_while_stopped_is_null_before(mysql: MySQLServer) -> None:
    _, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN c INT, RENAME COLUMN a TO n, MODIFY b VARCHAR(300) FIRST")
    mysql.execute(f"INSERT INTO {TABLE} VALUES ('four', 4, 4, 40)")
    mysql.execute(f"ALTER TABLE {TABLE} DROP COLUMN c")
    mysql.execute(f"INSERT INTO {TABLE} VALUES ('five', 5, 5)")
    assert names(mysql) == ["b", "id", "n"]
    _, found = rows(new(mysql), offset)
    assert found == [("three", 3, 3), ("four", 4, 4), ("five", 5, 5)]


def test_a_dropped_column_is_null_from_there_on(mysql: MySQLServer) -> None:
    stream, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    mysql.execute(f"ALTER TABLE {TABLE} DROP COLUMN a")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 'four')")
    offset, found = rows(stream, offset)
    assert found == [(3, 3, "three"), (4, None, "four")]
    mysql.execute(f"UPDATE {TABLE} SET b = 'FOUR' WHERE id = 4")
    assert rows(stream, offset)[1] == [(4, None, "four"), (4, None, "FOUR")]
    # The next start is declared without it.
    assert rows(new(mysql), offset)[1] == [(4, "four"), (4, "FOUR")]


def test_columns_in_another_order_keep_their_values(mysql: MySQLServer) -> None:
    mysql.execute(f"ALTER TABLE {TABLE} ADD x INT, ADD y INT")
    stream, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three', 10, 20)")
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY y INT AFTER id")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 20, 4, 'four', 10)")
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY x INT FIRST, ALGORITHM=COPY")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (10, 5, 20, 5, 'five')")
    assert rows(stream, offset)[1] == [(3, 3, "three", 10, 20), (4, 4, "four", 10, 20), (5, 5, "five", 10, 20)]


def test_a_column_that_is_redefined_and_dropped_is_not_null_without_a_word(mysql: MySQLServer) -> None:
    """The stream still has the column. Its rows between the two statements cannot be decoded into it."""
    stream, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY a BIGINT FIRST")
    mysql.execute(f"INSERT INTO {TABLE} (id, a, b) VALUES (4, 4, 'four')")
    mysql.execute(f"ALTER TABLE {TABLE} DROP a")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (5, 'five')")
    _, before = until_stopped(stream, offset, r"'a' of .* was redefined and then dropped.*Start the query again")
    assert before == [(3, 3, "three")]
    assert rows(new(mysql), offset)[1] == [(3, "three"), (4, "four"), (5, "five")]


@pytest.mark.parametrize("form", ["row", "debezium"])
def test_a_column_that_is_renamed_while_the_query_starts_keeps_its_values(mysql: MySQLServer, form: str) -> None:
    stream, offset = started(mysql, format=form)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    planned = stream.latestOffset(offset, ALL)
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY b VARCHAR(20) FIRST")
    declared = new(mysql, format=form)
    mysql.execute(f"ALTER TABLE {TABLE} RENAME COLUMN a TO n")
    with pytest.raises(SchemaChanged, match=AGAIN):
        declared.partitions(offset, planned)
    if form == "row":
        with pytest.raises(SchemaChanged, match=AGAIN):
            declared.latestOffset(offset, ALL)
        assert rows(new(mysql), offset)[1] == [("three", 3, 3)]
    else:
        found = [json.loads(row[1])["after"] for row in take(declared, offset)[1]]
        assert found == [{"b": "three", "id": 3, "n": 3}]


def test_a_column_that_is_renamed_while_a_chunk_is_read_keeps_its_values(mysql: MySQLServer) -> None:
    stream = new(mysql)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    mysql.execute(f"UPDATE {TABLE} SET a = 10 WHERE id = 1")
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY b VARCHAR(20) FIRST")
    declared = new(mysql)
    (partition,) = declared.partitions(start, end)
    mysql.execute(f"ALTER TABLE {TABLE} RENAME COLUMN a TO n")
    with pytest.raises(SchemaChanged, match=AGAIN):
        read(declared, partition)
    discard_rewind_log()
    again = new(mysql)
    found = [row[:-3] for p in again.partitions(start, end) for row in read(again, p)]
    assert sorted(found) == [("one", 1, 1), ("two", 2, 2)]


def test_a_wider_type_stops_and_the_old_rows_are_read_as_the_new_one(mysql: MySQLServer) -> None:
    stream, offset = started(mysql)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, -3, 'three')")
    before = offset
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY a BIGINT")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 4000000000, 'four')")
    offset, found = until_stopped(stream, offset)
    assert found == [(3, -3, "three")]
    assert rows(new(mysql), offset)[1] == [(4, 4_000_000_000, "four")]
    assert rows(new(mysql), before)[1] == [(3, -3, "three"), (4, 4_000_000_000, "four")]
    mysql.execute(f"DELETE FROM {TABLE} WHERE id > 2")
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY a SMALLINT")
    with pytest.raises(SchemaChanged, match=r"'a' of evolving\.t .*without loss.*new checkpoint"):
        rows(new(mysql), before)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (f"ALTER TABLE {TABLE} DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)", "PRIMARY KEY.*new checkpoint"),
        (f"ALTER TABLE {TABLE} MODIFY id VARCHAR(20)", "key column 'id' of .*new checkpoint"),
        (f"ALTER TABLE {TABLE} RENAME TO evolving.other", "renamed or dropped.*new checkpoint"),
        (f"RENAME TABLE {TABLE} TO evolving.other", "renamed or dropped.*new checkpoint"),
    ],
)
def test_what_cannot_be_followed_stops_after_all_before(
    mysql: MySQLServer, statement: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evolution, "_NAMELESS_S", 0.5)
    stream, offset = started(mysql, tableSwap="follow")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    mysql.execute(statement)
    assert until_stopped(stream, offset, why)[1] == [(3, 3, "three")]


def test_fail_stops_at_the_first_and_goes_on_with_evolve(mysql: MySQLServer) -> None:
    stream, offset = started(mysql, schemaChange="fail")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    mysql.execute(f"ALTER TABLE {TABLE} ADD INDEX (a)")
    mysql.execute(f"ALTER TABLE {TABLE} DROP COLUMN a")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 'four')")
    offset, found = until_stopped(stream, offset, "was changed by .*DROP COLUMN a.*schemaChange=evolve")
    assert found == [(3, 3, "three")]
    with pytest.raises(SchemaChanged, match=r"altered since the checkpoint.*schemaChange=evolve"):
        new(mysql, schemaChange="fail").latestOffset(offset, ALL)
    assert rows(new(mysql), offset)[1] == [(4, "four")]


def test_an_added_column_within_the_time_of_a_chunk_is_crossed(mysql: MySQLServer) -> None:
    """The chunk's watermark is before the statement, its SELECT after it."""
    stream = new(mysql, chunkSize=1)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    first, *rest = stream.partitions(start, end)
    assert rest, "several chunks"
    mysql.execute(f"UPDATE {TABLE} SET a = 10 WHERE id = 1")
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN c INT NOT NULL DEFAULT 9 FIRST")
    mysql.execute(f"UPDATE {TABLE} SET a = 20, c = 5 WHERE id = 2")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (1, 3, 3, 'three')")
    snapshot = [row[:-3] for p in (first, *rest) for row in read(stream, p)]
    assert snapshot == [(1, 1, "one"), (2, 2, "two")]
    # A start after it has the column, and rows from before it have no value in it.
    again = new(mysql)
    discard_rewind_log()
    assert [row[:-3] for p in again.partitions(start, end) for row in read(again, p)] == [
        (None, 1, 1, "one"), (None, 2, 2, "two"),
    ]  # fmt: skip
    _, found = rows(again, end)
    assert found == [(None, 1, 1, "one"), (None, 1, 10, "one"), (9, 2, 2, "two"), (5, 2, 20, "two"), (1, 3, 3, "three")]


def test_altered_between_two_batches_of_the_snapshot(mysql: MySQLServer) -> None:
    stream = new(mysql)
    start = stream.initialOffset()
    middle = stream.latestOffset(start, ReadMaxRows(1))
    assert middle["isProcessingBacklog"]
    mysql.execute(f"UPDATE {TABLE} SET a = 5 WHERE id = 1")
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN c INT NOT NULL DEFAULT 9 FIRST")
    mysql.execute(f"UPDATE {TABLE} SET c = 3 WHERE id = 2")
    with pytest.raises(SchemaChanged, match=AGAIN):
        stream.latestOffset(middle, ALL)
    again = new(mysql)
    assert [r[:-3] for p in again.partitions(start, middle) for r in read(again, p)] == [(None, 1, 1, "one")]
    end, found = take(again, middle)
    assert [row[:-3] for row in found] == [(3, 2, 2, "two")]
    assert not end["isProcessingBacklog"]
    assert rows(again, end)[1] == [(None, 1, 1, "one"), (None, 1, 5, "one")]


def test_columns_that_exchange_their_names_within_the_time_of_a_chunk_stop_it(mysql: MySQLServer) -> None:
    """Or a chunk that is read before would have the values of the one, and a chunk behind it those of the other."""
    mysql.execute(f"ALTER TABLE {TABLE} ADD x INT, ADD y INT")
    mysql.execute(f"UPDATE {TABLE} SET x = 10, y = 20")
    stream = new(mysql)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    mysql.execute(f"ALTER TABLE {TABLE} CHANGE x y INT, CHANGE y x INT")
    mysql.execute(f"UPDATE {TABLE} SET x = 21 WHERE id = 2")
    with pytest.raises(SchemaChanged, match=AGAIN):
        [read(stream, p) for p in stream.partitions(start, end)]
    again = new(mysql)
    found = [row[:-3] for p in again.partitions(start, end) for row in read(again, p)]
    # By the names of today: what was x is y.
    assert found == [(1, 1, "one", 10, 20), (2, 2, "two", 10, 20)]
    assert rows(again, end)[1] == [(2, 2, "two", 10, 20), (2, 2, "two", 10, 21)]


def test_a_dropped_column_within_the_time_of_a_chunk_stops(mysql: MySQLServer) -> None:
    stream = new(mysql)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    mysql.execute(f"ALTER TABLE {TABLE} DROP COLUMN a")
    with pytest.raises(SchemaChanged, match=r"evolving\.t was altered while its snapshot was read.*new checkpoint"):
        [read(stream, p) for p in stream.partitions(start, end)]


def test_a_start_before_an_alter_is_refused(mysql: MySQLServer) -> None:
    """The earlier columns are not known: two columns of the same type could be confused."""
    mysql.execute(f"ALTER TABLE {TABLE} ADD x INT, ADD y INT")
    file, pos = mysql.binlog_end()
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three', 10, 20)")
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY x INT AFTER y")
    given = {"startup.mode": "specific", "startup.file": file, "startup.position": pos}
    stream = new(mysql, **given)
    found = r"altered after the position where the stream would start.*startup.file=(\S+), startup.position=(\d+)"
    with pytest.raises(SchemaChanged, match=found) as told:
        stream.latestOffset(stream.initialOffset(), ALL)
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 4, 'four', 20, 10)")
    position = str(told.value).rpartition("=")[2].rstrip(".")
    stream = new(mysql, **{**given, "startup.position": position})
    assert rows(stream, stream.initialOffset())[1] == [(4, 4, "four", 20, 10)]


STEPS = (
    "ADD COLUMN {new} INT",
    "ADD COLUMN {new} VARCHAR(10) DEFAULT 'd' FIRST",
    "ADD COLUMN {new} DECIMAL(10,2) AFTER {old}",
    "DROP COLUMN {old}",
    "MODIFY {old} {type} FIRST",
    "RENAME COLUMN {old} TO {new}",
    "ADD INDEX ({old})",
    "COMMENT 'x'",
)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.grid) for seed in (2, 3))])
def test_random_statements_never_shift_a_value(mysql: MySQLServer, seed: int) -> None:
    """Every value names its column and row; with each stop the stream is started again, at times it is anyway."""
    chance = random.Random(seed)
    mysql.execute(f"DROP TABLE {TABLE}")
    mysql.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, c0 INT, c1 INT, c2 VARCHAR(10))")
    made = 3
    stream, offset = started(mysql)
    found: list[dict[str, Any]] = []
    written: list[dict[str, Any]] = []
    renamed: dict[str, list[str]] = {}
    read_names = {"c0", "c1", "c2"}

    def follow() -> None:
        nonlocal stream, offset
        while True:
            declared = [c.name for c in stream._planner.tables.every()[0].columns]
            try:
                end, batch = take(stream, offset)
            except SchemaChanged as error:
                if "Start the query again, as it is" not in str(error):
                    raise
                stream = new(mysql)
                continue
            found.extend(dict(zip(declared, row, strict=False)) for row in batch)
            if end == offset:
                return
            offset = end

    for number in range(30):
        present = {str(r[0]): str(r[1]) for r in mysql.execute(f"SHOW COLUMNS FROM {TABLE}")}
        others = [name for name in present if name != "id"]
        if chance.random() < 0.4 and others:
            old, fresh = chance.choice(others), f"c{made}"
            step = chance.choice(STEPS)
            if "MODIFY" in step and old not in read_names:
                follow()  # two definitions of one column must not both be unknown to the checkpoint
            mysql.execute(f"ALTER TABLE {TABLE} " + step.format(old=old, new=fresh, type=present[old]))
            made += 1
            if "RENAME" in step:
                renamed.setdefault(fresh, []).extend([old, *renamed.get(old, [])])
        else:
            row: dict[str, Any] = {"id": number}
            for name in others:
                row[name] = str(number) if "char" in present[name] else number
            marks = ", ".join(f"`{name}`" for name in row)
            mysql.execute(f"INSERT INTO {TABLE} ({marks}) VALUES ({', '.join(repr(v) for v in row.values())})")
            written.append(row)
        if chance.random() < 0.3:
            follow()
            read_names = {str(r[0]) for r in mysql.execute(f"SHOW COLUMNS FROM {TABLE}")}
        if chance.random() < 0.2:
            stream = new(mysql)
    follow()
    assert [row["id"] for row in found] == [row["id"] for row in written]
    for out, row in zip(found, written, strict=True):
        for name, value in out.items():
            if name.startswith("_") or value is None:
                continue
            source = [n for n in (name, *renamed.get(name, [])) if n in row]
            assert source, f"{name} has {value!r}, and nothing was written to it in {row}"
            assert str(row[source[0]]) == str(value).removesuffix(".00")


def test_an_alter_that_is_logged_twice_counts_at_its_end(mysql: MySQLServer) -> None:
    stream, offset = started(mysql)
    with mysql.connect(database="evolving") as connection, connection.cursor() as cursor:
        if is_mariadb(mysql):
            cursor.execute("SET SESSION binlog_alter_two_phase = ON")
        cursor.execute("ALTER TABLE t MODIFY b VARCHAR(20) FIRST")
        cursor.execute("INSERT INTO t VALUES ('three', 3, 3)")
        connection.commit()
    starts = [str(row[5]) for row in mysql.execute("SHOW BINLOG EVENTS") if "TABLE t MODIFY b" in str(row[5])]
    assert rows(stream, offset)[1] == [(3, 3, "three")]
    assert len(starts) == (2 if is_mariadb(mysql) else 1)


def test_altered_between_the_checkpoint_and_the_first_batch(mysql: MySQLServer) -> None:
    first = new(mysql).initialOffset()
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN c INT NOT NULL DEFAULT 9 FIRST")
    stream = new(mysql)
    end, found = take(stream, first)
    assert [row[:-3] for row in found] == [(9, 1, 1, "one"), (9, 2, 2, "two")]
    mysql.execute(f"DELETE FROM {TABLE} WHERE id = 1")
    assert rows(stream, end)[1] == [(9, 1, 1, "one")]


def test_envelopes_go_on_without_a_new_start(mysql: MySQLServer) -> None:
    stream = new(mysql, format="debezium", metadataColumns="")
    middle = stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN c INT NOT NULL DEFAULT 9 FIRST")
    offset, found = take(stream, middle)
    assert [json.loads(value)["after"] for _, value in found] == [{"c": 9, "id": 2, "a": 2, "b": "two"}]
    mysql.execute(f"UPDATE {TABLE} SET a = 3 WHERE id = 1")
    offset, earlier = take(stream, take(stream, offset)[0])
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY a BIGINT, RENAME COLUMN b TO text")
    mysql.execute(f"UPDATE {TABLE} SET a = 4000000000 WHERE id = 1")
    found = earlier
    for _ in range(3):
        offset, batch = take(stream, offset)
        found += batch
    assert [json.loads(value)["after"] for _, value in found] == [
        {"c": 9, "id": 1, "a": 3, "b": "one"},
        {"c": 9, "id": 1, "a": 4_000_000_000, "text": "one"},
    ]
