"""For every kind of key: the snapshot equals the table at its low watermarks, and with the binary log the table."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.connectors.mysql_cdc.stream.reader import SnapshotPartition
from servers.mariadb import MariaDBServer
from servers.mysql import MySQLServer

from .kinds import KINDS, Kind, KindWriters, Row, create, in_range, now, plain, tables_at
from .replay import EVERY_MARIADB, options, read, reader


class Replayed:
    """A table made of change rows; keeps whatever row does not fit."""

    def __init__(self) -> None:
        self.rows: Counter[Row] = Counter()
        self.misfits: list[Row] = []

    def apply(self, rows: list[Row]) -> None:
        for row in rows:
            values, kind = plain(row[:-3]), row[-3]
            if kind in ("delete", "update_preimage"):
                if not self.rows[values]:
                    self.misfits.append(row)
                self.rows[values] -= 1
            else:
                self.rows[values] += 1


def run(mysql: MySQLServer, kind: Kind, seed: int) -> None:
    table = "kinds.t"
    before = create(mysql, table, kind)
    chance = random.Random(seed)
    given = options(mysql, table, chunkSize=chance.choice([12, 30]), **kind.options)
    (schema,) = check(given)
    stream = reader(given)
    replayed = Replayed()
    reads: list[tuple[SnapshotPartition, Counter[Row]]] = []
    names = [c.name for c in schema.columns[:-2]]
    with KindWriters(mysql, table, kind, names, seed) as writers:
        time.sleep(0.1)
        offset = stream.initialOffset()
        while offset["isProcessingBacklog"]:
            end = stream.latestOffset(offset, ReadMaxRows(chance.choice([30, 50])))
            for partition in stream.partitions(offset, end):
                time.sleep(chance.random() * 0.04)  # rows change between the watermark and the read
                assert isinstance(partition, SnapshotPartition)
                rows = read(stream, partition)
                replayed.apply(rows)
                reads.append((partition, Counter(plain(r[:-3]) for r in rows)))
            offset = end
        discard_rewind_log()
        for partition, first in chance.sample(reads, 1):
            assert Counter(plain(r[:-3]) for r in read(stream, partition)) == first
    commits = writers.commits
    for partition, first in reads:
        assert Counter(plain(r[:-3]) for r in read(stream, partition)) == first
    assert commits > 0
    batches = Offset.from_json(offset).ranges
    assert len(batches) > 1 if kind.batches else len(batches) == 1

    # As another process would cut it
    again = reader(given)
    first_batch = Offset(server=offset["server"], tables=(schema,), ranges=batches[:1])
    cut = again.partitions(stream.initialOffset(), first_batch.to_json())
    assert sum((Counter(plain(r[:-3]) for r in read(again, p)) for p in cut), Counter()) == sum(
        (rows for p, rows in reads if p.of == batches[0]), Counter()
    )

    # Nothing but the server's own comparisons says which rows each batch should hold.
    truth = tables_at(mysql, MySqlOptions.parse(given), schema, before, [b.low for b in batches])
    low_key = None
    for batch, at_low in zip(batches, truth, strict=True):
        expected = in_range(mysql, schema, at_low, low_key, batch.end)
        found: Counter[Row] = sum((rows for p, rows in reads if p.of == batch), Counter())
        assert found == expected
        low_key = batch.end

    while (end := stream.latestOffset(offset, ReadMaxRows(3000))) is not offset:
        for partition in stream.partitions(offset, end):
            replayed.apply(read(stream, partition))
        offset = end
    assert replayed.misfits == []
    assert +replayed.rows == now(mysql, table)


# One of each way that keys are compared, cut and told apart; all others in the grid.
SOME = [
    *("bigint unsigned", "decimal", "datetime", "varbinary", "text, no pad", "text, pad", "composite"),
    *("composite, cut by the second", "cut outside of the key", "no key", "no key, cut"),
]


@pytest.mark.parametrize("name", SOME)
def test_the_snapshot_is_the_table_at_its_watermark_and_the_binary_log_the_rest(mysql: MySQLServer, name: str) -> None:
    run(mysql, KINDS[name], 1)


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("name", KINDS)
def test_the_same_with_other_chances(mysql: MySQLServer, name: str, seed: int) -> None:
    run(mysql, KINDS[name], seed)


@pytest.mark.parametrize("mariadb", EVERY_MARIADB, indirect=True)
def test_without_a_key_while_commits_of_mariadb_rotate_the_log(mariadb: MariaDBServer) -> None:
    """A view's position in the log is then ahead of what it sees, now and again."""
    run(mariadb, KINDS["no key"], 1)


def test_a_key_column_is_what_a_row_is_known_by(mysql: MySQLServer) -> None:
    """A row that only changes its spelling is another row downstream, where text compares byte by byte."""
    kind = KINDS["text, no pad"]
    create(mysql, "kinds.spelt", kind)
    mysql.execute("DELETE FROM kinds.spelt")
    mysql.execute("INSERT INTO kinds.spelt VALUES ('a', 1, ''), ('b', 2, '')")
    stream = reader(options(mysql, "kinds.spelt"))
    start = stream.initialOffset()
    live = stream.latestOffset(start, ReadMaxRows(10))
    mysql.execute("UPDATE kinds.spelt SET k = 'Á' WHERE k = 'A'")
    mysql.execute("DELETE FROM kinds.spelt WHERE k = 'B'")
    mysql.execute("INSERT INTO kinds.spelt VALUES ('B', 3, '')")
    snapshot: list[Any] = [r[:2] for p in stream.partitions(start, live) for r in read(stream, p)]
    assert sorted(snapshot) == [("a", 1), ("b", 2)]
    end = stream.latestOffset(live, ReadMaxRows(10))
    assert [(r[0], r[3]) for p in stream.partitions(live, end) for r in read(stream, p)] == [
        ("a", "delete"),
        ("Á", "insert"),
        ("b", "delete"),
        ("B", "insert"),
    ]
