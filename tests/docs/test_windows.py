"""The example of docs/windows.md runs and emits what a reader would expect."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.operators.windows import assigners as windows
from backlog_spark.spi import registry
from tests.operators.conftest import Collect
from tests.operators.events import multiset
from tests.operators.scripted import append

from .blocks import ROOT, python_blocks, run
from .test_operators import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "windows.md"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TIME = pa.timestamp("us", "UTC")
ORDERS = pa.schema([("order_id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64()), ("at", TIME)])
PAYMENTS = pa.schema([("order_id", pa.int64()), ("paid_at", TIME)])


def at(minute: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minute)


def test_every_assigner_is_documented() -> None:
    told = set(re.findall(r"`(\w+Windows)\b", PAGE.read_text()))
    assert told == {name for name in windows.__all__ if name.endswith("Windows")}


@pytest.mark.grid
def test_the_example_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))
    orders = [(1, "ann", 10, at(0)), (2, "ann", 20, at(5)), (3, "bob", 5, at(30)), (4, "ann", 7, at(70))]
    payments = [(1, at(1)), (2, at(50)), (3, at(31)), (4, at(71))]
    flush = [(9, "zoe", 0, at(600))]
    for number, rows in enumerate((orders[:3], orders[3:], flush)):
        table = pa.table(list(zip(*rows, strict=True)), schema=ORDERS)
        append(tmp_path / "orders", table, backlog=number == 0)
    for number, paid in enumerate((payments[:2], payments[2:], [(9, at(600))])):
        table = pa.table(list(zip(*paid, strict=True)), schema=PAYMENTS)
        append(tmp_path / "payments", table, backlog=number == 0)
    sources = {n: bs.source("scripted", name=n, path=tmp_path / n) for n in ("orders", "payments")}
    names: dict[str, Any] = {}
    (block,) = python_blocks(PAGE)
    run(block, names, sources)
    expected = {
        # Order 2 was paid too late, and zoe's rows are ahead of the watermark.
        "paid": [("ann", 10, at(1)), ("bob", 5, at(31)), ("ann", 7, at(71)), ("zoe", 0, at(600))],
        "customers": [("ann", at(0), 2, 10), ("bob", at(0), 1, 0), ("ann", at(60), 1, 0)],
        "full": [("ann", 2, 10)],
        "running": [(1, 10, None), (2, 30, 10), (3, 5, None), (4, 37, 20)],
    }
    columns = {
        "full": ["customer", "orders", "spread"],
        "customers": ["customer", "window_start", "orders", "spread"],
        "running": ["order_id", "so_far", "before"],
    }
    sinks = {name: Collect() for name in expected}
    queries: dict[str, bs.BacklogQuery] = {}
    try:
        for name, sink in sinks.items():
            stream = names[name].map(*columns.get(name, ["*"]))
            writer = stream.write(name).trigger(processing_time="50 ms", interval_during_backlog=0).to(sink)
            queries[name] = writer.option("checkpointLocation", str(tmp_path / name)).start(spark)
        for name, query in queries.items():
            count = len(expected[name])
            wait_for(query, lambda: len([r for b in sinks[name].batches.values() for r in b]) >= count)  # noqa: B023
            query.processAllAvailable()
    finally:
        for query in queries.values():
            query.stop()
    for name, rows in expected.items():
        plain = [tuple(v.replace(tzinfo=None) if isinstance(v, dt.datetime) else v for v in row) for row in rows]
        assert multiset(r for b in sinks[name].batches.values() for r in b) == multiset(plain), name
