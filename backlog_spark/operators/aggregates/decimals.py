"""Exact decimal arithmetic in Spark expressions. Spark's own operators would round, or run out of digits.

The result of Spark's operators has at most 38 digits, and they cut the scale to fit: the sum of two decimal(38, 18) is
a decimal(38, 17). Spark's aggregates avoid that with expressions that are not public. So hard cases are computed on
unscaled integers, decimal(38, 0), which no operator rounds.
"""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

__all__ = ["average", "average_type", "plus", "sum_type"]

_BASE = 10**19
"""Base of the long division in `average`: greater than every count, and its square has 38 digits."""


def sum_type(kind: DecimalType) -> DecimalType:
    """Type of Spark's sum of decimals."""
    return DecimalType(min(kind.precision + 10, 38), kind.scale)


def average_type(kind: DecimalType) -> DecimalType:
    """Type of Spark's average of decimals."""
    return DecimalType(min(kind.precision + 4, 38), min(kind.scale + 4, 38))


def plus(left: Column, right: Column, kind: DecimalType) -> Column:
    """The exact sum of two decimals of type ``kind``, of the same type. Fails if it does not fit."""
    if kind.precision < 38 or kind.scale <= 6:  # Spark never cuts the scale below 6 digits
        return (left + right).cast(kind)
    return _scaled(_unscaled(left, kind) + _unscaled(right, kind), kind)


def average(total: Column, count: Column, kind: DecimalType) -> Column:
    """``total / count``, rounded half up once, like Spark's average of decimals of type ``kind``.

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
        # `/` gives at least 13 digits more than the result, so a second rounding is right for every count below 10^13:
        # only a tie itself is that close to a tie.
        return (total / count).cast(result)
    shift = _lit(10 ** (result.scale - kind.scale))
    unscaled = _unscaled(total, sum_type(kind))
    if kind.precision <= 22:  # the quotient has at most 32 digits, which fits into the result of `/`
        quotient, rest = _divide(unscaled, count)
    else:
        high, low = _divide(unscaled, _lit(_BASE))
        first, rest = _divide(high, count)
        second, rest = _divide(_integer(rest * _lit(_BASE)) + low, count)
        quotient = _integer(first * _lit(_BASE)) + second
    # |rest| < count, so `/` can give 14 digits after the point.
    fraction = F.round((rest * shift).cast(DecimalType(24, 0)) / count, 0)
    return _scaled(_integer(_integer(quotient) * shift) + fraction, result)


def _divide(dividend: Column, divisor: Column) -> tuple[Column, Column]:
    """Quotient and remainder, both rounded towards zero. The quotient must be below 10^32."""
    rest = dividend % divisor
    return _integer((dividend - rest) / divisor), _integer(rest)


def _integer(value: Column) -> Column:
    return value.cast(DecimalType(38, 0))


def _lit(number: int) -> Column:
    return F.lit(Decimal(number))


def _unscaled(value: Column, kind: DecimalType) -> Column:
    """The digits of a decimal without its point. In Spark only a text with an exponent shifts the point exactly."""
    digits = DecimalType(kind.precision, 0)
    return F.concat(value.cast("string"), F.lit(f"E{kind.scale}")).cast(digits) if kind.scale else value.cast(digits)


def _scaled(digits: Column, kind: DecimalType) -> Column:
    """The inverse of `_unscaled`."""
    return (
        F.concat(_integer(digits).cast("string"), F.lit(f"E-{kind.scale}")).cast(kind)
        if kind.scale
        else digits.cast(kind)
    )
