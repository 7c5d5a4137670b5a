"""The contract of sinks that copy each table of a change stream of many tables into a table of its own.

What is noted of the tables, and when, does not depend on their format. A format implements `TablesSink`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import METADATA
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.begun_tables import TableMark, TableMarks, file_name
from backlog_spark.sinks.envelopes import COLUMNS, VALUE, TableColumns
from backlog_spark.sinks.forms import IGNORE
from backlog_spark.sinks.leftovers import KEEP, REFUSE, KeyFiles
from backlog_spark.sinks.newest_batches import TableBatches
from backlog_spark.sinks.rejected_rows import named
from backlog_spark.sinks.rows_of_tables import NO_ROWS, fills_of, rows_of_table, table_versions, together
from backlog_spark.sinks.table_routes import TablePlace
from backlog_spark.spark.plan.batch_frames import persisted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from backlog_spark.sinks.delta.upsert import DeltaUpsert
    from backlog_spark.sinks.iceberg.upsert import IcebergUpsert
    from backlog_spark.spark.checkpoint.store import CheckpointStore

__all__ = ["BegunTable", "TablesSink", "of_table"]

_log = logging.getLogger(__name__)

_NEEDED: Final = (VALUE, "_database", "_table", COLUMNS, *METADATA)


class _Upsert(Sink):
    """A sink of one table."""

    keys: tuple[str, ...]


@dataclass
class _Table:
    """One table in this run.

    Parameters
    ----------
    mark : TableMark
    schema : StructType, optional
        What the sink was opened with.
    sink : _Upsert, optional
        Open.
    """

    mark: TableMark
    schema: StructType | None = None
    sink: _Upsert | None = None


class BegunTable(NamedTuple):
    """Where a query writes a table, and its first batch with rows of it."""

    path: str
    batch: int


class TablesSink(Sink):
    """Keeps a table for each table of a ``mysql_cdc`` source.

    Parameters
    ----------
    one : Sink
        A sink as of one table, for the arguments that all tables share.
    """

    FORMAT: ClassVar[str]
    """Name of the format, for messages."""
    keeps_newest = True

    def __init__(self, one: DeltaUpsert | IcebergUpsert) -> None:
        self._on_existing_rows, self._deletes, self._form = one.on_existing_rows, one.deletes, one.form
        self._context: SinkContext | None = None
        self._marks: TableMarks | None = None
        self._batches: TableBatches | None = None
        self._tables: dict[tuple[str, str], _Table] = {}

    def fills(self, *, of_one_table: bool) -> bool:
        return True

    def described(self) -> dict[str, Any]:
        form = {"deletes": self._deletes, "history": None, **self._form.noted()}
        return {**super().described(), "kind": type(self).__name__, **form}

    @abstractmethod
    def path_of(self, database: str, table: str) -> str:
        """Where a source table's rows go: the path or the name of a table."""

    @abstractmethod
    def upsert(self, path: str, keys: Sequence[str]) -> Sink:
        """A sink of one of the tables. It has a ``written`` and ``keys``."""

    @abstractmethod
    def _notes(self, spark: SparkSession, txn_app_id: str, directory: str) -> CheckpointStore:
        """Where it is noted which tables a query has begun, and their newest batches.

        ``directory`` is as in `SinkContext`.
        """

    @abstractmethod
    def _all_tables(self) -> tuple[str, str]:
        """All tables, for a message that begins with them; and what to do if they lack batches."""

    @abstractmethod
    def _check_needs(self, spark: SparkSession) -> None:
        """Check that packages of the format are there."""

    @abstractmethod
    def _check_table(self, context: SinkContext, name: str, path: str) -> bool:
        """Check that a table has all batches that it had. ``context`` is as for its sink.

        Returns
        -------
        bool
            Whether it has any.

        Raises
        ------
        BacklogError
            It lacks batches, was restored or replaced, or has batches that the query has not planned.
        """

    @abstractmethod
    def _has_rows(self, path: str) -> bool:
        """Whether there is a table with rows."""

    @abstractmethod
    def _schema_of(self, path: str) -> StructType:
        """The columns of a table."""

    @abstractmethod
    def _refuse_overlap(self, one: TablePlace, other: TablePlace) -> None:
        """Refuse two tables that cannot have these places together."""

    @abstractmethod
    def _emptying(self, path: str) -> str:
        """A statement that empties a table."""

    def has_rows_of(self, spark: SparkSession, txn_app_id: str) -> bool:
        return bool(self._begun(spark, txn_app_id))

    def open(self, context: SinkContext) -> None:
        """Check the stream's columns, and that the tables of earlier runs are still there. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            The stream lacks a column.
        BacklogError
            A table of an earlier run lacks batches, was restored or replaced, or has another place now.
        """
        kind = type(self).__name__
        missing = [name for name in _NEEDED if name not in context.schema.names]
        if missing:
            raise SettingError(
                "metadataColumns", ",".join(context.schema.names), f"{kind} needs {', '.join(missing)}.",
                "Set format=debezium and metadataColumns=_change_type,_commit_timestamp,_commit_seq,_database,_table,"
                "_columns.",
            )  # fmt: skip
        self._check_needs(context.spark)
        self._context = context
        self._marks = TableMarks(self._notes(context.spark, context.txn_app_id, context.directory))
        self._batches = TableBatches(self._marks.files)
        tables, hint = self._all_tables()
        self._batches.check(tables, context.newest_committed, hint)
        self._tables = {}
        if self._on_existing_rows == REFUSE and context.newest_planned is None:
            self._refuse_rows(context)
        for mark in self._marks:
            newest = self._batches.of(mark.database, mark.table)
            app_id = self._app_id_of(context.txn_app_id, mark.name)
            own = replace(context, txn_app_id=app_id, newest_committed=newest, has_gaps=True)
            # Otherwise an earlier run ended before its first rows of the table. There may be none by now.
            if self._check_table(own, mark.name, mark.path):
                self._check_route(mark)
                self._tables[mark.database, mark.table] = _Table(mark)

    def _refuse_rows(self, context: SinkContext) -> None:
        for name in context.snapshot_of:
            if self._has_rows(path := self.path_of(*name)):
                raise SettingError(
                    "on_existing_rows", REFUSE,
                    f"the {self.FORMAT} table of {TableName(*name)}, {path}, has rows that this query did not write.",
                    "Name another place, or choose 'replace' or 'keep' (docs/sinks.md).",
                )  # fmt: skip

    def _begun(self, spark: SparkSession, txn_app_id: str, directory: str = "") -> dict[str, BegunTable]:
        """The tables that a query has written, by their `TableName` as text. ``directory`` is as in `SinkContext`."""
        marks = TableMarks(self._notes(spark, txn_app_id, directory))
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
            A table has no primary key, or its target does not fit.
        """
        if self._context is None or self._batches is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        with persisted(batch_df):
            groups: dict[tuple[str, str], list[Any]] = {}
            for row in table_versions(batch_df):
                groups.setdefault((row["_database"], row["_table"]), []).append(row)
            for name in self._to_replace() if batch.snapshot == "end" else ():
                versions = groups.get(name, [])
                # A TRUNCATE is skipped for a table into which nothing was written.
                if not versions or (name not in self._tables and all(each["only_events"] for each in versions)):
                    groups[name] = [NO_ROWS]
            for database, table, _ in batch.fills:
                if (database, table) in self._tables:
                    groups.setdefault((database, table), [NO_ROWS])
            written = {
                name: self._write_table(batch_df, replace(batch, fills=fills_of(batch.fills, name)), *name, versions)
                for name, versions in groups.items()
            }
        # After the tables and before Spark's commit: see `TableBatches`.
        self._batches.note(batch.batch_id, [name for name, each in written.items() if each is not None])
        self.written = together(batch.batch_id, list(written.values()))

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
                f"{name} has no primary key, so its rows cannot be told apart in the target.",
                "Name a unique key with messageKeyColumns, or leave the table out with tables.exclude.",
            )
        if state is None:
            state = self._begin(database, table, batch.batch_id, known[-1].key if known else ())
        elif known:
            self._check_key(state, known[-1].key)
        newest = known[-1] if known else self._of_target(state)
        rows = rows_of_table(batch_df, database, table, [version[COLUMNS] for version in versions], newest, batch.fills)
        if state.sink is None or (state.schema, state.sink.keys) != (rows.schema, newest.key):
            state.sink = self._opened(state, newest, rows.schema, batch.batch_id)
            state.schema = rows.schema
        with named(state.sink, f"The {self.FORMAT} table {state.mark.path}", rows):
            state.sink.write(rows, replace(batch, has_table_events=any(version["has_events"] for version in versions)))
        if any(version["is_dropped"] for version in versions):
            _log.warning("%s was dropped: %s. Its table %s stays.", name, self._dropped(), state.mark.path)
        return state.sink.written

    def _dropped(self) -> str:
        """What has become of the rows of a dropped table."""
        if self._deletes == IGNORE:
            return "its rows stay"
        return "its rows have ended" if self._form.names else "its rows were removed"

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

    def _directory(self, mark: TableMark) -> str:
        root = "" if self._context is None else self._context.directory
        return root and f"{root}/{file_name(mark)}"

    def _is_in_snapshot(self, mark: TableMark) -> bool:
        return self._context is not None and (mark.database, mark.table) in self._context.snapshot_of

    def _begin(self, database: str, table: str, batch_id: int, key: tuple[str, ...]) -> _Table:
        """The entry of a new table, which is noted before anything of the table is written."""
        made = _Table(TableMark(database, table, self.path_of(database, table), batch_id))
        for other in (each.mark for each in self._tables.values()):
            self._refuse_overlap(TablePlace(made.mark.name, made.mark.path), TablePlace(other.name, other.path))
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
            The target has rows of the dropped table.
        """
        mark = state.mark
        if mark.key == key:
            return
        if mark.key and self._has_rows(mark.path):
            raise BacklogError(
                f"The primary key of {mark.name} was ({', '.join(mark.key)}). The table was dropped, and the one that "
                f"has its name now has the key ({', '.join(key)}). The {self.FORMAT} table {mark.path} still has rows "
                "of the dropped table.",
                f"{self._emptying(mark.path)}, and start again: the query then writes all rows of the new table. Or "
                "leave the table out with tables.exclude.",
            )
        self._note(state, key=key)

    def _of_target(self, state: _Table) -> TableColumns:
        """The key columns of a table that gets no rows. If the key is unknown, any column will do."""
        schema = self._schema_of(state.mark.path)
        names = state.mark.key if state.mark.key and set(state.mark.key) <= set(schema.names) else (schema[0].name,)
        return TableColumns(names, tuple((name, schema[name].dataType.simpleString(), "text") for name in names))

    def _opened(self, state: _Table, columns: TableColumns, schema: StructType, batch_id: int) -> _Upsert:
        context, batches = self._context, self._batches
        assert context is not None
        assert batches is not None
        planned = -1 if context.newest_planned is None else context.newest_planned
        sink = state.sink or cast("_Upsert", self.upsert(state.mark.path, columns.key))
        sink.keys = columns.key
        own = replace(
            context,
            txn_app_id=self._app_id_of(context.txn_app_id, state.mark.name),
            schema=schema,
            # This batch may have been planned in an earlier run, as all before it.
            newest_planned=max(planned, batch_id - 1),
            newest_committed=batches.of(state.mark.database, state.mark.table),
            of_one_table=True,
            has_gaps=True,
            # All rows of the target are of this table.
            snapshot_of=((),) if self._is_in_snapshot(state.mark) else (),
            directory=self._directory(state.mark),
        )
        with of_table(state.mark.name):
            sink.open(own)
        return sink

    def _check_route(self, mark: TableMark) -> None:
        now = self.path_of(mark.database, mark.table)
        if now != mark.path:
            raise BacklogError(
                f"{mark.name} was begun in {mark.path}, and now belongs to {now}: earlier rows would be missing there.",
                "Put the route back, or start with a new checkpoint.",
            )


@contextmanager
def of_table(name: str) -> Iterator[None]:
    """Errors of a sink of one table, with the name of the source's table."""
    try:
        yield
    except SettingError:
        raise
    except BacklogError as error:
        raise BacklogError(f"{name}: {error.problem}", error.hint) from error
