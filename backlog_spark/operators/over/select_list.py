"""Parses the functions of an OVER aggregation (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from sqlglot import exp

from backlog_spark.common.familiar_names import choice
from backlog_spark.common.sql_dialect import is_plain_star, text_of
from backlog_spark.errors import BacklogError
from backlog_spark.operators.over.functions import Default, OverFunction
from backlog_spark.operators.select_list import select_items

__all__ = ["parse_over"]

_KINDS: Final[dict[type[exp.Expr], str]] = {
    exp.Avg: "avg",
    exp.Count: "count",
    exp.FirstValue: "first_value",
    exp.Lag: "lag",
    exp.LastValue: "last_value",
    exp.Max: "max",
    exp.Min: "min",
    exp.RowNumber: "row_number",
    exp.Sum: "sum",
}
_KNOWN = f"Known: {', '.join(sorted(_KINDS.values()))}."


def parse_over(*texts: str) -> tuple[OverFunction, ...]:
    """Functions from SQL.

    Parameters
    ----------
    *texts : str
        Each is a list of functions of plain columns, with ``AS name``. Without it the name is function and column, such
        as ``sum_amount``. The operator has the window, so the list has no OVER.

    Raises
    ------
    BacklogError
        If the text is malformed. If a function is unknown, or its argument is not a column. If two results have the
        same name.

    Examples
    --------
    >>> for each in parse_over("sum(amount) AS total, lag(price, 2) AS before", "row_number() AS n, count(*)"):
    ...     print(each.name, "=", each.text)
    total = sum(amount)
    before = lag(price, 2, None)
    n = row_number()
    count = count(*)
    """
    found = tuple(function for text in texts for function in _parsed(text))
    names = [function.name.lower() for function in found]
    if not names:
        raise BacklogError("over: no function is given.", f"For example 'sum(amount) AS total'. {_KNOWN}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BacklogError(f"over: several functions are named {', '.join(twice)}.", "Rename one with AS.")
    return found


def _parsed(text: str) -> Iterator[OverFunction]:
    for item in select_items(text, "functions", _KNOWN, "over"):
        yield _one(item)


def _one(item: exp.Expr) -> OverFunction:
    written, call = text_of(item), item.unalias().unnest()
    if isinstance(call, exp.Window):
        raise BacklogError(f"over: {written} has a window of its own.", "Leave it out: the operator has the window.")
    if isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        raise BacklogError(f"over: {written}: FILTER and NULLS clauses are not supported.", "Leave them out.")
    kind = _KINDS.get(type(call))
    if kind is None:
        name = call.name if isinstance(call, exp.Anonymous) else call.key
        raise BacklogError(f"over: {written} is not a supported function.", choice(name, _KINDS.values()))
    argument = call.this if kind != "row_number" else None
    if isinstance(argument, exp.Distinct):
        raise BacklogError(
            f"over: {written}: DISTINCT would need to keep every value of every key.", "Leave DISTINCT out."
        )
    column = None
    if kind != "row_number" and not (kind == "count" and is_plain_star(argument)):
        if not isinstance(argument, exp.Column) or len(argument.parts) != 1 or call.args.get("expressions"):
            raise BacklogError(
                f"over: {written}: the argument of {kind} must be one column.",
                "Compute it first, for example with .map('*', 'price * qty AS amount').",
            )
        column = str(argument.name)
    name = item.alias or (kind if column is None else f"{kind}_{column}")
    if kind != "lag":
        return OverFunction(kind, column, name)
    return OverFunction(kind, column, name, _offset(written, call.args.get("offset")), _default(written, call))


def _offset(written: str, given: exp.Expr | None) -> int:
    if given is None:
        return 1
    if not isinstance(given, exp.Literal) or given.is_string or not str(given.this).isdecimal():
        raise BacklogError(
            f"over: {written}: {text_of(given)} is not a number of rows.", "Give a whole number of 0 or more."
        )
    return int(given.this)


def _default(written: str, call: exp.Expr) -> Default:
    given = call.args.get("default")
    if given is None or isinstance(given, exp.Null):
        return None
    if isinstance(given, exp.Boolean):
        return bool(given.this)
    sign, literal = (-1, given.this) if isinstance(given, exp.Neg) else (1, given)
    if not isinstance(literal, exp.Literal) or (literal.is_string and sign < 0):
        raise BacklogError(
            f"over: {written}: the default {text_of(given)} is not a constant.", "Give a number, a text, true or false."
        )
    if literal.is_string:
        return str(literal.this)
    text = str(literal.this)
    return sign * int(text) if text.isdecimal() else sign * Decimal(text)
