"""Says where the Delta table of each source table lies below one directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from backlog_spark.common.table_patterns import table_pattern

__all__ = ["TableRoutes", "overlap"]

_REPLACED: Final = "<>"  # Flink CDC's default symbol


class TableRoutes:
    """The routes of `DeltaTables`.

    Parameters
    ----------
    path : str
        The directory of all tables.
    routes : sequence of (str, str)
        Patterns of tables, and their directory below ``path``.

    Raises
    ------
    SettingError
        A route is no pattern of tables.
    """

    def __init__(self, path: str, routes: Sequence[tuple[str, str]]) -> None:
        self._root = path.rstrip("/")
        self._routes = [(re.compile(table_pattern([tables])), directory.strip("/")) for tables, directory in routes]

    def path_of(self, database: str, table: str) -> str:
        """Where a table's Delta table is."""
        for pattern, directory in self._routes:
            if pattern.fullmatch(f"{database}.{table}"):
                return f"{self._root}/{directory.replace(_REPLACED, _directory(table))}"
        return f"{self._root}/{_directory(database)}/{_directory(table)}"


def overlap(one: str, other: str) -> bool:
    """Whether one of two directories is the other one, or lies in it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _directory(name: str) -> str:
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")  # `..` is a name in MySQL
