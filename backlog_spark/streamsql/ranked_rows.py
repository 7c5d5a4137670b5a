"""Translates ``SELECT … FROM (SELECT …, ROW_NUMBER() OVER (…) AS n FROM …) WHERE n <= 3``: the first rows of each key.

Source: Flink SQL's "Deduplication" and "Top-N".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlglot import exp
from sqlglot.optimizer.simplify import simplify

from backlog_spark.api.streams import BacklogStream
from backlog_spark.common.sql_names import quoted
from backlog_spark.model.changes import IMPLIED
from backlog_spark.model.nodes import KeyedNode
from backlog_spark.model.trees import with_changes
from backlog_spark.operators.aggregates.base import is_orderable
from backlog_spark.operators.aggregates.ordered import FirstRow
from backlog_spark.operators.over.functions import OverFunction
from backlog_spark.operators.over.ranked import Frame, Order, RankedFold
from backlog_spark.streamsql.refusals import SqlError
from backlog_spark.streamsql.rows import Rows, Visible, column_of, text_of
from backlog_spark.streamsql.translation import Translation, conjuncts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["LIMITED", "RANK_CALLS", "after_ranked", "first_rows", "ranked"]

LIMITED: Final = "backlog_spark.limited"
"""Key in the metadata of a window whose results a condition limits."""

RANK_CALLS: Final[Mapping[type[exp.Expr], str]] = {
    exp.RowNumber: "row_number",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
}

_ALL: Final = "__all"
_UPPER: Final = (exp.LT, exp.LTE, exp.GT, exp.GTE)
_BOUNDS: Final = (exp.EQ, *_UPPER)
_FIRST: Final = "row_number"


def ranked(
    tr: Translation,
    stream: BacklogStream,
    keys: Sequence[str],
    functions: Sequence[OverFunction],
    order: Sequence[Order],
    name: str,
    *,
    frame: Frame | None = None,
    limit: tuple[str, int] | None = None,
    written: str = "",
) -> BacklogStream:
    """A stream with the functions of `RankedFold`, or with the first rows of each key."""

    def bind(schema: StructType, key_groups: int, is_first: bool) -> RankedFold:
        return RankedFold(
            keys,
            functions,
            schema,
            key_groups,
            order=order,
            frame=frame or Frame(),
            limit=limit,
            written=written,
        )

    node = KeyedNode(with_changes(stream._node, IMPLIED), name, bind)
    return BacklogStream(node)


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
    if inner.args.get("qualify"):
        return None
    inner = _with_plain_windows(inner)
    where = conjuncts(around.args["where"].this) if around.args.get("where") else []
    numbered = [item for item in inner.expressions if item.find(exp.Window)]
    if len(numbered) != 1 or not isinstance(numbered[0], exp.Alias) or not isinstance(numbered[0].this, exp.Window):
        return None
    (item,) = numbered
    function = RANK_CALLS.get(type(item.this.this))
    within = inner.args["where"].find_all(exp.Column) if inner.args.get("where") else ()
    if any(column.name.lower() == item.alias.lower() for column in within):
        return None  # perhaps a condition on the number
    name, table, joins = item.alias, node.alias or node.name, around.args.get("joins")
    limits = [(each, _most(each, name, table, qualified=bool(joins))) for each in where]
    bounds = [(condition, most) for condition, most in limits if most is not None]
    if function is None or not bounds or inner.args.get("group") or inner.args.get("having"):
        return None
    if inner.args.get("distinct"):
        return None
    if node.args.get("alias"):
        tr.statement.only(node.args["alias"], "this")
    names = tr.names()
    item.this.meta[LIMITED] = True
    most = min(most for _, most in bounds)
    only_first = most == 1 and function == _FIRST
    implied = [
        c for c, bound in bounds if bound == most and (isinstance(c, _UPPER) or (most == 1 and function == _FIRST))
    ]
    # A join after it may fill the number with NULL, so then the condition stays.
    left = where if joins else [each for each in where if not any(each is one for one in implied)]

    def selected(query: exp.Select) -> Rows:
        return select(query, tables)

    try:
        return selected(inner).aliased(table), where
    except SqlError as error:
        tr.names(names)
        shown = only_first or used is None or _reads(around, left, name)
        read = used if shown or used is None else used - {name.lower()}
        found = _windowed(tr, inner, item, read, selected, error)
        rows = _picked(tr, found, item) if only_first else _top(tr, found, item, (function, most), shown=shown)
        return rows.aliased(table), left


def _with_plain_windows(select: exp.Select) -> exp.Select:
    """A copy of a query whose windows are all in their place, and not in its WINDOW clause."""
    made = select.copy()
    named = {each.name.lower(): each for each in made.args.get("windows") or []}
    for call in [*made.find_all(exp.Window)]:
        reference = call.args.get("alias")
        base = named.get(reference.name.lower()) if reference is not None and isinstance(call.this, exp.Func) else None
        if base is not None:
            for key in ("partition_by", "order", "spec"):
                given = call.args.get(key) or base.args.get(key)
                call.set(key, [each.copy() for each in given] if isinstance(given, list) else given and given.copy())
            call.set("alias", None)
    if all(each.args.get("alias") is None for item in made.expressions for each in item.find_all(exp.Window)):
        made.set("windows", None)
    return made


def _most(condition: exp.Expr, name: str, table: str, *, qualified: bool) -> int | None:
    """The greatest value of a column that satisfies a condition, such as ``name <= 3``; None for other conditions.

    ``qualified``: only with the name of the table.
    """
    if isinstance(condition, exp.Between):
        column, bound = condition.this, condition.args["high"]
    elif isinstance(condition, _BOUNDS):
        column, bound = condition.this, condition.expression
        if isinstance(condition, exp.GT | exp.GTE) or (isinstance(condition, exp.EQ) and not _is_column(column)):
            column, bound = bound, column
    else:
        return None
    if not _is_column(column) or column.name.lower() != name.lower():
        return None
    if column.table.lower() not in ((table.lower(),) if qualified else (table.lower(), "")):
        return None
    constant = simplify(bound.copy(), dialect="spark") if not bound.find(exp.Column) else bound
    if not isinstance(constant, exp.Literal) or constant.is_string or not constant.name.isdecimal():
        return None
    return int(constant.name) - isinstance(condition, exp.LT | exp.GT)


def _is_column(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and len(node.parts) <= 2


def _reads(around: exp.Select, where: Sequence[exp.Expr], name: str) -> bool:
    """Whether a query uses a column, if its WHERE has only these conditions."""
    others = [around.args[key] for key in around.args if key not in ("from_", "with_", "where")]
    parts = [*where, *(each for part in others for each in (part if isinstance(part, list) else [part]))]
    found = [each for part in parts if isinstance(part, exp.Expr) for each in part.find_all(exp.Identifier)]
    return any(each.name.lower() == name.lower() for each in found)


@dataclass(frozen=True)
class _Windowed:
    """The rows of a query with the columns of a window that it has.

    Parameters
    ----------
    rows : Rows
    keys : list of str
        The columns of PARTITION BY.
    order : list of (str, bool, bool)
        The items of ORDER BY as columns: see `Order`.
    shown : list of Visible
        The query's own columns.
    parts : list of Expr
        The items of PARTITION BY.
    """

    rows: Rows
    keys: list[str]
    order: list[Order]
    shown: list[Visible]
    parts: list[exp.Expr]


def _windowed(
    tr: Translation,
    inner: exp.Select,
    item: exp.Alias,
    used: set[str] | None,
    select: Callable[[exp.Select], Rows],
    error: SqlError,
) -> _Windowed:
    """The rows of a query, with 1 in the place of the number, and the columns of its window."""
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
    orders = [(n, bool(e.args.get("desc")), bool(e.args.get("nulls_first"))) for n, e in by.items()]
    return _Windowed(rows, keys, orders, shown, list(parts.values()))


def _top(tr: Translation, found: _Windowed, item: exp.Alias, limit: tuple[str, int], *, shown: bool) -> Rows:
    """The first rows of each key, with their number if it is ``shown``."""
    name = item.alias
    number = tr.hidden("number")
    functions = [OverFunction(limit[0], None, number)] if shown else []
    operator = tr.operator(*map(_told, found.parts), "top")
    stream = ranked(
        tr, found.rows.stream, found.keys, functions, found.order, operator, limit=limit, written=text_of(item.this)
    )
    rows = after_ranked(tr, stream, found.rows, item.this)
    items = [(column.name, column_of(number) if column.name == name else column.column, item) for column in found.shown]
    return tr.projected(rows, items)


def after_ranked(tr: Translation, stream: BacklogStream, rows: Rows, node: exp.Expr) -> Rows:
    """The rows of a stream from `ranked`, whose input had these ``rows``."""
    pseudo = tr.change_columns(stream, node, "OVER")
    columns = [column for column in rows.columns if not (column.hidden and column.column.name in rows.pseudo)]
    return Rows(stream, (*columns, *(Visible("", name, column_of(name), hidden=True) for name in pseudo)), pseudo)


def _picked(tr: Translation, found: _Windowed, item: exp.Alias) -> Rows:
    """The first row of each key."""
    rows, shown = found.rows, found.shown
    row = tr.unseen("__row")
    value = f"struct({', '.join(quoted(column.column.name) for column in shown)})"
    orders: tuple[Order, ...] = tuple((quoted(name), down, nulls) for name, down, nulls in found.order)
    fields = {field.name: field.dataType for field in tr.schema(rows.stream, item)}
    stored = [column.column.name for column in shown]
    if not all(is_orderable(fields[each]) for each in stored):  # Rows that are equal in the order need another one.
        orders += tuple((quoted(each), False, True) for each in stored if is_orderable(fields[each]))
    picked = FirstRow(value, orders, name=row)
    with tr.statement.at(item.this):
        name = tr.operator(*map(_told, found.parts), "first_row")
        stream = rows.stream.key_by(*found.keys).aggregate(picked, name=name)
    pseudo = tr.change_columns(stream, item.this)
    made = Rows(stream, tuple(Visible("", name, column_of(name), hidden=True) for name in pseudo), pseudo)
    items = [
        (column.name, exp.Dot(this=column_of(row), expression=exp.to_identifier(column.column.name, quoted=True)), item)
        for column in shown
    ]
    return tr.projected(made, items)


def _told(expression: exp.Expr) -> str:
    return expression.name or "key"
