"""Translates ``SELECT … FROM (SELECT …, ROW_NUMBER() OVER (…) AS n FROM …) WHERE n = 1``: the first row of each key.

Source: Flink SQL's "Deduplication" and "Top-N".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sqlglot import exp

from backlog_spark.common.sql_names import quoted
from backlog_spark.operators.aggregates.base import is_orderable
from backlog_spark.operators.aggregates.ordered import FirstRow
from backlog_spark.streamsql.refusals import SqlError
from backlog_spark.streamsql.rows import Rows, Visible, column_of
from backlog_spark.streamsql.translation import Translation, conjuncts

__all__ = ["first_rows"]

_ALL: Final = "__all"


def first_rows(
    tr: Translation,
    node: exp.Expr,
    tables: Mapping[str, exp.Query],
    around: exp.Select,
    used: set[str] | None,
    select: Callable[[exp.Select, Mapping[str, exp.Query]], Rows],
) -> tuple[Rows, list[exp.Expr]] | None:
    """The rows of an item of FROM, and what is left of WHERE around it. None if it is of another form.

    An order by event time stays with OVER, which gives each row once; any other order gives changes.

    Parameters
    ----------
    node : Expr
        The item of FROM.
    tables : mapping of str to Query
        The queries of WITH.
    around : Select
        The query around it.
    used : set of str or None
        The names that the query around it uses, in lower case; None: all.
    select : callable
        Translates a SELECT.
    """
    inner = node.this if isinstance(node, exp.Subquery) else None
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and node.name.lower() in tables:
        inner = tables[node.name.lower()]
        tables = inner.meta["tables"]
    if not isinstance(inner, exp.Select) or any(node.args[key] for key in node.args if key not in ("this", "alias")):
        return None
    where = conjuncts(around.args["where"].this) if around.args.get("where") else []
    numbered = [item for item in inner.expressions if item.find(exp.Window)]
    if len(numbered) != 1 or not isinstance(numbered[0], exp.Alias) or not _is_row_number(numbered[0].this):
        return None
    name = numbered[0].alias
    table, joins = node.alias or node.name, around.args.get("joins")
    limits = [each for each in where if _is_first(each, name, table, qualified=bool(joins))]
    if not limits or inner.args.get("group") or inner.args.get("having") or inner.args.get("distinct"):
        return None
    if node.args.get("alias"):
        tr.statement.only(node.args["alias"], "this")
    names = tr.names()
    try:
        return select(inner, tables).aliased(table), where
    except SqlError as error:
        tr.names(names)
        rows = _picked(tr, inner, numbered[0], used, lambda query: select(query, tables), error)
    # A join after it may fill the number with NULL, so then the condition stays.
    left = where if joins else [each for each in where if not any(each is limit for limit in limits)]
    return rows.aliased(table), left


def _is_row_number(call: exp.Expr) -> bool:
    return isinstance(call, exp.Window) and isinstance(call.this, exp.RowNumber)


def _is_first(condition: exp.Expr, name: str, table: str, *, qualified: bool) -> bool:
    """Whether a condition is ``name = 1``, or another form of it. ``qualified``: only with the name of the table."""
    sides = [condition.this, condition.args.get("expression")]
    forms: dict[type, tuple[str, bool]] = {
        exp.EQ: ("1", False), exp.LTE: ("1", False), exp.LT: ("2", False), exp.GTE: ("1", True), exp.GT: ("2", True),
    }  # fmt: skip
    if type(condition) not in forms:
        return False
    number, swapped = forms[type(condition)]
    if swapped or (isinstance(condition, exp.EQ) and isinstance(sides[0], exp.Literal)):
        sides.reverse()
    column, limit = sides
    return (
        isinstance(column, exp.Column)
        and column.name.lower() == name.lower()
        and len(column.parts) <= 2
        and column.table.lower() in ((table.lower(),) if qualified else (table.lower(), ""))
        and isinstance(limit, exp.Literal)
        and not limit.is_string
        and limit.name == number
    )


def _picked(
    tr: Translation,
    inner: exp.Select,
    item: exp.Alias,
    used: set[str] | None,
    select: Callable[[exp.Select], Rows],
    error: SqlError,
) -> Rows:
    call = item.this
    order = call.args.get("order")
    if order is None or call.args.get("alias") or call.args.get("spec"):
        raise error
    plain = inner.copy()
    place = inner.expressions.index(item)
    plain.expressions[place] = exp.alias_(exp.Literal.number(1), item.alias, quoted=True)
    parts = {tr.hidden("part"): each for each in call.args.get("partition_by") or []}
    by = {tr.hidden("order"): each for each in order.expressions}
    for name, each in (*parts.items(), *((name, each.this) for name, each in by.items())):
        plain.append("expressions", exp.alias_(each.copy(), name, quoted=True))
    rows = select(plain)
    if used is not None:
        rows = tr.pruned(rows, used | {name.lower() for name in (*parts, *by)}, item)
    shown = [column for column in rows.columns if not column.hidden and column.name not in (*parts, *by)]
    keys = list(parts) or [tr.unseen(_ALL)]
    if not parts:
        rows = tr.with_columns(rows, {keys[0]: exp.Literal.number(0)}, item)
    row = tr.unseen("__row")
    value = f"struct({', '.join(quoted(column.column.name) for column in shown)})"
    orders = tuple((quoted(n), bool(e.args.get("desc")), bool(e.args.get("nulls_first"))) for n, e in by.items())
    fields = {field.name: field.dataType for field in tr.schema(rows.stream, item)}
    stored = [column.column.name for column in shown]
    if not all(is_orderable(fields[each]) for each in stored):  # Rows that are equal in the order need another one.
        orders += tuple((quoted(each), False, True) for each in stored if is_orderable(fields[each]))
    picked = FirstRow(value, orders, name=row)
    with tr.statement.at(call):
        stream = rows.stream.key_by(*keys).aggregate(picked, name=tr.operator(*map(_told, parts.values()), "first_row"))
    pseudo = tr.change_columns(stream, call)
    found = Rows(stream, tuple(Visible("", name, column_of(name), hidden=True) for name in pseudo), pseudo)
    items = [
        (column.name, exp.Dot(this=column_of(row), expression=exp.to_identifier(column.column.name, quoted=True)), item)
        for column in shown
    ]
    return tr.projected(found, items)


def _told(expression: exp.Expr) -> str:
    return expression.name or "key"
