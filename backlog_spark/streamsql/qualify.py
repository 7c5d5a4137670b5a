"""Rewrites QUALIFY as a condition of a query around it.

Source: Spark's "QUALIFY Clause".
"""

from __future__ import annotations

from sqlglot import exp

from backlog_spark.streamsql.subqueries import Known
from backlog_spark.streamsql.translation import Translation, conjuncts

__all__ = ["around_windows"]


def around_windows(tr: Translation, select: exp.Select, known: Known) -> tuple[exp.Select | None, list[str]]:
    """A query around one with QUALIFY, and the names of columns that only it needs; None if there is no need.

    A condition of WHERE on the alias of an OVER goes there too: no column of FROM has the name.

    Parameters
    ----------
    known : callable
        Whether a column belongs to the tables of a query.
    """
    where = conjuncts(select.args["where"].this) if select.args.get("where") else []
    aliases = {each.alias.lower() for each in select.expressions if each.find(exp.Window) and each.alias}
    late = [
        condition
        for condition in (where if aliases else [])
        if any(
            not c.table and c.name.lower() in aliases and not known(select, c) for c in condition.find_all(exp.Column)
        )
        and not condition.find(exp.Query)
    ]
    qualify = select.args.get("qualify")
    if not late and qualify is None:
        return None, []
    inner = select.copy()
    inner.set("qualify", None)
    inner.set("distinct", None)
    rest = [each.copy() for each in where if not any(each is one for one in late)]
    inner.set("where", exp.Where(this=exp.and_(*rest, copy=False)) if rest else None)
    added: list[str] = []

    def column_for(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Window):
            return node
        added.append(tr.hidden("over"))
        inner.append("expressions", exp.alias_(node.copy(), added[-1], quoted=True))
        return exp.column(added[-1], quoted=True)

    asked = conjuncts(qualify.this) if qualify is not None else []
    conditions = [each.copy() for each in late] + [each.transform(column_for) for each in asked]
    table = exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(tr.hidden("rows"), quoted=True)))
    outer = exp.Select(expressions=[exp.Star()], from_=exp.From(this=table))
    return outer.where(*conditions, copy=False), added
