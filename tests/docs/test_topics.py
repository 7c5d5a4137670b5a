"""The example of docs/topics.md writes to a real topic, and its pipeline is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.pipelines.parsing import parse
from tests.sinks.kafka.topics import Topics

from .blocks import ROOT, blocks, python_blocks, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer

PAGE = ROOT / "docs" / "topics.md"
COLUMNS = "id INT, amount INT, _change_type STRING, _commit_timestamp TIMESTAMP, _commit_seq BIGINT"


def test_the_example_writes_to_a_topic(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = '{"id": 1, "amount": 5, "_change_type": "insert", "_commit_seq": 0}\n'
    lines += '{"id": 2, "amount": 6, "_change_type": "insert", "_commit_seq": 0}\n'
    (tmp_path / "in" / "a.json").write_text(lines + '{"id": 2, "_change_type": "delete", "_commit_seq": 7}\n')
    topics, names = Topics(kafka), dict[str, Any](spark=spark)
    (code,) = python_blocks(PAGE)
    name = topics.new()
    code = code.replace("broker:9092", kafka.address()).replace('KafkaSink("orders"', f'KafkaSink("{name}"')
    stream = bs.stream(spark.readStream.schema(COLUMNS).json(str(tmp_path / "in")))
    run(code.replace("/lake", str(tmp_path)), names, {"orders": stream})
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert topics.table(name) == {'{"id":1}': {"id": 1, "amount": 5}}


def test_the_pipeline_is_one() -> None:
    (text,) = (code for language, code in blocks(PAGE) if language == "yaml")
    assert parse(text, "p.yaml", {"DB_PASSWORD": "x"}).sinks[0].name == "sink"
