"""Which changes the snapshot already contains: the bisection against a check of every range."""

from __future__ import annotations

import random

import pytest

from backlog_spark.connectors.mysql_cdc.binlog.batches import _SnapshotFilter
from backlog_spark.connectors.mysql_cdc.binlog.positions import sequence_at
from backlog_spark.connectors.mysql_cdc.binlog.records import RowsChange
from backlog_spark.connectors.mysql_cdc.offsets import SnapshotRange
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.output.rows import ChangeRows
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.schema.types import Column
from backlog_spark.connectors.mysql_cdc.server.watermark import watermark

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
TABLE = TableSchema("d", "t", (Column("id", "int", "int"),), ("id",), ("id",))
OPTIONS = MySqlOptions.parse({"host": "h", "user": "u", "table": "d.t"})


@pytest.mark.parametrize("by_position", [False, True], ids=["MySQL", "MariaDB"])
@pytest.mark.parametrize("is_open", [False, True], ids=["all read", "some still to be read"])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
def test_bisection_finds_what_a_look_at_every_range_finds(by_position: bool, is_open: bool, count: int) -> None:
    chance = random.Random(count)
    numbers = sorted(chance.choices(range(10, 60), k=count))  # some ranges share a watermark
    lows = [f"0-1-1@binlog.000001:{n}" if by_position else f"{UUID}:1-{n}" for n in numbers]
    ends = sorted(chance.sample(range(1_000), count))
    ranges = [SnapshotRange((end,), low, 0) for end, low in zip(ends, lows, strict=True)]
    if ranges and not is_open:
        ranges[-1] = SnapshotRange(None, lows[-1], 0)
    found = _SnapshotFilter(OPTIONS, TABLE, ranges)
    for number in range(5, 65):
        sequence = sequence_at(1, number - 1 if by_position else 4)
        keys = chance.choices(range(1_100), k=20)
        change = RowsChange(
            TABLE, "insert", "0-1" if by_position else UUID, number, 0, [(sequence, None, [0])], at=sequence
        )
        held = []
        for key in keys:
            at = next((i for i, r in enumerate(ranges) if r.end is None or key <= r.end[0]), None)
            includes = at is None or watermark(ranges[at].low).includes(change.uuid, number, sequence)
            held.append(includes)
        covered = found.covered(change)
        if covered is True:
            left = []
        else:
            rows = ChangeRows(
                rows=[[key] for key in keys],
                kinds=["insert"] * 20,
                sequences=[0] * 20,
                positions=[0] * 20,
                origins=[change] * 20,
                covered=[covered or None] * 20,
            )
            left = [row[0] for row in found.unheld(rows).rows]
        assert left == [key for key, is_held in zip(keys, held, strict=True) if not is_held]
        found.end()
