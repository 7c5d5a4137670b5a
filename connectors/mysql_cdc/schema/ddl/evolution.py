"""Follows a table's columns through the binary log: ``schemaChange=evolve``.

The stream follows a table's name. After a RENAME that gives the name to another table, as online schema changes do,
it goes on with that table, whose rows must be the same.

The log does not name columns. So the columns after an ALTER TABLE are derived (`history`) from the columns before it,
from this statement and the later ones in the log, and from the server's present columns. If another statement arrives
while the server is asked, it is asked again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ...binlog.positions import BinlogPosition
from ...options import MySqlOptions
from ...server.connection import connect, query, text
from ...server.mysql import end_position, load_schema
from ..columns import EXCLUDED, Column
from ..table import SchemaChanged, TableSchema
from .history import Bridge, Layout, Taken, bridge, layouts_until_drop
from .lookahead import Look, looks, stages
from .renames import is_shadow
from .rewriting import NOTHING, Rewriting, rewriting_of, rewriting_of_swap
from .timeline import Statements, TableAltered, TableName, Timeline

__all__ = ["Followed", "StartAgain", "as_declared", "as_read", "start_again"]

_log = logging.getLogger(__name__)
_ATTEMPTS = 5
# Some tools rename the old table away and the new one to its name a moment later.
_NAMELESS_S, _LOOK_S = 20.0, 0.2
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
        The declared columns; the columns of rows before the statement, and after it; the present columns.

    Raises
    ------
    SchemaChanged
        The stream lacks a column, or the values of one cannot be converted to the declared type.
    """
    _refuse_new(schema, layout, now)
    declared = {c.name.lower(): c for c in schema.columns}
    read = {c.name.lower(): c for c in now.read}
    for name, column in declared.items():
        if name in read and read[name].use != column.use:
            raise start_again(schema, f"the column {column.name!r} is read in another way now")
    found = _bridge(schema, layout, now)
    if now.fingerprint() != schema.fingerprint():
        # A SELECT gives the values as they are: a BINARY of today must not get the zeros of a longer one.
        for column, convert in zip(schema.columns, found.converts, strict=True):
            if convert is not None:
                raise start_again(schema, f"its column {column.name!r} has another form now")


def _refuse_new(schema: TableSchema, layout: Layout, now: TableSchema) -> None:
    """Refuse rows with a column that is read today under a name that the stream was declared without."""
    declared = {c.name.lower() for c in schema.columns}
    read = {c.name.lower() for c in now.read}
    new = [n for n in layout.now if n is not None and n.lower() not in declared and n.lower() in read]
    if new:
        raise start_again(schema, f"the stream was declared without the column {', '.join(map(repr, new))}")


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
    """Call `bridge`. If it refuses, a stream declared with the present columns may still be able to continue."""
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
        Called at each ALTER TABLE with the declared table, its layouts before and after the statement, and the present
        table. It raises to end the read.

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
        # By table and end of each known statement: the layouts before and after it, and what it did to old rows.
        self._ahead: dict[tuple[TableName, tuple[int, int]], tuple[Layout, Layout, Rewriting]] = {}
        others = [s for s in declared if self._known[_name(s)].fingerprint() != s.fingerprint()]
        for schema, look in zip(others, looks(options, others, start), strict=True):
            then = self._known[_name(schema)]
            layout = self._layouts[_name(schema)] = self._derive(schema, then.columns, [], look)
            if _name(schema) not in look.dropped:
                # A column that was renamed since the stream was declared would be NULL.
                _refuse_new(schema, layout, self._now[_name(schema)])
            self._check_key(schema, then, layout, schema, look.of[_name(schema)].found)

    def layout(self, schema: TableSchema) -> Layout | None:
        return self._layouts.get(_name(schema))

    @property
    def layouts(self) -> Mapping[TableName, Layout]:
        """Present layouts of the tables that have other columns than declared."""
        return dict(self._layouts)

    def altered(self, found: TableAltered) -> None:
        schema, name = found.schema, _name(found.schema)
        if found.is_taken:
            self._check_taken(found)
        at = name, found.end.sort_key()
        if at not in self._ahead:
            current = self._layouts.get(name)
            (look,) = looks(self._options, (schema,), found.end)
            self._derive(schema, current.columns if current else self._known[name].columns, [found], look)
        before, after, rewriting = self._ahead[at]
        rewriting.check(self._options, schema, found.statement)
        if not rewriting.empties:
            try:
                self._accept(schema, before, after, self._now[name])
                if rewriting.reads_again and self._now[name].fingerprint() != schema.fingerprint():
                    raise start_again(schema, f"{rewriting.told}, and the stream was declared before")
            except SchemaChanged:
                # A newly declared stream must be able to read the rows before the statement.
                bridge(before, self._now[name])
                raise
        left = {c.name.lower() for c in before.columns} - {c.name.lower() for c in after.columns}
        past = self._known[name].past | left
        if after == _declared_layout(schema):  # as after an online change of the indexes
            self._layouts.pop(name, None)
            self._known[name] = replace(schema, past=past)
        else:
            self._layouts[name] = after
            self._known[name] = replace(self._known[name], past=past)

    def rewriting(self, found: TableAltered) -> Rewriting:
        known = self._ahead.get((_name(found.schema), found.end.sort_key()))
        return NOTHING if known is None else known[2]

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
        past = self._known[_name(schema)].past
        return replace(schema, columns=layout.columns, key=key, chunk_key=chunk_key, past=past)

    def _check_taken(self, found: TableAltered) -> None:
        """Refuse another table with the name, or warn about it, unless a tool made it as a copy of the old one."""
        assert found.origin is not None, "else the table keeps its name"
        if is_shadow(found.origin[1], found.schema.table):
            return
        origin = ".".join(found.origin)
        if self._options.table_swap != "follow":
            raise SchemaChanged(
                f"The table {found.schema.name} is another table, {origin} before, since {found.statement[:200]!r}.",
                "To read its rows and continue with this checkpoint, set tableSwap=snapshot and tableEvents=emit. If "
                "it has the rows of the old table, set tableSwap=follow.",
            )
        _log.warning(
            "%s is another table, %s before, since %r. The stream continues with it. If it has other rows than the old "
            "table, the target is wrong from here on: tableSwap=snapshot would read the table.",
            found.schema.name,
            origin,
            found.statement[:200],
        )

    def _check_key(
        self, schema: TableSchema, then: TableSchema, layout: Layout, now: TableSchema, found: Sequence[TableAltered]
    ) -> None:
        today = {c.name: name for c, name in zip(layout.columns, layout.now, strict=True)}
        for what, old, new in (("primary", then.key, now.key), ("chunk", then.chunk_key, now.chunk_key)):
            if tuple(today[name] for name in old) != new:
                raise SchemaChanged(
                    f"The {what} key of {schema.name} was ({', '.join(old)}) and is ({', '.join(new)}) now."
                    + _told(found),
                    "Start the query again with a new checkpoint.",
                )

    def _derive(
        self,
        schema: TableSchema,
        before: Sequence[Column],
        first: Sequence[TableAltered],
        look: Look,
    ) -> Layout:
        """Derive the layouts from here to the log's end; returns the layout before the first statement."""
        name = _name(schema)
        refused = ""
        for _ in range(_ATTEMPTS):
            with connect(self._options) as connection:
                look.read(end_position(connection, self._options))
                if name in look.dropped:
                    return self._until_drop(schema, before, first, look.of[name])
                now = self._present(connection, schema)
                look.read(end_position(connection, self._options))
                later = look.of[name]
                if name in look.dropped or self._present(connection, schema) != now:
                    continue
            found = [*first, *later.found]
            try:
                derived, statements = stages(before, first, later, now.columns, self._known[name].key)
            except SchemaChanged as error:
                if error.problem == refused:
                    raise SchemaChanged(f"{schema.name}: {error.problem}{_told(found)}", error.hint) from None
                # MariaDB shows a table as altered a moment before the statement is in the log.
                refused = error.problem
                self._await_statement(schema)
                continue
            if any(f.origin is not None for f in found):
                self._check_key(schema, self._then(schema), derived[0], now, found)
            effects = []
            past = self._known[name].past
            for number, f in enumerate(found):
                effects.append(
                    self._effect(f, statements[number], now, derived[number : number + 2], found[number + 1 :], past)
                )
                past |= {column.name.lower() for column in derived[number].columns}
            if any(effect.fills for effect in effects):
                with connect(self._options) as connection:
                    effects = [effect.with_values(connection, self._options, now) for effect in effects]
                    if look.grows(end_position(connection, self._options), name):
                        continue  # the defaults may be those after a later statement
            derived = _marked(derived, [NOTHING if each.stops(self._options) else each for each in effects])
            self._now[name] = now
            for f, stage, following, effect in zip(found, derived, derived[1:], effects, strict=False):
                self._ahead[name, f.end.sort_key()] = stage, following, effect
            return derived[0]
        raise start_again(schema, f"and again each of {_ATTEMPTS} times while its columns were read")

    def _until_drop(
        self, schema: TableSchema, before: Sequence[Column], first: Sequence[TableAltered], later: Statements
    ) -> Layout:
        """Derive the layouts up to a DROP TABLE; returns the layout before the first statement.

        Raises
        ------
        SchemaChanged
            The table was altered before, and a name or definition that the stream needs is not known.
        """
        found, name = [*first, *later.found], _name(schema)
        then = self._now[name] = self._then(schema)
        if not found:
            return Layout(tuple(before), tuple(column.name for column in before))
        try:
            derived = layouts_until_drop(before, [_alter(f) for f in found], schema.columns, then.key)
        except SchemaChanged:
            raise SchemaChanged(
                f"The table {schema.name} was altered by {found[0].statement[:200]!r} and then dropped or renamed. Its "
                "columns in between are not known.",
                "Start the query again without the table. You may add it again later, with scanNewlyAddedTables=true.",
            ) from None
        for f, stage, following in zip(found, derived, derived[1:], strict=False):
            self._ahead[name, f.end.sort_key()] = stage, following, NOTHING  # its rows go with the DROP
        return derived[0]

    def _effect(
        self,
        found: TableAltered,
        statement: str | Taken,
        now: TableSchema,
        around: Sequence[Layout],
        later: Sequence[TableAltered],
        past: frozenset[str],
    ) -> Rewriting:
        """What a statement did to old rows, and what the stream does about it."""
        if self._options.rewriting == "ignore":
            return NOTHING
        before, after = around
        others = [each.statement for each in later]
        if isinstance(statement, Taken):
            return rewriting_of_swap(self._options, now, statement, before, after, others, past)
        if found.time_zone == "SYSTEM":
            with connect(self._options) as connection:
                zone = text(query(connection, "SELECT @@global.system_time_zone")[0][0])
            found = replace(found, time_zone=zone)
        return rewriting_of(self._options, now, found, before, after, others, past)

    def _await_statement(self, schema: TableSchema) -> None:
        """Wait until a running ALTER TABLE has ended: a SELECT waits for its lock."""
        with connect(self._options) as connection, contextlib.suppress(pymysql.err.ProgrammingError):
            query(connection, f"SELECT 1 FROM {schema.qualified} LIMIT 0")

    def _present(self, connection: Connection[Any], schema: TableSchema) -> TableSchema:
        _await_name(connection, schema)
        try:
            return load_schema(connection, self._options, schema.database, schema.table)
        except BacklogError as error:
            raise SchemaChanged(f"The table {schema.name} was altered: {error.problem}", error.hint) from None


def _declared_layout(schema: TableSchema) -> Layout:
    return Layout(schema.columns, tuple(column.name for column in schema.columns))


def _marked(stages: Sequence[Layout], effects: Sequence[Rewriting]) -> list[Layout]:
    """Stages with marks for what the statements after each one do."""
    found = [stages[-1]]
    again = leaves = False
    for stage, effect in zip(reversed(stages[:-1]), reversed(effects), strict=True):
        again, leaves = again or effect.reads_again, leaves or effect.empties
        found.append(replace(stage, is_read_again=again or leaves, is_passed_over=leaves))
    return found[::-1]


def _alter(found: TableAltered) -> str:
    """The statement of an ALTER TABLE.

    Raises
    ------
    SchemaChanged
        Another table took the name.
    """
    if found.origin is not None:
        raise SchemaChanged("Another table took the name.")
    return found.statement


def _await_name(connection: Connection[Any], schema: TableSchema) -> None:
    """Wait until a table has the name.

    Raises
    ------
    SchemaChanged
        None has it for a while.
    """
    limit = time.monotonic() + _NAMELESS_S
    while not query(
        connection,
        "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (schema.database, schema.table),
    ):
        if time.monotonic() > limit:
            raise SchemaChanged(
                f"The table {schema.name} was renamed or dropped, and none has had its name for {_NAMELESS_S:.0f} s.",
                "Give the name to the table that continues it, and start the query again. Else start with a new "
                "checkpoint.",
            )
        time.sleep(_LOOK_S)


def _name(schema: TableSchema) -> TableName:
    return schema.database, schema.table


def _told(found: Sequence[TableAltered]) -> str:
    """A sentence that names the statements; "" without one."""
    return f" Altered by {'; '.join(each.statement for each in found)[:200]!r}." if found else ""
