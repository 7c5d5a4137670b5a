"""The stream reader of ``mysql_cdc``, as Spark calls it.

Spark runs the planning methods in one Python process beside the driver, and `read` in the executors' workers. Both get
only the options, the offsets and the pickled reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from backlog_spark.common.fault_points import reached
from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.spi.read_limits import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..binlog.batches import read_batch
from ..binlog.phase import BinlogPartition
from ..binlog.prefetched_rows import carried
from ..offsets import Offset
from ..options import MySqlOptions
from ..schema.table import TableSchema
from ..snapshot.planner import SnapshotPartition
from ..snapshot.reading import read_chunk
from ..snapshot.resnapshot import EmptiedPartition, emptied_rows
from .planning import BatchPlanner

__all__ = ["BinlogPartition", "MySqlCdcStreamReader", "SnapshotPartition"]


class MySqlCdcStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads partitions in the workers. A `BatchPlanner` plans them beside the driver."""

    def __init__(self, options: MySqlOptions, tables: Sequence[TableSchema]) -> None:
        self._options = options
        self._planner = BatchPlanner(options, tables)

    def __getstate__(self) -> dict[str, Any]:
        # Workers only read.
        return {"_options": self._options}

    def initialOffset(self) -> dict[str, Any]:
        return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.end_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        reached("plan")
        end = self._planner.next(Offset.from_json(start), limit)
        if end is None:
            return start
        reached("planned")
        return end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._planner.partitions(Offset.from_json(start), Offset.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SnapshotPartition | BinlogPartition | EmptiedPartition)
        keep_imports()
        if isinstance(partition, EmptiedPartition):
            return emptied_rows(self._options, partition)
        options = replace(self._options, server=partition.server)
        if isinstance(partition, SnapshotPartition):
            return read_chunk(
                options,
                partition.schema,
                partition.known,
                partition.of,
                partition.after,
                partition.first,
                partition.last,
                partition.sequence,
            )
        if partition.rows is not None:
            return carried(partition.rows)
        return read_batch(
            options, partition.tables, partition.start, partition.until, partition.layouts, partition.only
        )

    def commit(self, end: dict[str, Any]) -> None:
        self._planner.staging.passed(Offset.from_json(end))

    def stop(self) -> None:
        self._planner.staging.stop()
        self._planner.session.close()
