"""Parses aggregates written as SQL: the select list of a ``GROUP BY``, if its functions can be merged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

from sqlglot import exp

from backlog_spark.common.familiar_names import choice, described
from backlog_spark.common.sql_dialect import is_plain_star, text_of
from backlog_spark.errors import BacklogError
from backlog_spark.operators import aggregates
from backlog_spark.operators.aggregates.aggregate import Aggregate
from backlog_spark.operators.aggregates.base import DeclaredAggregate
from backlog_spark.operators.select_list import select_items

__all__ = ["AGGREGATES", "function_name", "parse_aggregates"]

_KNOWN: dict[str, Callable[..., DeclaredAggregate]] = {
    "any": aggregates.BoolOr,
    "approx_count_distinct": aggregates.ApproxCountDistinct,
    "avg": aggregates.Avg,
    "bool_and": aggregates.BoolAnd,
    "bool_or": aggregates.BoolOr,
    "collect_list": aggregates.CollectList,
    "collect_set": aggregates.CollectSet,
    "count": aggregates.Count,
    "every": aggregates.BoolAnd,
    "first": aggregates.First,
    "first_value": aggregates.First,
    "last": aggregates.Last,
    "last_value": aggregates.Last,
    "max": aggregates.Max,
    "max_by": aggregates.MaxBy,
    "mean": aggregates.Avg,
    "min": aggregates.Min,
    "min_by": aggregates.MinBy,
    "some": aggregates.BoolOr,
    "std": aggregates.StdDev,
    "stddev": aggregates.StdDev,
    "stddev_pop": aggregates.StdDevPop,
    "stddev_samp": aggregates.StdDev,
    "sum": aggregates.Sum,
    "var_pop": aggregates.VariancePop,
    "var_samp": aggregates.Variance,
    "variance": aggregates.Variance,
}

AGGREGATES = frozenset(_KNOWN)
"""Names of the functions that can be declared."""

_INSTEAD = {
    "any_value": "Use first, which always gives the same value.",
    "count_if": "Use count(*) FILTER (WHERE ...).",
}


def parse_aggregates(*specs: str | Aggregate, order: str | None = None) -> list[Aggregate]:
    """Aggregates from SQL texts and from objects. Objects stay as they are.

    Parameters
    ----------
    *specs : str or Aggregate
        A text is a list of Spark SQL's aggregate functions, each with ``AS name``. The name may be omitted if all
        arguments are plain columns: it is then the function and its columns, such as ``sum_amount``, and ``count`` for
        ``count(*)``. ``FILTER (WHERE ...)`` is supported. An argument is any Spark SQL expression over the rows, or
        ``struct(*)`` for the whole row.
    order : str, optional
        Column that orders rows. Aggregates that depend on the order of rows and name no order column get this one.

    Returns
    -------
    list of Aggregate
        In the order of the specs.

    Raises
    ------
    BacklogError
        If the text is malformed. If a function is unknown or cannot be merged, such as ``percentile`` or anything
        with DISTINCT. If an item is not an aggregate. If two results have the same name.

    Examples
    --------
    >>> for each in parse_aggregates("sum(amount) AS total, count(*)", "avg(price * qty) FILTER (WHERE paid) AS mean"):
    ...     print(each.name, "=", each)
    total = sum(amount)
    count = count(*)
    mean = avg(price * qty) FILTER (WHERE paid)
    """
    found: list[Aggregate] = []
    for spec in specs:
        if not isinstance(spec, str | Aggregate):
            raise BacklogError(
                f"aggregate was given {described(spec)}.", f"Write SQL: 'sum(amount) AS total'. {_known()}"
            )
        found.extend(_parsed(spec) if isinstance(spec, str) else [spec])
    names = [each.name for each in found]
    if not names:
        raise BacklogError("No aggregate is given.", f"For example 'sum(amount) AS total'. {_known()}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BacklogError(f"Several aggregates have the same name: {', '.join(twice)}.", "Rename one with AS.")
    return [each.with_order(order) if isinstance(each, DeclaredAggregate) else each for each in found]


def _parsed(text: str) -> Iterator[DeclaredAggregate]:
    for item in select_items(text, "aggregates", _known()):
        yield _one(item)


def _one(item: exp.Expr) -> DeclaredAggregate:
    written = text_of(item)
    call: exp.Expr = item.unalias().unnest()
    options: dict[str, Any] = {"name": item.alias}
    if call.find(exp.Window):
        raise BacklogError(f"{written}: a window (OVER) has no accumulators to merge.", "Aggregate by key without it.")
    if call.find(exp.Select):
        raise BacklogError(f"{written}: a subquery is not possible over a stream's rows.", "Join the streams first.")
    if isinstance(call, exp.Filter):
        options["where"] = text_of(call.expression.this)
        call = call.this
    ignore_nulls, outer = isinstance(call, exp.IgnoreNulls), call
    if isinstance(call, exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
        call = call.this
    name, arguments = function_name(call), _arguments(call)
    if name in _KNOWN and any(isinstance(argument, exp.Distinct) for argument in arguments):
        raise BacklogError(
            f"{written}: DISTINCT would need to keep every value of every key.",
            "Use collect_set, approx_count_distinct, or bs.sql, which has count, sum and avg with DISTINCT.",
        )
    if name not in _KNOWN:
        raise _no_aggregate(written, call)
    if isinstance(outer, exp.WithinGroup):
        raise BacklogError(f"{written}: {name} has no WITHIN GROUP.", "Leave it out.")
    if outer is not call and not issubclass(cast(type, _KNOWN[name]), aggregates.First):
        clause = "IGNORE NULLS" if ignore_nulls else "RESPECT NULLS"
        raise BacklogError(f"{written}: {name} ignores nulls anyway.", f"Leave out {clause}.")
    if ignore_nulls:
        options["ignore_nulls"] = True
    for argument in arguments:
        if _has_aggregate(argument):
            raise BacklogError(f"{written}: an aggregate within an aggregate.", "Aggregate twice, one after the other.")
    texts = [_argument(argument, name) for argument in arguments]
    expected = 2 if name in ("max_by", "min_by") else 1
    if len(texts) != expected:
        raise BacklogError(
            f"{written}: {name} takes {expected} argument{'s' if expected > 1 else ''} here, found {len(texts)}.",
            _known(),
        )
    return _KNOWN[name](*texts, **options)


def function_name(call: exp.Expr) -> str:
    """The function's name in Spark. sqlglot may use another one. Empty if this is not a function call."""
    if not isinstance(call, exp.Func | exp.Any):
        return ""
    match = re.match(r"(\w+)\(", text_of(call))
    return match[1].lower() if match else ""


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    """All arguments of a call. Other notes of sqlglot, such as a default, are not expressions."""
    found: list[Any] = []
    for value in call.args.values():
        found.extend(value if isinstance(value, list) else [value])
    return [each.unnest() for each in found if isinstance(each, exp.Expr)]


def _argument(argument: exp.Expr, function: str) -> str:
    """An argument in the form of our constructors: a column's name, ``*`` for the row, or Spark SQL."""
    if is_plain_star(argument) and function == "count":
        return "*"
    if isinstance(argument, exp.Struct) and [is_plain_star(each) for each in argument.expressions] == [True]:
        return "1" if function == "count" else "*"  # a struct is never NULL
    if argument.find(exp.Star):
        raise BacklogError(
            f"{function}({text_of(argument)}): the star is not possible here.",
            "It is possible in count(*), and as struct(*) for the whole row, such as max_by(struct(*), price).",
        )
    if isinstance(argument, exp.Column) and len(argument.parts) == 1 and re.fullmatch(r"\w+", argument.name):
        return str(argument.name)
    return text_of(argument)


def _has_aggregate(expression: exp.Expr) -> bool:
    return any(isinstance(each, exp.AggFunc) or function_name(each) in AGGREGATES for each in expression.walk())


def _no_aggregate(written: str, call: exp.Expr) -> BacklogError:
    if isinstance(call, exp.AggFunc) or (isinstance(call, exp.Func) and not _has_aggregate(call)):
        name = function_name(call)
        problem = f"{written}: {name or text_of(call)} is not supported, or cannot be merged from parts of the rows."
        return BacklogError(problem, f"{_INSTEAD.get(name, '')} {choice(name, _KNOWN)}".strip())
    if _has_aggregate(call):
        return BacklogError(
            f"{written} is an expression around aggregates.",
            "Aggregate its parts under names of their own, and compute the expression in a transform after it.",
        )
    return BacklogError(f"{written} is not an aggregate. The result has the key already.", _known())


def _known() -> str:
    return f"Known: {', '.join(sorted(_KNOWN))}."
