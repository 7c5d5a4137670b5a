"""Says where the rows of each source table go."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple
from urllib.parse import quote

from backlog_spark.common.table_patterns import table_pattern
from backlog_spark.errors import BacklogError

__all__ = ["REPLACED", "Routes", "TablePlace", "TableRoutes", "overlaps", "refuse_overlap"]

REPLACED: Final = "<>"  # Flink CDC's default symbol


class Routes:
    """Targets of some source tables.

    Parameters
    ----------
    routes : sequence of (str, str)
        Patterns of tables, and their target.

    Raises
    ------
    SettingError
        A route is no pattern of tables.
    """

    def __init__(self, routes: Sequence[tuple[str, str]]) -> None:
        self._routes = [(re.compile(table_pattern([tables])), target) for tables, target in routes]

    def __bool__(self) -> bool:
        return bool(self._routes)

    def target_of(self, database: str | None, table: str | None) -> str | None:
        """The target of the first route that matches, with `REPLACED` in it; None if there is none."""
        name = f"{database}.{table}"
        return next((target for pattern, target in self._routes if pattern.fullmatch(name)), None)


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
        self._routes = Routes(routes)

    def path_of(self, database: str, table: str) -> str:
        """Where a table's Delta table is."""
        directory = self._routes.target_of(database, table)
        if directory is None:
            return f"{self._root}/{_directory(database)}/{_directory(table)}"
        return f"{self._root}/{directory.strip('/').replace(REPLACED, _directory(table))}"


class TablePlace(NamedTuple):
    """A table, for messages, and its directory."""

    name: str
    path: str


def refuse_overlap(one: TablePlace, other: TablePlace) -> None:
    """Refuse two tables if one has the directory of the other one, or one in it. Some disks ignore case.

    Raises
    ------
    BacklogError
    """
    inner, outer = sorted((one, other), key=lambda place: -len(place.path))
    if not _parts(inner).startswith(_parts(outer)):
        return
    if not f"{inner.path}/".startswith(f"{outer.path}/"):
        raise BacklogError(
            f"The directories of {inner.name} and {outer.name}, {inner.path} and {outer.path}, overlap on a disk that "
            "ignores upper and lower case.",
            "Give one of the tables a route of its own, with a sink-table that has another name.",
        )
    raise BacklogError(
        f"{inner.name} would lie at {inner.path}, in the directory of {outer.name}, {outer.path}.",
        "Give each a sink-table of its own, with <> in it, and none below another one: VACUUM would remove "
        "its files. Shards of one table go into one Delta table with tablePattern and a delta_upsert sink.",
    )


def overlaps(
    places: Iterable[TablePlace], refuse: Callable[[TablePlace, TablePlace], None] = refuse_overlap
) -> Iterator[BacklogError]:
    """What ``refuse`` says of these tables: of each one that overlaps with the one before it by its path."""
    for one, other in pairwise(sorted(places, key=_parts)):
        try:
            refuse(one, other)
        except BacklogError as error:
            yield error


def _parts(place: TablePlace) -> str:
    # A separator that sorts before all characters of names: what is in a directory directly follows it.
    return f"{place.path}/".lower().replace("/", "\0")


def _directory(name: str) -> str:
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")  # `..` is a name in MySQL
