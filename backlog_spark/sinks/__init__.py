"""Sinks: where the query runner writes each micro-batch, idempotent by batch id."""

from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.delta_append import DeltaAppend
from backlog_spark.sinks.delta_tables import DeltaTables
from backlog_spark.sinks.delta_upsert import DeltaUpsert

__all__ = ["BatchInfo", "DeltaAppend", "DeltaTables", "DeltaUpsert", "Sink", "SinkContext", "Written"]
