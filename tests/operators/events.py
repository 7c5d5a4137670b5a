"""Random events with an event time, and runs of keyed queries over them: backlog first, then live batches."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import backlog_spark as bs

from .conftest import Collect, wait
from .scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DELAY", "EPOCH", "SCHEMA", "events", "flush", "multiset", "run", "source"]

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DELAY = "5 seconds"
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("item", pa.int32()),
        ("v", pa.int64()),
        ("price", pa.decimal128(12, 2)),
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
USERS = ["ann", "bob", "", "ä", "cy", None]


def events(seed: int, count: int, first: int, disorder_s: float = 4) -> pa.Table:
    """Random rows; row n is of about second n, at most so many seconds late, with microseconds."""
    chance = random.Random(seed)
    made = [
        (
            chance.choice(USERS),
            chance.randrange(4),
            chance.choice([None, chance.randrange(-(2**40), 2**40)]),
            Decimal(chance.randrange(-9999, 9999)) / 100,
            first + i,
            EPOCH + dt.timedelta(seconds=first + i - chance.uniform(0, disorder_s)),
        )
        for i in range(count)
    ]
    return pa.table(list(zip(*made, strict=True)), schema=SCHEMA)


def flush(after: Sequence[pa.Table]) -> pa.Table:
    """A row with a new user and a late time, so that the watermark passes all other rows."""
    last = max(max(table["ts"].to_pylist()) for table in after)
    row = ("~flush", 0, 0, Decimal(0), 10**9, last + dt.timedelta(days=1))
    return pa.table([[value] for value in row], schema=SCHEMA)


def source(root: Path, name: str = "s", partitions: int = 2) -> bs.BacklogStream:
    """The scripted source, with its event time."""
    return bs.source("scripted", name=name, path=root / name, partitions=partitions).with_watermark("ts", DELAY)


def multiset(rows: Any) -> Counter[Any]:
    """Rows that compare."""
    return Counter(tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in rows)


def run(
    spark: SparkSession,
    root: Path,
    stream: bs.BacklogStream,
    inputs: dict[str, list[pa.Table]],
    backlog: int,
    expected: Counter[Any],
    *,
    check: Callable[[bs.BacklogQuery, Collect], None] | None = None,
    sides: dict[str, bs.Sink] | None = None,
) -> Collect:
    """Run a stream over its inputs' batches, of which so many are backlog, until all that is expected has come out.

    Batch n of every input is written before batch n + 1 of any; live ones one after another, so that each is committed
    by itself. The last one should be a `flush`.
    """
    sink = Collect()
    count = max(len(tables) for tables in inputs.values())
    for name, tables in inputs.items():
        for table in tables[: max(backlog, 1)]:
            append(root / name, table, backlog=backlog > 0)
        if backlog:
            # Tells that the backlog is over; the first live batch comes with it.
            append(root / name, tables[0].slice(0, 0), backlog=False)
    writer = stream.write(f"events {root.name}").trigger(processing_time="50 ms", interval_during_backlog=0)
    writer = writer.option("checkpointLocation", str(root / "checkpoint")).to(sink)
    for name, side in (sides or {}).items():
        writer = writer.to(side, side_output=name)
    query = writer.start(spark)
    try:
        rows = 0
        for number in range(max(backlog, 1), count + 1):
            rows = sum(t.num_rows for tables in inputs.values() for t in tables[:number])
            wait(lambda: query.backlogProgress.rows >= rows, query)  # noqa: B023
            for name, tables in inputs.items():
                if number < len(tables):
                    append(root / name, tables[number], backlog=False)
        wait(lambda: multiset(r for b in sink.batches.values() for r in b).total() >= expected.total(), query)
        query.processAllAvailable()
        if check is not None:
            check(query, sink)
    finally:
        query.stop()
    assert query.exception() is None
    return sink
