"""Looks ahead in the binary log for the statements that alter tables, without rows, and derives columns from them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from ...binlog.positions import BinlogPosition
from ...binlog.reading import TableEmptied, read_changes
from ...options import MySqlOptions
from ...server.connection import connect
from ...server.mysql import end_position
from ..columns import Column
from ..hidden import visible
from ..table import SchemaChanged, TableSchema
from .alters import Step, column_steps
from .history import Layout, Taken, layouts
from .renames import GONE, is_shadow, only_renames
from .statements import DROP
from .timeline import Copy, Statements, TableAltered, TableName, Timeline

__all__ = ["Look", "looks", "stages"]


class Look(Timeline):
    """Looks ahead in the log, without rows. Each call continues where the last one ended.

    Attributes
    ----------
    of : dict
        The statements that alter each table, up to its DROP.
    dropped : set of (str, str)
        Tables that are dropped.
    """

    decodes = False

    def __init__(self, options: MySqlOptions, tables: Sequence[TableSchema], start: BinlogPosition | str) -> None:
        self.of = {_name_of(t): Statements() for t in tables}
        self.dropped: set[TableName] = set()
        self._options, self._tables, self._reached = options, tables, start

    def read(self, end: BinlogPosition) -> None:
        """Read on, up to ``end``."""
        kept = [t for t in self._tables if _name_of(t) not in self.dropped]
        for change in read_changes(self._options, kept, self._reached, end, timeline=self):
            if isinstance(change, TableEmptied) and change.kind == DROP:
                self.dropped.add(_name_of(change.schema))
        self._reached = end

    def grows(self, end: BinlogPosition, name: TableName) -> bool:
        """Read on, up to ``end``. Whether there are more statements that alter the table."""
        known = len(self.of[name].found)
        self.read(end)
        return len(self.of[name].found) > known

    def described(self, schema: TableSchema, names: tuple[str, ...]) -> None:
        self.of[_name_of(schema)].described(schema, names)

    def altered(self, found: TableAltered) -> None:
        self.of[_name_of(found.schema)].altered(found)

    def other(self, text: str, default: str) -> None:
        for statements in self.of.values():
            statements.other(text, default)


def looks(options: MySqlOptions, tables: Sequence[TableSchema], start: BinlogPosition | str) -> Sequence[Look]:
    """A look for each table. All are the same one, which reads the log once, if nothing stops it."""
    if len(tables) > 1:
        look = Look(options, tables, start)
        with connect(options) as connection, contextlib.suppress(SchemaChanged):
            look.read(end_position(connection, options))
            return [look] * len(tables)
    return [Look(options, (schema,), start) for schema in tables]


def stages(
    known: Sequence[Column],
    first: Sequence[TableAltered],
    later: Statements,
    now: Sequence[Column],
    key: Sequence[str],
) -> tuple[list[Layout], list[str | Taken]]:
    """Call `layouts` for the statements ``first`` and those of a look at the log after them. Returns both."""

    def steps(copies: Mapping[int, Copy]) -> list[str | Taken]:
        return [
            each.statement
            if each.origin is None
            else Taken(
                visible(later.names.get(number, ())) or None,
                _steps_of(each, copies.get(number)),
                is_gone=not each.is_taken,
            )
            for number, each in enumerate([*first, *later.found], 1 - len(first))
        ]

    statements = steps(later.copies)
    try:
        return layouts(known, statements, now, key), statements
    except SchemaChanged:
        if not later.copies:
            raise
        statements = steps({})  # perhaps one was no copy
        return layouts(known, statements, now, key), statements


def _steps_of(taken: TableAltered, copy: Copy | None) -> tuple[tuple[Step, ...], ...] | None:
    """What was altered in the table that took the name, if it was made as a copy of the old one."""
    if copy is None or taken.origin is None or not only_renames(taken.statement):
        return None
    schema = taken.schema
    by_tool = copy.like == GONE and is_shadow(taken.origin[1], schema.table)
    if not by_tool and copy.like != (schema.database.lower(), schema.table.lower()):
        return None
    try:
        return tuple(column_steps(statement) for statement in copy.alters)
    except SchemaChanged:
        return None


def _name_of(schema: TableSchema) -> TableName:
    return schema.database, schema.table
