"""Ranges of captured tables that are read again while the log is followed, on real servers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog import planner
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.snapshot.requests import RangeRequest, Requests
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from servers.mysql import MySQLServer

from ..replay import Writers, options, read, reader, table_rows, take
from ..test_table_events import Target

ROWS = 300
Row = tuple[Any, ...]


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch, mysql: MySQLServer) -> Iterator[str]:
    monkeypatch.setattr(planner, "QUIET_MS", -1)
    mysql.execute("DROP DATABASE IF EXISTS again")
    mysql.execute("CREATE DATABASE again")
    mysql.execute("CREATE TABLE again.t (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    mysql.execute("INSERT INTO again.t VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(ROWS)))
    yield "again.t"
    discard_rewind_log()


def asked(offset: dict[str, Any], *requests: RangeRequest) -> dict[str, Any]:
    """The offset with requests, as if a batch had taken them."""
    found = Offset.from_json(offset)
    return replace(found, requests=found.requests.added(requests)).to_json()


def request(**more: Any) -> RangeRequest:
    return RangeRequest("ask", ("again", "t"), **more)


def live(given: dict[str, str]) -> tuple[dict[str, Any], list[Row]]:
    """The first offset without backlog, and the snapshot's rows."""
    stream = reader(given)
    offset, rows = stream.initialOffset(), []
    while offset["isProcessingBacklog"]:
        offset, more = take(stream, offset)
        rows += more
    stream.stop()
    return offset, rows


def drained(given: dict[str, str], offset: dict[str, Any], target: Target) -> list[list[Row]]:
    """The rows of each batch until nothing is left to read. Each batch has a reader of its own, as after a kill."""
    batches = []
    for _ in range(60):
        stream = reader(given)
        end, rows = take(stream, offset)
        stream.stop()
        if end == offset:
            return batches
        assert end["isProcessingBacklog"] is False
        target.take(rows, several=False)
        batches.append(rows)
        offset = end
    raise AssertionError("no end")


def test_a_table_is_read_again_in_chunks_as_upserts(mysql: MySQLServer, table: str) -> None:
    given = options(mysql, table, chunkSize=100, metadataColumns="_change_type,_commit_timestamp,_commit_seq")
    offset, _ = live(given)
    target = Target()
    batches = drained(given, asked(offset, request()), target)
    assert [len(rows) for rows in batches if rows] == [100, 100, 100]
    assert {row[3] for rows in batches for row in rows} == {"update_postimage"}
    assert target.tables[""] == table_rows(mysql, table)


@pytest.mark.parametrize("seed", [1, 2])
def test_an_empty_target_gets_the_whole_table_under_writers(mysql: MySQLServer, table: str, seed: int) -> None:
    given, target, chance = options(mysql, table, chunkSize=40), Target(), random.Random(seed)
    with Writers(mysql, table, seed, keys=ROWS) as writers:
        offset, _ = live(given)
        offset = asked(offset, request(after=(20,), last=(90,)), request())
        stream, parts = reader(given), 0
        while "requests" in offset or writers.commits < 100:
            end = stream.latestOffset(offset, ReadMaxRows(10**6))
            if end == offset:
                continue
            found = [row for p in stream.partitions(offset, end) for row in read(stream, p)]
            if chance.random() < 0.5:  # as after a kill: the rows are the same
                discard_rewind_log()
                stream = reader(given)
                repeated = [row for p in stream.partitions(offset, end) for row in read(stream, p)]
                assert sorted(repeated, key=repr) == sorted(found, key=repr)
            parts += "reads" in end.get("requests", {})
            target.take(found, several=False)
            offset = end
    drained(given, offset, target)
    assert parts >= 3  # the writers may leave few rows
    assert target.tables[""] == table_rows(mysql, table)


def test_a_target_that_lost_and_kept_rows_is_made_right(mysql: MySQLServer, table: str) -> None:
    given, target = options(mysql, table, chunkSize=40), Target()
    offset, rows = live(given)
    target.take(rows, several=False)
    state = target.tables[""]
    mysql.execute("DELETE FROM again.t WHERE id IN (51, 52)")
    del state[50]
    state[60] = (60, 0, "corrupt")
    state[1000] = (1000, 0, "never there")
    state[55] = (55, 55, "s")
    wanted = request(after=(49,), last=(61,), in_target=((50,), (51,), (60,)))
    beyond = request(after=(999,), last=(1000,), in_target=((1000,),))
    batches = drained(given, asked(offset, wanted, beyond), target)
    assert state == table_rows(mysql, table)
    kinds = [(row[0], row[3]) for rows in batches for row in rows]
    assert sorted(key for key, kind in kinds if kind == "update_postimage") == [50, *range(53, 62)]
    assert (1000, "delete") in kinds


def test_a_condition_reads_what_meets_it(mysql: MySQLServer, table: str) -> None:
    given = options(mysql, table, chunkSize=100)
    offset, _ = live(given)
    batches = drained(given, asked(offset, request(condition="n < 150 AND v = 's'")), target := Target())
    assert sorted(target.tables[""]) == list(range(150))
    assert [len(rows) for rows in batches if rows] == [100, 50]
    # One that fails ends the request, and not the stream.
    assert not any(drained(given, asked(offset, request(condition="no_such_column = 1")), Target()))


def test_a_pause_holds_it_and_its_table_may_leave(mysql: MySQLServer, table: str) -> None:
    given = options(mysql, table, chunkSize=100)
    offset, _ = live(given)
    offset, rows = take(reader(given), asked(offset, request()))
    while not rows:
        offset, rows = take(reader(given), offset)
    known = Offset.from_json(offset)
    assert known.requests.queue == (request(after=(99,)),)
    held = replace(known, requests=replace(known.requests, is_paused=True)).to_json()
    assert not any(drained(given, held, Target()))
    stream = reader(given)
    mysql.execute("DROP TABLE again.t")
    offset, rows = take(stream, offset)
    assert [row[3] for row in rows] == ["drop"]
    assert Offset.from_json(offset).requests == Requests()


def test_requests_survive_the_offset() -> None:
    first = RangeRequest("a", ("d", "t"), (1, b"\x00x", "é"), None, "n = '\"'", ((1, b"y", "z"), (2, b"", "")))
    found = Requests((first, RangeRequest("b", ("d", "u"))), is_paused=True, heard=3)
    assert Requests.from_json(found.to_json(), 3) == found
    assert Requests().to_json() == {}
    assert found.added([first]) == found
    assert found.without_tables([("d", "t")]).queue == found.queue[1:]
