"""Arguments and options of KafkaSink: what is refused before a broker is asked, and that secrets stay hidden."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.kafka.avro import avro_schema
from backlog_spark.sinks.kafka.frames import shape_of
from backlog_spark.sinks.kafka.marks import Mark, Marks, check_marks
from backlog_spark.sinks.kafka.properties import ProducerProperties
from backlog_spark.sinks.kafka.topics import TopicRoutes

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9"}
CHANGES = "id v _change_type _commit_timestamp _commit_seq"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"options": {}}, r"kafka.bootstrap.servers = None: KafkaSink needs this option\. Set options="),
        ({"format": "xml"}, r"KafkaSink format = 'xml': is none of json, avro, debezium"),
        ({"delivery": "maybe"}, r"KafkaSink delivery = 'maybe': is none of exactly_once, at_least_once"),
        ({"topic": "a/b"}, r"KafkaSink topic = 'a/b': is no name of a topic"),
        ({"topic": ".."}, r"KafkaSink topic = '\.\.': is no name of a topic"),
        ({"routes": [("shop.a", "x y")]}, r"KafkaSink routes = 'x y': is no name of a topic"),
        ({"routes": [("shop", "x")]}, r"'shop' is not database.table"),
        ({"partitions": 0}, r"KafkaSink partitions = 0: is out of bounds\. Give a number from 1 to 100,000"),
        ({"tasks": 1_001}, r"KafkaSink tasks = 1001: is out of bounds"),
        ({"options": {**SERVERS, "acks": "all"}}, r"KafkaSink options = 'acks': KafkaSink has no such option"),
        ({"options": {**SERVERS, "kafka.acks": "1"}}, r"kafka.acks = '\*\*\*': is not accepted.*The sink sets it"),
        ({"options": {**SERVERS, "kafka.transactional.id": "x"}}, r"kafka.transactional.id.*identity"),
        ({"options": {**SERVERS, "kafka.lingerms": "1"}}, r"kafka.lingerms = '\*\*\*'.*Did you mean kafka.linger.ms"),
        ({"options": {**SERVERS, "kafka.linger.ms": "x"}}, r"kafka.linger.ms = 'x': is not an integer >= 0"),
        ({"options": {**SERVERS, "kafka.sasl.password": "p"}}, r"no meaning with kafka.security.protocol=PLAINTEXT"),
        ({"format": "avro"}, r"schema.registry.url = None: KafkaSink with format='avro' needs it.*http://host:8081"),
        ({"options": {**SERVERS, "schema.registry.url": "http://h"}}, r"has no meaning with format='json'"),
        (
            {"format": "avro", "options": {**SERVERS, "schema.registry.url": "http://h"}, "topic": "<>"},
            r"KafkaSink format = 'avro': with routes, or without key, is not supported",
        ),
        ({"keys": ["id"]}, r"keys.*no such argument"),
        ({"key": "id"}, r"key = 'id'.*a list of texts"),
    ],
)  # fmt: skip
def test_wrong_arguments(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        bs.KafkaSink(**{"topic": "t", "key": ["id"], "options": SERVERS, **given})


def test_no_text_has_a_secret() -> None:
    secret = "s3cret-1"
    options = {
        **SERVERS, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "writer", "kafka.sasl.password": secret, "kafka.ssl.key.pem": f"key {secret}",
        "kafka.ssl.certificate.pem": "x", "kafka.ssl.truststore.type": "PEM",
    }  # fmt: skip
    sink = bs.KafkaSink("t", key=["id"], options=options)
    properties = ProducerProperties.parse(options)
    assert properties.for_clients()["sasl.password"] == secret
    assert "as 'writer'" in str(properties)
    for text in (repr(sink), str(sink.described()), repr(properties), str(properties)):
        assert secret not in text
    for wrong in ({"kafka.sasl.pasword": secret}, {"kafka.acks": secret}, {"password": secret}):
        with pytest.raises(SettingError) as error:
            bs.KafkaSink("t", key=["id"], options={**SERVERS, **wrong})
        assert secret not in str(error.value)


def test_what_a_checkpoint_records() -> None:
    sink = bs.KafkaSink("orders", key=["id"], format="debezium", options=SERVERS)
    assert repr(sink) == "KafkaSink('orders')"
    assert sink.described() == {
        "kind": "KafkaSink", "topic": "orders", "keys": ["id"], "format": "debezium",
        "change_type": "_change_type", "sequence": "_commit_seq",
        "metadata_columns": ["_change_type", "_commit_timestamp", "_commit_seq"],
    }  # fmt: skip
    assert sink.for_output() is not sink


def columns(names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names.split()])


def shape(schema: str, keys: list[str], format: str = "json", **more: Any) -> Any:
    context: Any = type("Context", (), {"schema": columns(schema), "rows_are_results": False, **more})
    metadata = ("_change_type", "_commit_timestamp", "_commit_seq")
    return shape_of(context, keys, "_change_type", "_commit_seq", metadata, format, "t")


@pytest.mark.parametrize(
    ("schema", "keys", "said"),
    [
        ("id", ["id"], r"KafkaSink metadata_columns = '_change_type': the stream has no.*change_type=None"),
        (CHANGES, ["ID"], r"KafkaSink key = 'ID': the stream has no such column; it has id, v"),
        (CHANGES, [], r"KafkaSink key = \[\]: there is no key; the stream's columns are id, v.*format=debezium"),
        (CHANGES, ["_commit_seq"], r"'_commit_seq' is a metadata column and is not stored"),
    ],
)
def test_columns_that_do_not_fit(schema: str, keys: list[str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        shape(schema, keys)


def test_columns_of_an_image() -> None:
    more = f"{CHANGES} _database _table _is_snapshot"
    assert shape(more, ["id"]).stored == ("id", "v", "_database", "_table", "_is_snapshot")
    assert shape(more, ["id"], "debezium").stored == ("id", "v")
    assert shape(more, ["_table", "id"], "debezium").stored == ("id", "v", "_table")
    results = shape("id n", ["id"], rows_are_results=True)
    assert (results.change_type, results.sequence, results.stored) == (None, None, ("id", "n"))
    retracted = shape("id n _change_type", ["id"], rows_are_results=True)
    assert (retracted.change_type, retracted.stored) == ("_change_type", ("id", "n"))


def test_routes() -> None:
    routes = TopicRoutes("other.<>", [("shop.order_*", "orders"), ("shop.u\\.*", "of-<>")])
    assert routes.topic_of("shop", "order_1") == "orders"
    assert routes.topic_of("shop", "users") == "of-users"
    assert routes.topic_of("x", "t") == "other.t"
    assert (routes.needs_tables, routes.fixed()) == (True, ["orders"])
    assert (TopicRoutes("t", []).needs_tables, TopicRoutes("t", []).topic_of(None, None)) == (False, "t")
    with pytest.raises(BacklogError, match=r"the topic of x\.a b would be 'other\.a b'.*route of its own"):
        routes.topic_of("x", "a b")


def marks(plan: int | None, **tasks: Mark) -> Marks:
    return Marks("m", "app", plan, {int(name[1:]): mark for name, mark in tasks.items()})


@pytest.mark.parametrize(
    ("found", "committed", "planned", "said"),
    [
        (marks(None), None, None, None),
        (marks(2), None, 0, None),
        (marks(2, t0=Mark(0, 2), t1=Mark(0, 2)), 0, 0, None),
        (marks(2, t0=Mark(1, 2, 7), t1=Mark(0, 2)), 0, 1, None),
        (marks(2, t0=Mark(3, 1), t1=Mark(0, 2)), 3, 3, None),
        (marks(None), 0, 0, "committed batch 0, and the topic 'm' does not have it"),
        (marks(2, t0=Mark(4, 1)), 5, 5, "committed batch 5"),
        (marks(2, t0=Mark(5, 2), t1=Mark(4, 2)), 5, 5, "committed batch 5"),
        (marks(2, t0=Mark(5, 1, 9)), 5, 5, "committed batch 5"),
        (marks(2, t0=Mark(5, 1)), 4, 4, "has batch 5 of this query, and its checkpoint has batches up to 4"),
        (marks(2, t0=Mark(0, 1)), None, None, "has batch 0 of this query, and its checkpoint has no batch"),
    ],
)
def test_marks_and_checkpoint(found: Marks, committed: int | None, planned: int | None, said: str | None) -> None:
    if said is None:
        check_marks(found, committed, planned)
    else:
        with pytest.raises(BacklogError, match=said):
            check_marks(found, committed, planned)


def test_avro_schemas() -> None:
    inner = [StructField("x", ArrayType(StringType())), StructField("y", MapType(StringType(), DateType()))]
    fields = [
        StructField("a", IntegerType(), False), StructField("d", DecimalType(5, 2)), StructField("s", StructType(inner))
    ]  # fmt: skip
    made = avro_schema("Value", fields)
    assert [field["type"][0] for field in made["fields"]] == ["null"] * 3
    assert made["fields"][1]["type"][1] == {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    nested = made["fields"][2]["type"][1]
    assert nested["name"] == "Value_s"
    assert nested["fields"][1]["type"][1]["values"][1] == {"type": "int", "logicalType": "date"}
    for field, said in (
        (StructField("a", VariantType()), "no type for variant"),
        (StructField("a b", IntegerType()), "no column with the name 'a b'"),
    ):
        with pytest.raises(BacklogError, match=said):
            avro_schema("Value", [field])


def test_marks_are_pickled() -> None:
    found = marks(2, t0=Mark(5, 1))
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.partition == pickle.loads(pickle.dumps(found)).partition
