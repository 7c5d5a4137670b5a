"""Sum, count and average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FractionalType,
    IntegralType,
    LongType,
    StringType,
    StructType,
)

from backlog_spark.operators.aggregates import decimals, groups
from backlog_spark.operators.aggregates.base import ArgumentAggregate, DeclaredAggregate, column, type_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Avg", "Count", "Sum"]


@dataclass(frozen=True)
class Sum(ArgumentAggregate):
    """Sum of the values; NULL if there is none.

    As in Spark: bigint for integers, double for float, double and string, ``decimal(p + 10, s)`` for decimals. A sum
    that does not fit is an error.

    Examples
    --------
    >>> Sum("amount").name
    'sum_amount'
    >>> str(Sum("price * quantity", name="revenue", where="not cancelled"))
    'sum(price * quantity) FILTER (WHERE not cancelled)'
    """

    function: ClassVar[str] = "sum"

    def slots(self, schema: StructType) -> list[DataType]:
        found = self._type(schema)
        if isinstance(found, DecimalType):
            return [decimals.sum_type(found)]
        if isinstance(found, IntegralType):
            return [LongType()]
        if isinstance(found, FractionalType | StringType):
            return [DoubleType()]
        raise self._refusal(found, "numbers")

    def lift(self, schema: StructType) -> list[Column]:
        return [self._value(schema).cast(self.slots(schema)[0])]

    def reduce(self, schema: StructType) -> list[Column]:
        return [F.sum(self._value(schema))]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        return [_plus(left[0], right[0], self.slots(schema)[0])]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        return slots[0]

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return [_sum_groups(slots[0], starts, f"{self} AS {self.name}")]


@dataclass(frozen=True)
class Count(DeclaredAggregate):
    """Number of rows, or of the rows whose argument is not NULL; 0 if there is none.

    Parameters
    ----------
    argument : str, default "*"
        A column's name, an expression in Spark SQL, or ``*`` for rows.

    Examples
    --------
    >>> Count().name, Count("paid_at").name
    ('count', 'count_paid_at')
    """

    function: ClassVar[str] = "count"

    argument: str = "*"

    def arguments(self) -> tuple[str, ...]:
        return (self.argument,)

    def _natural_name(self) -> str:
        return "count" if self.argument == "*" else super()._natural_name()

    def slots(self, schema: StructType) -> list[DataType]:
        if self.argument != "*":
            type_of(schema, self.argument, self)  # refuses invalid expressions
        return [LongType()]

    def lift(self, schema: StructType) -> list[Column]:
        one = F.lit(1).cast(LongType())
        counted = one if self.argument == "*" else F.when(column(schema, self.argument).isNotNull(), one)
        return [self._kept(counted)]

    def reduce(self, schema: StructType) -> list[Column]:
        return [F.count(each) for each in self.lift(schema)]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        return [_plus(left[0], right[0], LongType())]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        return F.coalesce(slots[0], F.lit(0).cast(LongType()))

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return [_sum_groups(slots[0], starts, f"{self} AS {self.name}")]


@dataclass(frozen=True)
class Avg(ArgumentAggregate):
    """Average of the values; NULL if there is none.

    As in Spark: ``decimal(p + 4, s + 4)`` for decimals, rounded half up; double for other types. The last digits of a
    sum of doubles depend on the order of the rows, as in Spark.

    Examples
    --------
    >>> Avg("price").name
    'avg_price'
    """

    function: ClassVar[str] = "avg"

    def slots(self, schema: StructType) -> list[DataType]:
        found = self._type(schema)
        if isinstance(found, DecimalType):
            return [decimals.sum_type(found), LongType()]
        if isinstance(found, IntegralType | FractionalType | StringType):
            return [DoubleType(), LongType()]
        raise self._refusal(found, "numbers")

    def lift(self, schema: StructType) -> list[Column]:
        value = self._value(schema)
        return [value.cast(self.slots(schema)[0]), F.when(value.isNotNull(), F.lit(1).cast(LongType()))]

    def reduce(self, schema: StructType) -> list[Column]:
        value = self._value(schema)
        # Sum integers as doubles, like Spark's average: their sum may exceed a bigint.
        summed = value if isinstance(self._type(schema), DecimalType) else value.cast(DoubleType())
        return [F.sum(summed), F.count(value)]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        kinds = self.slots(schema)
        return [_plus(*pair) for pair in zip(left, right, kinds, strict=True)]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        total, count = slots
        count = F.nullif(count, F.lit(0))
        found = self._type(schema)
        return decimals.average(total, count, found) if isinstance(found, DecimalType) else total / count

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return [_sum_groups(slot, starts, f"{self} AS {self.name}") for slot in slots]


def _plus(left: Column, right: Column, kind: DataType) -> Column:
    """Sum of two values. NULL means no value."""
    both = decimals.plus(left, right, kind) if isinstance(kind, DecimalType) else left + right
    return F.coalesce(both, left, right)


def _sum_groups(slot: pa.Array, starts: np.ndarray, label: str) -> pa.Array:
    if pa.types.is_floating(slot.type):
        return groups.sum_doubles(slot, starts)
    if pa.types.is_decimal(slot.type):
        return groups.sum_decimals(slot, starts, label)
    return groups.sum_longs(slot, starts, label)
