"""Sinks: where the query runner writes each micro-batch, idempotent by batch id."""

from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.delta.append import DeltaAppend
from backlog_spark.sinks.delta.tables import DeltaTables
from backlog_spark.sinks.delta.upsert import DeltaUpsert
from backlog_spark.sinks.trial import BlackHole, Print

__all__ = [
    "BatchInfo",
    "BlackHole",
    "DeltaAppend",
    "DeltaTables",
    "DeltaUpsert",
    "Print",
    "Sink",
    "SinkContext",
    "Written",
]
