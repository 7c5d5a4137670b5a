"""Says how many rows of a snapshot are read and still to be read: for progress only, never for reading.

InnoDB's statistics may be wrong by half, and its estimates of ranges by more. So a table is counted if that takes less
than half a second, and then the range of each batch is counted too. For other tables with numeric keys, the statistics
are corrected with the share of the key range that has been planned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from ..offsets import NO_TABLE as WITHOUT_TABLE
from ..offsets import Offset, SnapshotRange
from ..options import MySqlOptions
from ..schema.keys import Key, key_kind, key_range
from ..schema.table import TableSchema
from ..server.connection import NO_TABLE
from .chunks import Splitter, count_rows, estimated_rows

__all__ = ["Remaining", "corrected"]

_COUNT_S = 0.5
"""For all tables of a snapshot together, and for one range. A server counts one to two million rows in that time."""

_TIMEOUTS = {1969, 3024}  # MariaDB's and MySQL's


class Remaining:
    """Remembers the number of rows found for each table."""

    def __init__(self, options: MySqlOptions) -> None:
        self._options = options
        # By qualified name. The first: rows that follow after a key; None for a table that takes too long to count.
        self._counted: dict[str, tuple[Key | None, int] | None] = {}
        self._estimated: dict[str, int] = {}
        self._left_s = _COUNT_S

    def count(
        self,
        connection: Connection[Any],
        tables: Sequence[TableSchema],
        start: Offset,
        ranges: Sequence[SnapshotRange],
    ) -> tuple[SnapshotRange, ...]:
        """The same ranges, those of the batch after ``start``, with counted instead of estimated rows.

        Ranges of tables that take too long to count are left as they are.
        """
        after, found = dict(start.unread()), []
        for of in ranges:
            rows = None
            if of.form != WITHOUT_TABLE:
                rows = self._count_range(connection, tables[of.table], after[of.table], of.end)
            found.append(of if rows is None else replace(of, rows=rows))
        return tuple(found)

    def rows(self, connection: Connection[Any], tables: Sequence[TableSchema], planned: Offset) -> int:
        """Rows that are in no range of ``planned``."""
        rest = 0
        for table, end in planned.unread():
            schema = tables[table]
            try:
                left = self._count_rest(connection, schema, end)
                if left is None:
                    left = self._estimate_rest(connection, schema, end, sum(r.rows for r in planned.ranges_of(table)))
            except pymysql.err.MySQLError as error:
                if error.args[0] not in NO_TABLE:
                    raise
                continue
            rest += left
        return rest

    def _count_range(
        self, connection: Connection[Any], schema: TableSchema, low: Key | None, high: Key | None
    ) -> int | None:
        try:
            rest = self._count_rest(connection, schema, low)
            if rest is None or high is None:
                return rest
            rows = _count(connection, schema, key_range(schema.chunk_columns, low, high), _COUNT_S)
        except pymysql.err.MySQLError as error:
            if error.args[0] not in NO_TABLE:
                raise
            return None
        self._counted[schema.qualified] = None if rows is None else (high, max(0, rest - rows))
        return rows

    def _count_rest(self, connection: Connection[Any], schema: TableSchema, low: Key | None) -> int | None:
        """The rows after a key. None for a table that takes too long."""
        name = schema.qualified
        if name not in self._counted:
            began = time.monotonic()
            try:
                where = key_range(schema.chunk_columns, low, None)
                rows = _count(connection, schema, where, self._left_s) if self._left_s > 0 else None
            finally:
                self._left_s -= time.monotonic() - began
            self._counted[name] = None if rows is None else (low, rows)
        known = self._counted[name]
        return known[1] if known is not None and known[0] == low else None

    def _estimate_rest(self, connection: Connection[Any], schema: TableSchema, end: Key | None, done: int) -> int:
        if schema.qualified not in self._estimated:
            self._estimated[schema.qualified] = estimated_rows(connection, schema)
        every = self._estimated[schema.qualified]
        return max(0, self._corrected(connection, schema, end, done, every) - done)

    def _corrected(
        self, connection: Connection[Any], schema: TableSchema, end: Key | None, done: int, rows: int
    ) -> int:
        kinds = [key_kind(column) for column in schema.chunk_columns]
        if len(kinds) != 1 or kinds[0] is None or not kinds[0].numeric:
            return rows
        edges = Splitter(connection, schema, self._options).edges()
        if edges is None:
            return rows
        scale = schema.chunk_columns[0].scale
        reached = edges[0] - 1 if end is None else int(end[0] or 0)
        return corrected(*edges, reached, done, rows, is_unique=not scale and schema.chunk_key == schema.key)


def corrected(least: int, greatest: int, reached: int, done: int, rows: int, *, is_unique: bool) -> int:
    """Corrected number of rows of a table whose keys are numbers from ``least`` to ``greatest``.

    Parameters
    ----------
    reached, done : int
        There are ``done`` rows up to key ``reached``.
    rows : int
        All rows by the server's statistics, weighted by the share of keys still to come.
    is_unique : bool
        Whether keys are unique integers.
    """
    left = min(1.0, max(0.0, (greatest - reached) / (greatest - least + 1)))
    at_this_rate = done / (1 - left) if left < 1 else 0.0
    rest = left * ((1 - left) * at_this_rate + left * rows)
    if is_unique:
        rest = min(rest, max(0, greatest - reached))
    return done + round(rest)


def _count(connection: Connection[Any], schema: TableSchema, where: str, seconds: float) -> int | None:
    """The number of rows that a WHERE clause selects. None if counting takes longer than ``seconds``."""
    try:
        return count_rows(connection, schema, where, seconds)
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _TIMEOUTS:
            raise
        return None
