"""Keeps a Delta table equal to the newest change of every key, one Delta transaction per batch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import SettingError
from backlog_spark.model.changes import CHANGE_TYPE, METADATA
from backlog_spark.sinks.change_columns import BY_DEFAULT, SEQUENCE, ChangeColumns, checked_columns, checked_keys
from backlog_spark.sinks.delta.schema import ALWAYS, CHANGE_DATA_FEED
from backlog_spark.sinks.delta.sink import DeltaSink
from backlog_spark.sinks.delta.values import without_lost_keys
from backlog_spark.sinks.form_choice import FormArguments, check_form, formed, noted, only_spark_compares
from backlog_spark.sinks.forms import COMMIT_TIME, DELETED_COLUMN, IGNORE, REMOVE, SOFT
from backlog_spark.sinks.leftovers import (
    KEEP,
    REFUSE,
    REPLACE,
    SEEN,
    KeyFiles,
    Writers,
    check_choice,
    names_to_remove,
)
from backlog_spark.sinks.newest_changes import newest_changes
from backlog_spark.sinks.newest_rows import IS_DELETE, RANK, unique_inserts
from backlog_spark.sinks.row_versions import KIND, versions_of
from backlog_spark.sinks.small_batches import MERGED_BATCH_BYTES, MERGED_BATCH_ROWS
from backlog_spark.sinks.spark_merge import SparkMerge
from backlog_spark.sinks.versions import IS_CURRENT, VALID_FROM, VALID_TO, Versions
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.spark.plan.batch_frames import kept

if TYPE_CHECKING:
    from contextlib import ExitStack

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

    from backlog_spark.sinks.base import BatchInfo, SinkContext
    from backlog_spark.sinks.delta.deltars.commits import DirectTable
    from backlog_spark.sinks.delta.history import TableState
    from backlog_spark.sinks.table_sink import PendingBatch

__all__ = ["DeltaUpsert"]

_log = logging.getLogger(__name__)

_VECTORS: Final = "delta.enableDeletionVectors"
_MATERIALIZE: Final = "spark.databricks.delta.merge.materializeSource"

# Columns that MERGE adds to the table, by name, in lower case. MergeIntoCommandBase defines those of every merge and of
# its first step, which looks for keys. DeletionVectorBitmapGenerator defines those of deletion vectors. The first set
# ends with our own columns.
_OF_MERGE: Final = frozenset({"_source_row_present_", "_target_row_present_", "_row_dropped_", RANK, IS_DELETE, SEEN})
_OF_FEED: Final = frozenset({"__is_cdc"})
_OF_FIRST_STEP: Final = frozenset({"_file_name_", "_row_id_"})
_OF_VECTORS: Final = frozenset({"_metadata", "deletionvectorid", "dvfilepath"})


class DeltaUpsert(DeltaSink):
    """Upserts change rows into a Delta table by key, exactly once.

    A batch is one Delta transaction that carries ``(txn_app_id, batch_id)``. A batch id that the table
    already has is skipped before any row is read. A batch is written by

    * *append*, if the batch is backlog, this query created the table (the property
      ``backlog_spark.createdBy``), no other writer has added rows to it, and the runner promises that keys are unique
      in backlog: then all rows are inserts of new keys;
    * *MERGE* of the newest change of each key otherwise.

    An empty batch is a transaction too. If a key has changes with equal `sequence`, an upsert wins over a delete.

    A row of type ``truncate`` or ``drop`` removes all older rows of its table, in the same transaction. These are the
    rows with its ``_database`` and ``_table``. If the sink does not store these columns, they are all rows. For that
    the query must read a single table of a single source; otherwise it fails.

    Parameters
    ----------
    path : str
        Location of the table on any filesystem that Delta supports. The first start creates it if nothing
        is there.
    keys : sequence of str
        Columns that identify a row. A NULL key matches a NULL key.
    table : str, optional
        Name of the table in a catalog of the session, such as ``shop.orders``, in place of `path`. The first start
        creates it if the catalog has none: at `path` if that is given too, else where the catalog wants it.
    change_type : str or None, default "_change_type"
        Column with ``insert``, ``update_preimage``, ``update_postimage`` or ``delete``, as in Delta's change
        data feed; any other value fails the query. An ``update_preimage`` removes its key unless the update's
        after-image keeps it. None: rows carry no change type and each is an upsert.
    sequence : str or None, default "_commit_seq"
        Column that orders the changes of a key within a batch; any orderable type, increasing with each change
        of a key, NULL is oldest. None: a batch never has two upserts of one key; otherwise the query fails.
    metadata_columns : sequence of str, default ("_change_type", "_commit_timestamp", "_commit_seq")
        Columns of the batch that are not stored. All must exist, with one exception: with the three defaults, results
        of a keyed operator have only the change type, if the operator retracts rows, or none of the columns; then
        each row is an upsert. Such a batch never has two upserts of one key.
    partition_by : sequence of str, default ()
        Partition columns of a table that the sink creates. ``days(x)``, ``months(x)`` and ``years(x)`` of a date or
        timestamp become columns ``x_day``, ``x_month`` and ``x_year``.
    cluster_by : sequence of str, default ()
        Columns by which Delta clusters a table that the sink creates. Spark then writes all batches.
    computed : mapping of str to str
        Columns that the sink adds: SQL expressions of a row, by name.
    properties : mapping of str to str
        Table properties of a table that the sink creates. Small files of a table with
        ``delta.enableDeletionVectors`` are not merged.
    merge_schema : bool, default False
        Add columns that the stream has and the table lacks. They are NULL in existing rows, unless the source says
        which value these have (`fills`). The sink does so when the
        query starts, and when it restarts after the source's table was altered. If the table has
        ``delta.enableTypeWidening``, a column whose type became wider in the stream is widened too.
    small_batch_rows : int, default 1,000,000
        A batch of up to this many rows goes to the driver, where delta-rs commits it: 5,000 rows in a few tenths of a
        second, 500,000 in two seconds. Spark writes larger ones, and a backlog of new rows. 0: Spark writes all.
    small_batch_bytes : int, default 256 MiB
        Maximum bytes of such a batch, in Arrow; at most an eighth of the driver's heap.
    storage_options : mapping of str to str
        delta-rs's options for the table's store, with its credentials. Without them Spark also writes small batches of
        a table on S3. See docs/sinks.md for stores where this is safe.
    compact : bool, default True
        Merge the table's small files between batches. Not done where Spark writes small batches.
    on_existing_rows : {"replace", "keep", "refuse"}, default "replace"
        What becomes of rows that the table had before the query's first batch. See docs/sinks.md.

        * ``replace``: if all sources begin with a complete snapshot, the batch that ends it also removes the rows of
          the sources' tables that neither it nor a batch before had. Rows stay, with a warning, if they cannot be told
          from those of other tables or of other queries.
        * ``keep``: they stay until a change of their key comes.
        * ``refuse``: the query does not start.
    deletes : {"remove", "soft", "ignore"}, default "remove"
        What a delete does, and a before-image of another key, ``truncate`` and ``drop``. See docs/history.md.

        * ``soft``: the row stays, with its last values, and a column says that it is deleted. A row that comes back is
          no longer deleted. Rows that `on_existing_rows` would remove are marked too.
        * ``ignore``: nothing. The table is an archive; `on_existing_rows` ``replace`` counts as ``keep``.
    deleted_column : str, default "_is_deleted"
        With ``soft``: the BOOLEAN column that says so. NULL means no.
    deleted_at_column : str or None, default None
        With ``soft``: a TIMESTAMP column with the time of the delete; NULL in other rows.
    history : "scd2" or None, default None
        ``scd2``: the table has a row for each version of a key. A change ends the current version and begins another
        one; a delete only ends it. Needs `sequence` and `commit_time`.
    valid_from, valid_to, is_current : str
        With ``scd2``: columns with the begin of a version, its end (NULL: none yet), and whether it is the current one.
    track_history_columns : sequence of str or None, default None
        With ``scd2``: columns whose changes make a new version. Other columns are changed in the current version. None:
        all that are stored but the keys.
    commit_time : str, default "_commit_timestamp"
        The stream's column of type TIMESTAMP with the time of a change, for `deleted_at_column` and `history`.

    Raises
    ------
    SettingError
        If `keys` is empty or names a metadata column; if settings of `deletes` and `history` do not fit together.

    Notes
    -----
    Columns of an existing table that the batch lacks keep their values, and are NULL in new rows. Do not set
    ``delta.setTransactionRetentionDuration`` shorter than the longest stop of the query: without the
    transaction, Delta does not know which batches it has.

    The query continues after a DELETE, UPDATE, MERGE, OPTIMIZE or overwrite by others: these are edits of rows. RESTORE
    to a version before the query's last batch, REPLACE TABLE and CLONE stop the query, at once or at the next start:
    they remove batches that the table still counts as written. The error says how to restore the rows, and how to
    continue without them. Keep the table's log for longer than the longest stop (``delta.logRetentionDuration``).

    Examples
    --------
    >>> sink = DeltaUpsert("/lake/orders", keys=["order_id"])
    >>> rows = {"change_type": None, "sequence": None, "metadata_columns": ()}  # each row is an upsert
    >>> totals = DeltaUpsert("/lake/totals", keys=["user_id"], **rows)
    >>> history = DeltaUpsert("/lake/order_history", keys=["order_id"], history="scd2")
    """

    keeps_newest = True

    @checked_arguments
    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        keys: Sequence[str] = (),
        *,
        table: str | None = None,
        change_type: str | None = CHANGE_TYPE,
        sequence: str | None = SEQUENCE,
        metadata_columns: Sequence[str] = METADATA,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        computed: Mapping[str, str] = MappingProxyType({}),
        properties: Mapping[str, str] = MappingProxyType({}),
        merge_schema: bool = False,
        small_batch_rows: int = MERGED_BATCH_ROWS,
        small_batch_bytes: int = MERGED_BATCH_BYTES,
        storage_options: Mapping[str, str] = MappingProxyType({}),
        compact: bool = True,
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
        keys = checked_keys(keys, metadata_columns)
        super().__init__(
            path,
            table=table,
            partition_by=partition_by,
            cluster_by=cluster_by,
            computed=computed,
            properties=properties,
            merge_schema=merge_schema,
            small_batch_rows=small_batch_rows,
            small_batch_bytes=small_batch_bytes,
            storage_options=storage_options,
            compact=compact,
        )
        self.keys = tuple(keys)
        self._given = ChangeColumns(change_type, sequence, checked_columns("metadata_columns", metadata_columns))
        self.change_type, self.sequence, self.metadata_columns = self._given
        self.on_existing_rows = check_choice(on_existing_rows)
        self.deletes = deletes
        self.form = FormArguments(
            deletes, deleted_column, deleted_at_column, history, valid_from, valid_to, is_current,
            track_history_columns, commit_time,
        ).form(change_type)  # fmt: skip
        if deletes == IGNORE and on_existing_rows == REPLACE:
            self.on_existing_rows = KEEP  # the table is an archive
        self._by_default = self._given == BY_DEFAULT

    def described(self) -> dict[str, Any]:
        rows = (BY_DEFAULT if self._by_default else self._given).described()
        form = {"deletes": self.deletes, "history": None, **self.form.noted()}
        return {**super().described(), "kind": "DeltaUpsert", "keys": list(self.keys), **rows, **form}

    @property
    def divides_rows(self) -> bool:
        return bool(self.deletes != SOFT)  # a marked row has the rejected values

    def _noted(self) -> dict[str, str]:
        return super()._noted() | noted(self.form)

    def _check_rows_of(self, state: TableState, spark: SparkSession) -> None:
        if self._known is not None and self._known.newest is None:
            place = f"the Delta table at {self.path}"
            check_form(place, self.form, state.configuration, lambda: self._has_older_rows(spark), "DeltaUpsert")

    def open(self, context: SinkContext) -> None:
        super().open(context)
        assert self._known is not None
        if self.on_existing_rows == REFUSE and self._known.newest is None and self._has_older_rows(context.spark):
            raise SettingError(
                "on_existing_rows", REFUSE, f"the Delta table at {self.path} has rows that this query did not write.",
                "Name an empty path, or choose 'replace' or 'keep' (docs/sinks.md).",
            )  # fmt: skip
        if context.writer:
            Writers(context.spark, self.path, context).note()

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        super().write(batch_df, batch)
        if batch.snapshot == "end" and self._context is not None and self._context.directory:
            self._key_files(batch_df.sparkSession).delete()

    def _pending(self, batch_df: DataFrame, batch: BatchInfo, until_written: ExitStack) -> PendingBatch:
        pending = super()._pending(batch_df, batch, until_written)
        return formed(pending, self.form, self.deletes, self.change_type)

    def _has_older_rows(self, spark: SparkSession) -> bool:
        """For a table that lacks the query's first batch."""
        return not self._is_ours and not spark.read.format("delta").load(self.path).isEmpty()

    def _key_files(self, spark: SparkSession) -> KeyFiles:
        assert self._context is not None
        return KeyFiles(spark, self._context.directory)

    def _write_rows(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> None:
        if batch.snapshot == "part" and self._replaced(batch_df.sparkSession, batch):
            with kept(batch_df) as rows:
                keys = rows.select(*map(quoted, self.keys))
                self._key_files(rows.sparkSession).write(keys, batch.batch_id)
                super()._write_rows(rows, batch, context)
        else:
            super()._write_rows(batch_df, batch, context)

    def _replaced(self, spark: SparkSession, batch: BatchInfo) -> tuple[tuple[str, ...], ...]:
        """The tables whose older rows the end of the snapshot removes. Called for a batch that the table lacks."""
        context, known = self._context, self._known
        assert context is not None
        assert known is not None
        if not batch.snapshot or not context.directory or self._is_ours:
            return ()
        if self.on_existing_rows == KEEP:
            self._key_files(spark).delete()  # of an earlier run: they would lack those of this batch
            return ()
        is_first = known.newest is None
        if not (self._has_older_rows(spark) if is_first else self._key_files(spark).exist()):
            return ()
        if not is_first and batch.snapshot == "part":
            return context.snapshot_of  # decided; no batch in between may lack its keys
        names = names_to_remove(context, self._columns)
        why = "" if names else "without the columns _database and _table they cannot be told apart"
        if names and (others := Writers(spark, self.path, context).others(names)):
            why = f"other queries write there too ({'; '.join(others)})"
        if why:
            _log.warning(
                "The Delta table at %s has rows that this query did not write. They stay, even if its sources no "
                "longer have them: %s. See on_existing_rows in docs/sinks.md.",
                self.path,
                why,
            )
            return ()
        return names

    def _added(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> DataFrame | None:
        unique = batch.is_backlog and self._is_ours and context.key_is_unique_in_backlog
        changes = batch.has_table_events or batch.has_changes or batch.fills
        if not unique or changes or self._sole is None or not self._sole.up_to(self._version):
            return None
        rows = without_lost_keys(batch_df, self._lost_in_path, f"DeltaUpsert({self.path!r})")
        return unique_inserts(rows, self.change_type, f"DeltaUpsert({self.path!r})")

    def fills(self, *, of_one_table: bool) -> bool:
        return of_one_table

    def _unfit(self, fields: Sequence[StructField]) -> str | None:
        types = {field.name: field.dataType for field in fields}
        stored = [name for name in types if name not in self.metadata_columns]
        return only_spark_compares(types, self.keys, self.sequence, self.form, stored) or None

    def _needed(self) -> Sequence[str]:
        change_columns = (self.change_type, self.sequence)
        return (*self._columns, *(name for name in change_columns if name is not None and name not in self._columns))

    def _write_small(self, rows: pa.Table, table: DirectTable, txn_app_id: str, batch_id: int) -> None:
        sink = f"DeltaUpsert({self.path!r})"
        if isinstance(form := self.form, Versions) and self.sequence is not None:
            tracked = form.tracked(self._columns, self.keys)
            made = versions_of(rows, self.keys, self.change_type, self.sequence, form.names, tracked, sink)
            table.merge_versions(
                made.select(self._columns), made[KIND], self.keys, form.names, tracked, txn_app_id, batch_id
            )
            return
        newest, deletes = newest_changes(rows, self.keys, self.change_type, self.sequence, sink)
        if self.form.names:
            deletes = pc.and_(deletes, False)  # they are marked
        table.merge(newest.select(self._columns), deletes, self.keys, txn_app_id, batch_id)

    def _merge(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        replaced = self._replaced(batch_df.sparkSession, batch) if batch.snapshot == "end" else ()
        merge = SparkMerge(
            f"DeltaUpsert({self.path!r})", self._columns, self.keys, self.change_type, self.sequence, self.form,
            self.computed, of_one_table=self._context is not None and self._context.of_one_table,
        )  # fmt: skip
        rows = without_lost_keys(batch_df, self._lost_in_path, merge.sink)
        spark = rows.sparkSession

        def begin(source: DataFrame, on: str) -> Any:
            from delta.tables import DeltaTable

            return DeltaTable.forPath(spark, self.path).alias("t").merge(source.alias("s"), on)

        earlier = self._key_files(spark) if replaced else None
        made = merge.merge(merge.prepared(rows, batch), begin, replaced, earlier)
        # MERGE evaluates its source twice unless it materializes it; it rejects a source that we cache.
        with session_conf(spark, {_MATERIALIZE: "all"}):
            made.execute()

    def _stored_fields(self, context: SinkContext) -> list[StructField]:
        given = BY_DEFAULT if self._by_default else self._given
        self.change_type, self.sequence, self.metadata_columns = given.of(
            context,
            "DeltaUpsert",
            "For rows that are not changes, append them with DeltaAppend(path), or upsert each row with "
            "DeltaUpsert(…, change_type=None, sequence=None, metadata_columns=()).",
        )
        stored = [field for field in context.schema.fields if field.name not in self.metadata_columns]
        self._check_columns("keys", self.keys, stored)
        return [*stored, *self.form.fields(context.schema, stored, self.keys, self.sequence, "DeltaUpsert")]

    def _reserved(self) -> dict[str, frozenset[str]]:
        found = super()._reserved()
        keys = _OF_FIRST_STEP & {key.lower() for key in self.keys}
        return {
            ALWAYS: found[ALWAYS] | _OF_MERGE | keys,
            CHANGE_DATA_FEED: found[CHANGE_DATA_FEED] | _OF_FEED,
            _VECTORS: _OF_VECTORS,
        }
