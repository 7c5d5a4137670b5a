"""What the sinks of Delta tables share: one transaction per batch, and all checks before it."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.sql_names import quoted
from backlog_spark.decide.query_record import check_table_keys, same_place
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.base import BatchInfo, SinkContext
from backlog_spark.sinks.change_columns import check_stored, checked_columns
from backlog_spark.sinks.computed_columns import partition_columns, schema_with, with_computed
from backlog_spark.sinks.delta.access import TableAccess
from backlog_spark.sinks.delta.committed_batches import KnownBatches
from backlog_spark.sinks.delta.constraints import table_constraints
from backlog_spark.sinks.delta.deltars.limits import refusal_of_store
from backlog_spark.sinks.delta.history import TableState
from backlog_spark.sinks.delta.named_tables import create_named, location_of
from backlog_spark.sinks.delta.schema import (
    RESERVED,
    TYPE_WIDENING,
    changed_types,
    check_table,
    refuse_reserved,
    with_columns,
)
from backlog_spark.sinks.delta.sole_writer import SoleWriter, noticing_others
from backlog_spark.sinks.delta.values import becomes_null, refuse_padded
from backlog_spark.sinks.delta.writers import DirectWriter, FilesWriter, SparkWriter, retriable
from backlog_spark.sinks.rejected_rows import with_violations
from backlog_spark.sinks.replays import Replays
from backlog_spark.sinks.small_batches import SMALL_BATCH_BYTES, SMALL_BATCH_ROWS, RowBudget
from backlog_spark.sinks.table_sink import PendingBatch, TableSink, TableWriter
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.jvm.session import session_conf, session_copy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.delta.deltars.commits import DirectTable

__all__ = [
    "CREATED_BY",
    "KEYS",
    "DeltaSink",
    "checked_path",
]

KEYS: Final = "backlog_spark.keys"
"""Table property with the keys, as JSON, that the query which created a table upserts by."""

CREATED_BY: Final = "backlog_spark.createdBy"
"""Table property that marks a table as created by one query: its value is the query's ``txn_app_id``."""


class _Opened(NamedTuple):
    context: SinkContext
    known: KnownBatches
    access: TableAccess


def checked_path(path: str | os.PathLike[str] | None, table: str | None = None) -> str:
    """The sinks' argument ``path``; "" if there is a table's name instead."""
    if table is not None and not table.strip():
        raise SettingError("table", table, "is empty.", "Name the table, such as shop.orders.")
    if path is None and table is not None:
        return ""
    text = "" if path is None else os.fspath(path)
    if not text.strip():
        raise SettingError("path", path, "is empty.", "Name the table's location, such as /lake/orders.")
    return text


class DeltaSink(TableSink[TableState]):
    """A sink that makes each batch one transaction of a Delta table, with ``(txn_app_id, batch_id)`` in it.

    Delta stores the newest batch id of every query in the table. The sink skips a batch that the table already has
    before it reads any row. It rejects a batch that does not directly follow the last one, as rows in between are
    missing. An empty batch is a transaction too; otherwise the sink could not detect a gap. RESTORE, REPLACE TABLE and
    CLONE remove rows but keep the batch ids. So the sink searches all commits of other writers for them before it
    writes or skips a batch, and again afterwards, before the batch counts as written.

    One of three writers takes a batch (`backlog_spark.sinks.delta.writers`). If another writer commits meanwhile, the
    sink tries again at the newest version, provided that the batch's rows or files are still available.

    Subclasses define which columns are stored and how a batch's rows are written.

    Parameters
    ----------
    path : str
        Location of the table, as a Hadoop path or URL. The first start creates the table if nothing is there.
    table : str, optional
        Name of the table in a catalog of the session. Then `path` is only needed for a table that the first start
        creates at a place of your choice.
    partition_by : sequence of str
        Partition columns of a table that the sink creates. ``days(x)``, ``months(x)`` and ``years(x)`` make one of a
        date or timestamp.
    cluster_by : sequence of str
        Columns by which Delta clusters a table that the sink creates (liquid clustering). Spark writes all batches of
        such a table.
    computed : mapping of str to str
        Columns that the sink adds: SQL expressions of a row, by name.
    properties : mapping of str to str
        Table properties of a table that the sink creates.
    merge_schema : bool
        Whether to add columns that the table lacks. They are NULL in existing rows. And whether to widen columns of a
        table with the property ``delta.enableTypeWidening``.
    small_batch_rows, small_batch_bytes : int
        Maximum size of a live batch that delta-rs commits; 0 rows: Spark commits all batches.
    storage_options : mapping of str to str
        delta-rs's options for the table's storage.
    compact : bool
        Whether to merge small files between batches.
    """

    @checked_arguments
    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        table: str | None = None,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        computed: Mapping[str, str] = MappingProxyType({}),
        properties: Mapping[str, str] = MappingProxyType({}),
        merge_schema: bool = False,
        small_batch_rows: int = SMALL_BATCH_ROWS,
        small_batch_bytes: int = SMALL_BATCH_BYTES,
        storage_options: Mapping[str, str] = MappingProxyType({}),
        compact: bool = True,
    ) -> None:
        self.path = checked_path(path, table)
        self.table = table
        self.partition_by, self.computed = partition_columns(checked_columns("partition_by", partition_by), computed)
        self.cluster_by = checked_columns("cluster_by", cluster_by)
        if cluster_by and partition_by:
            raise SettingError(
                "cluster_by", list(cluster_by), "a Delta table is clustered or partitioned, not both.", "Leave one out."
            )
        self.properties = dict(properties)
        self.merge_schema = merge_schema
        for setting, value in (("small_batch_rows", small_batch_rows), ("small_batch_bytes", small_batch_bytes)):
            if not 0 <= value < 2**63:
                raise SettingError(setting, value, "is out of bounds.", "Give a number from 0 to 2^63 - 1.")
        self.small_batch_rows = small_batch_rows
        self.small_batch_bytes = small_batch_bytes
        self.storage_options = dict(storage_options)
        self.compact = compact
        self._context: SinkContext | None = None
        self._stored: tuple[StructField, ...] = ()
        self._columns: tuple[str, ...] = ()
        self._casts: dict[str, DataType] = {}  # columns that are wider in the table
        self._fitting = ""  # the table's schema that the stream's columns were last checked against
        self._lost_in_path: tuple[str, ...] = ()  # keys with texts that would become NULL
        self._is_ours = False
        self._sole: SoleWriter | None = None
        self._version = -1  # the table's version that the present attempt is based on
        self._known: KnownBatches | None = None
        self._access: TableAccess | None = None
        self._budget = RowBudget(0, 0, ())
        self._replays: Replays | None = None

    def for_output(self) -> DeltaSink:
        return copy.copy(self)

    def described(self) -> dict[str, Any]:
        place = {"path": self.path} if self.table is None else {"table": self.table}
        return {**super().described(), **place}

    def has_rows_of(self, spark: SparkSession, txn_app_id: str) -> bool:
        path = self.location(spark)
        return path is not None and delta_log.newest_version(spark, path, txn_app_id).batch is not None

    @property
    def divides_rows(self) -> bool:
        return True

    def with_violations(self, rows: DataFrame) -> DataFrame | None:
        spark = rows.sparkSession
        with self._while_writing(spark):
            state = self._state(spark)
        constraints = table_constraints(StructType.fromJson(json.loads(state.schema)), state.configuration)
        marked = with_violations(with_computed(rows, self.computed), constraints, self.change_type)
        return marked and marked.drop(*self.computed)

    def location(self, spark: SparkSession) -> str | None:
        """The table's qualified path; None if a catalog has no table of the given name.

        Raises
        ------
        SettingError
            The catalog has it elsewhere than at `path`, or it is no Delta table.
        """
        path = delta_log.qualified_text(spark, self.path) if self.path else ""
        if self.table is None:
            return path
        found = location_of(spark, self.table)
        if path and found is not None and not same_place(path, found):
            raise SettingError(
                "path", self.path, f"the catalog has the table {self.table} at {found}.",
                "Give this path or none. If the table was moved while the query ran, start the query again.",
            )  # fmt: skip
        return found

    @abstractmethod
    def _stored_fields(self, context: SinkContext) -> list[StructField]:
        """The batch's columns that are stored in the table. `open` calls this first.

        Raises
        ------
        SettingError
            If a setting names a column that the schema lacks.
        """

    def _noted(self) -> dict[str, str]:
        """Properties of a table that the sink creates: how its rows are written."""
        return {KEYS: json.dumps(self.keys)} if self.keys else {}

    def _check_rows_of(self, state: TableState, spark: SparkSession) -> None:
        """Reject a table whose rows were written in another way."""

    def _reserved(self) -> dict[str, frozenset[str]]:
        """Column names, in lower case, that Delta reserves for itself in the operations of this sink.

        The key is the table property that must be true for Delta to reserve them, or `ALWAYS`.
        """
        return RESERVED

    @abstractmethod
    def _added(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> DataFrame | None:
        """The rows of a batch if they are only appended; None if they must be merged."""

    def _write_rows(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> None:
        """Write a batch that the table lacks with Spark, in exactly one commit, even if the batch has no rows.

        The session's confs are set so that Delta puts the transaction's id into that commit.
        """
        rows = self._added(batch_df, batch, context)
        if rows is None:
            self._merge(batch_df, batch)
        else:
            rows = rows.select(*map(quoted, self._columns))
            if self.keys:
                rows = noticing_others(rows, self.path, self.keys[0])
            rows.write.format("delta").mode("append").save(self.path)

    def _merge(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Write a batch whose rows must be merged."""
        raise AssertionError(f"{self!r} merges nothing")

    @property
    def _found_by(self) -> tuple[str, ...]:
        """The columns by whose values the sink finds rows again: the keys, and those of `emptied_tables`."""
        return (*self.keys, "_database", "_table") if self.keys else ()

    def _unfit(self, fields: Sequence[StructField]) -> str | None:
        """Why `_write_small` cannot write batches with these columns; None if it can. Called once per `open`."""
        return None

    def _needed(self) -> Sequence[str]:
        """The columns that `_write_small` receives."""
        return self._columns

    @abstractmethod
    def _write_small(self, rows: pa.Table, table: DirectTable, txn_app_id: str, batch_id: int) -> None:
        """Write the batch that `_write_rows` would write, in exactly one commit, from the driver.

        Raises
        ------
        CommitConflict
            Nothing was written, as another writer committed first.
        """

    def open(self, context: SinkContext) -> None:
        """Create the table if there is none; otherwise check that it fits. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            If a setting names a column that is not in the schema.
        BacklogError
            If `path` holds files that are not a Delta table; if the table lacks one of the columns or has it with
            another type; if the table lacks batches that the checkpoint has, or the reverse; if the table was
            restored or replaced.
        """
        context = replace(context, schema=schema_with(context.spark, context.schema, self.computed))
        stored = self._stored_fields(context)
        self._check_columns("partition_by", self.partition_by, stored)
        self._check_columns("cluster_by", self.cluster_by, stored)
        # Other queries of the session must not get our settings.
        spark = session_copy(context.spark)
        delta_log.refuse_without_delta(spark, type(self).__name__)
        # Delta compares some paths as texts, and resolves a relative path in some calls only.
        self.path = self.location(spark) or self._created_in_catalog(spark, stored, context)
        log_path = delta_log.log_path(spark, self.path)
        newest = None if self._known is None else self._known.newest
        self._known = KnownBatches(self.path, log_path, context, newest)
        access = self._access = self._access or TableAccess(self.path, self.storage_options, compact=self.compact)
        access.open(self._refusal_of_direct(context.schema.fields))
        with session_conf(spark, delta_log.snapshot_conf(spark)):
            state = access.state(spark, context.txn_app_id)
            self._known.check_at_start(state)
            if state.version < 0:
                access.create(spark, stored, self._layout, self._first_properties(stored, context))
                state = access.state(spark, context.txn_app_id)
        # Checked after a creation too: if another query created the table first, its table is used.
        self._is_ours = state.configuration.get(CREATED_BY) == context.txn_app_id
        if not self._is_ours and self.keys and KEYS in state.configuration:
            check_table_keys(self.path, self.keys, json.loads(state.configuration[KEYS]))
        self._check_rows_of(state, spark)
        table = StructType.fromJson(json.loads(state.schema))
        refuse_reserved(
            self.path, self._reserved(), [*table.names, *(field.name for field in stored)], state.configuration
        )
        new: list[StructField] = []
        if self.merge_schema:
            there = {name.lower() for name in table.names}
            new = [f for f in stored if f.name.lower() not in there]
            if any(f.name in self.keys for f in new) and not spark.read.format("delta").load(self.path).isEmpty():
                new = [f for f in new if f.name not in self.keys]  # it would be NULL in the rows that are there
            if state.configuration.get(TYPE_WIDENING, "").lower() == "true":
                wider, narrower = changed_types(table, stored)
                new += wider
                # Rows from before the change may come after it, such as those of a batch that is repeated.
                self._casts = {field.name: field.dataType for field in narrower}
                stored = [StructField(f.name, self._casts.get(f.name, f.dataType)) for f in stored]
        wanted = with_columns(table, new)
        check_table(self.path, self.keys, wanted, stored)
        refuse_padded(self.path, self._found_by, wanted)
        if new:
            access.add_columns(spark, wanted, new)
        self._sole = self._sole or SoleWriter(spark, log_path, context.txn_app_id)
        self._stored, self._fitting = tuple(stored), ""
        self._columns = tuple(field.name for field in stored)
        self._replays = Replays(context)
        if self._context is None:
            self._budget = RowBudget.of_driver(context, self.small_batch_rows, self.small_batch_bytes)
        self._context = context

    @property
    def _layout(self) -> delta_log.Layout:
        return delta_log.Layout(self.partition_by, self.cluster_by)

    def _first_properties(self, stored: Sequence[StructField], context: SinkContext) -> dict[str, str]:
        """Of a table that the sink creates, if Delta takes the columns' names."""
        where = self.path or str(self.table)
        refuse_reserved(where, self._reserved(), [field.name for field in stored], self.properties)
        return {**self.properties, CREATED_BY: context.txn_app_id, **self._noted()}

    def _created_in_catalog(self, spark: SparkSession, stored: Sequence[StructField], context: SinkContext) -> str:
        table = str(self.table)
        known = bool(self.path) and delta_log.newest_version(spark, self.path, context.txn_app_id).batch is not None
        if context.newest_committed is not None and not known:
            raise SettingError(
                "table", table, f"the catalog has no such table, and the checkpoint has batches up to "
                f"{context.newest_committed}: it was renamed or dropped.",
                "Give it its name again, or start with a new checkpointLocation and a new table.",
            )  # fmt: skip
        columns = StructType([StructField(field.name, field.dataType) for field in stored])
        create_named(spark, table, self.path, columns, self._layout, self._first_properties(stored, context))
        return str(self.location(spark))

    def _refusal_of_direct(self, fields: Sequence[StructField]) -> str | None:
        """Why delta-rs must not write any table here; None if it may."""
        if not self.small_batch_rows:
            return "small_batch_rows is 0"
        if importlib.util.find_spec("deltalake") is None:
            return "the package deltalake is not installed"
        return refusal_of_store(self.path, self.storage_options, os.environ) or self._unfit(fields)

    def _while_writing(self, spark: SparkSession) -> AbstractContextManager[object]:
        return session_conf(spark, delta_log.snapshot_conf(spark))

    def _pending(self, batch_df: DataFrame, batch: BatchInfo, until_written: contextlib.ExitStack) -> PendingBatch:
        if self._context is None or self._replays is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        batch_df = with_computed(batch_df, self.computed)
        if self._casts:
            batch_df = batch_df.withColumns({n: F.col(quoted(n)).cast(kind) for n, kind in self._casts.items()})
        return PendingBatch(batch_df, batch, self._context.txn_app_id, self._replays, until_written)

    def _writers(self, batch: PendingBatch) -> Sequence[TableWriter]:
        access, context, merges = self._opened.access, self._opened.context, bool(self.keys)
        return (
            DirectWriter(batch, access, self._budget, self._needed(), merges, self._write_small),
            FilesWriter(batch, access, self._columns, lambda rows: self._added(rows, batch.info, context)),
            SparkWriter(batch, access, merges, lambda rows: self._write_rows(rows, batch.info, context)),
        )

    def _state(self, spark: SparkSession) -> TableState:
        return self._opened.access.state(spark, self._opened.context.txn_app_id)

    def _has(self, state: TableState, batch_id: int) -> bool:
        return self._opened.known.has(state, batch_id)

    def _conflicts(self) -> tuple[type[Exception], ...]:
        return retriable()

    def _check(self, state: TableState) -> None:
        if state.schema != self._fitting:
            found = StructType.fromJson(json.loads(state.schema)) if state.schema else StructType()
            check_table(self.path, self.keys, found, self._stored)
            refuse_padded(self.path, self._found_by, found)
            self._lost_in_path = becomes_null(self.keys, state.partition_columns, found)
            self._fitting = state.schema
        self._version = state.version

    def _wrote(self, spark: SparkSession, before: TableState, writer: TableWriter, batch: PendingBatch) -> None:
        access, known, context = self._opened.access, self._opened.known, self._opened.context
        number = batch.info.batch_id
        if writer.makes_next_version:
            known.wrote(before, replace(before, version=before.version + 1), number)
        else:
            after = self._state(spark)
            known.wrote(before, after, number)
            if self.keys and self._added(batch.rows, batch.info, context) is not None and self._sole is not None:
                self._sole.check_batch(self.path, range(before.version + 1, after.version + 1), number)
        if not isinstance(access.direct, str) and (writer.name != "spark" or not batch.info.is_backlog):
            access.direct.look_after(merge=writer.name == "direct" or not batch.info.is_backlog)

    @property
    def _opened(self) -> _Opened:
        assert self._context is not None, "_pending comes first"
        return _Opened(self._context, cast("KnownBatches", self._known), cast("TableAccess", self._access))

    def _check_columns(self, setting: str, names: Sequence[str], stored: Sequence[StructField]) -> None:
        check_stored(type(self).__name__, setting, names, stored)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})" if self.path else f"{type(self).__name__}(table={self.table!r})"
