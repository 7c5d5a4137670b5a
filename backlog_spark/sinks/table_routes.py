"""Says where the Delta table of each source table lies below one directory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple
from urllib.parse import quote

from backlog_spark.common.table_patterns import table_pattern
from backlog_spark.errors import BacklogError

__all__ = ["TablePlace", "TableRoutes", "overlaps", "refuse_overlap"]

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


def overlaps(places: Iterable[TablePlace]) -> Iterator[BacklogError]:
    """What `refuse_overlap` says of these tables: of each one that overlaps with the one before it by its path."""
    for one, other in pairwise(sorted(places, key=_parts)):
        try:
            refuse_overlap(one, other)
        except BacklogError as error:
            yield error


def _parts(place: TablePlace) -> str:
    # A separator that sorts before all characters of names: what is in a directory directly follows it.
    return f"{place.path}/".lower().replace("/", "\0")


def _directory(name: str) -> str:
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")  # `..` is a name in MySQL
