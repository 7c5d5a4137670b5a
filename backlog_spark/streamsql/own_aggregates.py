"""Rewrites a join of a query with its own aggregates as OVER, so that the query is read and computed once.

``FROM a JOIN (SELECT k, sum(n) AS s FROM a GROUP BY k) AS b ON a.k = b.k`` becomes ``FROM (SELECT *, sum(n) OVER
(PARTITION BY k) AS s FROM a) AS a``. With ``max(n)`` and the condition ``a.n >= b.m`` it becomes ``RANK() … = 1``,
whose state is one row a key. Nexmark's query 5 is of this form: its live batches take half of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from backlog_spark.streamsql.rows import PSEUDO, column_of
from backlog_spark.streamsql.translation import Translation, conjuncts

__all__ = ["as_over"]

_Tables = Mapping[str, exp.Query]
_Has = Callable[[exp.Expr, exp.Column], bool]
_IsTime = Callable[[exp.Expr, exp.Column], bool]
_AGGREGATES: Final = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
# The comparisons of a value with the greatest one, or the least one, that only this value itself fulfils.
_PEAKS: Final[Mapping[type[exp.Expr], type[exp.Expr]]] = {exp.Max: exp.GTE, exp.Min: exp.LTE}
_MIRRORED: Final[Mapping[type[exp.Expr], type[exp.Expr]]] = {exp.GTE: exp.LTE, exp.LTE: exp.GTE, exp.EQ: exp.EQ}


@dataclass
class _Own:
    """A join with aggregates of the rows that FROM has.

    Parameters
    ----------
    alias : str
        Of the joined query, in lower case.
    keys, aggregates : dict
        Its columns by name in lower case: columns of FROM that it groups by, and aggregates over columns of FROM.
    """

    alias: str
    keys: dict[str, str] = field(default_factory=dict)
    aggregates: dict[str, exp.Expr] = field(default_factory=dict)


def as_over(tr: Translation, select: exp.Select, tables: _Tables, has: _Has, is_time: _IsTime) -> exp.Select:
    """The SELECT without its first join of this form; the same SELECT if there is none.

    Parameters
    ----------
    tables : mapping of str to Query
        The queries of WITH.
    has, is_time : callable
        Whether an item of FROM has a column, and whether this is the event time.
    """
    source, joins = select.args.get("from_"), select.args.get("joins") or []
    if source is None or not joins or select.args.get("hint") or select.args.get("laterals"):
        return select
    if any(join.args.get(key) for join in joins for key in ("using", "side", "method")) or any(
        str(join.args.get("kind") or "INNER").upper() != "INNER" for join in joins
    ):
        return select
    if any(not isinstance(join.this, exp.Table | exp.Subquery) or join.this.args.get("version") for join in joins):
        return select  # it may name columns of the items before it
    for number, join in enumerate(joins):
        own = _own(source.this, join.this, tables)
        if own is not None and source.this.alias_or_name:
            return _rewritten(tr, select, number, own, has, is_time) or select
    return select


def _own(rows: exp.Expr, item: exp.Expr, tables: _Tables) -> _Own | None:
    """What an item of FROM aggregates, if it aggregates these rows."""
    query, known = _query_of(item, tables)
    group = query.args.get("group") if isinstance(query, exp.Select) else None
    if not isinstance(query, exp.Select) or group is None or _given(group) != {"expressions"}:
        return None
    if _given(query) - {"expressions", "from_", "group"} or not item.alias_or_name:
        return None
    inner = query.args["from_"].this
    name_of = _names(rows, tables, inner, known)
    grouped = [each.name for each in group.expressions if isinstance(each, exp.Column)]
    if name_of is None or len(grouped) < len(group.expressions):
        return None
    used = [each for part in (*query.expressions, group) for each in part.find_all(exp.Column)]
    if any(len(each.parts) > 2 or each.table.lower() not in ("", inner.alias_or_name.lower()) for each in used):
        return None  # a field of a struct
    made = _Own(item.alias_or_name.lower())
    for each in query.expressions:
        inner, name = each.unalias(), each.alias_or_name.lower()
        columns = list(inner.find_all(exp.Column))
        if not name or name in {*made.keys, *made.aggregates} or any(name_of(c.name) is None for c in columns):
            return None
        if isinstance(inner, exp.Column) and inner.name.lower() in map(str.lower, grouped):
            made.keys[name] = str(name_of(inner.name))
        elif isinstance(inner, _AGGREGATES) and not inner.find(exp.Distinct, exp.Query):
            made.aggregates[name] = inner.transform(
                lambda node: column_of(str(name_of(node.name))) if isinstance(node, exp.Column) else node
            )
        else:
            return None
    return made if {name_of(each) for each in grouped} == {*made.keys.values()} else None


def _query_of(item: exp.Expr, tables: _Tables) -> tuple[exp.Expr | None, _Tables]:
    """The query that an item of FROM stands for, and the queries of WITH that it may use. None for a stream."""
    alias = item.args.get("alias")
    if _given(item) - {"this", "alias"} or (alias is not None and _given(alias) - {"this"}):
        return None, tables
    if isinstance(item, exp.Subquery):
        return item.this, tables
    if isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier) and item.name.lower() in tables:
        query = tables[item.name.lower()]
        return query, query.meta["tables"]
    return None, tables


def _names(rows: exp.Expr, tables: _Tables, inner: exp.Expr, known: _Tables) -> Callable[[str], str | None] | None:
    """The name that a column of one item of FROM has in another, if both have the same rows."""
    query, in_query = _query_of(rows, tables)
    other, in_other = _query_of(inner, known)
    plain = [isinstance(each, exp.Table) and isinstance(each.this, exp.Identifier) for each in (rows, inner)]
    if any(_given(each) - {"this", "alias"} for each in (rows, inner)):
        return None
    if query is None and other is None:
        is_same = all(plain) and rows.name.lower() == inner.name.lower()
        return (lambda name: name) if is_same else None
    if query is other:
        return lambda name: name
    if not isinstance(query, exp.Select) or not isinstance(other, exp.Select):
        return None
    if any(in_query.get(t.name.lower()) is not in_other.get(t.name.lower()) for t in other.find_all(exp.Table)):
        return None
    one, two = query.copy(), other.copy()
    if _is_plain(query) and _is_plain(other):
        one.set("expressions", [])
        two.set("expressions", [])
    if one != two:
        return None
    by_value = {item.unalias(): item.alias_or_name for item in query.expressions}
    found = {item.alias_or_name.lower(): by_value.get(item.unalias()) or None for item in other.expressions}
    return lambda name: found.get(name.lower())


def _is_plain(query: exp.Select) -> bool:
    """Whether a query has the same rows with other items of its list: only columns and aggregates, and nothing else
    in it names an item.
    """
    if _given(query) - {"expressions", "from_", "joins", "where", "group"}:
        return False
    group = query.args.get("group")
    values = [item.unalias() for item in query.expressions]
    if group is None:
        return all(isinstance(value, exp.Column) for value in values)
    names = {each.name.lower() for each in group.find_all(exp.Column)}
    made = [item for item in query.expressions if item.alias_or_name.lower() in names]
    return (
        _given(group) == {"expressions"}
        and all(isinstance(each, exp.Column) for each in group.expressions)
        and all(isinstance(value, exp.Column | exp.AggFunc) for value in values)
        and all(isinstance(item.unalias(), exp.Column) and item.unalias().name == item.alias_or_name for item in made)
    )


def _rewritten(
    tr: Translation, select: exp.Select, number: int, own: _Own, has: _Has, is_time: _IsTime
) -> exp.Select | None:
    """The SELECT with the aggregates as OVER. None if the join has another condition, or for names of other forms."""
    made = select.copy()
    rows, (*joins,) = made.args["from_"].this, made.args["joins"]
    join = joins.pop(number)
    alias, others = rows.alias_or_name.lower(), [each.this for each in joins]
    conditions = [each for part in (join.args.get("on"), made.args.get("where")) for each in _conditions(part)]
    parts = [*conditions, *(each.args["on"] for each in joins if each.args.get("on"))]
    rest = [made.args[key] for key in made.args if key not in ("from_", "joins", "where", "with_")]
    parts += [each for part in rest for each in (part if isinstance(part, list) else [part])]
    parts = [part for part in parts if isinstance(part, exp.Expr)]
    if any(
        part.find(exp.Query) or any(not isinstance(s.parent, exp.Count) for s in part.find_all(exp.Star))
        for part in parts
    ):
        return None
    known = {own.alias: join.this, alias: rows, **{each.alias_or_name.lower(): each for each in others}}
    of_rows: list[exp.Column] = []
    of_own: list[exp.Column] = []
    for column in [each for part in parts for each in part.find_all(exp.Column)]:
        holders = [column.table.lower()] if column.table else [n for n, item in known.items() if has(item, column)]
        if len(column.parts) > 2 or len(holders) != 1 or holders[0] not in known or column.name in PSEUDO:
            return None
        if holders[0] in (alias, own.alias):
            (of_rows if holders[0] == alias else of_own).append(column)
    if any(each.name.lower() not in {*own.keys, *own.aggregates} for each in of_own):
        return None

    def compared(condition: exp.Expr) -> tuple[str, str]:
        """The columns of FROM and of the own query that a condition compares."""
        if not isinstance(condition, tuple(_MIRRORED)):
            return "", ""
        one, two = condition.this, condition.expression
        ids = {id(each) for each in of_rows}, {id(each) for each in of_own}
        if id(one) in ids[1]:
            one, two = two, one
        return (one.name.lower(), two.name.lower()) if id(one) in ids[0] and id(two) in ids[1] else ("", "")

    equal = [
        each for each in conditions
        if isinstance(each, exp.EQ) and (pair := compared(each))[0] and own.keys.get(pair[1], "").lower() == pair[0]
    ]  # fmt: skip
    if {own.keys[compared(each)[1]] for each in equal} != {*own.keys.values()}:
        return None
    kept = [each for each in conditions if not any(each is one for one in equal)]
    peak = next((each for each in kept if _is_peak(each, compared(each), own, of_own)), None)
    if peak is not None and is_time(select.args["from_"].this, column_of(compared(peak)[0])):
        peak = None  # an order by time would wait for the watermark
    names = {name.lower(): name for name in own.keys.values()}
    for function in own.aggregates.values():
        names |= {column.name.lower(): column.name for column in function.find_all(exp.Column)}
    names = {**{column.name.lower(): column.name for column in of_rows}, **names}
    hidden = {name: tr.hidden("own") for name in own.aggregates}
    partition = [column_of(key) for key in dict.fromkeys(own.keys.values())]
    values = {name: column_of(key, alias) for name, key in own.keys.items()}
    kept += [_is_known(column_of(each.name, alias)) for each in partition]
    if peak is None:
        calls: dict[str, exp.Expr] = {hidden[name]: function for name, function in own.aggregates.items()}
        order = None
        values |= {name: column_of(each, alias) for name, each in hidden.items()}
    else:
        ((name, function),) = own.aggregates.items()
        calls = {hidden[name]: exp.Rank()}
        order = exp.Order(
            expressions=[exp.Ordered(this=function.this.copy(), desc=isinstance(function, exp.Max), nulls_first=False)]
        )
        values[name] = column_of(function.this.name, alias)
        first = exp.EQ(this=column_of(hidden[name], alias), expression=exp.Literal.number(1))
        kept = [each for each in kept if each is not peak] + [first, _is_known(values[name].copy())]
    items = made.expressions
    if any(c.find_ancestor(exp.Alias) is None and c.parent is not made for c in of_own if _is_in(c, items)):
        return None  # the name of an item is made of its text
    for column in of_own:
        value = values[column.name.lower()].copy()
        column.replace(exp.alias_(value, column.name, quoted=True) if column.parent is made else value)
    windows = [
        exp.alias_(
            exp.Window(this=call, partition_by=[each.copy() for each in partition], order=order and order.copy()),
            name,
            quoted=True,
        )
        for name, call in calls.items()
    ]
    inner = exp.Select(expressions=[*map(column_of, names.values()), *windows], from_=exp.From(this=rows.copy()))
    table = exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    made.set("from_", exp.From(this=table))
    made.set("joins", joins)
    made.set("where", exp.Where(this=exp.and_(*kept, copy=False)))
    return made


def _is_peak(condition: exp.Expr, pair: tuple[str, str], own: _Own, of_own: list[exp.Column]) -> bool:
    """Whether only the rows with the greatest, or the least, value of their key fulfil a condition."""
    if len(own.aggregates) != 1 or pair[1] not in own.aggregates:
        return False
    function = own.aggregates[pair[1]]
    kind = type(condition)
    if type(function) not in _PEAKS:
        return False
    if any(condition.this is each for each in of_own):
        kind = _MIRRORED[kind]
    if not isinstance(function.this, exp.Column) or function.this.name.lower() != pair[0]:
        return False
    return kind is exp.EQ or kind is _PEAKS.get(type(function))


def _is_in(column: exp.Column, parts: list[exp.Expr]) -> bool:
    return any(column is each for part in parts for each in part.find_all(exp.Column))


def _conditions(part: exp.Expr | None) -> list[exp.Expr]:
    if part is None:
        return []
    return conjuncts(part.this if isinstance(part, exp.Where) else part)


def _given(node: exp.Expr) -> set[str]:
    """The clauses that a part of a statement has."""
    return {key for key, value in node.args.items() if value is not None and value is not False and value != []}


def _is_known(column: exp.Column) -> exp.Expr:
    return exp.Not(this=exp.Is(this=column, expression=exp.Null()))
