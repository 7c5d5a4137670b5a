"""Exact decimal arithmetic in Spark expressions, where Spark's own operators would round or run out of digits.

Spark's operators give their result a type of at most 38 digits and cut the scale to make room: the sum of two
decimal(38, 18) is a decimal(38, 17). Spark's aggregates do without, by expressions that are not open to us. So the
hard cases are computed on unscaled integers, decimal(38, 0), which no operator rounds.
"""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

__all__ = ["average", "average_type", "plus", "sum_type"]

_BASE = 10**19
"""Above every count, and its square has 38 digits: the base of the long division in `average`."""


def sum_type(kind: DecimalType) -> DecimalType:
    """Type of Spark's sum of decimals."""
    return DecimalType(min(kind.precision + 10, 38), kind.scale)


def average_type(kind: DecimalType) -> DecimalType:
    """Type of Spark's average of decimals."""
    return DecimalType(min(kind.precision + 4, 38), min(kind.scale + 4, 38))


def plus(left: Column, right: Column, kind: DecimalType) -> Column:
    """The exact sum of two decimals of type ``kind``, of that type; an error where it does not fit."""
    if kind.precision < 38 or kind.scale <= 6:  # Spark never cuts the scale below 6 digits
        return (left + right).cast(kind)
    return _scaled(_unscaled(left, kind) + _unscaled(right, kind), kind)


def average(total: Column, count: Column, kind: DecimalType) -> Column:
    """``total / count`` rounded half up once, as Spark's average of decimals of type ``kind``.

    Parameters
    ----------
    total : Column
        Sum of type `sum_type`.
    count : Column
        A bigint above 0.
    kind : DecimalType
        Type of the averaged values.
    """
    result = average_type(kind)
    count = count.cast(DecimalType(19, 0))
    if kind.precision <= 11:
        # `/` gives at least 13 digits more than the result has, so rounding its rounded result goes wrong for no count
        # below 10^13: that near to a tie is only the tie itself.
        return (total / count).cast(result)
    shift = _lit(10 ** (result.scale - kind.scale))
    unscaled = _unscaled(total, sum_type(kind))
    if kind.precision <= 22:  # the quotient has at most 32 digits, which is what `/` has room for
        quotient, rest = _divide(unscaled, count)
    else:
        high, low = _divide(unscaled, _lit(_BASE))
        first, rest = _divide(high, count)
        second, rest = _divide(_integer(rest * _lit(_BASE)) + low, count)
        quotient = _integer(first * _lit(_BASE)) + second
    # |rest| < count, so `/` has room for 14 digits after the point.
    fraction = F.round((rest * shift).cast(DecimalType(24, 0)) / count, 0)
    return _scaled(_integer(_integer(quotient) * shift) + fraction, result)


def _divide(dividend: Column, divisor: Column) -> tuple[Column, Column]:
    """Quotient and remainder, both rounded towards zero; the quotient must be below 10^32."""
    rest = dividend % divisor
    return _integer((dividend - rest) / divisor), _integer(rest)


def _integer(value: Column) -> Column:
    return value.cast(DecimalType(38, 0))


def _lit(number: int) -> Column:
    return F.lit(Decimal(number))


def _unscaled(value: Column, kind: DecimalType) -> Column:
    """The digits of a decimal without its point. A text with an exponent is Spark's one exact way to shift it."""
    digits = DecimalType(kind.precision, 0)
    return F.concat(value.cast("string"), F.lit(f"E{kind.scale}")).cast(digits) if kind.scale else value.cast(digits)


def _scaled(digits: Column, kind: DecimalType) -> Column:
    """The way back from `_unscaled`."""
    return (
        F.concat(_integer(digits).cast("string"), F.lit(f"E-{kind.scale}")).cast(kind)
        if kind.scale
        else digits.cast(kind)
    )
