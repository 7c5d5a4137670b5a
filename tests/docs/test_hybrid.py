"""The example about files, then Kafka, runs."""

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
    (block,) = re.findall(r"```python\n(.*?)```", pages()["hybrid.md"], re.DOTALL)
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
