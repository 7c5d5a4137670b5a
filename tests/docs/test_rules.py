"""The examples about Spark's own sources run, against a real broker; the page names every rule."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.decide.rules import RULES
from backlog_spark.spark.jvm.session import session_conf
from tests.integration.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer

PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()


@pytest.mark.grid
def test_the_examples_run(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "rules_page")
    topic.send({"id": n, "amount": n / 2} for n in range(100, 150))
    (tmp_path / "history").mkdir()
    old = pa.table({"id": list(range(100)), "amount": [n / 2 for n in range(100)]})
    pq.write_table(old, tmp_path / "history" / "1.parquet")
    times = pa.array([n * 60_000_000 for n in range(100)], pa.timestamp("us", "UTC"))
    (tmp_path / "old_orders").mkdir()
    pq.write_table(pa.table({"id": list(range(100)), "at": times}), tmp_path / "old_orders" / "1.parquet")
    timed = Topic(kafka, "rules_page_timed", 1)
    for n in range(80, 130):
        timed.send([{"id": n, "at": f"1970-01-01T{n // 60:02}:{n % 60:02}:00Z"}], at_ms=n * 60_000)
    names: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    # The examples set the session's configuration; other tests are to find it as it was.
    before = dict.fromkeys(re.findall(r'conf\.set\("(.*?)"', PAGE), "1")
    queries: list[bs.NativeQuery] = []
    try:
        with session_conf(spark, before):
            for block, of in zip(blocks, (topic, topic, timed), strict=True):
                code = block.replace("broker:9092", kafka.address()).replace("/lake/", f"{tmp_path}/")
                exec(code.replace('"subscribe", "orders"', f'"subscribe", "{of.name}"'), names)
            again = bs.backlog_query(
                lambda ctx: ctx.frame.select("id").writeStream.format("delta").option("path", f"{tmp_path}/again"),
                checkpoint=f"{tmp_path}/checkpoints/again",
                source=names["orders"],
            )
            queries = [names["query"], names["both"], again]
            limit = time.monotonic() + 300
            while any(q.backlogProgress.rows < rows for q, rows in zip(queries, (50, 150, 130), strict=True)):
                assert all(query.isActive for query in queries), [query.exception() for query in queries]
                assert time.monotonic() < limit, [query.backlogProgress for query in queries]
                time.sleep(0.1)
    finally:
        for query in queries:
            query.stop()
    rows = spark.read.format("delta").load(f"{tmp_path}/both").collect()
    assert Counter(tuple(row) for row in rows) == Counter((n, n / 2) for n in range(150))
    assert spark.read.format("delta").load(f"{tmp_path}/orders").count() == 50
    ids = [row.id for row in spark.read.format("delta").load(f"{tmp_path}/again").collect()]
    assert sorted(ids) == list(range(130))


def test_every_rule_is_documented() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(RULES)
