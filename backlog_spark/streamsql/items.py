"""The items of a SELECT list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from backlog_spark.errors import BacklogError
from backlog_spark.operators.declare import parse_aggregates
from backlog_spark.operators.over.select_list import parse_over
from backlog_spark.streamsql.rows import Rows, text_of
from backlog_spark.streamsql.translation import Translation

__all__ = ["UNNAMED", "Item", "items_of"]

UNNAMED: Final = "backlog_spark.unnamed"
"""Key in the metadata of a SELECT whose columns need no names."""


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
    fallback : str
        The name where none is needed, for example in the second query of a UNION ALL.
    """

    name: str
    expression: exp.Expr
    column: exp.Expr | None = None
    fallback: str = ""

    def translated(self, tr: Translation, rows: Rows) -> exp.Expr:
        """The expression over the rows of FROM."""
        return rows.translated(tr.statement, self.expression) if self.column is None else self.column

    def named(self, tr: Translation) -> str:
        """The item's name. A function of plain columns has a name even without AS, as in the operators.

        Raises
        ------
        SqlError
            If the item has no name.
        """
        if self.name:
            return self.name
        call = self.expression.unnest()
        try:
            if isinstance(call, exp.Window):
                return parse_over(text_of(call.this))[0].name
            if isinstance(call, exp.Func):
                return parse_aggregates(text_of(call))[0].name
        except BacklogError:
            pass
        if self.fallback:
            return self.fallback
        raise tr.statement.refused(call, f"{text_of(call)} has no name.", "Give it one with AS.")


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
        fallback = tr.hidden("column") if select.meta.get(UNNAMED) else ""
        found.append(Item(each.alias or _own_name(inner), inner, fallback=fallback))
    return found


def _own_name(expression: exp.Expr) -> str:
    inner = expression.unnest()
    if isinstance(inner, exp.Column):
        return str(inner.name)
    if isinstance(inner, exp.Dot) and isinstance(inner.expression, exp.Identifier):
        return str(inner.expression.name)
    return ""
