"""The example of docs/operators.md runs and emits what a reader would expect."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.spi import registry
from tests.operators.scripted import append

from .blocks import ROOT, python_blocks, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("user", pa.string()), ("page", pa.string()), ("at", pa.timestamp("us", "UTC"))])
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def clicks(*given: tuple[str, str, int]) -> pa.Table:
    rows = [(user, page, START + dt.timedelta(seconds=at)) for user, page, at in given]
    return pa.table(list(zip(*rows, strict=True)), schema=SCHEMA)


@pytest.mark.slow
def test_the_example_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))
    # At the switch time has come to second 120: Ann's first visit is over before her next click comes.
    robot = [*(("robot", f"p{n}", n) for n in range(100)), ("robot", "p0", 130)]
    append(tmp_path / "s", clicks(("ann", "a", 0), ("ann", "b", 30), ("bob", "a", 10), *robot), backlog=True)
    # Then to second 390.
    append(tmp_path / "s", clicks(("ann", "a", 200), ("bob", "c", 400)), backlog=False)
    (block,) = python_blocks(ROOT / "docs" / "operators.md")
    source = bs.source("scripted", name="clicks", path=tmp_path / "s")
    names: dict[str, Any] = {"spark": spark}
    assert '"1 second"' in block
    code = block.replace('"/lake/', f'"{tmp_path}/').replace('"1 second"', '"50 ms"')
    run(code, names, {"clicks": source})
    query: bs.BacklogQuery = names["visits"]
    try:
        rows = {"visits": 4, "robots": 1, "late": 1}
        wait_for(query, lambda: query.backlogProgress.rows == 106)
        query.processAllAvailable()
        append(tmp_path / "s", clicks(("carl", "a", 5)), backlog=False)
        wait_for(query, lambda: query.backlogProgress.rows == 107)
        query.processAllAvailable()
    finally:
        query.stop()
    found = {name: spark.read.format("delta").load(f"{tmp_path}/{name}").collect() for name in rows}
    assert {name: len(each) for name, each in found.items()} == rows
    assert {tuple(r) for r in found["visits"]} == {("ann", 2, 2), ("bob", 1, 1), ("robot", 101, 100), ("ann", 1, 1)}
    assert tuple(found["robots"][0]) == ("robot", 100)
    assert found["late"][0]["user"] == "carl"


def wait_for(query: bs.BacklogQuery, condition: Any) -> None:
    limit = time.monotonic() + 300
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit, query.backlogProgress
        time.sleep(0.1)
