"""Translates GROUP BY, aggregates, HAVING and DISTINCT to `KeyedStream.aggregate` and `WindowedStream.aggregate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from backlog_spark.common.failure_causes import nearest_function
from backlog_spark.common.sql_names import quoted
from backlog_spark.model.changes import CHANGE_TYPE, DELETE, INSERT
from backlog_spark.operators.aggregates.aggregate import Aggregate
from backlog_spark.operators.declare import AGGREGATES, function_name, parse_aggregates
from backlog_spark.operators.windows.columns import WINDOW_COLUMNS
from backlog_spark.streamsql.distinct_values import distinct_of, rows_of_values
from backlog_spark.streamsql.grouping_sets import grouping_sets, spread_over_sets
from backlog_spark.streamsql.items import Item
from backlog_spark.streamsql.rows import Rows, Visible, column_of, text_of
from backlog_spark.streamsql.span import Span
from backlog_spark.streamsql.spans import SPARK_WINDOWS, span_of_call, window_column
from backlog_spark.streamsql.translation import Translation, results_change

__all__ = ["distinct", "grouped", "is_grouped"]

# The key of rows without GROUP BY.
_ALL: Final = "__all"
_COUNT: Final = "__backlog_count"
_UNMERGEABLE: Final = (
    "approx_percentile",
    "listagg",
    "median",
    "mode",
    "percentile",
    "percentile_approx",
    "percentile_cont",
    "percentile_disc",
    "string_agg",
)
_WRAPPERS: Final = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)


def is_grouped(select: exp.Select, items: Sequence[Item]) -> bool:
    """Whether a SELECT groups its rows."""
    having = select.args.get("having")
    parts = [item.expression for item in items] + ([having.this] if having else [])
    return bool(select.args.get("group") or having or any(_aggregates(part) for part in parts))


def _is_aggregate(node: exp.Expr) -> bool:
    if isinstance(node, _WRAPPERS):
        return _is_aggregate(node.this)
    if isinstance(node, exp.Window):
        return False
    # Unsupported aggregates count too: they are refused by name later.
    return isinstance(node, exp.AggFunc) or (
        isinstance(node, exp.Anonymous | exp.Any) and function_name(node) in (*AGGREGATES, *_UNMERGEABLE)
    )


def _aggregates(expression: exp.Expr) -> list[exp.Expr]:
    """The outermost aggregate calls, without those of OVER."""
    found: list[exp.Expr] = []

    def look(node: exp.Expr) -> None:
        if isinstance(node, exp.Window | exp.Query):
            return
        if _is_aggregate(node):
            found.append(node)
            return
        for child in node.iter_expressions():
            look(child)

    look(expression)
    return found


@dataclass
class _Groups:
    """The keys and results of a SELECT with GROUP BY.

    Parameters
    ----------
    span : Span, optional
    keys : dict
        Column by the text of the key.
    made : dict
        Expressions of keys that are not plain columns, by column.
    results : dict
        Column by the text of the aggregate.
    calls : dict
        The translated aggregates by column.
    window : str
        Text of Spark's window function in GROUP BY, if there is one.
    """

    span: Span | None
    keys: dict[str, str] = field(default_factory=dict)
    made: dict[str, exp.Expr] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    calls: dict[str, exp.Expr] = field(default_factory=dict)
    window: str = ""


def grouped(tr: Translation, select: exp.Select, rows: Rows, items: Sequence[Item]) -> Rows:
    """The rows of a SELECT with GROUP BY or aggregates.

    Raises
    ------
    SqlError
    """
    group, having = select.args.get("group"), select.args.get("having")
    several, flat = grouping_sets(tr, group)
    written = _group_items(flat, rows, items, tr)
    conditions = [having.this] if having else []
    rows = tr.as_data(rows, [*(i.expression for i in items), *written, *conditions], select)
    groups = _Groups(rows.span)
    _take_keys(tr, rows, groups, written, group or select)
    scope = _with_window(rows, groups)
    parts = [(item.translated(tr, scope), item) for item in items]
    aliases = _aliases(items)
    wanted = [(scope.translated(tr.statement, _by_alias(each, scope, aliases)), each) for each in conditions]
    if len(several) > 1:
        texts = [text_of(rows.translated(tr.statement, each)) for each in written]
        rows, spread = spread_over_sets(tr, rows, several, texts, group or select)
        for text, each in zip(texts, written, strict=True):
            if text not in groups.keys and len(spread.members[text]) < spread.size:
                raise tr.statement.refused(each, "a grouping set without the window.", "Put the window into each set.")
        for text, key in groups.keys.items():
            value = groups.made.pop(key, None) or column_of(key)
            groups.keys[text] = name = tr.hidden("key")
            groups.made[name] = spread.key(text, value)
        groups.keys[text_of(spread.number)] = spread.number.name
        parts = [(spread.with_grouping(tr, each), item) for each, item in parts]
        wanted = [(spread.with_grouping(tr, each), node) for each, node in wanted]
    _name_results(tr, groups, parts, [expression for expression, _ in wanted])
    result = _aggregated(tr, rows, groups, select)
    for expression, node in wanted:
        result = tr.filtered(result, _over_groups(tr, expression, groups), node)
    return tr.projected(
        result, [(item.named(tr), _over_groups(tr, each, groups, item), item.expression) for each, item in parts]
    )


def _group_items(written: Sequence[exp.Expr], rows: Rows, items: Sequence[Item], tr: Translation) -> list[exp.Expr]:
    """The expressions of GROUP BY. Positions and aliases of the SELECT list are replaced by their expressions."""
    aliases = _aliases(items)
    found = []
    for each in written:
        inner = each.unnest()
        if isinstance(inner, exp.Literal) and not inner.is_string:
            number = int(inner.this) if str(inner.this).isdecimal() else 0
            if not 1 <= number <= len(items):
                raise tr.statement.refused(
                    each, f"GROUP BY {inner.this}: there is no such column.", f"There are {len(items)}."
                )
            inner = items[number - 1].expression
        found.append(_by_alias(inner, rows, aliases))
    return found


def _aliases(items: Sequence[Item]) -> dict[str, exp.Expr]:
    """The expressions by their names, without names that several have."""
    names = [item.name.lower() for item in items]
    return {name: item.expression for name, item in zip(names, items, strict=True) if name and names.count(name) == 1}


def _by_alias(expression: exp.Expr, rows: Rows, aliases: dict[str, exp.Expr]) -> exp.Expr:
    """Replace names that are no columns by the aliased expressions of the SELECT list, as Spark does."""

    def of(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and len(node.parts) == 1 and not rows.has(node):
            return aliases[node.name.lower()].copy() if node.name.lower() in aliases else node
        return node

    return expression.transform(of)


def _take_keys(tr: Translation, rows: Rows, groups: _Groups, written: Sequence[exp.Expr], node: exp.Expr) -> None:
    windows: set[str] = set()
    for each in written:
        span = span_of_call(tr, rows, each)
        if span is not None:
            if groups.span is not None:
                raise tr.statement.refused(each, "GROUP BY has two windows.", "Group in a subquery by one of them.")
            groups.span, groups.window = span, text_of(rows.translated(tr.statement, each))
            continue
        translated = rows.translated(tr.statement, each)
        if _is_window_column(translated):
            windows.add(translated.name)
            continue
        text = text_of(translated)
        if text in groups.keys:
            continue
        if _aggregates(translated):
            raise tr.statement.refused(each, f"GROUP BY {text_of(each)} is an aggregate.", "Group by columns.")
        if isinstance(translated, exp.Column):
            groups.keys[text] = translated.name
        else:
            groups.keys[text] = tr.hidden("key")
            groups.made[groups.keys[text]] = translated
    if rows.span is not None and not {"window_start", "window_end"} <= windows:
        raise tr.statement.refused(
            node,
            "the rows of a window function must be grouped by window_start and window_end.",
            "Put both into GROUP BY.",
        )
    partition = None if groups.span is None else groups.span.partition
    if partition is not None and {text_of(each) for each in partition} != set(groups.keys):
        raise tr.statement.refused(
            node,
            f"SESSION has PARTITION BY {', '.join(map(text_of, partition)) or 'nothing'}, GROUP BY other keys.",
            "Write the same columns into both: TABLE t PARTITION BY k … GROUP BY k, window_start, window_end.",
        )


def _is_window_column(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and bool(node.meta.get("window"))


def _with_window(rows: Rows, groups: _Groups) -> Rows:
    """The names that the SELECT list may use. With Spark's window functions also ``window`` and ``session_window``."""
    if not groups.window:
        return rows
    assert groups.span is not None
    name = groups.span.node.name.lower()
    return replace(rows, columns=(*rows.columns, Visible("", name, _window_struct(), hidden=True)))


def _window_struct() -> exp.Expr:
    fields = [
        exp.PropertyEQ(this=exp.to_identifier(name), expression=window_column(column))
        for name, column in (("start", "window_start"), ("end", "window_end"))
    ]
    return exp.Struct(expressions=fields)


_WINDOW_TEXT: Final = text_of(_window_struct())


def _name_results(
    tr: Translation, groups: _Groups, parts: Sequence[tuple[exp.Expr, Item]], conditions: Sequence[exp.Expr]
) -> None:
    """A column for each aggregate: its name in the SELECT list if it is an item of its own, else a hidden name."""
    taken = {name.lower() for name in (*groups.keys.values(), *WINDOW_COLUMNS)}
    names: dict[str, str] = {}
    for expression, item in parts:
        text, name = text_of(expression.unnest()), item.named(tr)
        if _is_aggregate(expression.unnest()) and text not in names and name.lower() not in taken:
            names[text] = name
            taken.add(name.lower())
    # Keep the statement's order: it is the order of the state, and aggregates may be added at the end.
    for expression in [*(each for each, _ in parts), *conditions]:
        for call in _aggregates(expression):
            text = text_of(call)
            if text not in groups.results:
                groups.results[text] = names.get(text) or tr.hidden("result")
                groups.calls[groups.results[text]] = call
            found = distinct_of(tr, call)
            if found is not None and groups.span is not None:
                raise tr.statement.refused(
                    call,
                    "DISTINCT in an aggregate of a window.",
                    "Use approx_count_distinct, or group without a window.",
                )
            with tr.statement.at(call):
                parse_aggregates(f"{text if found is None else found.plain} AS {quoted(groups.results[text])}")


def _aggregated(tr: Translation, rows: Rows, groups: _Groups, node: exp.Select) -> Rows:
    keys, made = list(dict.fromkeys(groups.keys.values())), dict(groups.made)
    if not keys:
        keys = [tr.unseen(_ALL)]
        made = {keys[0]: exp.Literal.number(0)}
    texts: list[str | Aggregate] = [f"{text} AS {quoted(name)}" for text, name in groups.results.items()]
    texts = texts or [f"count(*) AS {tr.unseen(_COUNT)}"]
    grouped = tr.with_columns(rows, made, node.args.get("group") or node).stream
    distinct_call = next((call for call in groups.calls.values() if distinct_of(tr, call)), None)
    if distinct_call is not None:
        grouped, texts = rows_of_values(tr, grouped, keys, groups.calls, distinct_call)
    keyed = grouped.key_by(*keys)
    name = tr.operator(*keys, "aggregate")
    origin = groups.span.node if groups.span is not None else node.args.get("group") or node
    with tr.statement.at(origin):
        if groups.span is None:
            stream = keyed.aggregate(*texts, name=name)
        else:
            stream = keyed.window(groups.span.assigner).aggregate(*texts, name=name)
    names = tr.schema(stream, origin, "GROUP BY").names
    pseudo = tr.change_columns(stream, origin)
    columns = tuple(Visible("", name, column_of(name), hidden=name in pseudo) for name in names)
    return Rows(stream, columns, pseudo)


def _over_groups(tr: Translation, expression: exp.Expr, groups: _Groups, item: Item | None = None) -> exp.Expr:
    """A translated expression over the output of the aggregation."""

    def of(node: exp.Expr) -> exp.Expr:
        text = text_of(node)
        if text in groups.keys:
            return column_of(groups.keys[text])
        if text in groups.results and _is_aggregate(node.unnest()):
            return column_of(groups.results[text])
        if groups.window and text == groups.window:
            return _window_struct()
        if isinstance(node, exp.Dot) and groups.window and text_of(node.this) in (groups.window, _WINDOW_TEXT):
            bound = {"start": "window_start", "end": "window_end"}.get(node.expression.name.lower())
            if bound is not None:
                return window_column(bound)
        if isinstance(node, exp.Anonymous) and node.name.lower() in SPARK_WINDOWS:
            raise tr.statement.refused(node, f"{text} is not the window of GROUP BY.", "Group by one window.")
        if isinstance(node, exp.Anonymous) and node.name.lower() == "window_time" and groups.window:
            return window_column("window_time")
        if isinstance(node, exp.Column) and not _is_window_column(node):
            # An unknown function around the column may be meant as an aggregate.
            unknown = [each.name for each in expression.find_all(exp.Anonymous) if node in each.find_all(exp.Column)]
            near = next(filter(None, map(nearest_function, unknown)), "")
            raise tr.statement.refused(
                node if item is None else item.expression,
                f"the column {node.name!r} is neither in GROUP BY nor in an aggregate.",
                f"{near} Group by it, or aggregate it with first(…) or max(…).".strip(),
            )
        return node

    return expression.transform(of)


def distinct(tr: Translation, rows: Rows, node: exp.Expr) -> Rows:
    """Each row once: counts per key. A key is emitted when it first comes, and when it returns after a delete."""
    keys = [column.column.name for column in rows.columns if not column.hidden]
    with tr.statement.at(node, "DISTINCT"):
        count = f"count(*) AS {tr.unseen(_COUNT)}"
        counted = rows.stream.key_by(*keys).aggregate(count, name=tr.operator(*keys, "distinct"))
    shown = [column.name for column in rows.columns if not column.hidden]
    columns = tuple(Visible("", name, column_of(key)) for name, key in zip(shown, keys, strict=True))
    changes = tr.changes(Rows(counted, columns, tr.change_columns(counted, node, "DISTINCT")), node)
    if rows.pseudo or results_change(rows.stream._node):
        result = replace(changes, stream=changes.stream.filter(f"{CHANGE_TYPE} IN ('{INSERT}', '{DELETE}')"))
        return tr.projected(result, [(name, column_of(key), node) for name, key in zip(shown, keys, strict=True)])
    # Without deletes the result has only inserts, so the change type can go.
    first = changes.stream.filter(f"{CHANGE_TYPE} = '{INSERT}'")
    return replace(changes, stream=tr.selected(first, [quoted(key) for key in keys], node), pseudo=())
