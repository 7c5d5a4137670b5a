"""Keeps a Delta table equal to the newest change of every key, one Delta transaction per batch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import SettingError
from backlog_spark.model.changes import CHANGE_TYPE, METADATA
from backlog_spark.sinks.delta.deltars.limits import is_comparable
from backlog_spark.sinks.delta.schema import ALWAYS, CHANGE_DATA_FEED
from backlog_spark.sinks.delta.sink import SMALL_BATCH_BYTES, SMALL_BATCH_ROWS, DeltaSink, checked_columns
from backlog_spark.sinks.delta.truncate import Emptied, emptied_tables, rows_of, since_emptied
from backlog_spark.sinks.delta.values import without_lost_keys
from backlog_spark.sinks.fills import filled_columns, is_other, names_of
from backlog_spark.sinks.leftovers import (
    KEEP,
    REFUSE,
    REPLACE,
    SEEN,
    KeyFiles,
    Writers,
    check_choice,
    names_to_remove,
    with_seen,
)
from backlog_spark.sinks.newest_changes import DELETES, UPSERTS, newest_changes
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.spark.plan.batch_frames import kept

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

    from backlog_spark.sinks.base import BatchInfo, SinkContext
    from backlog_spark.sinks.delta.deltars.commits import DirectTable

__all__ = ["DeltaUpsert"]

_log = logging.getLogger(__name__)

_VECTORS: Final = "delta.enableDeletionVectors"
# Names that the sources give to the columns of a change stream.
_SEQUENCE: Final = "_commit_seq"

# Delta resolves its internal columns together with the source's and the table's, so the source gets names of our own.
_SOURCE: Final = "__backlog_spark_c"
_RANK: Final = "__backlog_spark_rank"
_IS_DELETE: Final = "__backlog_spark_is_delete"

# Columns that MERGE adds to the table, by name, in lower case. MergeIntoCommandBase defines those of every merge and of
# its first step, which looks for keys. DeletionVectorBitmapGenerator defines those of deletion vectors. The first set
# ends with our own columns.
_OF_MERGE: Final = frozenset({"_source_row_present_", "_target_row_present_", "_row_dropped_", _RANK, _IS_DELETE, SEEN})
_OF_FEED: Final = frozenset({"__is_cdc"})
_OF_FIRST_STEP: Final = frozenset({"_file_name_", "_row_id_"})
_OF_VECTORS: Final = frozenset({"_metadata", "deletionvectorid", "dvfilepath"})

_MATERIALIZE: Final = "spark.databricks.delta.merge.materializeSource"


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
        Partition columns of a table that the sink creates.
    properties : mapping of str to str
        Table properties of a table that the sink creates. Small files of a table with
        ``delta.enableDeletionVectors`` are not merged.
    merge_schema : bool, default False
        Add columns that the stream has and the table lacks. They are NULL in existing rows, unless the source says
        which value these have (`fills`). The sink does so when the
        query starts, and when it restarts after the source's table was altered. If the table has
        ``delta.enableTypeWidening``, a column whose type became wider in the stream is widened too.
    small_batch_rows : int, default 100,000
        A live batch of up to this many rows goes to the driver, where delta-rs commits it in a few tenths of a second.
        Spark writes larger ones. 0: Spark writes all.
    small_batch_bytes : int, default 64 MiB
        Maximum bytes of such a batch, in Arrow.
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

    Raises
    ------
    SettingError
        If `keys` is empty or names a metadata column.

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
    """

    keeps_newest = True

    @checked_arguments
    def __init__(
        self,
        path: str | os.PathLike[str],
        keys: Sequence[str],
        *,
        change_type: str | None = CHANGE_TYPE,
        sequence: str | None = _SEQUENCE,
        metadata_columns: Sequence[str] = METADATA,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] = MappingProxyType({}),
        merge_schema: bool = False,
        small_batch_rows: int = SMALL_BATCH_ROWS,
        small_batch_bytes: int = SMALL_BATCH_BYTES,
        storage_options: Mapping[str, str] = MappingProxyType({}),
        compact: bool = True,
        on_existing_rows: str = REPLACE,
    ) -> None:
        if not keys:
            raise SettingError(
                "keys", list(keys), "an upsert needs at least one key column.", "Name the columns that identify a row."
            )
        hidden = [key for key in keys if key in metadata_columns]
        if hidden:
            raise SettingError(
                "keys",
                list(keys),
                f"{hidden[0]!r} is a metadata column and is not stored.",
                "Leave it out of keys, or out of metadata_columns.",
            )
        super().__init__(
            path,
            partition_by=partition_by,
            properties=properties,
            merge_schema=merge_schema,
            small_batch_rows=small_batch_rows,
            small_batch_bytes=small_batch_bytes,
            storage_options=storage_options,
            compact=compact,
        )
        self.keys = checked_columns("keys", keys)
        self.change_type = change_type
        self.sequence = sequence
        self.metadata_columns = checked_columns("metadata_columns", metadata_columns)
        self.on_existing_rows = check_choice(on_existing_rows)
        self._by_default = (change_type, sequence, self.metadata_columns) == (CHANGE_TYPE, _SEQUENCE, METADATA)

    def described(self) -> dict[str, Any]:
        names = (CHANGE_TYPE, _SEQUENCE, METADATA) if self._by_default else ()
        change_type, sequence, metadata = names or (self.change_type, self.sequence, self.metadata_columns)
        rows = {"change_type": change_type, "sequence": sequence, "metadata_columns": list(metadata)}
        return {**super().described(), "kind": "DeltaUpsert", "keys": list(self.keys), **rows}

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
        return self._inserts(without_lost_keys(batch_df, self._lost_in_path, f"DeltaUpsert({self.path!r})"))

    def fills(self, *, of_one_table: bool) -> bool:
        return of_one_table

    def _unfit(self, fields: Sequence[StructField]) -> str | None:
        types = {field.name: field.dataType for field in fields}
        compared = (*self.keys, *((self.sequence,) if self.sequence is not None else ()))
        for name in compared:
            if not is_comparable(types[name]):
                return f"keys and sequences of type {types[name].simpleString()} are compared by Spark alone ({name})"
        return None

    def _needed(self) -> Sequence[str]:
        change_columns = (self.change_type, self.sequence)
        return (*self._columns, *(name for name in change_columns if name is not None and name not in self._columns))

    def _write_small(self, rows: pa.Table, table: DirectTable, txn_app_id: str, batch_id: int) -> None:
        newest, deletes = newest_changes(
            rows, self.keys, self.change_type, self.sequence, f"DeltaUpsert({self.path!r})"
        )
        table.merge(newest.select(self._columns), deletes, self.keys, txn_app_id, batch_id)

    def _inserts(self, rows: DataFrame) -> DataFrame:
        if self.change_type is not None:
            # Cheap, and necessary: if inserts are promised to be unique but are not, stale rows would stay for ever.
            kind = F.col(quoted(self.change_type))
            rows = rows.where(
                F.when(kind == "insert", F.lit(True)).otherwise(
                    F.raise_error(
                        F.concat(
                            F.lit(f"DeltaUpsert({self.path!r}): a backlog batch of unique inserts "),
                            F.lit(f"has a row with {self.change_type} = "),
                            F.coalesce(kind.cast("string"), F.lit("NULL")),
                            F.lit(". Declare the keys as not unique in backlog."),
                        )
                    ).cast("boolean")
                )
            )
        return rows

    def _merge(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        from delta.tables import DeltaTable

        batch_df = without_lost_keys(batch_df, self._lost_in_path, f"DeltaUpsert({self.path!r})")
        emptied = self._emptied(batch_df) if batch.has_table_events else {}
        if emptied and self.change_type is not None and self.sequence is not None:
            batch_df = since_emptied(batch_df, emptied, self.change_type, self.sequence)
        replaced = self._replaced(batch_df.sparkSession, batch) if batch.snapshot == "end" else ()
        newest, is_delete = self._newest(batch_df), F.col(f"s.{_IS_DELETE}")
        is_row: Column | None = None  # of the batch; else its key was in an earlier one
        removes = is_delete
        if replaced and (earlier := self._key_files(batch_df.sparkSession)).exist():
            keys = [f"{_SOURCE}{self._columns.index(key)}" for key in self.keys]
            newest = with_seen(newest, earlier.read(newest.select(*keys)), keys, _IS_DELETE)
            is_row = ~F.col(f"s.{SEEN}")
            if emptied:
                removes = is_delete | (~is_row & rows_of(emptied, "t"))
        # NULL-safe: with a plain "=" a NULL key would be inserted again by each batch.
        source = {name: f"s.{_SOURCE}{number}" for number, name in enumerate(self._columns)}
        on = " AND ".join(f"t.{quoted(key)} <=> {source[key]}" for key in self.keys)
        values: dict[str, Any] = {quoted(name): source[name] for name in self._columns}
        filled = filled_columns(batch.fills, self._columns)
        values |= {quoted(name): value for name, value in filled.items()}
        merge = (
            DeltaTable.forPath(batch_df.sparkSession, self.path)
            .alias("t")
            .merge(newest.alias("s"), on)
            .whenMatchedDelete(removes)
            .whenMatchedUpdate(is_row, values)
            .whenNotMatchedInsert(~is_delete if is_row is None else ~is_delete & is_row, values)
        )
        if emptied or replaced:
            merge = merge.whenNotMatchedBySourceDelete(rows_of({**dict.fromkeys(replaced), **emptied}, "t"))
        if filled:
            columns: dict[str, str | Column] = {quoted(name): value for name, value in filled.items()}
            of_tables = rows_of(names_of(batch.fills, self._columns), "t")
            merge = merge.whenNotMatchedBySourceUpdate(of_tables & is_other(filled, "t"), columns)
        # MERGE evaluates its source twice unless it materializes it; it rejects a source that we cache.
        with session_conf(batch_df.sparkSession, {_MATERIALIZE: "all"}):
            merge.execute()

    def _emptied(self, batch_df: DataFrame) -> Emptied:
        return emptied_tables(
            batch_df,
            self._columns,
            self.change_type,
            self.sequence,
            of_one_table=self._context is not None and self._context.of_one_table,
            sink=f"DeltaUpsert({self.path!r})",
        )

    def _newest(self, batch_df: DataFrame) -> DataFrame:
        """The newest change of each key: the stored columns in order, then `_IS_DELETE`."""
        stored = [F.col(quoted(name)).alias(f"{_SOURCE}{number}") for number, name in enumerate(self._columns)]
        keys = [F.col(quoted(key)) for key in self.keys]
        is_delete = F.lit(False)
        if self.change_type is not None:
            kind = F.col(quoted(self.change_type))
            is_delete = (
                F.when(kind.isin(*UPSERTS), F.lit(False))
                .when(kind.isin(*DELETES), F.lit(True))
                .otherwise(
                    F.raise_error(
                        F.concat(
                            F.lit(f"DeltaUpsert({self.path!r}): unknown {self.change_type} = "),
                            F.coalesce(kind.cast("string"), F.lit("NULL")),
                            F.lit("; known: " + ", ".join(UPSERTS + DELETES) + "."),
                        )
                    ).cast("boolean")
                )
            )
        rows = batch_df.withColumn(_IS_DELETE, is_delete)
        if self.sequence is not None:
            order = Window.partitionBy(*keys).orderBy(F.col(quoted(self.sequence)).desc_nulls_last(), _IS_DELETE)
            newest = rows.withColumn(_RANK, F.row_number().over(order)).where(F.col(_RANK) == 1)
        else:
            # MERGE rejects two rows of one key only if the key is already in the table. New keys would be inserted
            # twice.
            twice = F.raise_error(
                F.lit(f"DeltaUpsert({self.path!r}): two rows of one key in a batch; name a sequence column.")
            ).cast("boolean")
            group = Window.partitionBy(*keys)
            upserts = F.count(F.when(~F.col(_IS_DELETE), 1)).over(group)
            rank = F.when(upserts > 1, twice.cast("int")).otherwise(F.row_number().over(group.orderBy(_IS_DELETE)))
            newest = rows.withColumn(_RANK, rank).where(F.col(_RANK) == 1)
        return newest.select(*stored, _IS_DELETE)

    def _stored_fields(self, context: SinkContext) -> list[StructField]:
        schema = context.schema
        if self._by_default:
            self.change_type, self.sequence, self.metadata_columns = CHANGE_TYPE, _SEQUENCE, METADATA
            there = tuple(name for name in METADATA if name in schema.names)
            if context.rows_are_results and there in ((), (CHANGE_TYPE,)):
                self.change_type, self.sequence, self.metadata_columns = there[0] if there else None, None, there
        names = set(schema.names)
        needed = [("metadata_columns", name) for name in self.metadata_columns]
        needed += [("change_type", self.change_type)] if self.change_type is not None else []
        needed += [("sequence", self.sequence)] if self.sequence is not None else []
        for setting, name in needed:
            if name not in names:
                raise SettingError(
                    f"DeltaUpsert {setting}",
                    name,
                    f"the stream has no such column; it has {', '.join(schema.names)}.",
                    "For rows that are not changes, append them with DeltaAppend(path), or upsert each row with "
                    "DeltaUpsert(…, change_type=None, sequence=None, metadata_columns=()).",
                )
        stored = [field for field in schema.fields if field.name not in self.metadata_columns]
        self._check_columns("keys", self.keys, stored)
        return stored

    def _reserved(self) -> dict[str, frozenset[str]]:
        found = super()._reserved()
        keys = _OF_FIRST_STEP & {key.lower() for key in self.keys}
        return {
            ALWAYS: found[ALWAYS] | _OF_MERGE | keys,
            CHANGE_DATA_FEED: found[CHANGE_DATA_FEED] | _OF_FEED,
            _VECTORS: _OF_VECTORS,
        }
