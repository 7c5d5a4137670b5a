"""Copies each table of a change stream of many tables into a Delta table of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.requirements import require
from backlog_spark.common.sql_names import quoted
from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import CHANGE_TYPE, METADATA, TABLE_EVENTS
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.delta.begun_tables import TableMark, TableMarks, file_name
from backlog_spark.sinks.delta.envelopes import COLUMNS, VALUE, TableColumns, decoded, united
from backlog_spark.sinks.delta.newest_batches import TableBatches, check_table
from backlog_spark.sinks.delta.sink import checked_path
from backlog_spark.sinks.delta.upsert import DeltaUpsert
from backlog_spark.sinks.fills import new_columns
from backlog_spark.sinks.leftovers import KEEP, REFUSE, REPLACE, KeyFiles, check_choice
from backlog_spark.sinks.table_routes import TablePlace, TableRoutes, refuse_overlap
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.plan.batch_frames import persisted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BegunTable", "DeltaTables"]

_log = logging.getLogger(__name__)

_NEEDED: Final = (VALUE, "_database", "_table", COLUMNS, *METADATA)


# Stands for the rows of a table in a batch that has none.
_NO_ROWS: Final = {COLUMNS: None, "has_events": False, "only_events": False, "is_dropped": False}


@dataclass
class _Table:
    """One table in this run.

    Parameters
    ----------
    mark : TableMark
    schema : StructType, optional
        What the sink was opened with.
    sink : DeltaUpsert, optional
        Open.
    """

    mark: TableMark
    schema: StructType | None = None
    sink: DeltaUpsert | None = None


class BegunTable(NamedTuple):
    """Where a query writes a table, and its first batch with rows of it."""

    path: str
    batch: int


class DeltaTables(Sink):
    """Keeps a Delta table for each table of a ``mysql_cdc`` source, exactly once.

    The source has ``format=debezium`` and the metadata columns ``_database``, ``_table`` and ``_columns``. Each table
    is upserted by its primary key, as `DeltaUpsert` does it, into ``<path>/<database>/<table>``. A table that comes
    later gets its Delta table with its first rows. A batch is one transaction in each Delta table that it has rows for,
    with an application id of its own for each table.

    Columns that are added to a table are added to its Delta table. A dropped column stays there and is NULL in new
    rows. A renamed column is a new one. A column that gets a wider type is widened if the Delta table has the property
    ``delta.enableTypeWidening``. Any other change of a type stops the query. DROP removes the table's rows, or none
    with the source's option ``tableEvents=skip``; the Delta table stays.

    Parameters
    ----------
    path : str
        Directory of the tables. ``_backlog_tables`` in it says which tables each query has begun.
    routes : sequence of (str, str)
        Tables such as ``shop.orders`` or ``shop.order_*``, and their directory below ``path``. ``<>`` in it stands for
        the source table's name. The first route that matches counts. No table can have the directory of another one,
        or one below it.
    properties : mapping of str to str
        Table properties of tables that the sink creates.
    storage_options : mapping of str to str
        As of `DeltaUpsert`.
    compact : bool, default True
        As of `DeltaUpsert`.
    on_existing_rows : {"replace", "keep", "refuse"}, default "replace"
        As of `DeltaUpsert`, for each table. Tables without a row in the snapshot are emptied.

    Raises
    ------
    SettingError
        A route is no pattern of tables.
    """

    keeps_newest = True

    @checked_arguments
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        routes: Sequence[tuple[str, str]] = (),
        properties: Mapping[str, str] = MappingProxyType({}),
        storage_options: Mapping[str, str] = MappingProxyType({}),
        compact: bool = True,
        on_existing_rows: str = REPLACE,
    ) -> None:
        self.path = checked_path(path)
        self._routes = TableRoutes(self.path, routes)
        self._properties = dict(properties)
        self._storage_options = dict(storage_options)
        self._compact = compact
        self._on_existing_rows = check_choice(on_existing_rows)
        self._context: SinkContext | None = None
        self._marks: TableMarks | None = None
        self._batches: TableBatches | None = None
        self._tables: dict[tuple[str, str], _Table] = {}

    def fills(self, *, of_one_table: bool) -> bool:
        return True

    def for_output(self) -> DeltaTables:
        made = DeltaTables(
            self.path,
            properties=self._properties,
            storage_options=self._storage_options,
            compact=self._compact,
            on_existing_rows=self._on_existing_rows,
        )
        made._routes = self._routes
        return made

    def described(self) -> dict[str, Any]:
        return {"kind": "DeltaTables", "path": self.path}

    def has_rows_of(self, spark: SparkSession, txn_app_id: str) -> bool:
        return bool(self._begun(spark, txn_app_id))

    def path_of(self, database: str, table: str) -> str:
        """Where a table's Delta table is."""
        return self._routes.path_of(database, table)

    def open(self, context: SinkContext) -> None:
        """Check the stream's columns, and that the tables of earlier runs are still there. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            The stream lacks a column.
        BacklogError
            A table of an earlier run lacks batches, was restored or replaced, or has another directory now.
        """
        missing = [name for name in _NEEDED if name not in context.schema.names]
        if missing:
            raise SettingError(
                "metadataColumns", ",".join(context.schema.names), f"DeltaTables needs {', '.join(missing)}.",
                "Set format=debezium and metadataColumns=_change_type,_commit_timestamp,_commit_seq,_database,_table,"
                "_columns.",
            )  # fmt: skip
        require(type(self).__name__, "delta")
        delta_log.refuse_without_delta(context.spark)
        self._context = context
        self._marks = TableMarks(context.spark, self.path, context.txn_app_id)
        self._batches = TableBatches(self._marks.files)
        self._batches.check(self.path, context.newest_committed)
        self._tables = {}
        if self._on_existing_rows == REFUSE and context.newest_planned is None:
            self._refuse_rows(context)
        for mark in self._marks:
            app_id = self._app_id_of(context.txn_app_id, mark.name)
            newest = self._batches.of(mark.database, mark.table)
            # Otherwise an earlier run ended before its first rows of the table. There may be none by now.
            if check_table(context, mark.name, mark.path, app_id, newest, self._storage_options):
                self._check_route(mark)
                self._tables[mark.database, mark.table] = _Table(mark)

    def _refuse_rows(self, context: SinkContext) -> None:
        for name in context.snapshot_of:
            if self._has_rows(path := self.path_of(*name)):
                raise SettingError(
                    "on_existing_rows", REFUSE,
                    f"the Delta table of {TableName(*name)} at {path} has rows that this query did not write.",
                    "Name an empty path, or choose 'replace' or 'keep' (docs/sinks.md).",
                )  # fmt: skip

    def _begun(self, spark: SparkSession, txn_app_id: str) -> dict[str, BegunTable]:
        """The tables that a query has written, by their `TableName` as text."""
        marks = TableMarks(spark, self.path, txn_app_id)
        batches = TableBatches(marks.files)
        written = (mark for mark in marks if batches.of(mark.database, mark.table) is not None)
        return {mark.name: BegunTable(mark.path, mark.batch) for mark in written}

    @staticmethod
    def _app_id_of(txn_app_id: str, table: str) -> str:
        """The application id of one table's transactions."""
        return f"{txn_app_id}-{table}"

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Write a batch into each table that it has rows for. See :meth:`Sink.write`.

        Raises
        ------
        BacklogError
            A table has no primary key, or its Delta table does not fit; see `DeltaUpsert`.
        """
        if self._context is None or self._batches is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        with persisted(batch_df):
            groups: dict[tuple[str, str], list[Any]] = {}
            for row in self._versions(batch_df):
                groups.setdefault((row["_database"], row["_table"]), []).append(row)
            for name in self._to_replace() if batch.snapshot == "end" else ():
                versions = groups.get(name, [])
                # A TRUNCATE is skipped for a table into which nothing was written.
                if not versions or (name not in self._tables and all(each["only_events"] for each in versions)):
                    groups[name] = [_NO_ROWS]
            for database, table, _ in batch.fills:
                if (database, table) in self._tables:
                    groups.setdefault((database, table), [_NO_ROWS])
            written = {
                name: self._write_table(batch_df, replace(batch, fills=_of(batch.fills, name)), *name, versions)
                for name, versions in groups.items()
            }
        # After the tables and before Spark's commit: see `TableBatches`.
        self._batches.note(batch.batch_id, [name for name, each in written.items() if each is not None])
        self.written = _together(batch.batch_id, list(written.values()))

    @staticmethod
    def _versions(batch_df: DataFrame) -> list[Row]:
        """Tables of the batch with each version of their columns, oldest first."""
        grouped = batch_df.groupBy("_database", "_table", COLUMNS).agg(
            F.max("_commit_seq").alias("last"),
            F.max(F.col(CHANGE_TYPE).isin(*TABLE_EVENTS)).alias("has_events"),
            F.min(F.col(CHANGE_TYPE).isin(*TABLE_EVENTS)).alias("only_events"),
            F.max(F.col(CHANGE_TYPE) == "drop").alias("is_dropped"),
        )
        return sorted(grouped.collect(), key=lambda row: (row["_database"], row["_table"], row["last"]))

    def _write_table(
        self, batch_df: DataFrame, batch: BatchInfo, database: str, table: str, versions: list[Any]
    ) -> Written | None:
        name = str(TableName(database, table))
        state = self._tables.get((database, table))
        if state is None and all(version["only_events"] for version in versions):
            return None  # nothing of the table was written, so there is nothing to remove
        known = [TableColumns.parse(version[COLUMNS]) for version in versions if version[COLUMNS] is not None]
        if known and not known[-1].key:
            raise BacklogError(
                f"{name} has no primary key, so its rows cannot be told apart in a Delta table.",
                "Name a unique key with messageKeyColumns, or leave the table out with tables.exclude.",
            )
        if state is None:
            state = self._begin(database, table, batch.batch_id, known[-1].key if known else ())
        elif known:
            self._check_key(state, known[-1].key)
        newest = known[-1] if known else self._of_target(state)
        own = batch_df.where((F.col("_database") == database) & (F.col("_table") == table))
        parts = []
        for text in (version[COLUMNS] for version in versions):
            columns = newest if text is None else TableColumns.parse(text)
            parts.append(decoded(own.where(F.col(COLUMNS).eqNullSafe(F.lit(text))), name, columns))
        rows = united(parts, newest)
        for added, kind in new_columns(batch.fills).items():
            if added not in rows.columns:
                rows = rows.withColumn(added, F.lit(None).cast(kind))
        if state.sink is None or (state.schema, state.sink.keys) != (rows.schema, newest.key):
            state.sink = self._opened(state, newest, rows.schema, batch.batch_id)
            state.schema = rows.schema
        state.sink.write(rows, replace(batch, has_table_events=any(version["has_events"] for version in versions)))
        if any(version["is_dropped"] for version in versions):
            _log.warning(
                "%s was dropped: its rows were removed from the Delta table at %s, which stays.", name, state.mark.path
            )
        return state.sink.written

    def _to_replace(self) -> list[tuple[str, str]]:
        """Tables that may have older rows to remove at the end of the snapshot, whether the batch has rows or not."""
        context = self._context
        assert context is not None
        found = []
        for database, table in context.snapshot_of if self._on_existing_rows != KEEP else ():
            state = self._tables.get((database, table))
            if state is None:
                is_there = self._has_rows(self.path_of(database, table))
            else:
                is_there = bool(context.directory) and KeyFiles(context.spark, self._directory(state.mark)).exist()
            if is_there:
                found.append((database, table))
        return found

    def _has_rows(self, path: str) -> bool:
        assert self._context is not None
        spark = self._context.spark
        if delta_log.newest_version(spark, path, self._context.txn_app_id).version < 0:
            return False
        return not spark.read.format("delta").load(path).isEmpty()

    def _directory(self, mark: TableMark) -> str:
        root = "" if self._context is None else self._context.directory
        return root and f"{root}/{file_name(mark)}"

    def _is_in_snapshot(self, mark: TableMark) -> bool:
        return self._context is not None and (mark.database, mark.table) in self._context.snapshot_of

    def _begin(self, database: str, table: str, batch_id: int, key: tuple[str, ...]) -> _Table:
        """The entry of a new table, which is noted before anything of the table is written."""
        made = _Table(TableMark(database, table, self.path_of(database, table), batch_id))
        for other in (each.mark for each in self._tables.values()):
            refuse_overlap(TablePlace(made.mark.name, made.mark.path), TablePlace(other.name, other.path))
        self._note(made, key=key)
        self._tables[database, table] = made
        return made

    def _note(self, state: _Table, **more: Any) -> None:
        assert self._marks is not None
        state.mark = self._marks.note(replace(state.mark, **more))

    def _check_key(self, state: _Table, key: tuple[str, ...]) -> None:
        """Note the key of a table that replaces a dropped one.

        Raises
        ------
        BacklogError
            The Delta table has rows of the dropped table.
        """
        mark = state.mark
        if mark.key == key:
            return
        if mark.key and not self._target(mark).isEmpty():
            raise BacklogError(
                f"The primary key of {mark.name} was ({', '.join(mark.key)}). The table was dropped, and the one that "
                f"has its name now has the key ({', '.join(key)}). The Delta table at {mark.path} still has rows of "
                "the dropped table.",
                f"DELETE FROM delta.{quoted(mark.path)}, and start again: the query then writes all rows of the new "
                "table. Or leave the table out with tables.exclude.",
            )
        self._note(state, key=key)

    def _of_target(self, state: _Table) -> TableColumns:
        """The key columns of a Delta table that gets no rows. If the key is unknown, any column will do."""
        schema = self._target(state.mark).schema
        names = state.mark.key if state.mark.key and set(state.mark.key) <= set(schema.names) else (schema[0].name,)
        return TableColumns(names, tuple((name, schema[name].dataType.simpleString(), "text") for name in names))

    def _target(self, mark: TableMark) -> DataFrame:
        assert self._context is not None
        return self._context.spark.read.format("delta").load(mark.path)

    def _opened(self, state: _Table, columns: TableColumns, schema: StructType, batch_id: int) -> DeltaUpsert:
        context, batches = self._context, self._batches
        assert context is not None
        assert batches is not None
        planned = -1 if context.newest_planned is None else context.newest_planned
        sink = state.sink or DeltaUpsert(
            state.mark.path,
            list(columns.key),
            merge_schema=True,
            properties=self._properties,
            storage_options=self._storage_options,
            compact=self._compact,
            on_existing_rows=self._on_existing_rows,
        )
        sink.keys = columns.key
        of_table = replace(
            context,
            txn_app_id=self._app_id_of(context.txn_app_id, state.mark.name),
            schema=schema,
            # This batch may have been planned in an earlier run, as all before it.
            newest_planned=max(planned, batch_id - 1),
            newest_committed=batches.of(state.mark.database, state.mark.table),
            of_one_table=True,
            has_gaps=True,
            # All rows of the Delta table are of this table.
            snapshot_of=((),) if self._is_in_snapshot(state.mark) else (),
            directory=self._directory(state.mark),
        )
        try:
            sink.open(of_table)
        except SettingError:
            raise
        except BacklogError as error:
            raise BacklogError(f"{state.mark.name}: {error.problem}", error.hint) from error
        return sink

    def _check_route(self, mark: TableMark) -> None:
        now = self.path_of(mark.database, mark.table)
        if now != mark.path:
            raise BacklogError(
                f"{mark.name} was begun in {mark.path}, and now has the directory {now}: earlier rows would be missing "
                "there.",
                "Put the route back, or start with a new checkpoint.",
            )

    def __repr__(self) -> str:
        return f"DeltaTables({self.path!r})"


def _of(fills: Sequence[tuple[str, str, str]], name: tuple[str, str]) -> tuple[tuple[str, str, str], ...]:
    return tuple(fill for fill in fills if fill[:2] == name)


def _together(batch_id: int, written: Sequence[Written | None]) -> Written:
    """One report for all tables: of the slowest writer."""
    found = [each for each in written if each is not None]
    if not found:
        return Written(batch_id, "none", "the batch has no rows", rows=0)
    order = ("none", "direct", "files", "spark")
    slowest = max(found, key=lambda each: order.index(each.writer))
    rows = [each.rows for each in found]
    return Written(
        batch_id,
        slowest.writer,
        slowest.reason,
        None if None in rows else sum(each or 0 for each in rows),
        max(each.attempts for each in found),
        sum(each.seconds for each in found),
    )
