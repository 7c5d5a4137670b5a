"""``snapshot.mode=when_needed``: the log after the stream's position is purged, and the tables are read again."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.snapshot import new_tables as joining
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.errors import BacklogError, SettingError
from servers.mysql import MySQLServer

from .replay import forget_log, options, read, reader, table_rows, take
from .test_table_events import Target

Row = tuple[Any, ...]
ROWS = 300


@pytest.fixture(autouse=True)
def empty_server(monkeypatch: pytest.MonkeyPatch, mysql: MySQLServer) -> Iterator[None]:
    monkeypatch.setattr(joining, "LOOK_MS", 0)
    mysql.execute("DROP DATABASE IF EXISTS again")
    mysql.execute("CREATE DATABASE again")
    yield
    discard_rewind_log()


def made(server: MySQLServer, name: str, rows: int = ROWS) -> str:
    server.execute(f"CREATE TABLE again.{name} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    server.execute(f"INSERT INTO again.{name} VALUES {','.join(f'({k}, {k}, {k})' for k in range(rows))}")
    return f"again.{name}"


def lose(server: MySQLServer, name: str, seed: int = 1) -> None:
    """Change a table in every way, and purge the log that has it."""
    chance = random.Random(seed)
    gone, moved, changed = (chance.sample(range(ROWS), 20) for _ in range(3))
    server.execute(f"DELETE FROM again.{name} WHERE id IN ({', '.join(map(str, gone))})")
    server.execute(f"UPDATE again.{name} SET id = id + 1000 WHERE id IN ({', '.join(map(str, moved))})")
    server.execute(f"UPDATE again.{name} SET n = -n - {seed} WHERE id IN ({', '.join(map(str, changed))})")
    server.execute(f"INSERT INTO again.{name} VALUES (5000, {seed}, 'new') ON DUPLICATE KEY UPDATE n = n + 1")
    forget_log(server)


def given(server: MySQLServer, table: str, **more: object) -> dict[str, str]:
    return options(server, table, **{"snapshot.mode": "when_needed", "chunkSize": 50, **more})


def step(found: dict[str, str], offset: dict[str, Any], target: Target, rows: int = 120) -> dict[str, Any]:
    """A batch, by a reader of its own, as after a kill."""
    stream = reader(found)
    end = stream.latestOffset(offset, ReadMaxRows(rows))
    if end is not offset:
        got = [row for part in stream.partitions(offset, end) for row in read(stream, part)]
        target.take(got, several="," in found["table"])
    stream.stop()
    return end


def follow(found: dict[str, str], offset: dict[str, Any] | None, target: Target) -> dict[str, Any]:
    """Read until nothing comes any more."""
    offset = reader(found).initialOffset() if offset is None else offset
    for _ in range(60):
        end = step(found, offset, target)
        if end == offset:
            return end
        offset = end
    raise AssertionError("it does not end")


def test_a_purged_log_stops_the_query_or_begins_the_snapshot_again(mysql: MySQLServer) -> None:
    table = made(mysql, "t")
    found, target = given(mysql, table), Target()
    offset = follow(found, None, target)
    mysql.execute("UPDATE again.t SET n = -7 WHERE id = 7")
    offset = follow(found, offset, target)
    assert target.tables[""] == table_rows(mysql, table)
    lose(mysql, "t")
    with pytest.raises(BacklogError, match=r"(purged|no transaction's end).*snapshot\.mode=when_needed"):
        take(reader(options(mysql, table)), offset)
    # One batch in which only the flag changes, then the rows, at first with one that empties the table.
    flagged = step(found, offset, target)
    assert (flagged["isProcessingBacklog"], flagged["isBacklog"], flagged["phase"]) == (True, False, "snapshot")
    assert len(target.tables[""]) == ROWS
    end = step(found, flagged, target)
    assert end["hasTableEvents"] is True
    assert end["isBacklog"] is True
    assert target.events == [("truncate", "")]
    assert 0 < len(target.tables[""]) < ROWS, "a batch at a time"
    offset = follow(found, end, target)
    assert offset["isProcessingBacklog"] is False
    assert "hasTableEvents" not in offset
    assert target.tables[""] == table_rows(mysql, table)
    mysql.execute("DELETE FROM again.t WHERE id < 50")
    follow(found, offset, target)
    assert target.tables[""] == table_rows(mysql, table)


def test_sequences_go_on_growing_and_batches_repeat(mysql: MySQLServer) -> None:
    table = made(mysql, "t")
    found, target = given(mysql, table), Target()
    offset = reader(found).initialOffset()
    greatest = 0
    for seed in range(3):
        seen: list[int] = []
        while True:
            stream = reader(found)
            end = stream.latestOffset(offset, ReadMaxRows(120))
            if end == offset:
                break
            rows = [row for part in stream.partitions(offset, end) for row in read(stream, part)]
            again = reader(found)
            assert sorted(map(str, rows)) == sorted(
                str(row) for part in again.partitions(offset, json.loads(json.dumps(end))) for row in read(again, part)
            )
            target.take(rows, several=False)
            seen += [row[-1] for row in rows]
            offset = end
        assert target.tables[""] == table_rows(mysql, table)
        assert min(seen) > greatest or seed == 0
        mysql.execute(f"INSERT INTO again.t VALUES ({9000 + seed}, 0, 'log')")
        end, rows = take(reader(found), offset)
        target.take(rows, several=False)
        greatest = max(row[-1] for row in rows)
        assert greatest > max(seen)
        offset = end
        lose(mysql, "t", seed)


def test_the_log_is_lost_while_the_snapshot_is_read(mysql: MySQLServer) -> None:
    table = made(mysql, "t")
    found, target = given(mysql, table), Target()
    offset = step(found, reader(found).initialOffset(), target)
    assert offset["phase"] == "snapshot"
    lose(mysql, "t")
    offset = follow(found, offset, target)
    assert target.events == [("truncate", "")]
    assert target.tables[""] == table_rows(mysql, table)
    # And again while it is read again.
    mysql.execute("INSERT INTO again.t VALUES (6000, 0, 'a')")
    lose(mysql, "t", 2)
    offset = step(found, step(found, offset, target), target)
    assert offset["phase"] == "snapshot"
    lose(mysql, "t", 3)
    follow(found, offset, target)
    assert len(target.events) == 3
    assert target.tables[""] == table_rows(mysql, table)


@pytest.mark.parametrize("in_snapshot", [False, True])
def test_a_planned_batch_that_cannot_be_read_stays_empty(mysql: MySQLServer, in_snapshot: bool) -> None:
    table = made(mysql, "t")
    found, target = given(mysql, table), Target()
    offset = reader(found).initialOffset() if in_snapshot else follow(found, None, target)
    mysql.execute("UPDATE again.t SET n = -1 WHERE id = 1")
    planned = reader(found).latestOffset(offset, ReadMaxRows(120))
    lose(mysql, "t")
    with pytest.raises(BacklogError, match=r"purged|no transaction's end"):
        reader(options(mysql, table)).partitions(offset, planned)
    assert reader(found).partitions(offset, planned) == []
    follow(found, planned, target)
    assert target.tables[""] == table_rows(mysql, table)


def test_a_batch_is_not_left_out_if_the_log_after_it_is_there(mysql: MySQLServer) -> None:
    table = made(mysql, "t")
    found, target = given(mysql, table), Target()
    offset = follow(found, None, target)
    mysql.execute("UPDATE again.t SET n = -1 WHERE id = 1")
    mysql.execute("FLUSH BINARY LOGS")
    mysql.execute("UPDATE again.t SET n = -2 WHERE id = 2")
    planned = reader(found).latestOffset(offset, ReadMaxRows(10**6))
    forget_log_before(mysql)
    with pytest.raises(BacklogError, match=r"the log after its end is there.*PURGE BINARY LOGS"):
        reader(found).partitions(offset, planned)
    mysql.execute("INSERT INTO again.t VALUES (7000, 0, 'a')")
    forget_log(mysql)
    assert reader(found).partitions(offset, planned) == []
    follow(found, planned, target)
    assert target.tables[""] == table_rows(mysql, table)


def forget_log_before(server: MySQLServer) -> None:
    """Purge all files of the log but the newest."""
    limit = time.monotonic() + 30
    while len(server.execute("SHOW BINARY LOGS")) > 1:
        server.execute(f"PURGE BINARY LOGS TO '{server.binlog_end()[0]}'")
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_all_tables_are_read_again_and_one_that_was_dropped_meanwhile_is_emptied(mysql: MySQLServer) -> None:
    tables = [made(mysql, name) for name in ("a", "b", "c")]
    found, target = given(mysql, ",".join(tables)), Target()
    offset = follow(found, None, target)
    for name in ("a", "b"):
        lose(mysql, name)
    mysql.execute("DROP TABLE again.c")
    forget_log(mysql)
    offset = follow(found, offset, target)
    for name in ("a", "b"):
        assert target.tables[name] == table_rows(mysql, f"again.{name}")
    assert target.tables["c"] == {}
    assert sorted(target.events) == [("truncate", name) for name in ("a", "b", "c")]
    made(mysql, "c", 10)
    follow(found, offset, target)
    assert target.tables["c"] == table_rows(mysql, "again.c")


def test_the_forms_of_the_rows(mysql: MySQLServer) -> None:
    table = made(mysql, "t", 3)
    found = given(mysql, table, format="debezium")
    stream = reader(found)
    offset, _ = take(stream, stream.initialOffset())
    mysql.execute("UPDATE again.t SET n = 9 WHERE id = 1")
    forget_log(mysql)
    stream = reader(found)
    flagged, rows = take(stream, offset)
    assert rows == []
    _, rows = take(stream, flagged)
    rows.sort(key=lambda row: row[4])
    assert [json.loads(row[1])["op"] for row in rows] == ["t", "r", "r", "r"]
    assert rows[0][0] is None
    assert [row[2] for row in rows] == ["truncate", "insert", "insert", "insert"]
    assert (rows[0][-2:], json.loads(rows[0][1])["source"]["table"]) == (("again", "t"), "t")


def test_a_table_that_was_altered_meanwhile(mysql: MySQLServer) -> None:
    table = made(mysql, "t")
    found, target = given(mysql, table), Target()
    offset = follow(found, None, target)
    mysql.execute("ALTER TABLE again.t ADD COLUMN w INT DEFAULT 5, DROP COLUMN v")
    forget_log(mysql)
    with pytest.raises(SchemaChanged, match="schemaChange=evolve"):
        take(reader({**found, "schemaChange": "fail"}), offset)
    again = follow(found, offset, target)
    assert target.tables[""] == table_rows(mysql, table)
    mysql.execute("ALTER TABLE again.t DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)")
    forget_log(mysql)
    with pytest.raises(SchemaChanged, match=r"from \(id\) to \(id, n\).*new checkpoint"):
        take(reader(found), again)


def test_the_option() -> None:
    base = {"host": "h", "user": "u", "table": "a.b"}
    assert MySqlOptions.parse(base).renews is False
    assert MySqlOptions.parse({**base, "snapshot.mode": "WHEN_NEEDED"}).renews is True
    with pytest.raises(SettingError, match=r"snapshot\.mode.*_database, _table"):
        MySqlOptions.parse({
            **base, "table": "a.b,a.c", "snapshot.mode": "when_needed",
            "metadataColumns": "_change_type,_commit_timestamp,_commit_seq",
        })  # fmt: skip
