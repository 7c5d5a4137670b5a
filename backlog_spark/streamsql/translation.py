"""Shared by all parts of a translation: the statement, its streams, schemas, and steps with checked expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from backlog_spark.api.lookup import LookupTable
from backlog_spark.api.streams import BacklogStream
from backlog_spark.common.sql_names import quoted
from backlog_spark.model.changes import CHANGE_TYPE, MARK
from backlog_spark.model.nodes import KeyedNode, Node, TransformNode
from backlog_spark.model.trees import state_name
from backlog_spark.model.watermarks import PROCESSING_TIME
from backlog_spark.spark.plan.schemas import Schemas
from backlog_spark.streamsql.refusals import Statement, unlogged
from backlog_spark.streamsql.rows import PSEUDO, Rows, Visible, column_of, text_of

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


__all__ = ["Translation", "conjuncts", "is_clock", "named", "results_change", "unique"]

# Names of internal columns. The statement may not use such names.
_HIDDEN: Final = re.compile(r"__\w+")
# Steps of Spark's plan that would make a projection or filter stateful.
_STATEFUL: Final = re.compile(r"^[\s:|+-]*(Aggregate|Window|Deduplicate|Sort|Distinct|Join)\b", re.MULTILINE)


@dataclass
class Translation:
    """The translation of one statement.

    Parameters
    ----------
    statement : Statement
    schemas : Schemas
    streams : mapping of str to (str, BacklogStream)
        The given streams, by lower-case name.
    lookups : mapping of str to LookupTable
        The given tables, by lower-case name.
    looked_at : dict
        The columns of items of FROM whose names were looked up, by the identity of the item, which is kept.
    """

    statement: Statement
    schemas: Schemas
    streams: Mapping[str, tuple[str, BacklogStream]]
    lookups: Mapping[str, LookupTable] = field(default_factory=dict)
    looked_at: dict[int, tuple[exp.Expr, Rows]] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _hidden: dict[str, int] = field(default_factory=dict)
    _columns: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._columns |= {name.lower() for name in _HIDDEN.findall(self.statement.text)}
        for _, stream in self.streams.values():
            self._taken |= {node.name for node in stream._node.walk() if isinstance(node, KeyedNode)}

    # -- names ----------------------------------------------------------------------------------------------

    def operator(self, *parts: str) -> str:
        """A new name for an operator's state, made of these parts."""
        wanted = state_name("_".join(part.strip("_") for part in parts))
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    def names(self, before: tuple[set[str], dict[str, int]] | None = None) -> tuple[set[str], dict[str, int]]:
        """The names that are taken. With those of an earlier time, later ones are free again."""
        if before is not None:
            self._taken, self._hidden = before
        return {*self._taken}, {**self._hidden}

    def hidden(self, what: str) -> str:
        """A new name for an internal column, which no table has."""
        self._hidden[what] = self._hidden.get(what, 0) + 1
        return self.unseen(f"__{what}{self._hidden[what]}")

    def unseen(self, wanted: str) -> str:
        """The name of the only internal column of its kind in a step."""
        name, number = wanted, 1
        while name.lower() in self._columns:
            number += 1
            name = f"{wanted}_{number}"
        return name

    # -- schemas --------------------------------------------------------------------------------------------

    def schema(self, stream: BacklogStream, node: exp.Expr | None, what: str = "") -> StructType:
        """A stream's columns. An error of its last step gets the position of a part of the statement."""
        with self.statement.at(node, what):
            return self.schemas.of(stream._node)

    def table(self, stream: BacklogStream, name: str, node: exp.Expr | None) -> Rows:
        """A stream's rows, with the names of its columns."""
        names = self.schema(stream, node, f"the stream {name!r}").names
        self._columns |= {column.lower() for column in names}
        pseudo = tuple(column for column in names if column in PSEUDO) if CHANGE_TYPE in names else ()
        columns = tuple(Visible(name, column, column_of(column), hidden=column in pseudo) for column in names)
        return Rows(stream, columns, pseudo)

    def is_processing_time(self, rows: Rows, column: exp.Expr) -> bool:
        """Whether a column of the statement has the time at which a row is processed, from ``PROCTIME()``."""
        if not isinstance(column, exp.Column) or not rows.has(column):
            return False
        resolved = rows.resolved(self.statement, column)
        if not isinstance(resolved, exp.Column) or resolved.meta.get("window"):
            return False
        return PROCESSING_TIME in self.schema(rows.stream, column)[resolved.name].metadata

    def change_columns(self, stream: BacklogStream, node: exp.Expr | None, what: str = "") -> tuple[str, ...]:
        """The change columns of a keyed operator's results. A result column of the same name is not one."""
        schema = self.schema(stream, node, what)
        return tuple(field.name for field in schema if field.name == CHANGE_TYPE and MARK in field.metadata)

    def name_of(self, rows: Rows, expression: exp.Expr) -> str:
        """The name that Spark gives to an expression over the statement's columns."""
        from pyspark.errors import AnalysisException

        columns = {c.name.lower(): f"{text_of(c.column)} AS {quoted(c.name)}" for c in rows.columns}
        try:
            with unlogged():
                frame = self.schemas.frame(rows.stream._node).selectExpr(*columns.values())
                return str(frame.selectExpr(text_of(expression)).columns[0])
        except AnalysisException:  # a function of windows, or an error that the operator reports
            return text_of(expression)

    # -- steps ----------------------------------------------------------------------------------------------

    def filtered(self, rows: Rows, condition: exp.Expr, node: exp.Expr) -> Rows:
        """The rows that satisfy a translated condition.

        If later rows replace earlier ones, a row that no longer satisfies it must remove the earlier row. So the rows
        become changes.
        """
        if results_change(rows.stream._node):
            rows = self.changes(rows, node)
        stream = rows.stream.filter(text_of(condition))
        self._stateless(stream, node, "the condition")
        return replace(rows, stream=stream)

    def changes(self, rows: Rows, node: exp.Expr) -> Rows:
        """The rows with the change type as a column, if rows change."""
        if results_change(rows.stream._node):
            for name in self.schema(rows.stream, node).names:
                # Results of changing rows have a change type already.
                if name.lower() == CHANGE_TYPE and name not in rows.pseudo:
                    raise self._taken_change_type(name, node)
        with self.statement.at(node):
            stream = rows.stream.changes()
        names = self.schema(stream, node).names
        return replace(rows, stream=stream, pseudo=tuple(name for name in PSEUDO if name in names))

    def _taken_change_type(self, name: str, node: exp.Expr) -> Exception:
        return self.statement.refused(
            node,
            f"the rows are changes, and {CHANGE_TYPE} says which rows are retracted, "
            f"so no other column can be named {name!r}.",
            f"Give it another name: {CHANGE_TYPE} AS change.",
        )

    def with_columns(self, rows: Rows, columns: Mapping[str, exp.Expr], node: exp.Expr) -> Rows:
        """The rows with further columns, from translated expressions."""
        if not columns:
            return rows
        stream = rows.stream.map("*", *(f"{text_of(e)} AS {quoted(n)}" for n, e in columns.items()))
        self._stateless(stream, node, "")
        return replace(rows, stream=stream)

    def pruned(self, rows: Rows, used: set[str], node: exp.Expr) -> Rows:
        """The rows without unused columns, which an operator would otherwise keep in its state.

        Parameters
        ----------
        used : set of str
            Lower-case names of used columns, and perhaps of other things.
        """
        kept = tuple(c for c in rows.columns if c.name.lower() in used or c.hidden)
        needed = {each.name for column in kept for each in column.column.find_all(exp.Column)} | {*rows.pseudo}
        names = self.schema(rows.stream, node).names
        chosen = [name for name in names if name in needed]
        if len(chosen) == len(names) or not chosen:
            return rows
        stream = rows.stream.map(*(quoted(name) for name in chosen))
        self.schema(stream, node)
        return replace(rows, stream=stream, columns=kept)

    def projected(self, rows: Rows, items: Sequence[tuple[str, exp.Expr, exp.Expr]]) -> Rows:
        """Rows with these columns: name, translated expression, expression in the statement.

        Several columns of one name stay apart: a query around these rows cannot name them, and in the stream the
        second one of ``id`` is ``id0``, as in Flink.

        Raises
        ------
        SqlError
            If Spark refuses an expression.
        """
        shown = [name for name, _, _ in items]
        seen = {name.lower(): name for name in shown}
        items = [(new, expression, node) for new, (_, expression, node) in zip(unique(shown), items, strict=True)]
        if any(is_clock(expression) for _, expression, _ in items):
            clock = next(node for _, expression, node in items if is_clock(expression))
            if rows.pseudo or results_change(rows.stream._node):
                raise self.statement.refused(
                    clock,
                    "PROCTIME() of rows that change: a retracted row would have another time.",
                    "Use it over rows that are only added.",
                )
        if CHANGE_TYPE in rows.pseudo:
            for name, expression, node in items:
                if name.lower() == CHANGE_TYPE and text_of(expression) != text_of(column_of(CHANGE_TYPE)):
                    raise self._taken_change_type(name, node)
        carried = [name for name in rows.pseudo if name not in seen]
        chosen = [*((n, e) for n, e, _ in items), *((name, column_of(name)) for name in carried)]
        columns = tuple(
            [Visible("", name, column_of(new)) for name, (new, _, _) in zip(shown, items, strict=True)]
            + [Visible("", name, column_of(name), hidden=True) for name in carried]
        )
        result = replace(rows, columns=columns, pseudo=tuple(carried), span=None)
        given = self.schema(rows.stream, None).names
        if [(n, text_of(e)) for n, e in chosen] == [(n, text_of(column_of(n))) for n in given]:
            return result
        stream = rows.stream.map(*(_item(n, e) for n, e in chosen))
        try:
            self._stateless(stream, items[0][2] if items else None, "the SELECT list")
        except Exception:
            # Spark names the first item that it refuses, but not its position.
            for name, expression, node in items:
                self._stateless(rows.stream.map(_item(name, expression)), node, f"the column {name!r}")
            raise
        return replace(result, stream=stream)

    def _stateless(self, stream: BacklogStream, node: exp.Expr | None, what: str) -> None:
        self.schema(stream, node, what)
        plan = self.schemas.plan(stream._node)
        found = _STATEFUL.search(plan)
        if found:
            raise self.statement.refused(
                node,
                f"{what + ': ' if what else ''}an aggregate or window function is not possible here.",
                "Spark would keep its state outside of the operators. docs/sql.md lists the supported functions.",
            )

    def as_data(self, rows: Rows, nodes: Iterable[exp.Expr], node: exp.Expr) -> Rows:
        """The rows of a change stream as ordinary rows, if one of these expressions uses a change column."""
        asked = {c.name.lower() for each in nodes for c in each.find_all(exp.Column)}
        if CHANGE_TYPE not in rows.pseudo or CHANGE_TYPE not in asked:
            return rows
        renamed = {name: f"__data{name}" for name in rows.pseudo}
        names = self.schema(rows.stream, node).names
        stream = self.selected(rows.stream, [named(quoted(n), renamed.get(n, n)) for n in names], node)
        columns = tuple(
            replace(c, column=column_of(renamed[c.column.name])) if c.hidden and c.column.name in renamed else c
            for c in rows.columns
        )
        return replace(rows, stream=stream, columns=columns, pseudo=())

    def selected(self, stream: BacklogStream, texts: Sequence[str], node: exp.Expr) -> BacklogStream:
        """Exactly these columns. `BacklogStream.map` would also keep the change type."""
        if list(map(quoted, self.schema(stream, node).names)) == [*texts]:
            return stream
        made = BacklogStream(
            TransformNode(stream._node, lambda frame: frame.selectExpr(*texts), f"map {', '.join(texts)}")
        )
        self.schema(made, node)
        return made


def results_change(node: Node) -> bool:
    """Whether later rows of a stream replace earlier ones without a change type."""
    while isinstance(node, TransformNode):
        node = node.parent
    return isinstance(node, KeyedNode) and node.with_changes is not None


def unique(names: Sequence[str]) -> list[str]:
    """The names, each once: numbers follow those that another column has already."""
    taken, found = {name.lower() for name in names}, list[str]()
    for index, name in enumerate(names):
        if name.lower() in (each.lower() for each in names[:index]):
            number = 0
            while f"{name}{number}".lower() in taken:
                number += 1
            name = f"{name}{number}"
            taken.add(name.lower())
        found.append(name)
    return found


def is_clock(expression: exp.Expr) -> bool:
    """Whether this is ``PROCTIME()``."""
    call = expression.unnest()
    return isinstance(call, exp.Anonymous) and call.name.upper() == "PROCTIME" and not call.expressions


def _item(name: str, expression: exp.Expr) -> str | Column:
    if is_clock(expression):
        from pyspark.sql import functions as F

        return F.current_timestamp().alias(name, metadata={PROCESSING_TIME: True})
    return named(text_of(expression), name)


def named(text: str, name: str) -> str:
    """An expression of Spark's SQL with a name."""
    return text if text == quoted(name) else f"{text} AS {quoted(name)}"


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """The conditions joined by AND."""
    inner = condition.unnest()
    if isinstance(inner, exp.And):
        return [*conjuncts(inner.this), *conjuncts(inner.expression)]
    return [inner]
