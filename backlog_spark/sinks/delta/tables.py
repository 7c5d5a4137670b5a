"""Copies each table of a change stream of many tables into a Delta table of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.sql_names import quoted
from backlog_spark.sinks.delta.access import TableAccess
from backlog_spark.sinks.delta.committed_batches import KnownBatches
from backlog_spark.sinks.delta.deltars.limits import refusal_of_store
from backlog_spark.sinks.delta.sink import checked_path
from backlog_spark.sinks.delta.upsert import DeltaUpsert
from backlog_spark.sinks.forms import DELETED_COLUMN, REMOVE
from backlog_spark.sinks.leftovers import REPLACE, check_choice
from backlog_spark.sinks.table_routes import TablePlace, TableRoutes, refuse_overlap
from backlog_spark.sinks.tables import TablesSink, of_table
from backlog_spark.sinks.versions import IS_CURRENT, VALID_FROM, VALID_TO
from backlog_spark.spark.checkpoint.store import CheckpointStore
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.jvm.session import session_conf, session_copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from backlog_spark.sinks.base import SinkContext

__all__ = ["DeltaTables"]

_MARKS: Final = "_backlog_tables"


class DeltaTables(TablesSink):
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
    deletes, deleted_column, deleted_at_column, history, valid_from, valid_to, is_current
        As of `DeltaUpsert`, for each table.

    Raises
    ------
    SettingError
        A route is no pattern of tables.
    """

    FORMAT = "Delta"

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
        deletes: str = REMOVE,
        deleted_column: str = DELETED_COLUMN,
        deleted_at_column: str | None = None,
        history: str | None = None,
        valid_from: str = VALID_FROM,
        valid_to: str = VALID_TO,
        is_current: str = IS_CURRENT,
    ) -> None:
        self.path = checked_path(path)
        self._routes = TableRoutes(self.path, routes)
        self._storage_options = dict(storage_options)
        self._arguments: dict[str, Any] = {
            "properties": dict(properties),
            "storage_options": self._storage_options,
            "compact": compact,
            "on_existing_rows": check_choice(on_existing_rows),
            "deletes": deletes,
            "deleted_column": deleted_column,
            "deleted_at_column": deleted_at_column,
            "history": history,
            "valid_from": valid_from,
            "valid_to": valid_to,
            "is_current": is_current,
        }
        super().__init__(self.upsert(self.path, ["key"]))  # which refuses wrong arguments

    def for_output(self) -> DeltaTables:
        made = DeltaTables(self.path, **self._arguments)
        made._routes = self._routes
        return made

    def upsert(self, path: str, keys: Sequence[str]) -> DeltaUpsert:
        """A sink of one of the tables."""
        return DeltaUpsert(path, list(keys), merge_schema=True, **self._arguments)

    def described(self) -> dict[str, Any]:
        return {**super().described(), "path": self.path}

    def path_of(self, database: str, table: str) -> str:
        """Where a table's Delta table is."""
        return self._routes.path_of(database, table)

    def _notes(self, spark: SparkSession, txn_app_id: str, directory: str) -> CheckpointStore:
        return CheckpointStore(spark, f"{self.path.rstrip('/')}/{_MARKS}/{txn_app_id}")

    def _all_tables(self) -> tuple[str, str]:
        return (
            f"The Delta tables below {self.path}",
            "The directory is another one, or was replaced by an older copy. Put it back, or start with a new "
            "checkpointLocation and an empty path.",
        )

    def _check_needs(self, spark: SparkSession) -> None:
        delta_log.refuse_without_delta(spark, type(self).__name__)

    def _check_table(self, context: SinkContext, name: str, path: str) -> bool:
        # Runs no Spark job if delta-rs can read the table.
        path = delta_log.qualified_text(context.spark, path)
        access = TableAccess(path, self._storage_options, compact=False)
        access.open(refusal_of_store(path, self._storage_options, os.environ))
        spark = session_copy(context.spark)  # other queries of the session must not get our settings
        with session_conf(spark, delta_log.snapshot_conf(spark)):
            state = access.state(spark, context.txn_app_id)
        if context.newest_committed is not None or state.batch is not None:
            with of_table(name):
                KnownBatches(path, delta_log.log_path(spark, path), context).check_at_start(state)
        return state.batch is not None

    def _has_rows(self, path: str) -> bool:
        assert self._context is not None
        spark = self._context.spark
        if delta_log.newest_version(spark, path, self._context.txn_app_id).version < 0:
            return False
        return not self._frame(path).isEmpty()

    def _schema_of(self, path: str) -> StructType:
        return self._frame(path).schema

    def _frame(self, path: str) -> DataFrame:
        assert self._context is not None
        return self._context.spark.read.format("delta").load(path)

    def _refuse_overlap(self, one: TablePlace, other: TablePlace) -> None:
        refuse_overlap(one, other)

    def _emptying(self, path: str) -> str:
        return f"DELETE FROM delta.{quoted(path)}"

    def __repr__(self) -> str:
        return f"DeltaTables({self.path!r})"
