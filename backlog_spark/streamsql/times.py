"""Parses intervals, and bounds on time, in statements (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from backlog_spark.common.durations import parse_duration
from backlog_spark.errors import SettingError
from backlog_spark.streamsql.refusals import Statement
from backlog_spark.streamsql.rows import text_of

__all__ = ["Bounds", "Difference", "difference", "milliseconds"]

_EXAMPLE: Final = "Write INTERVAL '10' MINUTE."


def milliseconds(statement: Statement, node: exp.Expr) -> int:
    """The length of ``INTERVAL '1' MINUTE``, ``INTERVAL '1 minute 30 seconds'`` or ``'10 minutes'``.

    Raises
    ------
    SqlError
        If the length is not fixed, or not in whole milliseconds.
    """
    inner = node.unnest()
    if isinstance(inner, exp.Literal) and inner.is_string:
        given = str(inner.this)
    elif isinstance(inner, exp.Interval) and isinstance(inner.this, exp.Literal):
        unit = inner.args.get("unit")
        if unit is not None and not isinstance(unit, exp.Var):
            raise statement.refused(node, f"{text_of(node)}: an interval from one unit to another.", _EXAMPLE)
        given = f"{inner.this.this} {'' if unit is None else unit.name}"
    else:
        raise statement.refused(node, f"{text_of(node)} is not an interval.", _EXAMPLE)
    if given.strip().removeprefix("interval").split()[-1:] and _is_calendar(given):
        raise statement.refused(node, f"{text_of(node)}: months and years have no fixed length.", "Write days.")
    try:
        return parse_duration(given.lower().removeprefix("interval "), "interval")
    except SettingError as error:
        raise statement.refused(node, f"{text_of(node)}: {error.problem}", error.hint) from error


def _is_calendar(text: str) -> bool:
    return any(word in text.lower() for word in ("month", "year", "quarter"))


@dataclass(frozen=True)
class Difference:
    """``right time - left time`` compared with a length.

    Parameters
    ----------
    operator : str
        ``<``, ``<=``, ``>``, ``>=`` or ``=``.
    ms : int
    """

    operator: str
    ms: int


@dataclass
class Bounds:
    """Lower and upper bound of the time difference between matching rows of two streams; None: no bound."""

    lower: int | None = None
    upper: int | None = None
    lower_exclusive: bool = False
    upper_exclusive: bool = False

    def narrow(self, by: Difference) -> None:
        """Add a condition."""
        exclusive = by.operator in "<>"
        if by.operator in (">", ">=", "=") and (
            self.lower is None or (by.ms, exclusive) > (self.lower, self.lower_exclusive)
        ):
            self.lower, self.lower_exclusive = by.ms, exclusive
        if by.operator in ("<", "<=", "=") and (
            self.upper is None or (-by.ms, exclusive) > (-self.upper, self.upper_exclusive)
        ):
            self.upper, self.upper_exclusive = by.ms, exclusive


_OPERATORS: Final[dict[type[exp.Expr], str]] = {
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.EQ: "=",
}
_SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


def difference(statement: Statement, condition: exp.Expr, left: str, right: str) -> list[Difference] | None:
    """A condition as bounds on the difference of two event times, or None if it is something else.

    Parameters
    ----------
    condition : Expr
        Translated: ``b BETWEEN a - INTERVAL … AND a + INTERVAL …``, or such a comparison.
    left, right : str
        The columns of event time in each stream.
    """
    inner = condition.unnest()
    if isinstance(inner, exp.Between) and not inner.args.get("symmetric"):
        least = difference(statement, exp.GTE(this=inner.this, expression=inner.args["low"]), left, right)
        greatest = difference(statement, exp.LTE(this=inner.this, expression=inner.args["high"]), left, right)
        return None if least is None or greatest is None else least + greatest
    operator = _OPERATORS.get(type(inner))
    if operator is None:
        return None
    sides = [_shifted(statement, each, (left, right)) for each in (inner.this, inner.expression)]
    if sides[0] is None or sides[1] is None or sides[0][0] == sides[1][0]:
        return None
    (first, first_ms), (_, second_ms) = sides[0], sides[1]
    # Compares (one time + its shift) with (the other time + its shift).
    if first == right:
        return [Difference(operator, second_ms - first_ms)]
    return [Difference(_SWAPPED[operator], first_ms - second_ms)]


def _shifted(statement: Statement, node: exp.Expr, times: tuple[str, str]) -> tuple[str, int] | None:
    """A column of event time and the interval added to it; None for other expressions."""
    inner = node.unnest()
    if isinstance(inner, exp.Column) and inner.name in times:
        return inner.name, 0
    if isinstance(inner, exp.Add | exp.Sub):
        first, second = inner.this.unnest(), inner.expression.unnest()
        if isinstance(inner, exp.Add) and isinstance(first, exp.Interval):
            first, second = second, first
        found = _shifted(statement, first, times)
        if found is not None and isinstance(second, exp.Interval):
            length = milliseconds(statement, second)
            return found[0], found[1] + (length if isinstance(inner, exp.Add) else -length)
    return None
