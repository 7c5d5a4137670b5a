"""Sinks of types kafka, files and foreach in a pipeline: parsed, checked against the real broker, and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.building import sink_of
from backlog_spark.pipelines.parsing import load, parse
from backlog_spark.pipelines.preflight import preflight
from backlog_spark.pipelines.running import session_for, start, wait
from backlog_spark.spi.examination import Severity
from servers.server import free_port
from tests.sinks.kafka.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer

EVERY_ROW: dict[str, Any] = {"changeType": None, "sequence": None, "metadataColumns": []}


def file(directory: Path, sink: dict[str, Any], **more: Any) -> Path:
    """A pipeline of two rows of files."""
    (directory / "in").mkdir(exist_ok=True)
    (directory / "in" / "a.json").write_text('{"id": 1, "v": "a"}\n{"id": 2, "v": "b"}\n')
    source = {
        "type": "hybrid", "phases": "files", "path": f"{directory}/in", "fileFormat": "json",
        "schema": "id INT, v STRING",
    }  # fmt: skip
    pipeline = {"name": "p", "checkpoint": f"{directory}/c", "availableNow": True}
    path = directory / "p.yaml"
    path.write_text(json.dumps({"source": source, "sink": sink, "pipeline": pipeline, **more}))
    return path


def topic_sink(server: str, topic: str, **more: Any) -> dict[str, Any]:
    options = {"kafka.bootstrap.servers": server, "kafka.default.api.timeout.ms": 3000}
    return {"type": "kafka", "topic": topic, "key": ["id"], "options": options, **EVERY_ROW, **more}


def run(path: Path) -> None:
    pipeline = load(str(path))
    assert wait(start(pipeline, session_for(pipeline)))


def told(path: Path) -> list[tuple[Severity, str, str]]:
    return [
        (found.severity, found.problem, found.hint)
        for found in preflight(str(path)).findings
        if "sink" in found.subject
    ]


def test_a_pipeline_writes_to_a_topic(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topics = Topics(kafka)
    path = file(tmp_path, topic_sink(kafka.address(), "of-a-pipeline", partitions=2))
    first = told(path)
    assert all(severity is not Severity.ERROR for severity, *_ in first)
    assert any("The first start creates the topic of-a-pipeline" in problem for _, problem, _ in first)
    assert any("it writes exactly once: transactions work" in problem for _, problem, _ in first)
    run(path)
    expected = {'{"id":1}': {"id": 1, "v": "a"}, '{"id":2}': {"id": 2, "v": "b"}}
    assert topics.table("of-a-pipeline") == expected
    again = told(path)
    assert any("the topic of-a-pipeline has 2 partitions and may be written" in problem for _, problem, _ in again)
    run(path)
    assert len(topics.records("of-a-pipeline")) == 2
    # What was checked leaves nothing for readers.
    assert topics.table("of-a-pipeline") == expected
    other = file(tmp_path, topic_sink(kafka.address(), "of-a-pipeline", format="debezium"))
    assert any("format = 'debezium': the checkpoint was made with 'json'" in problem for _, problem, _ in told(other))


def test_check_tells_what_run_refuses(kafka: KafkaServer, tmp_path: Path) -> None:
    away = f"127.0.0.1:{free_port()}"
    for sink, said in (
        (topic_sink(kafka.address(), "missing"), "has no topic 'missing'"),
        (topic_sink(away, "t"), f"Kafka at {away} did not answer in 3 s"),
        (topic_sink(kafka.address(), "a/b"), "is no name of a topic"),
    ):
        errors = [problem for severity, problem, _ in told(file(tmp_path, sink)) if severity is Severity.ERROR]
        assert len(errors) == 1
        assert said in errors[0]
    loosely = topic_sink(kafka.address(), "loosely", partitions=1, delivery="at_least_once")
    assert any("it writes at least once" in problem for _, problem, _ in told(file(tmp_path, loosely)))
    secret = topic_sink(kafka.address(), "t", partitions=1)
    secret["options"] |= {"kafka.sasl.password": "s3cr3t"}
    shown = told(file(tmp_path, secret))
    assert any("kafka.sasl.password stands in the file, in line 1" in problem for _, problem, _ in shown)
    assert "s3cr3t" not in repr(shown)


def test_a_pipeline_writes_files_and_calls_a_function(spark: SparkSession, tmp_path: Path) -> None:
    path = file(tmp_path, {"type": "files", "path": f"{tmp_path}/t"})
    assert all(severity is not Severity.ERROR for severity, *_ in told(path))
    run(path)
    assert spark.read.parquet(f"{tmp_path}/t").count() == 2
    assert all(severity is not Severity.ERROR for severity, *_ in told(path))
    (tmp_path / "of_foreach.py").write_text(
        "seen = []\ndef take(batch_df, batch):\n"
        "    seen.extend((batch.batch_id, row.id) for row in batch_df.collect())\n"
    )
    path = file(tmp_path, {"type": "foreach", "function": "of_foreach:take", "checkpoint": f"{tmp_path}/c2"})
    assert all(severity is not Severity.ERROR for severity, *_ in told(path))
    run(path)
    import of_foreach  # type: ignore[import-not-found]

    assert sorted(of_foreach.seen) == [(0, 1), (0, 2)]
    wrong = file(tmp_path, {"type": "foreach", "function": "of_foreach:nothing", "checkpoint": f"{tmp_path}/c2"})
    found = preflight(str(wrong)).findings
    assert any("has no nothing" in each.problem for each in found)


DATABASES = """
source: {type: mysql_cdc, host: db, user: u, password: "${P}", tables: shop.*}
route:
- {source-table: shop.order_*, sink-table: orders}
sink:
  type: kafka
  topic: shop-<>
  options: {kafka.bootstrap.servers: "b:9092"}
pipeline: {name: p, checkpoint: /c}
"""


def test_whole_databases_go_to_topics_by_route() -> None:
    pipeline = parse(DATABASES, "p.yaml", {"P": "x"})
    assert pipeline.sources[0].options["format"] == "debezium"
    made: Any = sink_of(pipeline, next(iter(pipeline.outputs())))
    assert isinstance(made, bs.KafkaSink)
    assert [made._routes.topic_of("shop", name) for name in ("order_1", "users")] == ["orders", "shop-users"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  options: {kafka.bootstrap.servers: \"b:9092\"}\n", "", "sink needs options"),
        ("  topic: shop-<>\n", "", "sink needs topic"),
        ("type: kafka", "type: kafka\n  format: xml", "format"),
        ("type: kafka", "type: kafka\n  keyz: [id]", "sink has no such key"),
        ("pipeline:", "transform: [{name: t, sql: SELECT 1}]\npipeline:", "takes the rows of one source as they are"),
    ],
)  # fmt: skip
def test_mistakes_have_their_line(old: str, new: str, said: str) -> None:
    assert old in DATABASES
    with pytest.raises(BacklogError, match=said):
        parse(DATABASES.replace(old, new), "p.yaml", {"P": "x"})
