"""The examples about files, then Kafka, and about new files run."""

from __future__ import annotations

import datetime as dt
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from docs.hybrid import pages
from tests.integration.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer


@pytest.mark.grid
def test_the_example_runs(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "hybrid_page")
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    topic.send({"id": n, "at": at.isoformat(), "amount": f"{n}.25"} for n in (3, 4))
    amounts = pa.array([Decimal("1.50"), Decimal("2.50")], pa.decimal128(12, 2))
    (tmp_path / "history").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "at": [at, at], "amount": amounts}), tmp_path / "history" / "1.parquet")
    block, *_ = re.findall(r"```python\n(.*?)```", pages()["hybrid.md"], re.DOTALL)
    changed = {
        "broker:9092": kafka.address(),
        "/lake/": f"{tmp_path}/",
        'subscribe="orders"': f'subscribe="{topic.name}"',
    }
    for old, new in changed.items():
        assert old in block
        block = block.replace(old, new)
    names: dict[str, Any] = {"spark": spark}
    exec(block, names)
    query = names["query"]
    try:
        limit = time.monotonic() + 300
        while query.backlogProgress.rows < 4:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            time.sleep(0.1)
    finally:
        query.stop()
    rows = spark.read.format("delta").load(f"{tmp_path}/orders").orderBy("id").collect()
    assert [(r.id, str(r.amount)) for r in rows] == [(1, "1.50"), (2, "2.50"), (3, "3.25"), (4, "4.25")]


@pytest.mark.grid
def test_the_example_of_new_files_runs(spark: SparkSession, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "1.json").write_text('{"id": 1, "at": "2026-01-01T00:00:00Z", "amount": 1.5}\n')
    _, block, *_ = re.findall(r"```python\n(.*?)```", pages()["hybrid.md"], re.DOTALL)
    assert "/lake/" in block
    names: dict[str, Any] = {"spark": spark}
    exec(block.replace("/lake/", f"{tmp_path}/"), names)
    query = names["query"]
    try:
        limit = time.monotonic() + 300
        for n in (2, 3, 4):
            while query.backlogProgress.rows < n - 1:
                assert query.isActive, query.exception()
                assert time.monotonic() < limit
                time.sleep(0.1)
            (landing / f".{n}.json").write_text(f'{{"id": {n}, "at": "2026-01-01T00:00:00Z", "amount": 1.5}}\n')
            (landing / f".{n}.json").rename(landing / f"{n}.json")
        while not (tmp_path / f"archive/{landing}/3.json").exists():
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            time.sleep(0.1)
    finally:
        query.stop()
    rows = spark.read.format("delta").load(f"{tmp_path}/events").orderBy("id").collect()
    assert [(r.id, str(r.amount)) for r in rows][:3] == [(1, "1.50"), (2, "1.50"), (3, "1.50")]
    assert not (landing / "1.json").exists()


@pytest.mark.grid
def test_the_example_of_inferred_columns_runs(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    at = "2026-01-01T00:00:00Z"
    (tmp_path / "inbox/1.json").write_text(f'{{"at": "{at}", "item": {{"price": 1.5, "n": 1}}}}\n{{"at": "never"}}\n')
    _, _, block, *_ = re.findall(r"```python\n(.*?)```", pages()["hybrid.md"], re.DOTALL)
    names: dict[str, Any] = {"spark": spark}
    exec(block.replace("/lake/", f"{tmp_path}/"), names)
    query = names["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    found = spark.read.format("delta").load(f"{tmp_path}/inbox_rows")
    assert dict(found.dtypes) == {
        "at": "timestamp", "item": "struct<n:bigint,price:decimal(10,2)>", "_rescued_data": "string",
    }  # fmt: skip
    assert sorted(str(row.item and row.item.price) for row in found.collect()) == ["1.50", "None"]
