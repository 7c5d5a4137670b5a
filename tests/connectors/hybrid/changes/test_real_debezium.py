"""Debezium's engine reads a real MySQL in several modes. Its records, decoded and applied, are the table."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.changing_table import ARROW, ChangingTable
from tests.integration.debezium import DebeziumEngine
from tests.integration.topics import Topic

from .test_debezium import of

if TYPE_CHECKING:
    from servers.kafka import KafkaServer
    from servers.mysql import MySQLServer

LIMIT_S = 120
SCHEMAS = {"key.converter.schemas.enable": "true", "value.converter.schemas.enable": "true"}
BITS = {"columnEncodings": "bits:bits"}
MODES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "defaults": ({}, {"columnEncodings": "at_us:micros, bits:bits"}),
    "by offset": ({}, {"columnEncodings": "at_us:micros, bits:bits", "changeOrder": "offset"}),
    "schemas": (SCHEMAS, {}),
    "schemas and texts": (
        {**SCHEMAS, "decimal.handling.mode": "string",
         "binary.handling.mode": "base64-url-safe"},
        {"binary.handling.mode": "base64-url-safe"},
    ),
    "microseconds": (
        {"decimal.handling.mode": "string", "time.precision.mode": "microseconds", "binary.handling.mode": "hex"},
        {"decimal.handling.mode": "string", "time.precision.mode": "microseconds", "binary.handling.mode": "hex",
         **BITS},
    ),
    "nanoseconds": (
        {"time.precision.mode": "nanoseconds", "binary.handling.mode": "base64"},
        {"time.precision.mode": "nanoseconds", "binary.handling.mode": "base64", **BITS},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "mode",
    [
        "defaults",
        pytest.param("schemas", marks=pytest.mark.slow),
        *(pytest.param(m, marks=pytest.mark.grid) for m in MODES if m not in ("defaults", "schemas")),
    ],
)
def test_the_records_are_the_table(mysql: MySQLServer, kafka: KafkaServer, mode: str) -> None:
    name = f"real_{mode.replace(' ', '_')}"
    settings, options = MODES[mode]
    table = ChangingTable(mysql, name, random.Random(name))
    topic = Topic(kafka, f"s.{name}.orders", 1)
    names = [f.name for f in ARROW]
    some = of(ARROW, **options)
    with DebeziumEngine(mysql, kafka, f"{name}.orders", "s", settings) as engine:
        table.change(60)
        table.truncate()
        table.change(60)
        engine.kill()
        engine.start()  # sends the last changes again
        table.change(60)
        rows: dict[int, tuple[int, dict[str, Any] | None]] = {}
        truncated = -1
        expected = table.rows()
        limit = time.monotonic() + LIMIT_S
        records = read(kafka, topic.name)
        while True:
            values, keys, offsets = next(records)
            found = some.decode_records(values, keys, offsets)
            images = pa.table(dict(zip(names, found.columns, strict=True))).to_pylist()
            kinds, sequence = (found.metadata[n].to_pylist() for n in ("_change_type", "_commit_seq"))
            for kind, order, image in zip(kinds, sequence, images, strict=True):
                if kind == "truncate":
                    truncated = max(truncated, order)
                    continue
                is_gone = kind in ("delete", "update_preimage")
                key = image["id"]
                if order >= rows.get(key, (-1, None))[0]:
                    rows[key] = order, None if is_gone else image
            state = [row for _, (order, row) in sorted(rows.items()) if row is not None and order > truncated]
            if [in_units(row, mode) for row in expected] == state:
                break
            assert time.monotonic() < limit, (state, expected)


def in_units(row: dict[str, Any], mode: str) -> dict[str, Any]:
    """`span` is a number, in the unit of the mode."""
    factor = 1000 if mode == "nanoseconds" else 1
    return {**row, "span": None if row["span"] is None else row["span"] * factor}


def read(kafka: KafkaServer, topic: str) -> Iterator[tuple[pa.Array, pa.Array, np.ndarray]]:
    """Values, keys and offsets of the records, block by block; an empty block if there is none for a second."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.address(), "group.id": topic, "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while True:
            records = [r for r in consumer.consume(500, 1.0) if not r.error()]
            yield (
                pa.array([r.value() for r in records], pa.binary()),
                pa.array([r.key() for r in records], pa.binary()),
                np.array([r.offset() for r in records], np.int64),
            )
    finally:
        consumer.close()
