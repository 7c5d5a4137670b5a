"""Estimates how many rows of a snapshot are still to be read: for progress only, never for reading.

InnoDB's statistics may be wrong by half. So a table is counted if that takes less than half a second. For other tables
with numeric keys, the statistics are corrected with the share of the key range that has been planned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection

from ..offsets import Offset
from ..options import MySqlOptions
from ..schema.keys import Key, key_kind
from ..schema.table import TableSchema
from ..server.connection import NO_TABLE
from .chunks import Splitter, count_rows, estimated_rows

__all__ = ["Remaining", "corrected"]

_COUNT_S = 0.5
"""For all tables of a snapshot together. A server counts one to two million rows in that time."""

_TIMEOUTS = {1969, 3024}  # MariaDB's and MySQL's


class Remaining:
    """Remembers the number of rows found for each table."""

    def __init__(self, options: MySqlOptions) -> None:
        self._options = options
        self._found: dict[str, tuple[int, bool]] = {}  # by qualified name: rows in all, and whether they were counted
        self._left_s = _COUNT_S

    def rows(self, connection: Connection[Any], tables: Sequence[TableSchema], planned: Offset) -> int:
        """Rows that are in no range of ``planned``."""
        rest = 0
        for table, end in planned.unread():
            schema = tables[table]
            done = sum(r.rows for r in planned.ranges_of(table))
            try:
                if schema.qualified not in self._found:
                    self._found[schema.qualified] = self._look(connection, schema)
                every, is_counted = self._found[schema.qualified]
                if not is_counted:
                    every = self._corrected(connection, schema, end, done, every)
            except pymysql.err.MySQLError as error:
                if error.args[0] not in NO_TABLE:
                    raise
                continue
            rest += max(0, every - done)
        return rest

    def _look(self, connection: Connection[Any], schema: TableSchema) -> tuple[int, bool]:
        began = time.monotonic()
        try:
            counted = _count(connection, schema, self._left_s) if self._left_s > 0 else None
        finally:
            self._left_s -= time.monotonic() - began
        return (estimated_rows(connection, schema), False) if counted is None else (counted, True)

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


def _count(connection: Connection[Any], schema: TableSchema, seconds: float) -> int | None:
    """The number of rows of a table. None if counting takes longer than ``seconds``."""
    try:
        return count_rows(connection, schema, "", seconds)
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _TIMEOUTS:
            raise
        return None
