"""The example of docs/changes.md runs and emits what the page says."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.spi import registry
from tests.operators.conftest import Collect
from tests.operators.scripted import append

from .blocks import ROOT, python_blocks, run
from .test_operators import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "changes.md"
ORDERS = pa.schema([("customer_id", pa.int64()), ("amount", pa.int64()), ("_change_type", pa.string())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("country", pa.string()), ("_change_type", pa.string())])


@pytest.mark.grid
def test_the_example_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))
    given = {
        "orders": (
            [(1, 10, "insert"), (1, 50, "insert"), (2, 20, "insert"), (3, 5, "insert")],
            [(1, 50, "delete"), (3, 5, "update_preimage"), (3, 6, "update_postimage")],
        ),
        "customers": (
            [(1, "fi", "insert"), (2, "fi", "insert")],
            [(2, "fi", "update_preimage"), (2, "se", "update_postimage"), (3, "se", "insert")],
        ),
    }
    for name, schema in (("orders", ORDERS), ("customers", CUSTOMERS)):
        for number, rows in enumerate(given[name]):
            append(tmp_path / name, pa.table(list(zip(*rows, strict=True)), schema=schema), backlog=not number)
    names: dict[str, Any] = {}
    (block,) = python_blocks(PAGE)
    run(block, names, {n: bs.source("scripted", name=n, path=tmp_path / n) for n in given})
    expected = {
        "per_country": [("fi", 1, 10, 10), ("se", 2, 26, 20)],
        # The first customer has one order left.
        "often": [],
        "how_many": [(1, 3)],
    }
    sinks = {name: Collect() for name in expected}
    queries: dict[str, bs.BacklogQuery] = {}
    try:
        for name, sink in sinks.items():
            writer = names[name].write(name).trigger(processing_time="50 ms", interval_during_backlog=0).to(sink)
            queries[name] = writer.option("checkpointLocation", str(tmp_path / name)).start(spark)
        for name, query in queries.items():
            wanted = 7 + 5 * (name == "per_country")
            wait_for(query, lambda: query.backlogProgress.rows == wanted)  # noqa: B023
            query.processAllAvailable()
    finally:
        for query in queries.values():
            query.stop()
    for name, rows in expected.items():
        found: Counter[Any] = Counter()
        for batch in sinks[name].batches.values():
            for row in batch:
                values = row.asDict()
                kind = values.pop("_change_type")
                found[tuple(values.values())] += 1 if kind in ("insert", "update_postimage") else -1
        assert +found == Counter(rows), name
        assert min(found.values()) == 0, "each had results that were taken back"
