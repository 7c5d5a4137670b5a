"""What the sinks of Delta tables share: one transaction a batch, and all that is checked before it."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import os
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.delta_access import TableAccess
from backlog_spark.sinks.delta_columns import RESERVED, check_table, refuse_reserved
from backlog_spark.sinks.delta_history import TableState
from backlog_spark.sinks.delta_known import KnownBatches
from backlog_spark.sinks.delta_roads import DirectRoad, FilesRoad, PendingBatch, Road, SparkRoad, retriable
from backlog_spark.sinks.delta_rules import RowBudget, refusal_of_store
from backlog_spark.spark import delta_log
from backlog_spark.spark.session import session_conf, session_copy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from backlog_spark.sinks.delta_direct import DirectTable

__all__ = ["CREATED_BY", "SMALL_BATCH_BYTES", "SMALL_BATCH_ROWS", "DeltaSink"]

CREATED_BY: Final = "backlog_spark.createdBy"
"""Table property that marks a table as created by one query: its value is the query's ``txn_app_id``."""

SMALL_BATCH_ROWS: Final = 100_000
SMALL_BATCH_BYTES: Final = 64 * 1024 * 1024

# Each try begins anew at the newest version; another writer that is faster so many times in a row writes without pause.
_ATTEMPTS: Final = 20


class DeltaSink(Sink):
    """A sink that makes each batch one transaction of a Delta table, with ``(txn_app_id, batch_id)`` in it.

    Delta keeps the newest batch id of every query with the table. A batch that the table has is skipped before
    anything is read; one that does not follow the last is refused, as rows in between are missing. An empty
    batch is a transaction too, so that this can be told. RESTORE, REPLACE TABLE and CLONE take rows out of a table
    and keep the batch ids; so all commits beside the sink's own are looked through for them, before a batch is
    written or skipped and, as one may come meanwhile, before it counts as written.

    A batch takes one of three roads (`backlog_spark.sinks.delta_roads`). When another writer's commit comes in
    between, it is tried again at the newest version, if its rows or files are at hand.

    Subclasses say which columns are stored and how a batch's rows come into the table.

    Parameters
    ----------
    path : str
        Location of the table, in any form that Hadoop takes. Created at the first start if nothing is there.
    partition_by : sequence of str
        Partition columns of a table that the sink creates.
    properties : mapping of str to str
        Table properties of a table that the sink creates.
    merge_schema : bool
        Whether columns that the table lacks are added to it, NULL in the rows that it has.
    small_batch_rows, small_batch_bytes : int
        The most that a live batch may have to be committed by delta-rs; 0 rows: never.
    storage_options : mapping of str to str
        delta-rs's options for the table's store.
    compact : bool
        Whether small files are merged between batches.
    """

    keys: tuple[str, ...] = ()
    """Columns that identify a row, where a sink has such."""

    def __init__(
        self,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] = MappingProxyType({}),
        merge_schema: bool = False,
        small_batch_rows: int = SMALL_BATCH_ROWS,
        small_batch_bytes: int = SMALL_BATCH_BYTES,
        storage_options: Mapping[str, str] = MappingProxyType({}),
        compact: bool = True,
    ) -> None:
        if isinstance(partition_by, str):
            hint = f"Write partition_by=[{partition_by!r}]."
            raise SettingError("partition_by", partition_by, "must be a list of column names.", hint)
        self.path = path
        self.partition_by = tuple(partition_by)
        self.properties = dict(properties)
        self.merge_schema = merge_schema
        for setting, value in (("small_batch_rows", small_batch_rows), ("small_batch_bytes", small_batch_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingError(setting, value, "must be a whole number, 0 or more.")
        self.small_batch_rows = small_batch_rows
        self.small_batch_bytes = small_batch_bytes
        self.storage_options = dict(storage_options)
        self.compact = compact
        self._context: SinkContext | None = None
        self._stored: tuple[StructField, ...] = ()
        self._columns: tuple[str, ...] = ()
        self._fitting = ""  # the table's columns that the stream's are known to fit
        self._is_ours = False
        self._known: KnownBatches | None = None
        self._access: TableAccess | None = None
        self._budget = RowBudget(0, 0, ())
        self._replayed = -1  # up to this batch they may have failed before

    def for_output(self) -> DeltaSink:
        return copy.copy(self)

    @abstractmethod
    def _stored_fields(self, context: SinkContext) -> list[StructField]:
        """The batch's columns that go into the table. First of all at each `open`.

        Raises
        ------
        SettingError
            If a setting names a column that the schema lacks.
        """

    def _reserved(self) -> dict[str, frozenset[str]]:
        """Names in small letters that Delta takes for columns of its own in what this sink does.

        Each under the table's property that has to be true for it, or under `ALWAYS`.
        """
        return RESERVED

    @abstractmethod
    def _added(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> DataFrame | None:
        """The rows of a batch that are added as they are; None if they are to be merged."""

    def _write_rows(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> None:
        """Write a batch that the table lacks by Spark, in exactly one commit, also where it has no rows.

        Called with the session's confs set so that Delta puts the transaction's id into that commit.
        """
        rows = self._added(batch_df, batch, context)
        if rows is None:
            self._merge(batch_df)
        else:
            rows.select(*map(quoted, self._columns)).write.format("delta").mode("append").save(self.path)

    def _merge(self, batch_df: DataFrame) -> None:
        """Write a batch whose rows are not added as they are."""
        raise AssertionError(f"{self!r} merges nothing")

    def _unfit(self, fields: Sequence[StructField]) -> str | None:
        """Why no batch of these columns can be written by `_write_small`; None if some can. Once per `open`."""
        return None

    def _needed(self) -> Sequence[str]:
        """The columns that `_write_small` is given."""
        return self._columns

    @abstractmethod
    def _write_small(self, rows: pa.Table, table: DirectTable, txn_app_id: str, batch_id: int) -> None:
        """Write the batch that `_write_rows` would write, in exactly one commit, from the driver.

        Raises
        ------
        CommitConflict
            Nothing was written, as another writer was faster.
        """

    def open(self, context: SinkContext) -> None:
        """Create the table if there is none, else check that it fits. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            If a setting names a column that is not in the schema.
        BacklogError
            If `path` holds files that are no Delta table, or a table without one of the columns or with
            another type; if the table lacks batches that the checkpoint has, or has some that it lacks; if it was
            restored or replaced.
        """
        stored = self._stored_fields(context)
        self._check_columns("partition_by", self.partition_by, stored)
        # Other queries of the session get none of our settings.
        spark = session_copy(context.spark)
        delta_log.refuse_without_delta(spark)
        # Delta compares locations as texts in places, and resolves a relative one in others.
        self.path = delta_log.qualified_text(spark, self.path)
        log_path = delta_log.log_path(spark, self.path)
        self._known = KnownBatches(self.path, log_path, context)
        access = self._access = self._access or TableAccess(self.path, self.storage_options, compact=self.compact)
        access.open(self._refusal_of_direct(context.schema.fields))
        with session_conf(spark, delta_log.snapshot_conf(spark)):
            state = access.state(spark, context.txn_app_id)
            self._known.check_at_start(state)
            if state.version < 0:
                refuse_reserved(self.path, self._reserved(), [field.name for field in stored], self.properties)
                properties = {**self.properties, CREATED_BY: context.txn_app_id}
                access.create(spark, stored, self.partition_by, properties)
                state = access.state(spark, context.txn_app_id)
        # After a creation too: another query may have been faster, and its table wins.
        table = StructType.fromJson(json.loads(state.schema))
        refuse_reserved(
            self.path, self._reserved(), [*table.names, *(field.name for field in stored)], state.configuration
        )
        if self.merge_schema:
            there = {name.lower() for name in table.names}
            new = [f for f in stored if f.name.lower() not in there and f.name not in self.keys]
            table = access.add_columns(spark, table, new) if new else table
        check_table(self.path, self.keys, table, stored)
        self._is_ours = state.configuration.get(CREATED_BY) == context.txn_app_id
        self._stored, self._fitting = tuple(stored), ""
        self._columns = tuple(field.name for field in stored)
        self._replayed = -1 if context.newest_planned is None else context.newest_planned
        if self._context is None:
            self._budget = RowBudget(self.small_batch_rows, self.small_batch_bytes, context.schema.fields)
        self._context = context

    def _refusal_of_direct(self, fields: Sequence[StructField]) -> str | None:
        """Why delta-rs is not to write a table here, whichever it is."""
        if not self.small_batch_rows:
            return "small_batch_rows is 0"
        if importlib.util.find_spec("deltalake") is None:
            return "the package deltalake is not installed"
        return refusal_of_store(self.path, self.storage_options, os.environ) or self._unfit(fields)

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Write a batch in one transaction, or nothing if the table has it already. See :meth:`Sink.write`.

        Raises
        ------
        BacklogError
            If the sink is not open, the table lacks the batch before this one, it was restored or replaced, another
            query has written a batch under this one's id, or the table's columns no longer fit.
        """
        context, known, access = self._context, self._known, self._access
        if context is None or known is None or access is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        spark, began = batch_df.sparkSession, time.monotonic()
        with session_conf(spark, delta_log.snapshot_conf(spark)), contextlib.ExitStack() as stack:
            is_replayed = batch.batch_id <= self._replayed
            pending = PendingBatch(batch_df, batch, context.txn_app_id, is_replayed, stack)
            direct, *others = self._roads(pending, access, context)
            for attempt in range(1, _ATTEMPTS + 1):
                state = access.state(spark, context.txn_app_id)
                if known.has(state, batch.batch_id):
                    self.written = Written(batch.batch_id, "none", "the table has the batch", attempts=attempt)
                    return
                self._check_fit(state)
                road = next(road for road in (direct, *others) if not road.refusal())
                try:
                    road.write()
                    break
                except retriable():
                    if attempt == _ATTEMPTS or not pending.at_hand:
                        raise
            if road.makes_next_version:
                known.wrote(state, replace(state, version=state.version + 1))
            else:
                known.wrote(state, access.state(spark, context.txn_app_id))
            if not isinstance(access.direct, str) and (isinstance(road, FilesRoad) or not batch.is_backlog):
                access.direct.look_after(merge=not batch.is_backlog)
            seconds = time.monotonic() - began
            self.written = Written(batch.batch_id, road.name, direct.reason, road.rows, attempt, seconds)

    def _roads(self, batch: PendingBatch, access: TableAccess, context: SinkContext) -> tuple[DirectRoad, Road, Road]:
        """The roads for a batch, in the order in which they are tried."""
        merges = bool(self.keys)
        return (
            DirectRoad(batch, access, self._budget, self._needed(), merges, self._write_small),
            FilesRoad(batch, access, self._columns, lambda rows: self._added(rows, batch.info, context)),
            SparkRoad(batch, access, merges, lambda rows: self._write_rows(rows, batch.info, context)),
        )

    def _check_fit(self, state: TableState) -> None:
        """Refuse a table whose columns another writer has changed so that the stream's no longer fit."""
        if state.schema != self._fitting:
            found = StructType.fromJson(json.loads(state.schema)) if state.schema else StructType()
            check_table(self.path, self.keys, found, self._stored)
            self._fitting = state.schema

    def _check_columns(self, setting: str, names: Sequence[str], stored: Sequence[StructField]) -> None:
        found = {field.name for field in stored}
        for name in names:
            if name not in found:
                raise SettingError(
                    f"{type(self).__name__} {setting}",
                    list(names),
                    f"there is no column {name!r} to store; there are {', '.join(sorted(found))}.",
                )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"
