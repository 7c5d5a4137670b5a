"""Rewrites IN (SELECT …), EXISTS, and SEMI and ANTI joins as joins with the distinct rows of a query.

Source: Flink SQL's "IN" and "EXISTS"; Spark's ``RewritePredicateSubquery``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from backlog_spark.streamsql.rows import column_of
from backlog_spark.streamsql.translation import Translation, conjuncts

__all__ = ["ANTI", "EXISTS", "Known", "exists_join", "exists_joins"]

EXISTS: Final = "backlog_spark.exists"
"""Key in the metadata of a join that only tells whether a row has a match: its columns are not part of the result."""

ANTI: Final = "backlog_spark.anti"
"""Key in the metadata of such a join: the condition that the rows without a match fulfil."""

Known = Callable[[exp.Select, exp.Column], bool]
"""Whether a column belongs to the tables of a query."""


def exists_joins(tr: Translation, where: list[exp.Expr], known: Known) -> list[exp.Join]:
    """The joins for conditions of WHERE with subqueries. These conditions are removed from the list.

    Raises
    ------
    SqlError
        For a subquery that cannot be a join.
    """
    found: list[exp.Join] = []
    for condition in list(where):
        inner, negated = condition.unnest(), False
        while isinstance(inner, exp.Not):
            inner, negated = inner.this.unnest(), not negated
        if isinstance(inner, exp.Exists):
            query = inner.this
            joins = [exists_join(tr, _select_of(tr, query), [], known, inner, anti=negated)]
        elif isinstance(inner, exp.In) and inner.args.get("query") is not None:
            joins = _in(tr, inner, known, negated=negated)
        else:
            continue
        where[:] = [each for each in where if each is not condition]
        found += joins
    return found


def exists_join(
    tr: Translation,
    query: exp.Select,
    pairs: Sequence[tuple[exp.Expr, exp.Expr]],
    known: Known,
    node: exp.Expr,
    *,
    anti: bool,
) -> exp.Join:
    """The join that keeps rows with a match in a query, or those without one.

    Parameters
    ----------
    query : Select
        Its conditions may name columns of the query around it, as parts of equalities.
    pairs : sequence of (Expr, Expr)
        Further equal expressions, of the query around it and of this query.
    known : callable
    node : Expr
        For messages.
    anti : bool
    """
    inner = query.copy()
    equal = list(pairs)
    rest: list[exp.Expr] = []
    of_outer: list[exp.Expr] = []
    for condition in conjuncts(inner.args["where"].this) if inner.args.get("where") else []:
        if condition.find(exp.Query):
            rest.append(condition)
            continue
        own = _columns(condition)
        outer = [column for column in own if not known(query, column)]
        if not outer:
            rest.append(condition)
            continue
        if len(outer) == len(own):
            of_outer.append(condition)
            continue
        pair = _pair(condition, query, known)
        if pair is None:
            raise tr.statement.refused(
                condition,
                "a condition on columns of both queries that is not an equality.",
                "Write an equality, or a JOIN.",
            )
        equal.append(pair)
    whole = ("group", "having", "limit", "order", "offset", "qualify", "windows")
    grouped = any(inner.args.get(key) for key in whole) or any(
        item.find(exp.AggFunc, exp.Window) for item in inner.expressions
    )
    if grouped and (of_outer or len(equal) > len(pairs)):
        raise tr.statement.refused(
            node,
            "a subquery with GROUP BY, aggregates or OVER that names columns of the query around it.",
            "Write a JOIN.",
        )
    inner.set("where", exp.Where(this=exp.and_(*rest, copy=False)) if rest else None)
    names = [tr.hidden("key") for _ in equal] or [tr.hidden("key")]
    values = [each for _, each in equal] or [exp.Literal.number(1)]
    if grouped:
        # The keys are items of the query itself. They keep their names, which GROUP BY may use.
        table = exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(tr.hidden("rows"))))
        found = [next(n for n, item in enumerate(inner.expressions) if item.unalias() == value) for _, value in equal]
        for place, name in zip(found, names, strict=False):
            item = inner.expressions[place]
            if not item.alias_or_name:
                inner.expressions[place] = exp.alias_(item, name, quoted=True)
        values = [column_of(inner.expressions[place].alias_or_name) for place in found] or values
        inner = exp.Select(expressions=[], from_=exp.From(this=table))
    inner.set("expressions", [exp.alias_(v.copy(), n, quoted=True) for n, v in zip(names, values, strict=True)])
    inner.set("distinct", exp.Distinct())
    alias = tr.hidden("exists")
    table = exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    outers = [each for each, _ in equal] or [exp.Literal.number(1)]
    if of_outer:  # a row that does not fulfil them has the key NULL, and so no match
        met = exp.and_(*(each.copy() for each in of_outer))
        outers[0] = exp.Case(ifs=[exp.If(this=met, true=outers[0].copy())])
    on = [exp.EQ(this=o.copy(), expression=column_of(n, alias)) for o, n in zip(outers, names, strict=True)]
    join = exp.Join(this=table, on=exp.and_(*on, copy=False), **({"side": "LEFT"} if anti else {}))
    join.meta[EXISTS] = alias
    if anti:
        join.meta[ANTI] = exp.Is(this=column_of(names[0], alias), expression=exp.Null())
    return join


def _in(tr: Translation, condition: exp.In, known: Known, *, negated: bool) -> list[exp.Join]:
    query = _select_of(tr, condition.args["query"])
    wanted = condition.this.unnest()
    outer = list(wanted.expressions) if isinstance(wanted, exp.Tuple) else [wanted]
    if any(item.find(exp.Star) and not item.find(exp.Count) for item in query.expressions):
        raise tr.statement.refused(condition, "IN with the columns of a star.", "Name the columns.")
    if len(query.expressions) != len(outer):
        raise tr.statement.refused(
            condition, f"IN compares {len(outer)} values with {len(query.expressions)} columns.", "Name the columns."
        )
    inner = [item.unalias() for item in query.expressions]
    join = exists_join(tr, query, list(zip(outer, inner, strict=True)), known, condition, anti=negated)
    if not negated:
        return [join]
    if len(outer) > 1 or any(not known(query, column) for column in _columns(query)):
        raise tr.statement.refused(
            condition, "NOT IN of several values, or of a query that names other tables.", "Write NOT EXISTS."
        )
    # With a NULL among the values no row fulfils NOT IN; without any value all rows do.
    alias, name = tr.hidden("nulls"), tr.hidden("null")
    plain = query.copy()
    if plain.expressions[0].alias_or_name:
        name = plain.expressions[0].alias_or_name
    else:
        plain.expressions[0] = exp.alias_(inner[0].copy(), name, quoted=True)
    is_null = exp.Case(
        ifs=[
            exp.If(
                this=exp.Is(this=column_of(name, alias), expression=exp.Null()),
                true=exp.Literal.number(1),
            )
        ],
        default=exp.Literal.number(0),
    )
    rows = exp.Subquery(this=plain, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    name = tr.hidden("null")
    most = exp.alias_(exp.Max(this=is_null), name, quoted=True)
    summary = exp.Select(expressions=[most], from_=exp.From(this=rows))
    other = tr.hidden("exists")
    table = exp.Subquery(this=summary, alias=exp.TableAlias(this=exp.to_identifier(other, quoted=True)))
    nulls = exp.Join(this=table, on=exp.Boolean(this=True), side="LEFT")
    nulls.meta[EXISTS] = other
    has_null = column_of(name, other)
    nulls.meta[ANTI] = exp.Or(
        this=exp.Is(this=has_null, expression=exp.Null()),
        expression=exp.And(
            this=exp.EQ(this=has_null.copy(), expression=exp.Literal.number(0)),
            expression=exp.Not(this=exp.Is(this=exp.paren(outer[0].copy()), expression=exp.Null())),
        ),
    )
    return [join, nulls]


def _columns(node: exp.Expr) -> list[exp.Column]:
    """The columns that a part names, without those in queries within it."""
    found = node.walk(prune=lambda each: isinstance(each, exp.Subquery | exp.Exists) and each is not node)
    return [each for each in found if isinstance(each, exp.Column)]


def _select_of(tr: Translation, query: exp.Expr) -> exp.Select:
    while isinstance(query, exp.Subquery):
        tr.statement.only(query, "this", "alias")
        query = query.this
    if isinstance(query, exp.SetOperation):
        table = exp.Subquery(this=query.copy(), alias=exp.TableAlias(this=exp.to_identifier(tr.hidden("rows"))))
        names = [item.alias_or_name for item in query.left.selects]
        return exp.Select(expressions=[exp.column(name, quoted=True) for name in names], from_=exp.From(this=table))
    if not isinstance(query, exp.Select):
        raise tr.statement.refused(query, f"{query.key.upper()} is no query.", "Write a SELECT.")
    return query


def _pair(condition: exp.Expr, query: exp.Select, known: Known) -> tuple[exp.Expr, exp.Expr] | None:
    """The expressions of the outer and the inner query that an equality compares."""
    equality = condition.unnest()
    if not isinstance(equality, exp.EQ):
        return None
    sides = [equality.this.unnest(), equality.expression.unnest()]
    is_inner = [{known(query, column) for column in side.find_all(exp.Column)} for side in sides]
    if is_inner == [{False}, {True}]:
        return sides[0], sides[1]
    return (sides[1], sides[0]) if is_inner == [{True}, {False}] else None
