"""The snapshot and the binary log together equal the table, with any writes at the same time."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.stream.reader import BinlogPartition, SnapshotPartition
from servers.mysql import MySQLServer

from .replay import KEYS, SERVERS, Writers, apply, options, read, reader, table_rows

pytestmark = pytest.mark.both


def create(server: MySQLServer, table: str) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS exact")
    server.execute(f"DROP TABLE IF EXISTS {table}")
    server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    rows = ",".join(f"({i}, {i}, 's{i}')" for i in range(0, KEYS, 2))
    server.execute(f"INSERT INTO {table} VALUES {rows}")


@pytest.mark.parametrize(
    ("mysql", "seed"),
    [
        pytest.param(*server.values, seed, id=f"{server.id}-{seed}", marks=[*server.marks, *extra])
        for server in SERVERS
        for seed in range(4)
        for extra in [[pytest.mark.grid] if seed else []]
    ],
    indirect=["mysql"],
)
def test_snapshot_under_random_writers_then_binlog_gives_the_exact_table(mysql: MySQLServer, seed: int) -> None:
    gives_the_exact_table(mysql, seed)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.grid) for n in range(1, 8))])
def test_a_server_without_gtids_gives_the_exact_table(seed: int) -> None:
    with MySQLServer(options={"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}, fast=True) as server:
        before = len(server.execute("SHOW BINARY LOGS"))
        gives_the_exact_table(server, seed)
        assert len(server.execute("SHOW BINARY LOGS")) > before, "a batch of the snapshot begins with a file of its own"


def gives_the_exact_table(mysql: MySQLServer, seed: int) -> None:
    table = f"exact.t{seed}"
    create(mysql, table)
    chance = random.Random(seed)
    stream = reader(options(mysql, table, chunkSize=chance.choice([15, 40, 100])))
    state: dict[int, tuple[Any, ...]] = {}
    misfits: list[str] = []
    reads: list[tuple[SnapshotPartition, list[tuple[Any, ...]]]] = []
    with Writers(mysql, table, seed) as writers:
        time.sleep(0.1)
        offset = stream.initialOffset()
        while offset["isProcessingBacklog"]:
            end = stream.latestOffset(offset, ReadMaxRows(chance.choice([50, 90, 150])))
            for partition in stream.partitions(offset, end):
                time.sleep(chance.random() * 0.05)  # rows change between the watermark and the read
                assert isinstance(partition, SnapshotPartition)
                rows = read(stream, partition)
                reads.append((partition, sorted(rows)))
                misfits += apply(state, rows)
            offset = end
        for partition, first in reads:  # the second time, while writers go on
            discard_rewind_log()
            assert sorted(read(stream, partition)) == first
        # some binary log batches while writers go on
        for _ in range(5):
            time.sleep(0.05)
            end = stream.latestOffset(offset, ReadMaxRows(chance.choice([1, 10, 200])))
            for partition in stream.partitions(offset, end) if end is not offset else []:
                misfits += apply(state, read(stream, partition))
            offset = end
    for partition, first in reads:  # the third time, after all
        assert sorted(read(stream, partition)) == first
    assert writers.commits > 0
    sequences: list[int] = []
    while (end := stream.latestOffset(offset, ReadMaxRows(300))) is not offset:
        for partition in stream.partitions(offset, end):
            rows = read(stream, partition)
            sequences += [row[-1] for row in rows]
            misfits += apply(state, rows)
        offset = end
    assert misfits == []
    assert state == table_rows(mysql, table)
    assert sequences == sorted(set(sequences))  # monotonic and unique
    assert offset["ranges"] == []  # the filter is gone once it is passed


@pytest.mark.grid
def test_batches_that_share_a_low_watermark_are_exact_and_repeatable(
    mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a snapshot of many batches do, here from the second batch on; restarted again and again."""
    monkeypatch.setattr("backlog_spark.connectors.mysql_cdc.snapshot.planner._SHARE", 3)
    table = "exact.shared"
    create(mysql, table)
    state: dict[int, tuple[Any, ...]] = {}
    misfits: list[str] = []
    batches: list[tuple[Any, Any, list[tuple[Any, ...]]]] = []
    with Writers(mysql, table, 11) as writers:
        stream = reader(options(mysql, table, chunkSize=5))
        offset = stream.initialOffset()
        while offset["isProcessingBacklog"]:
            end = stream.latestOffset(offset, ReadMaxRows(8))
            if len(batches) % 5 == 4:  # the process was killed after it planned the batch
                discard_rewind_log()
                stream = reader(options(mysql, table, chunkSize=5))
            rows = [row for p in stream.partitions(offset, end) for row in read(stream, p)]
            misfits += apply(state, rows)
            batches.append((offset, end, sorted(rows)))
            offset = end
        assert writers.commits
    lows, ranges = len(offset["lows"]), len(offset["ranges"])
    assert lows == ranges < len(batches) / 2
    for start, end, rows in batches:
        discard_rewind_log()
        again = reader(options(mysql, table, chunkSize=5))
        assert sorted(row for p in again.partitions(start, end) for row in read(again, p)) == rows
    while (end := stream.latestOffset(offset, ReadMaxRows(300))) is not offset:
        misfits += apply(state, [row for p in stream.partitions(offset, end) for row in read(stream, p)])
        offset = end
    assert misfits == []
    assert state == table_rows(mysql, table)


def test_a_table_that_is_altered_gets_a_new_low_watermark(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backlog_spark.connectors.mysql_cdc.snapshot.planner._SHARE", 0)  # all batches would share one
    table = "exact.shared"
    create(mysql, table)
    stream = reader(options(mysql, table))
    offset = stream.initialOffset()
    for _ in range(3):
        offset = stream.latestOffset(offset, ReadMaxRows(10))
    assert (len(offset["lows"]), len(offset["ranges"])) == (1, 1)
    mysql.execute(f"ALTER TABLE {table} ADD COLUMN x INT NOT NULL DEFAULT 7")
    stream = reader(options(mysql, table))
    for _ in range(3):
        offset = stream.latestOffset(offset, ReadMaxRows(10))
    assert (len(offset["lows"]), len(offset["ranges"])) == (2, 2)
    end = stream.latestOffset(offset, ReadMaxRows(10))
    assert [row[3] for p in stream.partitions(offset, end) for row in read(stream, p)] == [7] * 10


@pytest.mark.parametrize("after", [0, 1, 3])
def test_tables_that_later_batches_read_are_altered_after_the_stream_was_declared(
    mysql: MySQLServer, after: int
) -> None:
    """Before the first batch, the log that the stream reads does not have the statement."""
    for name in ("exact.first", "exact.later"):
        create(mysql, name)
    given = options(mysql, "exact.first,exact.later", format="debezium")
    stream = reader(given)
    offset = stream.initialOffset()
    for _ in range(after):
        offset = stream.latestOffset(offset, ReadMaxRows(10))
    mysql.execute("ALTER TABLE exact.later MODIFY v VARCHAR(20) FIRST")
    offset = stream.latestOffset(offset, ReadMaxRows(10))
    stream = reader(given)
    while (end := stream.latestOffset(offset, ReadMaxRows(10**6))) is not offset:
        offset = end
    assert not offset["isProcessingBacklog"]
    mysql.execute("INSERT INTO exact.later (id, n, v) VALUES (-1, 1, 'new')")
    stream = reader(given)
    end = stream.latestOffset(offset, ReadMaxRows(10**6))
    (row,) = [row for p in stream.partitions(offset, end) for row in read(stream, p)]
    assert json.loads(row[1])["after"] == {"id": -1, "n": 1, "v": "new"}


def test_a_binlog_batch_replayed_by_another_process_is_the_same(mysql: MySQLServer) -> None:
    table = "exact.replayed"
    create(mysql, table)
    stream = reader(options(mysql, table))
    start = stream.initialOffset()
    done = stream.latestOffset(start, ReadMaxRows(10**6))
    with Writers(mysql, table, 77) as writers:
        limit = time.monotonic() + 300
        while writers.commits < 50:  # more rows than the batch may have, however busy the machine
            assert time.monotonic() < limit
            time.sleep(0.01)
        end = stream.latestOffset(done, ReadMaxRows(100))
        assert end is not done
        (partition,) = stream.partitions(done, end)
        assert isinstance(partition, BinlogPartition)
        first = read(stream, partition)
        again = reader(options(mysql, table))
        (same,) = again.partitions(done, end)
        assert read(again, same) == first
    assert read(stream, partition) == first
    assert 0 < len(first) <= 100


def test_limits_hold_but_a_transaction_is_never_split(mysql: MySQLServer) -> None:
    table = "exact.limits"
    create(mysql, table)
    stream = reader(options(mysql, table))
    offset = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10**6))
    for n in range(10):
        mysql.execute(f"UPDATE {table} SET n = {n} WHERE id = 2")  # two rows each
    mysql.execute(f"UPDATE {table} SET n = n + 1")  # one transaction, 400 rows
    mysql.execute(f"DELETE FROM {table} WHERE id = 2")
    sizes = []
    while (end := stream.latestOffset(offset, ReadMaxRows(7))) is not offset:
        sizes.append(sum(len(read(stream, p)) for p in stream.partitions(offset, end)))
        offset = end
    assert sizes == [6, 6, 6, 2, 400, 1]


def test_other_tables_make_no_batches(mysql: MySQLServer) -> None:
    table = "exact.quiet"
    create(mysql, table)
    create(mysql, "exact.loud")
    stream = reader(options(mysql, table))
    offset = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10**6))
    mysql.execute("UPDATE exact.loud SET n = n + 1")
    assert stream.latestOffset(offset, ReadMaxRows(10)) is offset
    mysql.execute(f"UPDATE {table} SET n = -1 WHERE id = 4")
    end = stream.latestOffset(offset, ReadMaxRows(10))
    rows = [row for p in stream.partitions(offset, end) for row in read(stream, p)]
    assert [(r[0], r[1], r[3]) for r in rows] == [(4, 4, "update_preimage"), (4, -1, "update_postimage")]


def test_available_now_ends_at_the_log_position_of_its_start_or_with_the_snapshot(mysql: MySQLServer) -> None:
    table = "exact.available"
    create(mysql, table)
    stream = reader(options(mysql, table))
    stream.prepareForTriggerAvailableNow()
    offset = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10**6))
    mysql.execute(f"DELETE FROM {table} WHERE id = 2")
    assert stream.latestOffset(offset, ReadMaxRows(10)) is offset

    later = reader(options(mysql, table))
    later.prepareForTriggerAvailableNow()
    mysql.execute(f"DELETE FROM {table} WHERE id = 4")
    end = later.latestOffset(offset, ReadMaxRows(10))
    assert [r[0] for p in later.partitions(offset, end) for r in read(later, p)] == [2]
    assert later.latestOffset(end, ReadMaxRows(10)) is end

    backlog = reader(options(mysql, table, availableNowTarget="backlogEnd"))
    backlog.prepareForTriggerAvailableNow()
    assert backlog.latestOffset(offset, ReadMaxRows(10)) is offset


def test_an_empty_table_is_one_empty_batch_and_then_live(mysql: MySQLServer) -> None:
    table = "exact.empty"
    create(mysql, table)
    mysql.execute(f"DELETE FROM {table}")
    stream = reader(options(mysql, table))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10))
    assert (start["isProcessingBacklog"], end["isProcessingBacklog"]) == (True, False)
    assert [row for p in stream.partitions(start, end) for row in read(stream, p)] == []
    mysql.execute(f"INSERT INTO {table} VALUES (1, 1, 'x')")
    live = stream.latestOffset(end, ReadMaxRows(10))
    assert [r[:4] for p in stream.partitions(end, live) for r in read(stream, p)] == [(1, 1, "x", "insert")]


def test_the_snapshot_batch_keeps_to_the_limit_and_offsets_stay_small(mysql: MySQLServer) -> None:
    table = "exact.sized"
    create(mysql, table)
    stream = reader(options(mysql, table, chunkSize=10))
    offset, sizes = stream.initialOffset(), []
    while offset["isProcessingBacklog"]:
        end = stream.latestOffset(offset, ReadMaxRows(60))
        partitions = stream.partitions(offset, end)
        assert len(partitions) >= 2
        sizes.append(sum(len(read(stream, p)) for p in partitions))
        offset = end
    assert sizes == [60, 60, 60, 20]
    assert len(offset["ranges"]) == 4  # one entry a batch, not a chunk


def test_interval_during_backlog_zero_is_one_batch(mysql: MySQLServer) -> None:
    table = "exact.one"
    create(mysql, table)
    stream = reader(options(mysql, table, intervalDuringBacklog="0", maxRowsPerBatch=10))
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10))
    assert (end["isProcessingBacklog"], end["rows"]) == (False, KEYS // 2)
