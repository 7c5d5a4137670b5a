"""The example about a dump and a topic of Debezium runs."""

from __future__ import annotations

import json
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from docs.generate import HERE
from tests.integration.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer

PAGE = "change_topics.md"


def envelope(op: str, pos: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
    source = {"db": "shop", "table": "orders", "ts_ms": 5, "file": "binlog.000003", "pos": pos, "row": 0}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 6}


def row(id: int, name: str, cents: str) -> dict[str, Any]:
    return {"id": id, "name": name, "price": cents, "at": 1_700_000_000_123}


@pytest.mark.grid
def test_the_example_runs(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "change_topics_page", 1)
    old, new = row(1, "old", "AJY="), row(1, "new", "AJc=")
    topic.send(
        [
            envelope("c", 4000, None, row(9, "before the dump", "AQ==")),
            envelope("u", 4711, old, new),
            envelope("d", 5000, row(2, "b", "AQ=="), None),
            envelope("c", 6000, None, row(3, "c", "/w==")),
        ]
    )
    (tmp_path / "dump").mkdir()
    dump = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "name": ["old", "b"],
            "price": pa.array([None, None], pa.decimal128(12, 2)),
        }
    )
    pq.write_table(dump, tmp_path / "dump" / "1.parquet")
    (block,) = re.findall(r"```python\n(.*?)```", (HERE / PAGE).read_text(), re.DOTALL)
    for before, after in {
        "broker:9092": kafka.address(), "/lake/": f"{tmp_path}/", '"shop.orders"': json.dumps(topic.name),
    }.items():  # fmt: skip
        assert before in block
        block = block.replace(before, after)
    names: dict[str, Any] = {"spark": spark}
    exec(block, names)
    query = names["query"]

    def found() -> list[tuple[Any, ...]]:
        rows = spark.read.format("delta").load(f"{tmp_path}/orders").orderBy("id").collect()
        return [(r.id, r.name, r.price, r["at"] is not None) for r in rows]

    def wait_for(expected: list[tuple[Any, ...]]) -> None:
        limit = time.monotonic() + 300
        while found() != expected:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit, found()
            time.sleep(0.2)

    try:
        backlog = [(1, "new", Decimal("1.51"), True), (3, "c", Decimal("-0.01"), True)]
        wait_for(backlog)
        topic.send([envelope("c", 8000, None, row(4, "d", "AQ=="))])
        wait_for([*backlog, (4, "d", Decimal("0.01"), True)])
    finally:
        query.stop()
