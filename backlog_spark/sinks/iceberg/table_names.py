"""Says which Iceberg table the rows of each source table go to (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.iceberg.catalogs import checked_table
from backlog_spark.sinks.table_routes import REPLACED, Routes, TablePlace

__all__ = ["TableNames", "refuse_same"]


class TableNames:
    """The tables of `IcebergTables`.

    Parameters
    ----------
    routes : sequence of (str, str)
        Patterns of source tables, and their namespace and name. ``<>`` stands for the source table's name.

    Raises
    ------
    SettingError
        A route is no pattern of tables, or names no namespace and table.
    """

    def __init__(self, routes: Sequence[tuple[str, str]]) -> None:
        for _, target in routes:
            try:
                checked_table(target)
            except SettingError as error:
                raise SettingError(
                    "routes", target, "is no namespace and table.", "Write both, such as lake.ods_<>."
                ) from error
        self._routes = Routes(routes)

    def path_of(self, database: str, table: str) -> str:
        """The Iceberg table of a source table: by default of the same name, in a namespace named as the database.

        Raises
        ------
        BacklogError
            A catalog would read the name as another one.
        """
        target = self._routes.target_of(database, table)
        used = [database, table] if target is None else [table] if REPLACED in target else []
        if any("." in name or not name.strip() for name in used):
            raise BacklogError(
                f"A dot in {database}.{table} would end the name of a namespace of Iceberg.",
                "Give the table a route of its own, without <>.",
            )
        return f"{database}.{table}" if target is None else target.replace(REPLACED, table)


def refuse_same(one: TablePlace, other: TablePlace) -> None:
    """Refuse two source tables with one target. Some catalogs ignore case.

    Raises
    ------
    BacklogError
    """
    if one.path.lower() == other.path.lower():
        raise BacklogError(
            f"{one.name} and {other.name} would have one Iceberg table, {one.path}.",
            "Give each a sink-table of its own, with <> in it. Shards of one table go into one Iceberg table with "
            "tablePattern and an iceberg_upsert sink.",
        )
