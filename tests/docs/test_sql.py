"""The example of docs/sql.md runs, its explanation is the page's, and it emits what a reader would expect."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.spark.plan.schemas import Schemas
from backlog_spark.spi import registry
from tests.operators.conftest import Collect
from tests.operators.events import multiset
from tests.operators.scripted import append

from .blocks import ROOT, python_blocks, run
from .test_operators import wait_for
from .test_windows import ORDERS, PAYMENTS, at

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "sql.md"


@pytest.mark.slow
def test_the_example_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))
    orders = [(1, "ann", 10, at(0)), (2, "ann", 25, at(5)), (3, "bob", 5, at(30)), (4, "ann", -1, at(40))]
    for number, rows in enumerate((orders, [(9, "zoe", 1, at(600))])):
        table = pa.table(list(zip(*rows, strict=True)), schema=ORDERS)
        append(tmp_path / "orders", table, backlog=number == 0)
    payments = pa.table(list(zip(*[(1, at(1)), (2, at(6))], strict=True)), schema=PAYMENTS)
    append(tmp_path / "payments", payments, backlog=False)
    sources = {n: bs.source("scripted", name=n, path=tmp_path / n) for n in ("orders", "payments")}
    names: dict[str, Any] = {"spark": spark}
    block, lookup = python_blocks(PAGE)
    run(block, names, sources)
    first, _ = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert capsys.readouterr().out == first
    assert Schemas(spark).of(names["paid"]._node).names == ["customer", "amount", "paid_at"]
    assert Schemas(spark).of(names["totals"]._node).names == ["customer", "total", "_change_type"]
    sink = Collect()
    writer = names["hours"].write("hours").trigger(processing_time="50 ms", interval_during_backlog=0).to(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(spark)
    try:
        wait_for(query, lambda: any(sink.batches.values()))
        query.processAllAvailable()
    finally:
        query.stop()
    found = multiset(row for batch in sink.batches.values() for row in batch)
    assert found == multiset([("ann", at(0).replace(tzinfo=None), 2, 17.5)])
    (tmp_path / "names").write_text("ann,Ann\n")
    exec(lookup.replace("/lake", str(tmp_path)), names)
    assert Schemas(spark).of(names["named"]._node).names == ["order_id", "amount", "name"]
