"""Random changes of a table, what they come to by plain Python, and sinks that get them."""

from __future__ import annotations

import datetime
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.sinks import SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.sinks.kafka.topics import Topics

__all__ = ["SCHEMA", "Row", "batches", "counted", "envelopes_of", "frame", "opened", "table_after", "upserts_of"]

SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("v", StringType()),
        StructField("_change_type", StringType()),
        StructField("_commit_timestamp", TimestampType()),
        StructField("_commit_seq", LongType()),
    ]
)
_AT = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
AT_MS = int(_AT.timestamp() * 1000)


class Row(NamedTuple):
    id: int
    v: str | None
    kind: str
    at: datetime.datetime
    sequence: int


def batches(seed: int, count: int = 6, size: int = 30, keys: int = 12) -> list[list[Row]]:
    """Batches of changes in the order of a log. Some updates change the key."""
    drawn, table, sequence = random.Random(seed), dict[int, str](), 0
    found: list[list[Row]] = []
    for _ in range(count):
        rows: list[Row] = []
        for _ in range(drawn.randrange(size // 2, size)):
            sequence += 2
            key, value = drawn.randrange(keys), f"ä{sequence}"
            if key not in table:
                rows.append(Row(key, value, "insert", _AT, sequence))
                table[key] = value
            elif drawn.random() < 0.3:
                rows.append(Row(key, table.pop(key), "delete", _AT, sequence))
            else:
                new = drawn.randrange(keys)
                new = key if new in table else new
                rows.append(Row(key, table.pop(key), "update_preimage", _AT, sequence))
                rows.append(Row(new, value, "update_postimage", _AT, sequence + 1))
                table[new] = value
        drawn.shuffle(rows)
        found.append(rows)
    return found


def table_after(made: Iterable[Sequence[Row]]) -> dict[str, Any]:
    """The table after some batches: key and value, as JSON and parsed."""
    table: dict[str, Any] = {}
    for row in (row for rows in made for row in sorted(rows, key=lambda row: row.sequence)):
        if row.kind in ("insert", "update_postimage"):
            table[_key(row)] = {"id": row.id, "v": row.v}
        else:
            table.pop(_key(row), None)
    return table


def _key(row: Row) -> str:
    return json.dumps({"id": row.id}, separators=(",", ":"))


def upserts_of(rows: Sequence[Row]) -> list[tuple[Any, Any]]:
    """The records of a batch with format=json."""
    newest = {row.id: row for row in sorted(rows, key=lambda row: row.sequence)}
    return [
        ({"id": key}, {"id": key, "v": row.v} if row.kind in ("insert", "update_postimage") else None)
        for key, row in newest.items()
    ]


def envelopes_of(rows: Sequence[Row]) -> list[tuple[Any, Any]]:
    """Key and (op, before, after) of each record with format=debezium, key by key. None is a tombstone.

    If a row leaves a key and the next change of the key brings another row to it, the key was updated.
    """
    found: list[tuple[Any, Any]] = []
    for number in {row.id for row in rows}:
        key, before = {"id": number}, None
        for row in sorted((row for row in rows if row.id == number), key=lambda row: row.sequence):
            image = {"id": row.id, "v": row.v}
            if row.kind == "update_preimage":
                found += [(key, ("d", image, None)), (key, None)]
                before = image
                continue
            if row.kind == "update_postimage" and before is not None:
                found[-2:] = [(key, ("u", before, image))]
            elif row.kind == "delete":
                found += [(key, ("d", image, None)), (key, None)]
            else:
                found.append((key, ("c", None, image)))
            before = None
    return found


def counted(messages: Iterable[tuple[Any, Any]]) -> Counter[str]:
    """A multiset of records."""
    return Counter(json.dumps(message, sort_keys=True) for message in messages)


def frame(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    return spark.createDataFrame(list(map(tuple, rows)), SCHEMA).repartition(3)


def opened(
    topics: Topics,
    topic: str,
    *,
    spark: Any = None,
    committed: int | None = None,
    planned: int | None = None,
    schema: StructType = SCHEMA,
    app: str = "",
    sink: type[bs.KafkaSink] = bs.KafkaSink,
    options: dict[str, str] | None = None,
    **given: Any,
) -> bs.KafkaSink:
    """A sink as at a start of a query whose id is the topic's name."""
    made = sink(topic, **{"key": ["id"], "options": options or topics.options(), "tasks": 3, **given}).for_output()
    made.open(SinkContext(spark, app or topic, schema, False, planned, committed))
    return made
