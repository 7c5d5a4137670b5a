"""KafkaSink with format=avro: fastavro reads what a registry's schemas say."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.sinks import BatchInfo
from backlog_spark.spi.schema_registry import Registry, RegistryOptions
from backlog_spark.spi.user_options import UserOptions
from tests.connectors.hybrid.decode.registry_server import RegistryServer
from tests.sinks.kafka.changes import opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.sinks.kafka.topics import Topics


def decoded(server: RegistryServer, record: bytes) -> Any:
    assert record[:1] == b"\0"
    registry = Registry(RegistryOptions.parse(UserOptions({"schema.registry.url": server.url})))
    schema = fastavro.parse_schema(registry.schema(int.from_bytes(record[1:5], "big")))
    out = io.BytesIO(record[5:])
    value = fastavro.schemaless_reader(out, schema, None)
    assert out.read() == b""
    return value


def test_values_of_all_types_come_back(spark: SparkSession, topics: Topics) -> None:
    columns = (
        "id INT, b BOOLEAN, l BIGINT, f FLOAT, d DOUBLE, s STRING, y BINARY, t DATE, u TIMESTAMP, n TIMESTAMP_NTZ, "
        "m DECIMAL(20, 3), a ARRAY<STRUCT<x: INT>>, p MAP<STRING, BIGINT>"
    )
    at = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    full = (
        1, True, 2**40, 1.5, 2.5, "ä", b"\x00\xff", dt.date(1970, 1, 2), at.replace(tzinfo=dt.UTC), at,
        Decimal("-123.456"), [{"x": 1}, {"x": None}], {"k": 2, "l": None},
    )  # fmt: skip
    rows = spark.createDataFrame([(*full, "insert"), (2, *[None] * 12, "insert"), (3, *[None] * 12, "delete")],
                                 f"{columns}, _change_type STRING")  # fmt: skip
    names = rows.columns[:-1]
    topic = topics.new(1)
    given: dict[str, Any] = {"sequence": None, "metadata_columns": ["_change_type"], "format": "avro"}
    with RegistryServer() as server:
        options = topics.options(**{"schema.registry.url": server.url})
        opened(topics, topic, spark=spark, schema=rows.schema, options=options, **given).write(rows, BatchInfo(0, True))
        found = {
            decoded(server, key or b"")["id"]: value and decoded(server, value) for key, value in topics.records(topic)
        }
        assert sorted(server.subjects) == [f"{topic}-key", f"{topic}-value"]
    assert found == {
        1: dict(zip(names, full, strict=True)), 2: {**dict.fromkeys(names), "id": 2}, 3: None,
    }  # fmt: skip


def test_a_registry_that_refuses(topics: Topics, spark: SparkSession) -> None:
    schema = spark.createDataFrame([], "id INT").schema
    given: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": (), "format": "avro"}
    topic = topics.new()
    with RegistryServer() as server:
        options = topics.options(**{"schema.registry.url": server.url})
        for status, said in (
            (409, f"answers 409 for the subject {topic}-key: Error in the backend data store.*compatibility"),
            (401, "refuses the login .401.. Check schema.registry.basic.auth.user.info"),
        ):
            server.failures = [status]
            with pytest.raises(BacklogError, match=said):
                opened(topics, topic, schema=schema, options=options, **given)
        server.failures = [503, 500]
        opened(topics, topic, schema=schema, options=options, **given)
