"""Small commits to a Delta table, by delta-rs from the driver, without a Spark job.

Each commit is made at exactly the version after the one that was read, or not at all. So no other commit can come in
between, and everything that was checked about the table still holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.table import TableMerger
from deltalake.transaction import AddAction, RemoveAction

from backlog_spark.sinks.delta.deltars.limits import (
    CommitConflict,
    has_exact_statistics,
    in_range_of_int96,
    refusal_of_table,
)
from backlog_spark.sinks.delta.deltars.merge_parts import MergeParts
from backlog_spark.sinks.delta.history import TableState
from backlog_spark.sinks.delta.maintenance.care import TableCare
from backlog_spark.sinks.delta.maintenance.file_merger import is_of_old_calendar
from backlog_spark.sinks.row_versions import CLOSING, DELETED, FIRST, LATER, condition

__all__ = ["DirectTable", "create_table"]

_CONFLICT: Final = "Another writer committed this version first."
# Maximum number of Parquet footers that are read before one batch.
_MOST_FOOTERS: Final = 256
_IS_DELETE: Final = "is_delete"
_KIND: Final = "kind"
# `TableCare` writes checkpoints and cleans up the log, between batches.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def create_table(
    path: str,
    storage_options: Mapping[str, str],
    columns: str,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
) -> None:
    """Create a table as Spark would; see `backlog_spark.sinks.delta.deltars.limits.refusal_of_creation`.

    Parameters
    ----------
    path : str
        Qualified path of the table.
    columns : str
        JSON of the table's columns.

    Raises
    ------
    DeltaError
        Nothing was created. The table may exist, if another query was faster.
    """
    DeltaTable.create(
        _root(path),
        Schema.from_json(columns),
        partition_by=list(partition_by),
        configuration=dict(properties),
        storage_options=dict(storage_options) or None,
        raise_if_key_not_exists=False,  # our own property is unknown to Delta
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=_NO_HOOKS,
    )


class DirectTable:
    """A Delta table as delta-rs reads it.

    Parameters
    ----------
    path : str
        Qualified path of the table.
    storage_options : mapping of str to str
        delta-rs's options for the table's storage. They may contain secrets.
    compact : bool
        Whether `look_after` merges small files.

    Raises
    ------
    DeltaError
        If the table cannot be opened. The text may contain secrets.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str], *, compact: bool = True) -> None:
        self._root = _root(path)
        self._storage_options = dict(storage_options) or None
        self._table = self._opened()
        self._care = TableCare(storage_options, compact=compact)
        self._looked = -1  # the version whose files are all known to be readable as Spark reads them
        self._readable: set[str] = set()  # paths of files that were checked

    def _opened(self) -> DeltaTable:
        return DeltaTable(self._root, storage_options=self._storage_options)

    def state(self, txn_app_id: str) -> TableState:
        """The newest version."""
        try:
            self._table.update_incremental()
            batch = self._table.transaction_version(txn_app_id)
        except DeltaError:
            # Files of the log are missing: an older copy was restored, or the table was removed.
            try:
                self._table = self._opened()
            except TableNotFoundError:
                return TableState(-1, None, {}, "")
            batch = self._table.transaction_version(txn_app_id)
        schema, partitions = self._table.schema().to_json(), tuple(self._table.metadata().partition_columns)
        return TableState(self._table.version(), batch, self._configuration(), schema, partitions)

    def refusal(self, *, merges: bool) -> str | None:
        """Why Spark has to write to the version that `state` found; None if delta-rs may write.

        Parameters
        ----------
        merges : bool
            Whether files of the table must be read and rewritten.
        """
        protocol, metadata = self._table.protocol(), self._table.metadata()
        fields = json.loads(self._table.schema().to_json())["fields"]
        reason = refusal_of_table(
            protocol.min_writer_version,
            protocol.writer_features or (),
            self._configuration(),
            fields,
            metadata.partition_columns,
            merges=merges,
        )
        return self._unread() if reason is None and merges else reason

    def declared(self) -> tuple[str, str]:
        """Metadata and protocol of the version that `state` found, as actions of its log."""
        metadata, protocol = self._table.metadata(), self._table.protocol()
        declared = {
            "id": str(metadata.id),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self._table.schema().to_json(),
            "partitionColumns": metadata.partition_columns,
            "configuration": self._configuration(),
            "createdTime": metadata.created_time,
        }
        versions: dict[str, Any] = {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
        }
        for name, features in (
            ("readerFeatures", protocol.reader_features),
            ("writerFeatures", protocol.writer_features),
        ):
            if features is not None:
                versions[name] = sorted(features)
        return json.dumps({"metaData": declared}, sort_keys=True), json.dumps({"protocol": versions})

    def fits(self, rows: pa.Table) -> bool:
        """Whether delta-rs writes the partitions of these rows as Spark does: only Spark treats '' as NULL."""
        partitions = {name.lower() for name in self._table.metadata().partition_columns}
        return not any(
            (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
            and pc.any(pc.equal(rows[field.name], "")).as_py()
            for field in rows.schema
            if field.name.lower() in partitions
        )

    def append(self, rows: pa.Table, txn_app_id: str, batch_id: int) -> None:
        """Append rows. Columns that the rows lack are NULL.

        Raises
        ------
        CommitConflict
            Nothing was written.
        """
        schema = self._schema()
        # The types are the same, but names of nested fields and the zone of a timestamp may differ.
        columns = {name.lower(): column for name, column in zip(rows.column_names, rows.columns, strict=True)}
        arrays = [
            columns[f.name.lower()].cast(f.type) if f.name.lower() in columns else pa.nulls(rows.num_rows, f.type)
            for f in schema
        ]
        whole = pa.Table.from_arrays(arrays, schema=schema)
        try:
            write_deltalake(
                self._table,
                whole,
                mode="append",
                writer_properties=_writer(schema),
                # This tells Spark that the rows depend on nothing in the table.
                commit_properties=_commit(txn_app_id, batch_id, isBlindAppend=True),
                post_commithook_properties=_NO_HOOKS,
            )
        except CommitFailedError:
            raise CommitConflict(_CONFLICT) from None
        self._has_written()

    def add_files(self, files: Sequence[Mapping[str, Any]], txn_app_id: str, batch_id: int) -> None:
        """Add files that Spark has written. Without files the commit has only the transaction.

        Parameters
        ----------
        files : sequence of mapping
            Delta's ``add`` actions.

        Raises
        ------
        CommitConflict
            Nothing was committed.
        """
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                unquote(file["path"]),  # delta-rs quotes the path again
                file["size"],
                file["partitionValues"],
                file["modificationTime"],
                file["dataChange"],
                file["stats"],
            )
            for file in files
        ]
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                self._table.metadata().partition_columns,
                commit_properties=_commit(txn_app_id, batch_id, isBlindAppend=True),
                post_commithook_properties=_NO_HOOKS,
            )
        except CommitFailedError:
            raise CommitConflict(_CONFLICT) from None
        self._table.update_incremental()
        self._has_written()

    def merge(
        self, rows: pa.Table, deletes: pa.ChunkedArray, keys: Sequence[str], txn_app_id: str, batch_id: int
    ) -> None:
        """Update, insert and delete rows by key.

        Parameters
        ----------
        rows : pyarrow.Table
            One row per key. In existing rows, table columns that `rows` lacks keep their values; in new rows they are
            NULL.
        deletes : pyarrow.ChunkedArray of bool
            Whether each row is a delete.
        keys : sequence of str
            NULL is a value like any other.

        Raises
        ------
        CommitConflict
            Nothing was written.
        """
        before, schema = self._table.version(), self._schema()
        if rows.num_rows:
            parts = MergeParts.of(rows, schema, keys)
            parts.source[_IS_DELETE] = deletes
            merge = self._merger(parts.source, parts.on, txn_app_id, batch_id)
            merge = merge.when_matched_delete(f"s.{_IS_DELETE}").when_matched_update(parts.values)
            _execute(merge.when_not_matched_insert(parts.values, f"NOT s.{_IS_DELETE}"))
        self._has_merged(before, txn_app_id, batch_id)

    def merge_versions(
        self,
        rows: pa.Table,
        kinds: pa.ChunkedArray,
        keys: Sequence[str],
        columns: tuple[str, str, str],
        tracked: Sequence[str],
        txn_app_id: str,
        batch_id: int,
    ) -> None:
        """Close and insert versions of rows, as `backlog_spark.sinks.row_versions` makes them.

        Parameters
        ----------
        rows : pyarrow.Table
        kinds : pyarrow.ChunkedArray of int
            The kind of each row.
        keys, columns, tracked : sequence of str
            As of `versions_of`.

        Raises
        ------
        CommitConflict
            Nothing was written.
        """
        before, schema = self._table.version(), self._schema()
        if rows.num_rows:
            parts = MergeParts.of(rows, schema, keys)
            parts.source[_KIND] = kinds
            since, until, is_current = (parts.named(schema, name) for name in columns)
            same = parts.same(schema, tracked)
            on = (*parts.on, condition(same, f"t.{is_current}", f"s.{_KIND}"))
            continued = {name: value for name, value in parts.values.items() if name != since}
            closed = {until: parts.values[since], is_current: "false"}
            merge = self._merger(parts.source, on, txn_app_id, batch_id)
            merge = merge.when_matched_update(closed, f"s.{_KIND} IN ({CLOSING}, {DELETED})")
            merge = merge.when_matched_update(continued, f"s.{_KIND} = {FIRST}")
            _execute(merge.when_not_matched_insert(parts.values, f"s.{_KIND} IN ({FIRST}, {LATER})"))
        self._has_merged(before, txn_app_id, batch_id)

    def _merger(self, source: dict[str, Any], on: Sequence[str], txn_app_id: str, batch_id: int) -> TableMerger:
        return self._table.merge(
            pa.table(source),
            " AND ".join(on),
            source_alias="s",
            target_alias="t",
            # With a materialized source, its minimum and maximum keys let delta-rs skip files of the table.
            streamed_exec=False,
            writer_properties=_writer(self._schema()),
            commit_properties=_commit(txn_app_id, batch_id),
            post_commithook_properties=_NO_HOOKS,
        )

    def _has_merged(self, before: int, txn_app_id: str, batch_id: int) -> None:
        # delta-rs commits nothing for a merge without effect, but every batch must leave its id in the table.
        if self._table.version() == before:
            self.append(self._schema().empty_table(), txn_app_id, batch_id)
        self._has_written()

    def look_after(self, *, merge: bool = True) -> None:
        """Merge small files and write a checkpoint, if they are due. Called after each commit."""
        if self.refusal(merges=False) is None:
            self._care.after_batch(self._table, merge=merge)

    def _schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    def _configuration(self) -> dict[str, str]:
        return {name: value for name, value in self._table.metadata().configuration.items() if value is not None}

    def _unread(self) -> str | None:
        """Why delta-rs may read some files of the table differently from Spark; None if it does not.

        A merge also rewrites rows that it does not change. delta-rs reads INT96, Spark's default form of timestamps, as
        nanoseconds, which end in the year 2262. It does not support the calendar that Spark used before 3.0. It does
        not find a column that a file has in another letter case.
        """
        if self._looked == self._table.version():
            return None
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        paths = {action["path"] for action in actions}
        self._readable &= paths
        sizes = {action["path"]: action["size_bytes"] for action in actions}
        store = pafs.PyFileSystem(DeltaStorageHandler(self._root, self._storage_options, sizes))
        schema = self._schema()
        new = [action for action in actions if action["path"] not in self._readable]
        for action in new[:_MOST_FOOTERS]:
            if not _is_readable(store, action, schema.names):
                return f"{action['path']} may be read wrongly (INT96, the old calendar, or another case of a name)"
            self._readable.add(action["path"])
        if len(new) > _MOST_FOOTERS:
            return f"{len(new) - _MOST_FOOTERS} files are not checked yet"
        self._looked = self._table.version()
        return None

    def _has_written(self) -> None:
        """The newest version's unchecked files are our own, so they count as checked."""
        if self._looked == self._table.version() - 1:
            self._looked += 1


def _root(path: str) -> str:
    return path.replace("s3a://", "s3://", 1).replace("s3n://", "s3://", 1)


def _is_readable(store: pafs.FileSystem, action: Mapping[str, Any], names: Sequence[str]) -> bool:
    # Paths in the log are escaped as in URLs. An absolute path belongs to another table, as in a clone.
    path = unquote(action["path"])
    if "://" in path or path.startswith(("/", "file:")):
        return False
    with pq.ParquetFile(store.open_input_file(path)) as file:
        metadata, found = file.metadata, file.schema_arrow.names
        if is_of_old_calendar(metadata.metadata or {}):
            return False
        columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    exact, lower = set(names), {name.lower() for name in names}
    if any(name not in exact and name.lower() in lower for name in found):
        return False
    return all(
        "." not in column.path
        and (
            action.get(f"null_count.{column.path}") == action["num_records"]
            or in_range_of_int96(action.get(f"min.{column.path}"), action.get(f"max.{column.path}"))
        )
        for column in columns
        if column.physical_type == "INT96"
    )


def _writer(schema: pa.Schema) -> WriterProperties:
    """Omit statistics that delta-rs writes wrongly: Spark would skip files that have matching rows."""
    exact = ColumnProperties(statistics_enabled="CHUNK")
    return WriterProperties(
        compression="SNAPPY",
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={field.name: exact for field in schema if has_exact_statistics(field.type)},
    )


def _commit(txn_app_id: str, batch_id: int, **information: bool) -> CommitProperties:
    # delta.setTransactionRetentionDuration is measured from this time.
    transaction = Transaction(txn_app_id, batch_id, int(time.time() * 1000))
    return CommitProperties(information or None, max_commit_retries=0, app_transactions=[transaction])


def _execute(merge: TableMerger) -> None:
    try:
        merge.execute()
    except CommitFailedError:
        raise CommitConflict(_CONFLICT) from None
