"""Batches for tables that keep deleted rows or old versions, whatever their format; `keeping_rows` has the replays."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from .keeping_rows import BEGIN, EVENTS, Change

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks import BatchInfo

METADATA: Final = [("_change_type", StringType()), ("_commit_timestamp", TimestampType()), ("_commit_seq", LongType())]
SCHEMA = StructType([StructField("id", LongType()), StructField("a", StringType()), StructField("b", DoubleType())])
for _name, _kind in METADATA:
    SCHEMA = SCHEMA.add(_name, _kind)
VERSIONS = ("id", "a", "b", "valid_from", "valid_to", "is_current")
MARKS = ("id", "a", "b", "_is_deleted", "gone_at")
SOFT: dict[str, Any] = {"deletes": "soft", "deleted_at_column": "gone_at"}
SCD2: dict[str, Any] = {"history": "scd2"}
FORMS: dict[str, dict[str, Any]] = {"scd2": SCD2, "soft": SOFT, "ignore": {"deletes": "ignore"}}


def at(second: float) -> Any:
    return BEGIN + timedelta(seconds=second)


def change(key: int | None, a: str | None, kind: str, sequence: int, b: float | None = 1.0) -> Change:
    return Change(key, a, b, kind, at(sequence), sequence)


def batch_of(spark: SparkSession, changes: list[Change]) -> DataFrame:
    return spark.createDataFrame(changes, SCHEMA)


def info_of(number: int, changes: list[Change], **more: Any) -> BatchInfo:
    from backlog_spark.sinks import BatchInfo

    has_events = any(each.kind in EVENTS for each in changes)
    return BatchInfo(number, more.pop("is_backlog", False), has_table_events=has_events, **more)
