"""Follows a table's columns through the binary log: ``schemaChange=evolve``.

The log does not name columns. So the columns after an ALTER TABLE are derived (`history`) from the columns before it,
from this statement and the later ones in the log, and from the server's present columns. If another statement arrives
while the server is asked, it is asked again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ...binlog.reading import read_changes
from ...offsets import BinlogPosition
from ...options import MySqlOptions
from ...server.connection import connect, query
from ...server.mysql import end_position, load_schema
from ..columns import EXCLUDED, Column
from ..table import SchemaChanged, TableSchema
from .history import Bridge, Layout, bridge, layouts
from .timeline import Statements, TableAltered, TableName, Timeline

__all__ = ["Followed", "StartAgain", "as_declared", "as_read", "start_again"]

_ATTEMPTS = 5
Accept = Callable[[TableSchema, Layout, Layout, TableSchema], None]


class StartAgain(SchemaChanged):
    """A table was altered. A newly declared stream can continue, the present one cannot."""


def start_again(schema: TableSchema, what: str) -> StartAgain:
    """Make the error."""
    return StartAgain(
        f"The table {schema.name} was altered: {what}.",
        "Start the query again, as it is: it continues from its checkpoint with the table's present columns. The "
        "target must have them as well.",
    )


def as_declared(schema: TableSchema, before: Layout, layout: Layout, now: TableSchema) -> None:
    """Accept a layout if the stream can hold all values of its rows.

    Parameters
    ----------
    schema, before, layout, now
        The declared columns; those of rows before the statement, and after it; those of today.

    Raises
    ------
    SchemaChanged
        The stream lacks a column, or the values of one cannot be converted to the declared type.
    """
    declared = {c.name.lower(): c for c in schema.columns}
    read = {c.name.lower(): c for c in now.read}
    new = [n for n in layout.now if n is not None and n.lower() not in declared and n.lower() in read]
    if new:
        raise start_again(schema, f"the stream was declared without the column {', '.join(map(repr, new))}")
    for name, column in declared.items():
        if name in read and read[name].use != column.use:
            raise start_again(schema, f"the column {column.name!r} is read in another way now")
    _bridge(schema, layout, now)


def as_read(schema: TableSchema, before: Layout, layout: Layout, now: TableSchema) -> None:
    """Accept a layout if a SELECT of the declared columns still gives the same values as before.

    Raises
    ------
    SchemaChanged
        A column was dropped, renamed or got another type since the stream was declared.
    """
    found = _bridge(schema, layout, now)
    if now.fingerprint() == schema.fingerprint():
        return  # the stream is declared as the SELECT finds the table; only the log has older columns
    # If another column now has a declared column's name, a SELECT reads that other column.
    today = {column.name.lower(): (name or "").lower() for column, name in zip(before.columns, before.now, strict=True)}
    for column, source, convert in zip(schema.columns, found.sources, found.converts, strict=True):
        name = column.name.lower()
        if column.use == EXCLUDED:
            continue
        if source is None or convert is not None or today.get(name, name) != name:
            raise start_again(schema, f"its column {column.name!r} is another one while the snapshot is read")


def _bridge(schema: TableSchema, layout: Layout, now: TableSchema) -> Bridge:
    """Call `bridge`. If it refuses, a stream that is declared with today's columns may still be able to continue."""
    try:
        return bridge(layout, schema)
    except SchemaChanged as error:
        if now.fingerprint() == schema.fingerprint():
            raise
        raise start_again(schema, error.problem.rstrip(".")) from None


class Followed(Timeline):
    """Follows the layouts of tables while they are altered.

    Parameters
    ----------
    options
        Where to read.
    declared, known : sequence of TableSchema
        The tables' declared definitions, and those at ``start``, in the same order.
    start : BinlogPosition or str
        Where the read of the log begins.
    accept : callable
        Called at each ALTER TABLE with the declared table, its layouts before and after the statement, and the table
        of today. It raises to end the read.

    Raises
    ------
    SchemaChanged
        The statements in the log do not lead from a known table to the present one, or they lead to another key.
    """

    def __init__(
        self,
        options: MySqlOptions,
        declared: Sequence[TableSchema],
        known: Sequence[TableSchema],
        start: BinlogPosition | str,
        accept: Accept,
    ) -> None:
        self._options = options
        self._declared = tuple(declared)
        self._known: dict[TableName, TableSchema] = {_name(t): t for t in known}
        self._accept = accept
        self._layouts: dict[TableName, Layout] = {}
        self._now: dict[TableName, TableSchema] = {}
        # By table and end of each known statement: the layouts before and after it.
        self._ahead: dict[tuple[TableName, tuple[int, int]], tuple[Layout, Layout]] = {}
        for schema in declared:
            then = self._known[_name(schema)]
            if then.fingerprint() != schema.fingerprint():
                self._layouts[_name(schema)] = self._derive(schema, then.columns, [], start)
                self._check_key(schema, then)

    def layout(self, schema: TableSchema) -> Layout | None:
        return self._layouts.get(_name(schema))

    @property
    def layouts(self) -> Mapping[TableName, Layout]:
        """Present layouts of the tables that have other columns than declared."""
        return dict(self._layouts)

    def altered(self, found: TableAltered) -> None:
        schema, name = found.schema, _name(found.schema)
        at = name, found.end.sort_key()
        if at not in self._ahead:
            current = self._layouts.get(name)
            self._derive(schema, current.columns if current else self._known[name].columns, [found], found.end)
        before, after = self._ahead[at]
        try:
            self._accept(schema, before, after, self._now[name])
        except SchemaChanged:
            # A newly declared stream must be able to read the rows before the statement.
            bridge(before, self._now[name])
            raise
        self._layouts[name] = after

    def tables(self) -> tuple[TableSchema, ...]:
        """The tables at the read's present position."""
        return tuple(self._then(schema) for schema in self._declared)

    def _then(self, schema: TableSchema) -> TableSchema:
        layout = self._layouts.get(_name(schema))
        if layout is None:
            return self._known[_name(schema)]
        now = self._now[_name(schema)]
        own = {today: column.name for column, today in zip(layout.columns, layout.now, strict=True) if today}
        key, chunk_key = (tuple(own[name] for name in names) for names in (now.key, now.chunk_key))
        return replace(schema, columns=layout.columns, key=key, chunk_key=chunk_key)

    def _check_key(self, schema: TableSchema, then: TableSchema) -> None:
        layout = self._layouts[_name(schema)]
        today = {c.name: name for c, name in zip(layout.columns, layout.now, strict=True)}
        for what, old, new in (("primary", then.key, schema.key), ("chunk", then.chunk_key, schema.chunk_key)):
            if tuple(today[name] for name in old) != new:
                raise SchemaChanged(
                    f"The {what} key of {schema.name} was ({', '.join(old)}) and is ({', '.join(new)}) now.",
                    "Start the query again with a new checkpoint.",
                )

    def _derive(
        self,
        schema: TableSchema,
        before: Sequence[Column],
        first: Sequence[TableAltered],
        start: BinlogPosition | str,
    ) -> Layout:
        """Derive the layouts from here to the log's end; returns the layout before the first statement."""
        name = _name(schema)
        refused = ""
        for _ in range(_ATTEMPTS):
            with connect(self._options) as connection:
                now = self._present(connection, schema)
                end = end_position(connection, self._options)
                later = Statements()
                for _ in read_changes(self._options, (schema,), start, end, timeline=later):
                    pass
                if self._present(connection, schema) != now:
                    continue
            found = [*first, *later.found]
            try:
                stages = layouts(before, [f.statement for f in found], now.columns, self._known[name].key)
            except SchemaChanged as error:
                if error.problem == refused:
                    raise SchemaChanged(f"{schema.name}: {error.problem}", error.hint) from None
                # MariaDB shows a table as altered a moment before the statement is in the log.
                refused = error.problem
                self._await_statement(schema)
                continue
            self._now[name] = now
            for f, stage, following in zip(found, stages, stages[1:], strict=False):
                self._ahead[name, f.end.sort_key()] = stage, following
            return stages[0]
        raise start_again(schema, f"and again during each of {_ATTEMPTS} looks at it")

    def _await_statement(self, schema: TableSchema) -> None:
        """Wait for a running statement that alters the table: a SELECT waits for its lock."""
        with connect(self._options) as connection, contextlib.suppress(pymysql.err.ProgrammingError):
            query(connection, f"SELECT 1 FROM {schema.qualified} LIMIT 0")

    def _present(self, connection: Connection[Any], schema: TableSchema) -> TableSchema:
        try:
            return load_schema(connection, self._options, schema.database, schema.table)
        except BacklogError as error:
            raise SchemaChanged(f"The table {schema.name} was altered: {error.problem}", error.hint) from None


def _name(schema: TableSchema) -> TableName:
    return schema.database, schema.table
