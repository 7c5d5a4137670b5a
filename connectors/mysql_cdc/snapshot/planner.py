"""Plans what a snapshot batch reads: ranges of keys, table by table, and the watermark at which they are read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pymysql.connections import Connection

from ..offsets import Offset, SnapshotRange
from ..options import MySqlOptions
from ..schema.declared import DeclaredTables
from ..schema.keys import Key
from ..schema.table import TableSchema
from ..server.mysql import low_watermark
from ..server.unlogged import without_prepared
from .chunks import Chunks, Splitter

__all__ = ["SnapshotPlan", "SnapshotPlanner"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class SnapshotPlan:
    """The ranges of a batch.

    Parameters
    ----------
    ranges : tuple of SnapshotRange
    forms : tuple of TableSchema
        `Offset.forms` after the batch.
    is_last : bool
        Whether the batch completes every table.
    """

    ranges: tuple[SnapshotRange, ...]
    forms: tuple[TableSchema, ...]
    is_last: bool

    @property
    def rows(self) -> int:
        return sum(r.rows for r in self.ranges)


class SnapshotPlanner:
    """Plans one snapshot batch after the other, and cuts them into chunks.

    Parameters
    ----------
    options, tables
        Where to read, and the declared tables.
    """

    def __init__(self, options: MySqlOptions, tables: DeclaredTables) -> None:
        self._options = options
        self._tables = tables
        self._chunks: dict[tuple[int, Key | None, Key | None], Chunks] = {}

    def plan(self, connection: Connection[Any], start: Offset, wanted: int | None, *, limited: bool) -> SnapshotPlan:
        """The next batch.

        Parameters
        ----------
        wanted : int or None
            Rows that it should have; None for all that are left.
        limited : bool
            Whether ``wanted`` is a strict limit. Otherwise a batch may be somewhat larger.

        Raises
        ------
        SchemaChanged
            A table does not have its declared columns.
        """
        pieces = self._cut(connection, start, wanted, limited)
        after = dict(start.unread())
        begins = any(after[table] is None for table, _ in pieces)
        take = functools.partial(low_watermark, connection)
        low, at_ms = without_prepared(connection, take) if begins else take()
        self._chunks = {(t, after[t], chunks.ends[-1]): chunks for t, chunks in pieces}
        forms = list(start.forms)
        ranges = []
        for table, chunks in pieces:
            schema = self._tables.of(start.tables[table])
            self._tables.check_unaltered(connection, schema)
            found = SnapshotRange(chunks.ends[-1], low, at_ms, table, chunks.rows)
            if schema.fingerprint() != start.tables[table].fingerprint():
                if schema not in forms:
                    forms.append(schema)
                found = replace(found, form=forms.index(schema) + 1)
            ranges.append(found)
        is_last = len(ranges) == len(after) and ranges[-1].end is None
        return SnapshotPlan(tuple(ranges), tuple(forms), is_last)

    def _cut(
        self, connection: Connection[Any], start: Offset, wanted: int | None, limited: bool
    ) -> list[tuple[int, Chunks]]:
        """Chunks that hold about ``wanted`` rows, by table."""
        pieces: list[tuple[int, Chunks]] = []
        counted = 0
        for table, key in start.unread():
            schema = self._tables.of(start.tables[table])
            rows = wanted if wanted is None else wanted - counted
            if rows is not None and rows <= 0:
                break
            if not schema.chunks_stay:
                rows = None
            before = sum(r.rows for r in start.ranges_of(table))
            splitter = Splitter(connection, schema, self._options)
            chunks = splitter.next(key, rows, at_most=rows is not None and limited, before=before)
            pieces.append((table, chunks))
            counted += chunks.rows
            if chunks.ends[-1] is not None:
                break
        return pieces

    def chunks(
        self, of: SnapshotRange, schema: TableSchema, low: Key | None, run: Callable[..., Chunks]
    ) -> list[tuple[Key | None, Key | None]]:
        """The chunks of a range after key ``low``; each is the key before it and its last key.

        ``run`` calls a function with a connection. It is used if another process planned the range.
        """
        found = self._chunks.get((of.table, low, of.end))
        if found is None:
            found = run(lambda connection: Splitter(connection, schema, self._options).between(low, of.end))
        return list(zip([low, *found.ends[:-1]], found.ends, strict=True))
