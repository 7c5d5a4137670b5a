"""Minimum and maximum, also of booleans: bool_and and bool_or."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructType

from backlog_spark.operators.aggregates import ordering
from backlog_spark.operators.aggregates.base import ArgumentAggregate, is_orderable

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BoolAnd", "BoolOr", "Max", "Min"]


class _Extreme(ArgumentAggregate):
    """An aggregate whose accumulator is one of the values: the smallest or the greatest."""

    greatest: ClassVar[bool]

    def slots(self, schema: StructType) -> list[DataType]:
        found = self._type(schema)
        if not is_orderable(found):
            raise self._refusal(
                found, "values with an order: numbers, strings (UTF8_BINARY), dates, times, structs of these"
            )
        return [found]

    def lift(self, schema: StructType) -> list[Column]:
        return [self._value(schema).cast(self.slots(schema)[0])]

    def reduce(self, schema: StructType) -> list[Column]:
        value = self.lift(schema)[0]
        return [F.max(value) if self.greatest else F.min(value)]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        # These two functions skip NULLs, unlike most.
        return [F.greatest(left[0], right[0]) if self.greatest else F.least(left[0], right[0])]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        return slots[0]

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return [ordering.extremes(slots[0], starts, greatest=self.greatest)]


@dataclass(frozen=True)
class Min(_Extreme):
    """Smallest value; NULL if there is none. NaN is greater than any number, as in Spark.

    Examples
    --------
    >>> Min("price").name
    'min_price'
    """

    function: ClassVar[str] = "min"
    greatest: ClassVar[bool] = False


@dataclass(frozen=True)
class Max(_Extreme):
    """Greatest value; NULL if there is none. NaN is greater than any number, as in Spark.

    Examples
    --------
    >>> Max("price").name
    'max_price'
    """

    function: ClassVar[str] = "max"
    greatest: ClassVar[bool] = True


class _OfBooleans(_Extreme):
    def slots(self, schema: StructType) -> list[DataType]:
        found = self._type(schema)
        if not isinstance(found, BooleanType):
            raise self._refusal(found, "booleans")
        return [found]


@dataclass(frozen=True)
class BoolAnd(_OfBooleans):
    """Whether all values are true; NULL if there is none.

    Examples
    --------
    >>> BoolAnd("paid").name
    'bool_and_paid'
    """

    function: ClassVar[str] = "bool_and"
    greatest: ClassVar[bool] = False


@dataclass(frozen=True)
class BoolOr(_OfBooleans):
    """Whether any value is true; NULL if there is none.

    Examples
    --------
    >>> BoolOr("paid").name
    'bool_or_paid'
    """

    function: ClassVar[str] = "bool_or"
    greatest: ClassVar[bool] = True
