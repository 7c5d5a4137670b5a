"""The example of docs/time.md runs and ends, and emits what a reader would expect."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.common.settings import SETTINGS
from backlog_spark.spi import registry
from tests.operators.conftest import Collect
from tests.operators.scripted import append, finish

from .blocks import ROOT, python_blocks, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PAGE = (ROOT / "docs" / "time.md").read_text()
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ORDERS = pa.schema([("customer", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def at(second: int) -> dt.datetime:
    return START + dt.timedelta(seconds=second)


def test_settings_and_names_exist() -> None:
    assert set(re.findall(r"`(spark\.backlog\.[\w.]+)", PAGE)) <= set(SETTINGS)
    assert {name for name in re.findall(r"`bs\.(\w+)", PAGE) if not hasattr(bs, name)} == set()


@pytest.mark.slow
def test_the_example_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))
    orders = [("ann", 10, at(0)), ("ann", 5, at(30)), ("bob", 7, at(40)), ("ann", 1, at(200)), ("eve", 2, at(210))]
    for number, rows in enumerate((orders[:3], orders[3:])):
        table = pa.table(list(zip(*rows, strict=True)), schema=ORDERS)
        append(tmp_path / "orders", table, backlog=number == 0)
    finish(tmp_path / "orders")
    (block,) = python_blocks(ROOT / "docs" / "time.md")
    block = block.replace("/lake/checkpoints/bought", str(tmp_path / "checkpoint"))
    block = block.replace('bs.DeltaAppend("/lake/bought")', "sink").replace('"10 seconds"', '"100 ms"')
    sink = Collect()
    names: dict[str, Any] = {"spark": spark, "sink": sink}
    run(block, names, {"orders": bs.source("scripted", name="orders", path=tmp_path / "orders")})
    query: bs.BacklogQuery = names["bought"]
    assert query.awaitTermination(300)
    assert query.jobStatus is bs.JobStatus.FINISHED
    found = sorted(tuple(row) for batch in sink.batches.values() for row in batch)
    minutes = [("ann", 1), ("ann", 15), ("bob", 7), ("eve", 2)]
    totals = [("ann", 16), ("bob", 7), ("eve", 2)]
    assert found == sorted([*((*row, "a minute") for row in minutes), *((*row, "in all") for row in totals)])
