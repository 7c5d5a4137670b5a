"""Finds where a phase of Spark's own Kafka source begins, by the rules of the source ``hybrid``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.spark.foreign.kafka_admin import JvmKafkaAdmin, kafka_admin
from backlog_spark.spi.kafka_admin import AdminError
from backlog_spark.spi.registry import connector_module

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["STARTING_OPTIONS", "pinned", "starting_offsets"]

STARTING_OPTIONS: Final = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""Options of Spark's Kafka source that set where it begins, in lower case."""


def pinned(spark: SparkSession, options: Mapping[str, str]) -> dict[str, Any]:
    """The present state of the topics that is needed later; see ``connectors.hybrid.kafka.native_starts``."""
    with _admin(spark, options) as (rules, admin):
        found: dict[str, Any] = rules.pinned(admin, options)
        return found


def starting_offsets(
    spark: SparkSession,
    options: Mapping[str, str],
    pin: Mapping[str, Any] | None,
    reached_ms: int | None,
    listed: Mapping[str, Any] | None = None,
) -> str:
    """The ``startingOffsets`` of a phase that begins now; see ``connectors.hybrid.kafka.native_starts``."""
    with _admin(spark, options) as (rules, admin):
        found: str = rules.starting_offsets(admin, options, pin, reached_ms, listed)
        return found


@contextmanager
def _admin(spark: SparkSession, options: Mapping[str, str]) -> Iterator[tuple[Any, JvmKafkaAdmin]]:
    rules = connector_module("hybrid", "kafka.native_starts")
    try:
        with kafka_admin(spark, options) as admin:
            yield rules, admin
    except AdminError as error:
        raise rules.failed(options, error) from None
