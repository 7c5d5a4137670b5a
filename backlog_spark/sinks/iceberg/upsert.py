"""Keeps an Iceberg table equal to the newest change of every key, one commit per batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import SettingError
from backlog_spark.model.changes import CHANGE_TYPE, METADATA
from backlog_spark.sinks.change_columns import (
    SEQUENCE,
    ChangeColumns,
    check_stored,
    checked_columns,
    checked_keys,
)
from backlog_spark.sinks.form_choice import FormArguments, check_form, formed, noted, only_spark_compares
from backlog_spark.sinks.forms import COMMIT_TIME, DELETED_COLUMN, IGNORE, REMOVE, SOFT
from backlog_spark.sinks.iceberg.sink import IcebergSink
from backlog_spark.sinks.leftovers import KEEP, REFUSE, REPLACE, check_choice
from backlog_spark.sinks.newest_changes import newest_changes
from backlog_spark.sinks.newest_rows import unique_inserts
from backlog_spark.sinks.row_versions import versions_of
from backlog_spark.sinks.small_batches import MERGED_BATCH_BYTES, MERGED_BATCH_ROWS
from backlog_spark.sinks.spark_merge import PreparedBatch, SparkMerge
from backlog_spark.sinks.versions import IS_CURRENT, VALID_FROM, VALID_TO, Versions
from backlog_spark.spark.plan.batch_frames import kept

if TYPE_CHECKING:
    from contextlib import ExitStack

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from backlog_spark.sinks.base import BatchInfo, SinkContext
    from backlog_spark.sinks.iceberg.commits import Changes
    from backlog_spark.sinks.iceberg.leftovers import Leftovers
    from backlog_spark.sinks.iceberg.marks import IcebergState
    from backlog_spark.sinks.table_sink import PendingBatch

__all__ = ["IcebergUpsert"]

# A change rewrites the whole file that has its key. So files are smaller than Iceberg's 512 MB; compressed they take a
# fifth of it, as the size is that of the rows in Arrow.
_FILE_BYTES: Final = str(64 << 20)


class IcebergUpsert(IcebergSink):
    """Upserts change rows into an Apache Iceberg table by key, exactly once, through pyiceberg.

    A batch is one commit of the table, with the query's mark in it, as of `IcebergAppend`. Rows are changed by
    copy-on-write: the commit replaces the files that hold a key of the batch, and no other. So every engine reads the
    table. The bounds of the keys in the manifests tell which files may hold a key, and only the key columns of these
    are read. A backlog of unique keys is appended, if this query created the table and nobody else has added rows.

    If a key has changes with equal `sequence`, an upsert wins over a delete. A row of type ``truncate`` or ``drop``
    removes all older rows of its table, as with `DeltaUpsert`.

    Parameters
    ----------
    table : str
        Namespace and name, such as ``shop.orders``. The first start creates both.
    keys : sequence of str
        Columns that identify a row. A NULL key matches a NULL key.
    catalog : mapping of str to str
        As of `IcebergAppend`.
    change_type : str or None, default "_change_type"
        Column with ``insert``, ``update_preimage``, ``update_postimage`` or ``delete``; any other value fails the
        query. None: each row is an upsert.
    sequence : str or None, default "_commit_seq"
        Column that orders the changes of a key within a batch; NULL is oldest. None: a batch never has two upserts of
        one key; otherwise the query fails.
    metadata_columns : sequence of str, default ("_change_type", "_commit_timestamp", "_commit_seq")
        Columns of the batch that are not stored. See `DeltaUpsert` for results of keyed operators.
    small_batch_rows : int, default 1,000,000
    small_batch_bytes : int, default 256 MiB
    partition_by, computed, properties, merge_schema, expire_snapshots, compact
        As of `IcebergAppend`. A table that the sink creates has files of 64 MiB of rows
        (``write.target-file-size-bytes``). Each batch leaves the files that it replaces to older snapshots: set
        `expire_snapshots`, or expire them with another engine.
    on_existing_rows : {"replace", "keep", "refuse"}, default "replace"
        What becomes of rows that the table had before the query's first batch, as of `DeltaUpsert`.
    deletes, deleted_column, deleted_at_column
        What a delete does, as of `DeltaUpsert`: the row goes, is marked, or stays. See docs/history.md.
    history, valid_from, valid_to, is_current, track_history_columns
        With ``history="scd2"`` a row for each version of a key, as of `DeltaUpsert`.
    commit_time : str, default "_commit_timestamp"
        The stream's column of type TIMESTAMP with the time of a change, for `deleted_at_column` and `history`.

    Raises
    ------
    SettingError
        If `keys` is empty or names a metadata column; if settings of `deletes` and `history` do not fit together.

    Notes
    -----
    Columns of an existing table that the batch lacks keep their values, and are NULL in new rows. A table with equality
    deletes of other engines is refused, as pyiceberg cannot read them.

    Examples
    --------
    >>> IcebergUpsert("shop.orders", ["order_id"], {"warehouse": "/lake"})
    IcebergUpsert('shop.orders')
    >>> IcebergUpsert("shop.order_history", ["order_id"], {"warehouse": "/lake"}, history="scd2")
    IcebergUpsert('shop.order_history')
    """

    keeps_newest = True

    @checked_arguments
    def __init__(
        self,
        table: str,
        keys: Sequence[str],
        catalog: Mapping[str, str],
        *,
        change_type: str | None = CHANGE_TYPE,
        sequence: str | None = SEQUENCE,
        metadata_columns: Sequence[str] = METADATA,
        partition_by: Sequence[str] = (),
        computed: Mapping[str, str] = MappingProxyType({}),
        properties: Mapping[str, str] = MappingProxyType({}),
        merge_schema: bool = False,
        small_batch_rows: int = MERGED_BATCH_ROWS,
        small_batch_bytes: int = MERGED_BATCH_BYTES,
        expire_snapshots: str | None = None,
        compact: bool = False,
        on_existing_rows: str = REPLACE,
        deletes: str = REMOVE,
        deleted_column: str = DELETED_COLUMN,
        deleted_at_column: str | None = None,
        history: str | None = None,
        valid_from: str = VALID_FROM,
        valid_to: str = VALID_TO,
        is_current: str = IS_CURRENT,
        track_history_columns: Sequence[str] | None = None,
        commit_time: str = COMMIT_TIME,
    ) -> None:
        self.keys = checked_keys(keys, metadata_columns)
        super().__init__(
            table,
            catalog,
            partition_by=partition_by,
            computed=computed,
            properties=properties,
            merge_schema=merge_schema,
            small_batch_rows=small_batch_rows,
            small_batch_bytes=small_batch_bytes,
            expire_snapshots=expire_snapshots,
            compact=compact,
        )
        self._given = ChangeColumns(change_type, sequence, checked_columns("metadata_columns", metadata_columns))
        self._change_columns = self._given
        self.on_existing_rows = check_choice(on_existing_rows)
        self.deletes = deletes
        self.form = FormArguments(
            deletes, deleted_column, deleted_at_column, history, valid_from, valid_to, is_current,
            track_history_columns, commit_time,
        ).form(change_type)  # fmt: skip
        if deletes == IGNORE and on_existing_rows == REPLACE:
            self.on_existing_rows = KEEP  # the table is an archive
        self._only_spark_compares = ""
        self._prepared: tuple[PendingBatch, PreparedBatch] | None = None

    def described(self) -> dict[str, Any]:
        form = {"deletes": self.deletes, "history": None, **self.form.noted()}
        given = {"kind": "IcebergUpsert", "keys": list(self.keys), **self._given.described()}
        return {**super().described(), **given, **form}

    def _defaults(self) -> dict[str, str]:
        from backlog_spark.sinks.iceberg.files import TARGET_BYTES

        return {TARGET_BYTES: _FILE_BYTES}

    def _noted(self) -> dict[str, str]:
        return super()._noted() | noted(self.form)

    def _check_rows(self, state: IcebergState) -> None:
        from backlog_spark.sinks.iceberg.tables import refuse_equality_deletes

        with self._access.readable():
            refuse_equality_deletes(self._access.place, state.table)

    def _check_rows_of(self, state: IcebergState, txn_app_id: str) -> None:
        self._check_rows(state)
        if state.mark is None:
            from backlog_spark.sinks.iceberg.leftovers import has_older_rows

            place, found = f"the Iceberg table {self._access.place}", state.table.metadata.properties
            check_form(place, self.form, found, lambda: has_older_rows(state.table, txn_app_id), "IcebergUpsert")

    def _stored_fields(self, context: SinkContext) -> list[StructField]:
        self._change_columns = found = self._given.of(
            context,
            "IcebergUpsert",
            "For rows that are not changes, append them with IcebergAppend(table, catalog), or upsert each row with "
            "IcebergUpsert(…, change_type=None, sequence=None, metadata_columns=()).",
        )
        self.change_type = found.change_type
        stored = [field for field in context.schema.fields if field.name not in found.metadata]
        check_stored("IcebergUpsert", "keys", self.keys, stored)
        types = {field.name: field.dataType for field in context.schema.fields}
        sequence, names = self._change_columns.sequence, [field.name for field in stored]
        added = self.form.fields(context.schema, stored, self.keys, sequence, "IcebergUpsert")
        self._only_spark_compares = only_spark_compares(types, self.keys, sequence, self.form, names)
        return [*stored, *added]

    @property
    def divides_rows(self) -> bool:
        return self.deletes != SOFT  # a marked row has the rejected values

    def _pending(self, batch_df: DataFrame, batch: BatchInfo, until_written: ExitStack) -> PendingBatch:
        pending = super()._pending(batch_df, batch, until_written)
        return formed(pending, self.form, self.deletes, self._change_columns.change_type)

    def open(self, context: SinkContext) -> None:
        super().open(context)
        from backlog_spark.sinks.iceberg.leftovers import has_older_rows, note_writer

        state = self._loaded(context.txn_app_id)
        assert state is not None, "open() has found or created it"
        if self.on_existing_rows == REFUSE and state.mark is None and has_older_rows(state.table, context.txn_app_id):
            raise SettingError(
                "on_existing_rows", REFUSE, f"the Iceberg table {self.table} has rows that this query did not write.",
                "Name another table, or choose 'replace' or 'keep' (docs/sinks.md).",
            )  # fmt: skip
        with self._access.readable():
            note_writer(state.table, context)

    def fills(self, *, of_one_table: bool) -> bool:
        return of_one_table

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        super().write(batch_df, batch)
        if batch.snapshot == "end" and self._context is not None and self._context.directory:
            self._leftovers().keys(batch_df.sparkSession).delete()

    def _leftovers(self) -> Leftovers:
        from backlog_spark.sinks.iceberg.leftovers import Leftovers

        assert self._context is not None, "the sink is open"
        return Leftovers(self._access.place, self.on_existing_rows, self._context, self._columns)

    def _needed(self) -> Sequence[str]:
        change_columns = (self._change_columns.change_type, self._change_columns.sequence)
        return (*self._columns, *(name for name in change_columns if name is not None and name not in self._columns))

    def _refusal_of_direct(self, batch: PendingBatch) -> str:
        if batch.info.has_table_events:
            return "it has a row for a TRUNCATE or DROP"
        if batch.info.fills:
            return "it fills a new column"
        return self._only_spark_compares or super()._refusal_of_direct(batch)

    def small(self, rows: pa.Table, state: IcebergState) -> Changes | str:
        from backlog_spark.sinks.iceberg.small_merge import NewestRows, NewVersions, merge_small

        change_type, sequence, _ = self._change_columns
        if isinstance(form := self.form, Versions) and sequence is not None:
            tracked = form.tracked(self._columns, self.keys)
            made = versions_of(rows, self.keys, change_type, sequence, form.names, tracked, repr(self))
            return merge_small(state.table, NewVersions(made, self._columns, self.keys, form.names, tracked))
        newest, deletes = newest_changes(rows, self.keys, change_type, sequence, repr(self))
        if form.names:
            deletes = pc.and_(deletes, False)  # they are marked
        return merge_small(state.table, NewestRows(newest.select(self._columns), deletes, self.keys))

    def added(self, batch: PendingBatch, state: IcebergState) -> DataFrame | None:
        context, info = self._context, batch.info
        assert context is not None, "the sink is open"
        changes = info.has_table_events or info.has_changes or info.fills
        unique = info.is_backlog and context.key_is_unique_in_backlog and not changes
        if not unique or not state.is_alone(context.txn_app_id):
            return None
        return self._stored_rows(unique_inserts(batch.rows, self._change_columns.change_type, repr(self)))

    def merged(self, batch: PendingBatch, state: IcebergState) -> Changes:
        from backlog_spark.sinks.iceberg.large_merge import merge_large

        info, spark, leftovers = batch.info, batch.rows.sparkSession, self._leftovers()
        is_first = state.mark is None
        replaced = leftovers.replaced(spark, state.table, info, is_first=is_first)
        if replaced and info.snapshot == "part":
            batch.keep()
            leftovers.keys(spark).write(batch.rows.select(*map(quoted, self.keys)), info.batch_id)
            replaced = ()
        change_type, sequence, _ = self._change_columns
        merge = SparkMerge(
            repr(self), self._columns, self.keys, change_type, sequence, self.form, self.computed,
            of_one_table=self._context is not None and self._context.of_one_table,
        )  # fmt: skip
        if self._prepared is None or self._prepared[0] is not batch:  # else this is another attempt
            if info.has_table_events:
                batch.keep()  # else the plan runs twice
            found = merge.prepared(batch.rows, info)
            newest = batch.until_written.enter_context(kept(found.newest))
            batch.at_hand = True
            self._prepared = (batch, dataclasses.replace(found, newest=newest))
        earlier = leftovers.keys(spark) if replaced else None
        return merge_large(state.table, merge, self._prepared[1], replaced, earlier)
