"""Decides what a stream does about an ALTER TABLE that changed old rows without row events: ``rewritingAlter``.

`answers` says what happened to each column. Four things can follow:

* nothing, if all old values are the same;
* the sink fills a new column in old rows with the one value that they have, if it can;
* the table is read again while the log is followed, so that its rows come as upserts;
* the table leaves the stream with all its rows, and joins it again with a new snapshot. So it is if the key's values
  changed, as upserts by new keys would leave the rows with the old ones.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pymysql.connections import Connection

from ...options import MySqlOptions
from ...output.masking import masked
from ...server.prepared import fetch
from ..columns import MASKED, Column
from ..table import SchemaChanged, TableSchema
from ..types import kind_of
from .alters import NOTHING_SAID, Add, ColumnAfter, after, column_steps
from .answers import FILLS, KEEPS, REWRITES, Answer, Session, answers, implicit_default
from .history import Layout, Taken, is_same_key

if TYPE_CHECKING:
    from .timeline import TableAltered

__all__ = ["NOTHING", "Rewriting", "rewriting_of", "rewriting_of_swap"]

_OTHER_DEFAULTS = re.compile(r"\b(?:(?:SET|DROP)\s+DEFAULT|MODIFY|CHANGE)\b", re.I)
_NEW = Answer(REWRITES, "it is new, and old rows have its default")


_SILENT = "Set tableEvents=emit, so that targets can remove the old rows, or rewritingAlter=ignore to keep them."
_STOPPED = (
    "Set rewritingAlter=ignore to keep the old values. A query without aggregates, joins and other keyed operators may "
    "set rewritingAlter=snapshot, which reads the table again. With them, start with a new checkpoint and a new target."
)


@dataclass(frozen=True)
class Rewriting:
    """What a statement did to the old rows of a table, and what the stream does about it.

    Parameters
    ----------
    columns : mapping of str to Answer
        The columns whose old values changed.
    of_key : bool
        Whether one of them is in the key, or the table has none.
    fills : tuple of str
        New columns that the sink fills, if nothing else changed.
    values : str
        Their values: one row as an Arrow stream, in base64.
    """

    columns: Mapping[str, Answer] = field(default_factory=dict)
    of_key: bool = False
    fills: tuple[Column, ...] = ()
    unsaid: frozenset[str] = frozenset()  # fills that have no default of their own
    values: str = ""

    @property
    def reads_again(self) -> bool:
        """Whether the table must be read again, while its rows stay in the target."""
        return bool(self.columns) and not self.of_key

    @property
    def empties(self) -> bool:
        """Whether the table leaves the stream and joins it again."""
        return bool(self.columns) and self.of_key

    @property
    def told(self) -> str:
        """What happened, for people."""
        return "; ".join(
            f"old rows have other values in the column {name!r}: {a.why}" for name, a in self.columns.items()
        )

    def stops(self, options: MySqlOptions) -> bool:
        """Whether the stream cannot go on: the option says so, or targets cannot be told to remove the old rows."""
        if not self.columns:
            return False
        if self.empties and options.event_policy("truncate") != "emit":
            return True
        only_new = all(answer == _NEW for answer in self.columns.values())
        return options.rewriting == "stop" and not (options.fills == "again" and only_new)

    def check(self, options: MySqlOptions, schema: TableSchema, statement: str) -> None:
        """Refuse to go on, if it `stops`.

        Raises
        ------
        SchemaChanged
        """
        silent = self.empties and options.event_policy("truncate") != "emit"
        if self.stops(options):
            raise SchemaChanged(
                f"{schema.name}: {self.told}, since {statement[:200]!r}. The binary log does not have these values.",
                _SILENT if silent and options.rewriting != "stop" else _STOPPED,
            )

    def with_values(self, connection: Connection[Any], options: MySqlOptions, now: TableSchema) -> Rewriting:
        """With the values of new columns, which the server has as their defaults. Called before another ALTER TABLE.

        The table is read again if it has no row by now to ask for them.
        """
        if not self.fills:
            return self
        found = _values(connection, options, now, self.fills, self.unsaid)
        if found is None:
            return replace(self, fills=(), columns={c.name: _NEW for c in self.fills}, of_key=_is_bare(options, now))
        return replace(self, values=found)


NOTHING = Rewriting()


def rewriting_of(
    options: MySqlOptions,
    now: TableSchema,
    found: TableAltered,
    before: Layout,
    then: Layout,
    later: Sequence[str],
    past: frozenset[str],
) -> Rewriting:
    """For an ALTER TABLE.

    Parameters
    ----------
    now : TableSchema
        The table as it is.
    before, then : Layout
        Its columns before and after the statement.
    later : sequence of str
        The statements after it.
    past : frozenset of str
        Names of columns that the table has had, in lower case: a target may have values under them.
    """
    steps = column_steps(found.statement)
    made = after([c.name for c in before.columns], steps)
    session = Session.of(found.sql_mode, found.time_zone, of_mariadb=_is_mariadb(options))
    given = answers(before.columns, then.columns, made, steps, session, options.format)
    adds = {step.name.lower(): step for step in steps if isinstance(step, Add)}
    had = past | {c.name.lower() for c in before.columns}
    given |= _other_keys(now, before, then, made)
    return _decided(options, now, then, given, adds, had, can_ask=not any(map(_OTHER_DEFAULTS.search, later)))


def rewriting_of_swap(
    options: MySqlOptions,
    now: TableSchema,
    taken: Taken,
    before: Layout,
    then: Layout,
    later: Sequence[str],
    past: frozenset[str],
) -> Rewriting:
    """For a RENAME that gave the name to another table, which a tool made as a copy: columns with one name are one.

    The tool may have copied rows in any ``sql_mode``. The rest is as in `rewriting_of`.
    """
    if taken.is_gone:
        return NOTHING
    at = {column.name.lower(): index for index, column in enumerate(before.columns)}
    made = [ColumnAfter(column.name, at.get(column.name.lower()), True) for column in then.columns]
    every = [step for steps in taken.steps or () for step in steps]
    session = Session(of_mariadb=_is_mariadb(options))
    given = answers(before.columns, then.columns, made, every, session, options.format)
    adds = {step.name.lower(): step for step in every if isinstance(step, Add)}
    given |= _other_keys(now, before, then, made)
    return _decided(
        options, now, then, given, adds, past | set(at), can_ask=not any(map(_OTHER_DEFAULTS.search, later))
    )


def _other_keys(now: TableSchema, before: Layout, then: Layout, made: Sequence[ColumnAfter]) -> dict[str, Answer]:
    """Columns of the key whose values are the same, but identify or order rows in another way."""
    found = {}
    for column, today, each in zip(then.columns, then.now, made, strict=True):
        old = None if each.source is None else before.columns[each.source]
        if today in (*now.key, *now.chunk_key) and old and old.data_type and not is_same_key(column, old):
            found[column.name] = Answer(REWRITES, "it identifies or orders rows in another way")
    return found


def _decided(
    options: MySqlOptions,
    now: TableSchema,
    then: Layout,
    given: Mapping[str, Answer],
    adds: Mapping[str, Add],
    had: frozenset[str] | set[str],
    *,
    can_ask: bool,
) -> Rewriting:
    current = {column.name: column for column in now.columns}
    columns: dict[str, Answer] = {}
    fills: list[Column] = []
    for column, today in zip(then.columns, then.now, strict=True):
        answer = given[column.name]
        if today is None or answer.kind == KEEPS:
            continue  # nobody reads a column that was dropped since
        add = adds.get(column.name.lower())
        is_null = add is not None and add.default == NOTHING_SAID and column.nullable
        if answer.kind == FILLS and is_null and column.name.lower() not in had:
            continue  # no target has values under this name
        if answer.kind == FILLS and options.fills == "nothing":
            continue
        if answer.kind == FILLS and options.fills == "sink" and can_ask and today == column.name:
            fills.append(current[today])
        else:
            columns[today] = _NEW if answer.kind == FILLS else answer
    of_key = any(name in (*now.key, *now.chunk_key) for name in columns) or _is_bare(options, now)
    if columns:
        return Rewriting(columns, of_key)
    unsaid = [c.name for c in fills if adds[c.name.lower()].default == NOTHING_SAID and not c.nullable]
    return Rewriting(fills=tuple(fills), unsaid=frozenset(unsaid)) if fills else NOTHING


def _is_mariadb(options: MySqlOptions) -> bool:
    return options.server.startswith("mariadb-")


def _is_bare(options: MySqlOptions, now: TableSchema) -> bool:
    """Whether the table's rows cannot come again as upserts: it has no key, or the stream ends with its snapshot."""
    return not now.key or options.startup_mode == "snapshot"


def _values(
    connection: Connection[Any],
    options: MySqlOptions,
    now: TableSchema,
    fills: Sequence[Column],
    unsaid: frozenset[str],
) -> str | None:
    """The columns' values in old rows, as `Rewriting.values`; None if the table has no row."""
    asked = [column for column in fills if column.name not in unsaid]
    arrays = {c.name: kind_of(c).build(c, [implicit_default(c)]) for c in fills if c.name in unsaid}
    if asked:
        defaults = ", ".join(f"DEFAULT({c.quoted}) AS {c.quoted}" for c in asked)
        statement = (
            f"SELECT {', '.join(kind_of(c).select(c) for c in asked)} "
            f"FROM (SELECT {defaults} FROM {now.qualified} LIMIT 1) AS one"
        )
        rows = [piece for piece in fetch(connection, statement, lambda _: None) if len(piece[0])]
        if not rows:
            return None
        arrays |= {c.name: kind_of(c).parse(c, sent) for c, sent in zip(asked, rows[0], strict=True)}
    table = pa.table(
        {c.name: masked(arrays[c.name], options.columns.salt) if c.use == MASKED else arrays[c.name] for c in fills}
    )
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(out.getvalue()).decode()
