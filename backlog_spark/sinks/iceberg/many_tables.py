"""Copies each table of a change stream of many tables into an Iceberg table of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.requirements import require
from backlog_spark.errors import BacklogError
from backlog_spark.sinks.forms import DELETED_COLUMN, REMOVE
from backlog_spark.sinks.iceberg.catalogs import CatalogAccess, checked_catalog
from backlog_spark.sinks.iceberg.table_names import TableNames, refuse_same
from backlog_spark.sinks.iceberg.upsert import IcebergUpsert
from backlog_spark.sinks.leftovers import REPLACE
from backlog_spark.sinks.table_routes import TablePlace
from backlog_spark.sinks.tables import TablesSink, of_table
from backlog_spark.sinks.versions import IS_CURRENT, VALID_FROM, VALID_TO
from backlog_spark.spark.checkpoint.store import CheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from backlog_spark.sinks.base import SinkContext
    from backlog_spark.spi.examination import Finding

__all__ = ["IcebergTables"]


class IcebergTables(TablesSink):
    """Keeps an Apache Iceberg table for each table of a ``mysql_cdc`` source, exactly once.

    The source has ``format=debezium`` and the metadata columns ``_database``, ``_table`` and ``_columns``. Each table
    is upserted by its primary key, as `IcebergUpsert` does it, into a table of its name in a namespace named as its
    database. A table that comes later gets its Iceberg table with its first rows. A batch is one commit of each Iceberg
    table that it has rows for, with a mark of its own.

    Columns that are added to a table are added to its Iceberg table, and wider types widen its columns where Iceberg
    can. A dropped column stays there and is NULL in new rows. Any other change of a type stops the query. DROP removes
    the table's rows, or none with the source's option ``tableEvents=skip``; the Iceberg table stays.

    Parameters
    ----------
    catalog : mapping of str to str
        As of `IcebergAppend`.
    routes : sequence of (str, str)
        Tables such as ``shop.orders`` or ``shop.order_*``, and their namespace and name, such as ``lake.ods_<>``.
        ``<>`` stands for the source table's name. The first route that matches counts. No two tables can have one name,
        whatever its case.
    properties : mapping of str to str
        Table properties of tables that the sink creates.
    expire_snapshots : str, optional
    compact : bool, default False
    on_existing_rows : {"replace", "keep", "refuse"}, default "replace"
        As of `IcebergUpsert`, for each table. Tables without a row in the snapshot are emptied.
    deletes, deleted_column, deleted_at_column, history, valid_from, valid_to, is_current
        As of `IcebergUpsert`, for each table.

    Raises
    ------
    SettingError
        A route is no pattern of tables, or names no namespace and table.

    Examples
    --------
    >>> IcebergTables({"warehouse": "/lake"}, routes=[("shop.*", "ods.shop_<>")])
    IcebergTables('sqlite:////lake/catalog.db')
    """

    FORMAT = "Iceberg"

    @checked_arguments
    def __init__(
        self,
        catalog: Mapping[str, str],
        *,
        routes: Sequence[tuple[str, str]] = (),
        properties: Mapping[str, str] = MappingProxyType({}),
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
    ) -> None:
        self._access = CatalogAccess(checked_catalog(catalog))
        self._names = TableNames(routes)
        self._arguments: dict[str, Any] = {
            "properties": dict(properties),
            "expire_snapshots": expire_snapshots,
            "compact": compact,
            "on_existing_rows": on_existing_rows,
            "deletes": deletes,
            "deleted_column": deleted_column,
            "deleted_at_column": deleted_at_column,
            "history": history,
            "valid_from": valid_from,
            "valid_to": valid_to,
            "is_current": is_current,
        }
        self._catalog = dict(catalog)
        super().__init__(self.upsert("namespace.table", ["key"]))  # which refuses wrong arguments

    def for_output(self) -> IcebergTables:
        made = IcebergTables(self._catalog, **self._arguments)
        made._names = self._names
        return made

    def described(self) -> dict[str, Any]:
        return {**super().described(), "place": self._access.place}

    def has_rows_of(self, spark: SparkSession, txn_app_id: str) -> bool:
        return False  # the notes of the tables are in the checkpoint, so nothing tells which tables were moved

    def examine(self) -> Iterator[Finding]:
        """What ``backlog-spark check`` tells of the catalog. Raises `BacklogError` if it refuses."""
        from backlog_spark.sinks.iceberg.examination import examine_catalog

        yield from examine_catalog(self._access, "")

    def path_of(self, database: str, table: str) -> str:
        """The name of a table's Iceberg table."""
        return self._names.path_of(database, table)

    def upsert(self, path: str, keys: Sequence[str]) -> IcebergUpsert:
        """A sink of one of the tables."""
        made = IcebergUpsert(path, list(keys), self._catalog, merge_schema=True, **self._arguments)
        made._access = self._access.of(path)
        return made

    def _notes(self, spark: SparkSession, txn_app_id: str, directory: str) -> CheckpointStore:
        if not directory:
            raise BacklogError(f"{self!r} has no directory in a checkpoint.", "Write to it with bs.source(…).write(…).")
        return CheckpointStore(spark, f"{directory}/tables")

    def _all_tables(self) -> tuple[str, str]:
        hint = "Files of the checkpoint are missing. Restore it, or start with a new one."
        return f"The Iceberg tables of {self._access.place}", hint

    def _check_needs(self, spark: SparkSession) -> None:
        require(type(self).__name__, "pyiceberg")

    def _check_table(self, context: SinkContext, name: str, path: str) -> bool:
        with of_table(name):
            return self.upsert(path, ["key"]).check_batches(context)

    def _has_rows(self, path: str) -> bool:
        table = self._access.of(path).load()
        return table is not None and any(task.file.record_count for task in table.scan().plan_files())

    def _schema_of(self, path: str) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        table = self._access.of(path).load()
        if table is None:
            raise BacklogError(f"There is no Iceberg table {self._access.of(path).place}.", "Put the table back.")
        return from_arrow_schema(table.schema().as_arrow())

    def _refuse_overlap(self, one: TablePlace, other: TablePlace) -> None:
        refuse_same(one, other)

    def _emptying(self, path: str) -> str:
        return f"DELETE FROM {path}"

    def __repr__(self) -> str:
        return f"IcebergTables({self._access.place!r})"
