"""The result of a part of a query: a stream, and the statement's names of its columns (pure but for schemas)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from backlog_spark.common.sql_dialect import text_of
from backlog_spark.model.changes import METADATA
from backlog_spark.streamsql.refusals import Statement

if TYPE_CHECKING:
    from backlog_spark.api.streams import BacklogStream
    from backlog_spark.streamsql.span import Span

__all__ = ["PSEUDO", "Rows", "Visible", "column_of", "text_of"]

PSEUDO: Final = METADATA
"""Columns of change streams. They are not part of ``*``, and projections keep them."""


@dataclass(frozen=True)
class Visible:
    """A column as the statement sees it.

    Parameters
    ----------
    table : str
        The table's name or alias; empty for a column of several tables, such as one of USING.
    name : str
    column : Expr
        The column in the rows of the stream.
    bare : bool
        Whether the column is found without its table's name, and is part of ``*``.
    hidden : bool
        Whether the column is in no star.
    """

    table: str
    name: str
    column: exp.Expr
    bare: bool = True
    hidden: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of a table, a join or a query.

    Parameters
    ----------
    stream : BacklogStream
    columns : tuple of Visible
    pseudo : tuple of str
        The change columns of the stream.
    span : Span, optional
        Windows of the rows that have not been grouped by yet.
    """

    stream: BacklogStream
    columns: tuple[Visible, ...]
    pseudo: tuple[str, ...] = ()
    span: Span | None = None

    def aliased(self, table: str) -> Rows:
        """The same rows as a table of this name."""
        return replace(self, columns=tuple(replace(column, table=table, bare=True) for column in self.columns))

    @property
    def tables(self) -> list[str]:
        """Names of the tables."""
        return list(dict.fromkeys(column.table for column in self.columns if column.table))

    def star(self, statement: Statement, node: exp.Expr) -> list[Visible]:
        """The columns of ``*`` or ``t.*``."""
        table = node.table if isinstance(node, exp.Column) else ""
        if not table:
            return [column for column in self.columns if column.bare and not column.hidden]
        found = [c for c in self.columns if c.table.lower() == table.lower() and not c.hidden]
        if not found:
            raise statement.refused(
                node, f"there is no table {table!r} in this FROM.", f"There are: {', '.join(self.tables)}."
            )
        return found

    def resolved(self, statement: Statement, node: exp.Column) -> exp.Expr:
        """The column of a name, over the rows of the stream.

        Raises
        ------
        SqlError
            If no column has the name, or several have it.
        """
        parts = [part.name for part in node.parts]
        found = self._matches(parts)
        if not found:
            raise statement.refused(node, f"there is no column {'.'.join(parts)!r}.", self._known(parts))
        (column, fields), *more = found
        if more:
            holders = list(dict.fromkeys(f"{each.table}.{each.name}" for each, _ in found))
            hint = f"Write one of {', '.join(holders)}." if len(holders) > 1 else "Give them other names with AS."
            raise statement.refused(node, f"the column {'.'.join(parts)!r} is ambiguous.", hint)
        made = column.column.copy()
        for field in fields:
            made = exp.Dot(this=made, expression=exp.to_identifier(field, quoted=True))
        # Keep the position of the written name, for messages.
        position = next((part.meta for part in node.parts if "start" in part.meta), {})
        for each in made.walk():
            each.meta.update(position)
        return made

    def has(self, node: exp.Column) -> bool:
        """Whether a column has this name."""
        return bool(self._matches([part.name for part in node.parts]))

    def _matches(self, parts: Sequence[str]) -> list[tuple[Visible, Sequence[str]]]:
        names = [part.lower() for part in parts]
        if len(parts) > 1:
            of_table = [c for c in self.columns if [c.table.lower(), c.name.lower()] == names[:2]]
            if of_table:
                return [(column, parts[2:]) for column in of_table]
        return [(column, parts[1:]) for column in self.columns if column.bare and column.name.lower() == names[0]]

    def _known(self, parts: Sequence[str]) -> str:
        if len(parts) > 1 and parts[0].lower() not in [table.lower() for table in self.tables]:
            return f"There is no table {parts[0]!r} either; there are: {', '.join(self.tables)}."
        shown = [column.name for column in self.columns if not column.hidden]
        return f"There are: {', '.join(dict.fromkeys(shown))}."

    def translated(self, statement: Statement, expression: exp.Expr) -> exp.Expr:
        """An expression over the rows of the stream."""
        statement.checked(expression)
        made = expression.transform(self._translation(statement))
        return made if statement.typed is None else statement.typed(made, self.stream)

    def _translation(self, statement: Statement) -> Callable[[exp.Expr], exp.Expr]:
        def of(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Struct):
                return self._struct(statement, node)
            if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
                raise statement.refused(node, "a star is not possible here.", "Name the columns.")
            if isinstance(node, exp.Column):
                return self.resolved(statement, node)
            if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
                raise statement.refused(
                    node, "a star is not possible here.", "Stars are possible in count(*) and struct(*)."
                )
            return node

        return of

    def _struct(self, statement: Statement, node: exp.Struct) -> exp.Expr:
        """A struct whose fields keep their names in the statement."""
        fields: list[exp.Expr] = []
        for each in node.expressions:
            if isinstance(each, exp.Star) or (isinstance(each, exp.Column) and isinstance(each.this, exp.Star)):
                statement.only(each if isinstance(each, exp.Star) else each.this)
                fields += [_field(column.name, column.column.copy()) for column in self.star(statement, each)]
            elif isinstance(each, exp.Column):
                fields.append(_field(each.name, self.resolved(statement, each)))
            else:
                fields.append(each.transform(self._translation(statement)))
        made = exp.Struct(expressions=fields)
        made.meta.update(node.meta)
        return made


def _field(name: str, value: exp.Expr) -> exp.Expr:
    return exp.PropertyEQ(this=exp.to_identifier(name, quoted=True), expression=value)


def column_of(name: str, table: str = "") -> exp.Column:
    """The column with exactly this name, of a table if it is given."""
    of_table = {"table": exp.to_identifier(table, quoted=True)} if table else {}
    return exp.Column(this=exp.to_identifier(name, quoted=True), **of_table)
