"""Sinks: where the query runner writes each micro-batch, idempotent by batch id."""

from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.database.sink import JdbcUpsert
from backlog_spark.sinks.delta.append import DeltaAppend
from backlog_spark.sinks.delta.tables import DeltaTables
from backlog_spark.sinks.delta.upsert import DeltaUpsert
from backlog_spark.sinks.files import FilesSink, ParquetSink
from backlog_spark.sinks.foreach import ForeachSink
from backlog_spark.sinks.iceberg.append import IcebergAppend
from backlog_spark.sinks.iceberg.many_tables import IcebergTables
from backlog_spark.sinks.iceberg.upsert import IcebergUpsert
from backlog_spark.sinks.kafka.sink import KafkaSink
from backlog_spark.sinks.trial import BlackHole, Print

__all__ = [
    "BatchInfo",
    "BlackHole",
    "DeltaAppend",
    "DeltaTables",
    "DeltaUpsert",
    "FilesSink",
    "ForeachSink",
    "IcebergAppend",
    "IcebergTables",
    "IcebergUpsert",
    "JdbcUpsert",
    "KafkaSink",
    "ParquetSink",
    "Print",
    "Sink",
    "SinkContext",
    "Written",
]
