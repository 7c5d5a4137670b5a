"""What the sinks of Iceberg tables share: one commit per batch, and all checks before it."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import functions as F

from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.requirements import require
from backlog_spark.common.sql_names import quoted
from backlog_spark.decide.query_record import check_table_keys
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.change_columns import check_stored, checked_columns
from backlog_spark.sinks.computed_columns import schema_with, with_computed
from backlog_spark.sinks.iceberg.catalogs import CatalogAccess, checked_catalog, checked_table
from backlog_spark.sinks.iceberg.partitions import parsed
from backlog_spark.sinks.rejected_rows import with_violations
from backlog_spark.sinks.replays import Replays
from backlog_spark.sinks.small_batches import SMALL_BATCH_BYTES, SMALL_BATCH_ROWS, RowBudget
from backlog_spark.sinks.table_sink import PendingBatch, TableSink, TableWriter

if TYPE_CHECKING:
    import contextlib

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

    from backlog_spark.sinks.base import BatchInfo, SinkContext
    from backlog_spark.sinks.iceberg.commits import Changes
    from backlog_spark.sinks.iceberg.marks import IcebergState, KnownBatches
    from backlog_spark.spi.examination import Finding

__all__ = ["IcebergSink"]

KEYS: Final = "backlog_spark.keys"
# Without these a table with many small commits grows slow: each commit adds a manifest, and a file with all metadata.
_PROPERTIES: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergSink(TableSink["IcebergState"]):
    """A sink that makes each batch one commit of an Iceberg table, with the query's mark in it.

    Subclasses define which columns are stored and how a batch's rows become files.

    Parameters
    ----------
    table : str
        Namespace and name. The first start creates both.
    catalog : mapping of str to str
        pyiceberg's properties of the catalog, and its ``name``.
    partition_by : sequence of str
        Partitions of a table that the sink creates: columns, or transforms of columns.
    computed : mapping of str to str
        Columns that the sink adds: SQL expressions of a row, by name.
    properties : mapping of str to str
        Table properties of a table that the sink creates.
    merge_schema : bool
        Whether to add columns that the table lacks, and to widen those that are wider in the stream.
    small_batch_rows, small_batch_bytes : int
        Maximum size of a live batch whose files the driver writes; 0 rows: Spark's tasks write all.
    expire_snapshots : str, optional
        Age from which snapshots are removed.
    compact : bool
        Whether to merge small files between batches.
    """

    @checked_arguments
    def __init__(
        self,
        table: str,
        catalog: Mapping[str, str],
        *,
        partition_by: Sequence[str] = (),
        computed: Mapping[str, str] = MappingProxyType({}),
        properties: Mapping[str, str] = MappingProxyType({}),
        merge_schema: bool = False,
        small_batch_rows: int = SMALL_BATCH_ROWS,
        small_batch_bytes: int = SMALL_BATCH_BYTES,
        expire_snapshots: str | None = None,
        compact: bool = False,
    ) -> None:
        self.table = checked_table(table)
        self.partition_by = checked_columns("partition_by", partition_by)
        self._partitions = parsed(self.partition_by)
        self.computed = dict(computed)
        self.properties = dict(properties)
        self.merge_schema = merge_schema
        for setting, value in (("small_batch_rows", small_batch_rows), ("small_batch_bytes", small_batch_bytes)):
            if not 0 <= value < 2**63:
                raise SettingError(setting, value, "is out of bounds.", "Give a number from 0 to 2^63 - 1.")
        self.small_batch_rows = small_batch_rows
        self.small_batch_bytes = small_batch_bytes
        self.expire_ms = None if expire_snapshots is None else parse_duration(expire_snapshots, "expire_snapshots")
        self.compact = compact
        self._access = CatalogAccess(checked_catalog(catalog), self.table)
        self._context: SinkContext | None = None
        self._columns: tuple[str, ...] = ()
        self._stored: tuple[StructField, ...] = ()
        self._known: KnownBatches | None = None
        self._state_now: IcebergState | None = None
        self._fitting = -1  # the id of the table's schema that the stream's columns were last checked against
        self._budget = RowBudget(0, 0, ())
        self._replays: Replays | None = None

    def for_output(self) -> IcebergSink:
        return copy.copy(self)

    def described(self) -> dict[str, Any]:
        return {**super().described(), "place": self._access.place}

    def has_rows_of(self, spark: SparkSession, txn_app_id: str) -> bool:
        state = self._loaded(txn_app_id)
        return state is not None and state.mark is not None

    @property
    def divides_rows(self) -> bool:
        return True

    def with_violations(self, rows: DataFrame) -> DataFrame | None:
        table = self._state(rows.sparkSession).table.schema()
        constraints = {
            f"NOT NULL of {field.name}": F.col(quoted(field.name)).isNull() for field in table.fields if field.required
        }
        marked = with_violations(with_computed(rows, self.computed), constraints, self.change_type)
        return marked and marked.drop(*self.computed)

    @abstractmethod
    def _stored_fields(self, context: SinkContext) -> list[StructField]:
        """The batch's columns that are stored in the table. `open` calls this first.

        Raises
        ------
        SettingError
            If a setting names a column that the schema lacks.
        """

    def _needed(self) -> Sequence[str]:
        """The columns that `small` receives."""
        return self._columns

    def _refusal_of_direct(self, batch: PendingBatch) -> str:
        """Why Spark writes the batch, whatever its size; empty if the driver may."""
        return batch.refusal_of_driver() if self.small_batch_rows else "small_batch_rows is 0"

    @abstractmethod
    def small(self, rows: pa.Table, state: IcebergState) -> Changes | str:
        """See `backlog_spark.sinks.iceberg.writers.BatchFiles`."""

    @abstractmethod
    def added(self, batch: PendingBatch, state: IcebergState) -> DataFrame | None:
        """See `backlog_spark.sinks.iceberg.writers.BatchFiles`."""

    def merged(self, batch: PendingBatch, state: IcebergState) -> Changes:
        """See `backlog_spark.sinks.iceberg.writers.BatchFiles`."""
        raise AssertionError(f"{self!r} merges nothing")

    def present(self) -> IcebergState:
        assert self._state_now is not None, "_check comes first"
        return self._state_now

    def open(self, context: SinkContext) -> None:
        """Create the table if there is none; otherwise check that it fits. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            If a setting names a column that is not in the schema.
        BacklogError
            If the catalog cannot be read; if the table's columns or partitions do not fit; if the table lacks batches
            that the checkpoint has, or the reverse; if it was rolled back.
        """
        require(type(self).__name__, "pyiceberg")
        from backlog_spark.sinks.iceberg.marks import CREATED_BY, KnownBatches
        from backlog_spark.sinks.iceberg.tables import create, fitted

        context = replace(context, schema=schema_with(context.spark, context.schema, self.computed))
        stored = self._stored_fields(context)
        check_stored(type(self).__name__, "partition_by", [each.column for each in self._partitions], stored)
        state = self._loaded(context.txn_app_id)
        known = KnownBatches(self._access.place, context, None if self._known is None else self._known.newest)
        if state is None:
            self._refuse_lost(context)
            of_query = {CREATED_BY: context.txn_app_id, **self._noted()}
            properties = {**_PROPERTIES, **self._defaults(), **self.properties, **of_query}
            create(self._access, self.table, stored, self._partitions, properties)
            state = self._loaded(context.txn_app_id)
            assert state is not None, "it was created or was there"
        known.check_at_start(state)
        found = state.table.metadata.properties
        if found.get(CREATED_BY) != context.txn_app_id and self.keys and KEYS in found:
            check_table_keys(self._access.place, self.keys, json.loads(found[KEYS]))
        self._check_rows_of(state, context.txn_app_id)
        fitted(self._access.place, state.table, stored, self.keys, merge_schema=self.merge_schema)
        self._known = known
        self._stored, self._fitting = tuple(stored), -1
        self._columns = tuple(each.name for each in stored)
        self._replays = Replays(context)
        if self._context is None:
            self._budget = RowBudget.of_driver(context, self.small_batch_rows, self.small_batch_bytes)
        self._context = context

    def examine(self) -> Iterator[Finding]:
        """What ``backlog-spark check`` tells of the table. Raises `BacklogError` if its catalog or store refuses."""
        from backlog_spark.sinks.iceberg.examination import examine_catalog

        yield from examine_catalog(self._access, self.table)

    def check_batches(self, context: SinkContext) -> bool:
        """Check that the table has the batches that it must have; nothing is created.

        Returns
        -------
        bool
            Whether it has any of the query.

        Raises
        ------
        BacklogError
            As of `open`.
        """
        from backlog_spark.sinks.iceberg.marks import KnownBatches

        state = self._loaded(context.txn_app_id)
        if state is None:
            self._refuse_lost(context)
            return False
        KnownBatches(self._access.place, context).check_at_start(state)
        return state.mark is not None

    def _defaults(self) -> dict[str, str]:
        """More properties of a table that the sink creates."""
        return {}

    def _noted(self) -> dict[str, str]:
        """Properties of a table that the sink creates: how its rows are written."""
        return {KEYS: json.dumps(self.keys)} if self.keys else {}

    def _check_rows_of(self, state: IcebergState, txn_app_id: str) -> None:
        """Reject a table whose rows were written in another way. Called at the start."""

    def _check_rows(self, state: IcebergState) -> None:
        """Reject a version of the table whose rows cannot be read. Called before each batch."""

    def _refuse_lost(self, context: SinkContext) -> None:
        if context.newest_committed is not None:
            raise BacklogError(
                f"There is no Iceberg table {self._access.place}, and the checkpoint has committed batches up to "
                f"{context.newest_committed} to it.",
                "Put the table back, or start with a new checkpointLocation.",
            )

    def _loaded(self, txn_app_id: str) -> IcebergState | None:
        from backlog_spark.sinks.iceberg.marks import IcebergState, Mark

        table = self._access.load()
        return None if table is None else IcebergState(table, Mark.of(table.metadata.properties, txn_app_id))

    def _pending(self, batch_df: DataFrame, batch: BatchInfo, until_written: contextlib.ExitStack) -> PendingBatch:
        if self._context is None or self._replays is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        batch_df = with_computed(batch_df, self.computed)
        return PendingBatch(batch_df, batch, self._context.txn_app_id, self._replays, until_written)

    def _writers(self, batch: PendingBatch) -> Sequence[TableWriter]:
        from backlog_spark.sinks.iceberg.writers import DirectWriter, FilesWriter

        refused = self._refusal_of_direct(batch)
        return DirectWriter(batch, self, self._budget, self._needed(), refused), FilesWriter(batch, self)

    def _state(self, spark: SparkSession) -> IcebergState:
        state = self._loaded(cast("SinkContext", self._context).txn_app_id)
        if state is None:
            raise BacklogError(
                f"The Iceberg table {self._access.place} was dropped while the query runs.",
                "Put the table back, or start with a new checkpointLocation.",
            )
        return state

    def _has(self, state: IcebergState, batch_id: int) -> bool:
        return cast("KnownBatches", self._known).has(state, batch_id)

    def _check(self, state: IcebergState) -> None:
        if state.table.metadata.current_schema_id != self._fitting:
            from backlog_spark.sinks.iceberg.tables import fitted

            fitted(self._access.place, state.table, self._stored, self.keys, merge_schema=False)
            self._fitting = state.table.metadata.current_schema_id
        self._check_rows(state)
        self._state_now = state

    def _conflicts(self) -> tuple[type[Exception], ...]:
        from backlog_spark.sinks.iceberg.commits import conflicts

        return conflicts()

    def _wrote(self, spark: SparkSession, before: IcebergState, writer: TableWriter, batch: PendingBatch) -> None:
        cast("KnownBatches", self._known).note(batch.info.batch_id)
        cared = self.compact or self.expire_ms is not None
        if cared and (writer.name == "direct" or not batch.info.is_backlog):
            from backlog_spark.sinks.iceberg.care import look_after

            look_after(self._state(spark), compact=self.compact, expire_ms=self.expire_ms)

    def commit(self, txn_app_id: str, batch_id: int, changes: Changes) -> None:
        """See `backlog_spark.sinks.iceberg.writers.BatchFiles`."""
        from backlog_spark.sinks.iceberg.commits import commit_batch

        with self._access.readable(*self._conflicts()):
            commit_batch(self.present(), txn_app_id, batch_id, changes)

    def _stored_rows(self, rows: DataFrame) -> DataFrame:
        return rows.select(*map(quoted, self._columns))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.table!r})"
