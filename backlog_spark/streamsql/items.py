"""The items of a SELECT list."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from backlog_spark.errors import BacklogError
from backlog_spark.operators.declare import parse_aggregates
from backlog_spark.operators.over.select_list import parse_over
from backlog_spark.streamsql.rows import Rows, text_of
from backlog_spark.streamsql.translation import Translation

__all__ = ["Item", "items_of"]


@dataclass(frozen=True)
class Item:
    """A column of a SELECT.

    Parameters
    ----------
    name : str
        Empty if the statement has no name.
    expression : Expr
        The expression as it is written.
    column : Expr, optional
        The column over the rows of FROM, if the item comes from a star.
    rows : Rows, optional
        The rows of FROM.
    """

    name: str
    expression: exp.Expr
    column: exp.Expr | None = None
    rows: Rows | None = None

    def translated(self, tr: Translation, rows: Rows) -> exp.Expr:
        """The expression over the rows of FROM."""
        return rows.translated(tr.statement, self.expression) if self.column is None else self.column

    def named(self, tr: Translation) -> str:
        """The item's name. Without AS that of the operators, for a function of plain columns, else Spark's."""
        if self.name:
            return self.name
        call = self.expression.unnest().transform(_without_table)
        try:
            if isinstance(call, exp.Window):
                return parse_over(text_of(call.this))[0].name
            if isinstance(call, exp.Func):
                return parse_aggregates(text_of(call))[0].name
        except BacklogError:
            pass
        return text_of(call) if self.rows is None else tr.name_of(self.rows, call)


def _without_table(node: exp.Expr) -> exp.Expr:
    return exp.column(node.this.copy()) if isinstance(node, exp.Column) and len(node.parts) > 1 else node


def items_of(tr: Translation, select: exp.Select, rows: Rows) -> list[Item]:
    """The columns of a SELECT. Stars are replaced by their columns."""
    found: list[Item] = []
    for each in select.expressions:
        star = each.this if isinstance(each, exp.Column) else each
        if isinstance(star, exp.Star):
            tr.statement.only(star)
            found += [Item(c.name, each, c.column) for c in rows.star(tr.statement, each)]
            continue
        if isinstance(each, exp.Aliases):
            raise tr.statement.refused(each, "several names for one column.", "Write one name after AS.")
        inner = each.unalias() if isinstance(each, exp.Alias) else each
        found.append(Item(each.alias or _own_name(inner), inner, rows=rows))
    return found


def _own_name(expression: exp.Expr) -> str:
    inner = expression.unnest()
    if isinstance(inner, exp.Column):
        return str(inner.name)
    if isinstance(inner, exp.Dot) and isinstance(inner.expression, exp.Identifier):
        return str(inner.expression.name)
    return ""
