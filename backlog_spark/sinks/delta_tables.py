"""Copies each table of a change stream of many tables into a Delta table of its own."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from pyspark.sql import functions as F

from backlog_spark.common.requirements import require
from backlog_spark.common.sql_names import quoted
from backlog_spark.common.table_patterns import table_pattern
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import CHANGE_TYPE, METADATA, TABLE_EVENTS
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.delta_upsert import DeltaUpsert
from backlog_spark.sinks.envelopes import COLUMNS, VALUE, TableColumns, decoded
from backlog_spark.spark import delta_log
from backlog_spark.spark.batch_frames import persisted
from backlog_spark.spark.checkpoint_store import CheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BegunTable", "DeltaTables"]

_log = logging.getLogger(__name__)

_NEEDED: Final = (VALUE, "_database", "_table", COLUMNS, *METADATA)
_MARKS: Final = "_backlog_tables"
_REPLACED: Final = "<>"  # Flink CDC's default symbol


@dataclass
class _Table:
    """One table in this run.

    Parameters
    ----------
    mark : dict
        What the target's directory says about it: ``path`` and the query's first ``batch`` with rows of it.
    schema : StructType, optional
        What the sink was opened with.
    sink : DeltaUpsert, optional
        Open.
    """

    mark: dict[str, object]
    schema: StructType | None = None
    sink: DeltaUpsert | None = None

    @property
    def name(self) -> str:
        return f"{self.mark['database']}.{self.mark['table']}"


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
        the source table's name. The first route that matches counts. Two tables cannot have one directory.
    properties : mapping of str to str
        Table properties of tables that the sink creates.
    storage_options : mapping of str to str
        As of `DeltaUpsert`.
    compact : bool, default True
        As of `DeltaUpsert`.

    Raises
    ------
    SettingError
        A route is no pattern of tables.
    """

    def __init__(
        self,
        path: str,
        *,
        routes: Sequence[tuple[str, str]] = (),
        properties: Mapping[str, str] = MappingProxyType({}),
        storage_options: Mapping[str, str] = MappingProxyType({}),
        compact: bool = True,
    ) -> None:
        self.path = path
        self._routes = [(re.compile(table_pattern([tables])), directory.strip("/")) for tables, directory in routes]
        self._properties = dict(properties)
        self._storage_options = dict(storage_options)
        self._compact = compact
        self._context: SinkContext | None = None
        self._marks: CheckpointStore | None = None
        self._tables: dict[tuple[str, str], _Table] = {}

    def for_output(self) -> DeltaTables:
        made = DeltaTables(
            self.path, properties=self._properties, storage_options=self._storage_options, compact=self._compact
        )
        made._routes = self._routes
        return made

    def path_of(self, database: str, table: str) -> str:
        """Where a table's Delta table is."""
        name = f"{database}.{table}"
        for pattern, directory in self._routes:
            if pattern.fullmatch(name):
                return f"{self.path.rstrip('/')}/{directory.replace(_REPLACED, quote(table, safe=''))}"
        return f"{self.path.rstrip('/')}/{quote(database, safe='')}/{quote(table, safe='')}"

    def open(self, context: SinkContext) -> None:
        """Check the stream's columns, and that the tables of earlier runs are still there. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            The stream lacks a column.
        BacklogError
            A table of an earlier run is missing, or has another directory now.
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
        self._marks = self._marks_of(context.spark, context.txn_app_id)
        self._tables = {}
        for mark in _read(self._marks):
            self._tables[str(mark["database"]), str(mark["table"])] = _Table(mark)
            self._check_mark(mark, context.newest_committed)

    def _marks_of(self, spark: SparkSession, txn_app_id: str) -> CheckpointStore:
        return CheckpointStore(spark, f"{self.path.rstrip('/')}/{_MARKS}/{txn_app_id}")

    def begun(self, spark: SparkSession, txn_app_id: str) -> dict[str, BegunTable]:
        """The tables that a query has begun, by ``database.table``."""
        marks = _read(self._marks_of(spark, txn_app_id))
        return {
            f"{mark['database']}.{mark['table']}": BegunTable(str(mark["path"]), int(str(mark["batch"])))
            for mark in marks
        }

    @staticmethod
    def app_id_of(txn_app_id: str, table: str) -> str:
        """The application id of one table's transactions."""
        return f"{txn_app_id}-{table}"

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Write a batch into each table that it has rows for. See :meth:`Sink.write`.

        Raises
        ------
        BacklogError
            A table has no primary key, or its Delta table does not fit; see `DeltaUpsert`.
        """
        if self._context is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        with persisted(batch_df):
            groups: dict[tuple[str, str], list[Row]] = {}
            for row in self._versions(batch_df):
                groups.setdefault((row["_database"], row["_table"]), []).append(row)
            written = [self._write_table(batch_df, batch, *name, versions) for name, versions in groups.items()]
        self.written = _together(batch.batch_id, written)

    @staticmethod
    def _versions(batch_df: DataFrame) -> list[Row]:
        """Tables of the batch with each version of their columns, oldest first."""
        grouped = batch_df.groupBy("_database", "_table", COLUMNS).agg(
            F.max("_commit_seq").alias("last"),
            F.max(F.col(CHANGE_TYPE).isin(*TABLE_EVENTS)).alias("has_events"),
            F.max(F.col(CHANGE_TYPE) == "drop").alias("is_dropped"),
        )
        return sorted(grouped.collect(), key=lambda row: (row["_database"], row["_table"], row["last"]))

    def _write_table(
        self, batch_df: DataFrame, batch: BatchInfo, database: str, table: str, versions: list[Row]
    ) -> Written | None:
        name = f"{database}.{table}"
        state = self._begun(database, table, batch.batch_id)
        path = state.mark["path"]
        own = batch_df.where((F.col("_database") == database) & (F.col("_table") == table))
        found = [TableColumns.parse(version[COLUMNS]) for version in versions]
        newest = found[-1]
        if not newest.key:
            raise BacklogError(
                f"{name} has no primary key, so its rows cannot be told apart in a Delta table.",
                "Name a unique key with messageKeyColumns, or leave the table out with tables.exclude.",
            )
        parts = [
            decoded(own.where(F.col(COLUMNS) == version[COLUMNS]), name, columns)
            for version, columns in zip(versions, found, strict=True)
        ]
        rows = _united(parts, newest)
        if state.sink is None or state.schema != rows.schema:
            state.sink = self._opened(state, name, newest, rows.schema, batch.batch_id)
            state.schema = rows.schema
        state.sink.write(rows, replace(batch, has_table_events=any(version["has_events"] for version in versions)))
        if any(version["is_dropped"] for version in versions):
            _log.warning("%s was dropped: its rows were removed from the Delta table at %s, which stays.", name, path)
        return state.sink.written

    def _begun(self, database: str, table: str, batch_id: int) -> _Table:
        """The table's entry. Its first batch is noted before anything of it is written."""
        assert self._marks is not None
        if (database, table) in self._tables:
            return self._tables[database, table]
        path = self.path_of(database, table)
        for other in self._tables.values():
            if other.mark["path"] == path:
                raise BacklogError(
                    f"{database}.{table} and {other.name} have one directory, {path}.",
                    "Give each a sink-table of its own, with <> in it. Shards of one table go into one Delta table "
                    "with tablePattern and a delta_upsert sink.",
                )
        mark: dict[str, object] = {"database": database, "table": table, "path": path, "batch": batch_id}
        self._marks.make_directory("tables")
        self._marks.write_file(f"tables/{quote(f'{database}.{table}', safe='')}.json", json.dumps(mark))
        self._tables[database, table] = made = _Table(mark)
        return made

    def _opened(
        self, state: _Table, name: str, columns: TableColumns, schema: StructType, batch_id: int
    ) -> DeltaUpsert:
        context = self._context
        assert context is not None
        planned = context.newest_planned
        sink = state.sink or DeltaUpsert(
            str(state.mark["path"]),
            list(columns.key),
            merge_schema=True,
            properties=self._properties,
            storage_options=self._storage_options,
            compact=self._compact,
        )
        sink.keys = columns.key
        of_table = replace(
            context,
            txn_app_id=self.app_id_of(context.txn_app_id, name),
            schema=schema,
            # This batch may have been planned in an earlier run. Later ones were not.
            newest_planned=planned if planned is not None and batch_id <= planned else batch_id,
            newest_committed=None,
            of_one_table=True,
            has_gaps=True,
        )
        try:
            sink.open(of_table)
        except SettingError:
            raise
        except BacklogError as error:
            raise BacklogError(f"{name}: {error.problem}", error.hint) from error
        return sink

    def _check_mark(self, mark: dict[str, object], committed: int | None) -> None:
        context = self._context
        assert context is not None
        name, path = f"{mark['database']}.{mark['table']}", str(mark["path"])
        now = self.path_of(str(mark["database"]), str(mark["table"]))
        if now != path:
            raise BacklogError(
                f"{name} was begun in {path}, and now has the directory {now}: earlier rows would be missing there.",
                "Put the route back, or start with a new checkpoint.",
            )
        first = int(str(mark["batch"]))
        if committed is None or first > committed:
            return  # its first batch may not have been written
        if delta_log.newest_version(context.spark, path, self.app_id_of(context.txn_app_id, name)).batch is None:
            raise BacklogError(
                f"The Delta table of {name} at {path} lacks the rows that this query has written since batch {first}: "
                "it was removed or replaced.",
                "Put the table back, or start with a new checkpointLocation and an empty path.",
            )

    def __repr__(self) -> str:
        return f"DeltaTables({self.path!r})"


def _read(marks: CheckpointStore) -> Iterator[dict[str, object]]:
    for name in marks.names_in("tables"):
        if not name.startswith(".") and name.endswith(".json"):
            yield json.loads(marks.read_file(f"tables/{name}") or "{}")


def _united(parts: list[DataFrame], newest: TableColumns) -> DataFrame:
    """Rows of several versions of a table. Columns that the newest version still has get its types."""
    kinds = {name: kind for name, kind, _ in newest.columns}
    rows = parts[-1]
    for part in parts[:-1]:
        columns = [(name, F.col(quoted(name))) for name in part.columns]
        cast = [column.cast(kinds[name]).alias(name) if name in kinds else column for name, column in columns]
        rows = rows.unionByName(part.select(*cast), allowMissingColumns=True)
    return rows


def _together(batch_id: int, written: Sequence[Written | None]) -> Written:
    """One report for all tables: of the slowest road."""
    found = [each for each in written if each is not None]
    if not found:
        return Written(batch_id, "none", "the batch has no rows", rows=0)
    order = ("none", "direct", "files", "spark")
    slowest = max(found, key=lambda each: order.index(each.road))
    rows = [each.rows for each in found]
    return Written(
        batch_id,
        slowest.road,
        slowest.reason,
        None if None in rows else sum(each or 0 for each in rows),
        max(each.attempts for each in found),
        sum(each.seconds for each in found),
    )
