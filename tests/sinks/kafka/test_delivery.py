"""KafkaSink on a real broker: each change once and in order, whatever was written before."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo
from tests.sinks.kafka.changes import (
    AT_MS,
    SCHEMA,
    Row,
    batches,
    counted,
    envelopes_of,
    frame,
    opened,
    table_after,
    upserts_of,
)
from tests.sinks.kafka.topics import keyed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.sinks.kafka.topics import Topics


def shortened(value: Any) -> Any:
    return None if value is None else (value["op"], value["before"], value["after"])


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_a_topic_is_the_table_however_often_it_restarts(spark: SparkSession, topics: Topics, seed: int) -> None:
    topic, made, drawn = topics.new(), batches(seed), random.Random(seed)
    sink = opened(topics, topic, spark=spark)
    for number, rows in enumerate(made):
        info = BatchInfo(number, drawn.random() < 0.5)
        sink.write(frame(spark, rows), info)
        assert sink.written is not None
        assert (sink.written.writer, sink.written.rows) == ("spark", len(upserts_of(rows)))
        if drawn.random() < 0.5:  # the driver dies before Spark's commit
            sink = opened(topics, topic, spark=spark, planned=number, committed=number - 1 if number else None)
            sink.write(frame(spark, rows), info)
            assert sink.written is not None
            assert sink.written.writer == "none"
    assert topics.table(topic) == table_after(made)
    assert counted(topics.messages(topic)) == counted(itertools.chain(*map(upserts_of, made)))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_envelopes_of_a_key_come_in_the_order_of_its_changes(spark: SparkSession, topics: Topics, seed: int) -> None:
    topic, made, drawn = topics.new(3), batches(seed), random.Random(seed)
    sink = opened(topics, topic, spark=spark, format="debezium")
    for number, rows in enumerate(made):
        sink.write(frame(spark, rows), BatchInfo(number, drawn.random() < 0.5))
    found = [(key, shortened(value)) for key, value in topics.messages(topic)]
    expected = list(itertools.chain(*map(envelopes_of, made)))
    assert len(found) == len(expected)
    for key in {row.id for rows in made for row in rows}:
        assert keyed(found, {"id": key}) == keyed(expected, {"id": key})
    for _, value in topics.messages(topic):
        if value is not None:
            assert value["ts_ms"] == AT_MS
            assert value["source"]["name"] == topic
            assert value["source"]["pos"] > 0


def test_envelopes_name_their_table(spark: SparkSession, topics: Topics) -> None:
    columns = "id INT, v STRING, _change_type STRING, _commit_timestamp TIMESTAMP, _commit_seq BIGINT, _database STRING"
    rows = spark.createDataFrame(
        [
            (1, "a", "insert", None, 0, "shop", "orders", True),
            (None, None, "truncate", None, 9, "shop", "orders", False),
        ],
        f"{columns}, _table STRING, _is_snapshot BOOLEAN",
    )
    topic = topics.new(1)
    sink = opened(topics, topic, spark=spark, schema=rows.schema, format="debezium")
    sink.write(rows, BatchInfo(0, False, has_table_events=True))
    found = {repr(key): value for key, value in topics.messages(topic)}
    row, emptied = found[repr({"id": 1})], found[repr(None)]
    assert (row["op"], row["after"], row["before"], row["ts_ms"]) == ("r", {"id": 1, "v": "a"}, None, None)
    assert row["source"].items() >= {"db": "shop", "table": "orders", "snapshot": "true", "pos": 0}.items()
    assert (emptied["op"], emptied["before"], emptied["after"], emptied["source"]["pos"]) == ("t", None, None, 9)


def test_a_truncate_is_refused_at_its_row(spark: SparkSession, topics: Topics) -> None:
    sink = opened(topics, topics.new(), spark=spark)
    emptied = Row(0, None, "truncate", batches(1)[0][0].at, 9)
    with pytest.raises(Exception, match=r"a table has a truncate.*tableEvents=skip"):
        sink.write(frame(spark, [emptied]), BatchInfo(0, False))


def test_a_batch_that_failed_half_way_is_finished_by_the_next_try(spark: SparkSession, topics: Topics) -> None:
    topic, rows = topics.new(), batches(3, 1, 200, 60)[0]
    sink = opened(topics, topic, spark=spark)
    bad = min(rows, key=lambda row: row.sequence)
    wrong = [row._replace(kind="nonsense") if row is bad else row for row in rows]
    with pytest.raises(Exception, match="unknown change type nonsense"):
        sink.write(frame(spark, wrong), BatchInfo(0, True))
    again = opened(topics, topic, spark=spark, planned=0)
    again.write(frame(spark, rows), BatchInfo(0, True))
    # The other tasks had committed their rows, or had not: the rows are the same.
    assert counted(topics.messages(topic)) == counted(upserts_of(rows))


def test_an_empty_batch_has_its_marks(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new()
    sink = opened(topics, topic, spark=spark)
    for number, is_backlog in enumerate((True, False, True)):
        sink.write(frame(spark, []), BatchInfo(number, is_backlog))
        opened(topics, topic, planned=number, committed=number)
    sink.write(frame(spark, []).where("false"), BatchInfo(3, True))
    opened(topics, topic, planned=3, committed=3)
    assert topics.records(topic) == []


def test_rows_without_changes_are_upserts(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new()
    rows = spark.createDataFrame([(1, None), (2, b"\x01")], "id INT, data BINARY")
    given: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
    sink = opened(topics, topic, spark=spark, schema=rows.schema, **given)
    sink.write(rows, BatchInfo(0, False))
    assert topics.table(topic) == {'{"id":1}': {"id": 1, "data": None}, '{"id":2}': {"id": 2, "data": "AQ=="}}
    with pytest.raises(Exception, match="two rows of one key in a batch"):
        sink.write(rows.union(rows), BatchInfo(1, False))


def test_marks_that_contradict_the_checkpoint(spark: SparkSession, topics: Topics) -> None:
    topic = topics.new()
    sink = opened(topics, topic, spark=spark)
    sink.write(frame(spark, []), BatchInfo(0, True))
    with pytest.raises(BacklogError, match="committed batch 1, and the topic '_backlog_spark_marks' does not have it"):
        opened(topics, topic, planned=1, committed=1)
    with pytest.raises(BacklogError, match="has batch 0 of this query, and its checkpoint has no batch"):
        opened(topics, topic)
    with pytest.raises(BacklogError, match="committed batch 0"):
        opened(topics, topic, app="other", planned=0, committed=0)
    with pytest.raises(SettingError, match=r"KafkaSink tasks = 5: the query was begun with 3\. Leave it out"):
        opened(topics, topic, planned=0, committed=0, tasks=5)
    opened(topics, topic, planned=0, committed=0, tasks=None)


def test_at_least_once_needs_no_marks(spark: SparkSession, topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    topic, rows = topics.new(), batches(4)[0]
    sink = opened(topics, topic, spark=spark, delivery="at_least_once", marks_topic="nowhere")
    assert "writes at least once: after a failure" in caplog.text
    for _ in range(2):
        sink.write(frame(spark, rows), BatchInfo(0, True))
    assert counted(topics.messages(topic)) == counted(upserts_of(rows) * 2)
    assert "nowhere" not in topics.admin.list_topics(timeout=30).topics


def test_topics_by_route(spark: SparkSession, topics: Topics) -> None:
    """Envelopes of a whole database, as `mysql_cdc` gives them."""
    columns = "key STRING, value STRING, _change_type STRING, _commit_timestamp TIMESTAMP, _commit_seq BIGINT"
    envelope = '{"before":null,"after":{"id":%d,"v":"%s"},"op":"c"}'
    rows = spark.createDataFrame(
        [
            ('{"id":1}', envelope % (1, "a"), "insert", None, 1, "shop", "orders"),
            ('{"id":1}', envelope % (1, "b"), "insert", None, 2, "shop", "users"),
            ('{"id":1}', '{"before":{"id":1},"after":null,"op":"d"}', "delete", None, 3, "shop", "orders"),
        ],
        f"{columns}, _database STRING, _table STRING",
    )
    name = topics.new(1)
    given: dict[str, Any] = {"key": [], "routes": [("shop.u*", f"{name}-<>")], "spark": spark, "schema": rows.schema}
    for format in ("json", "debezium"):
        sink = opened(topics, name, app=f"{name}-{format}", format=format, partitions=1, **given)
        sink.write(rows, BatchInfo(0, True))
    one = {"id": 1, "v": "b"}
    assert topics.messages(f"{name}-users") == [
        ({"id": 1}, one),
        ({"id": 1}, {"before": None, "after": one, "op": "c"}),
    ]
    values = [value for _, value in topics.messages(name)]
    assert [value and value["op"] for value in values] == [None, "c", "d", None]
    with pytest.raises(Exception, match=r"has no topic 'x-orders'.*the argument partitions"):
        opened(topics, "x-<>", **{**given, "routes": []}, app="x").write(rows, BatchInfo(0, True))
    with pytest.raises(SettingError, match="the stream does not say its tables: it has no _database"):
        opened(topics, "x-<>", **{**given, "schema": SCHEMA, "key": ["id"]})


def test_records_lie_where_javas_clients_bring_them(spark: SparkSession, topics: Topics) -> None:
    """By murmur2 of the key, without its sign."""
    topic = topics.new(7)
    rows = spark.createDataFrame([(number,) for number in range(40)], "id INT")
    given: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
    opened(topics, topic, spark=spark, schema=rows.schema, **given).write(rows, BatchInfo(0, True))
    for number, records in enumerate(topics.by_partition(topic)):
        for key, _ in records:
            assert key is not None
            assert (murmur2(key) & 0x7FFFFFFF) % 7 == number


def murmur2(data: bytes) -> int:
    """After the source of Kafka's `Utils.murmur2`."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k ^= k >> 24
        h = (h * m & mask) ^ (k * m & mask)
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
