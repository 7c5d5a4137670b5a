"""Aggregates that choose a value by the order of rows or by a key: first, last, min_by, max_by, and the row number 1.

Spark's own functions choose any row of a tie, or the row that is read first. Here a replay and any other partitioning
give the same result: the accumulator is a struct of everything that decides, most important field first, and the
smallest (or greatest) struct wins.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregates import ordering
from backlog_spark.operators.aggregates.base import ArgumentAggregate, column, is_orderable, order_field, type_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["First", "FirstRow", "Last", "MaxBy", "MinBy"]


@dataclass(frozen=True)
class _Picked(ArgumentAggregate):
    """One slot: a struct of the deciding fields (`_deciding`), then ``value``. It is compared as a whole."""

    greatest: ClassVar[bool]

    order: str | None = field(default=None, kw_only=True)

    def with_order(self, order: str | None) -> Self:
        return self if self.order is not None else replace(self, order=order)

    @abstractmethod
    def _deciding(self, schema: StructType) -> list[tuple[Column, StructField]]:
        """The fields before ``value``, with their expressions."""

    @abstractmethod
    def _takes_part(self, schema: StructType) -> Column | None:
        """Condition on the rows in addition to ``where``."""

    def slots(self, schema: StructType) -> list[DataType]:
        return [self._slot(schema)]

    def lift(self, schema: StructType) -> list[Column]:
        named = [each.alias(where.name) for each, where in self._deciding(schema)]
        picked = F.struct(*named, column(schema, self.argument).alias("value"))
        condition = self._takes_part(schema)
        return [self._kept(picked if condition is None else F.when(condition, picked)).cast(self._slot(schema))]

    def reduce(self, schema: StructType) -> list[Column]:
        lifted = self.lift(schema)[0]
        if self._compares_value(schema):
            return [F.max(lifted) if self.greatest else F.min(lifted)]
        key = F.when(lifted.isNotNull(), _without_value(lifted, self._slot(schema)))
        return [F.max_by(lifted, key) if self.greatest else F.min_by(lifted, key)]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        older, newer = left[0], right[0]
        if self._compares_value(schema):
            return [F.greatest(older, newer) if self.greatest else F.least(older, newer)]
        slot = self._slot(schema)
        before, after = _without_value(older, slot), _without_value(newer, slot)
        wins = after > before if self.greatest else after < before
        return [F.when(older.isNull() | (newer.isNotNull() & wins), newer).otherwise(older)]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        return slots[0].getField("value")

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return [ordering.extremes(slots[0], starts, greatest=self.greatest)]

    def _slot(self, schema: StructType) -> StructType:
        value = StructField("value", self._type(schema))
        slot = StructType([*(where for _, where in self._deciding(schema)), value])
        if len(slot.fields) == 1:
            raise BacklogError(
                f"{self} AS {self.name}: the rows have no order.", "Name the column that orders rows: order."
            )
        return slot

    def _compares_value(self, schema: StructType) -> bool:
        return is_orderable(self._type(schema))


@dataclass(frozen=True)
class First(_Picked):
    """Value of the first row in the order; NULL if there is no row.

    Among rows equal in the order the smallest value wins; NULL is smaller than all. A value without an order, such as a
    map, needs an order column that is unique within the key.

    Parameters
    ----------
    argument : str
        A column's name, ``*`` for the whole row as a struct, or an expression in Spark SQL over the rows.
    order : str, optional
        Column that orders the rows; NULL first. A keyed stream passes its own, see `with_order`.
    ignore_nulls : bool, default False
        Skip rows whose value is NULL.

    Examples
    --------
    >>> str(First("status", order="_commit_seq"))
    'first(status)'
    """

    function: ClassVar[str] = "first"
    greatest: ClassVar[bool] = False

    ignore_nulls: bool = field(default=False, kw_only=True)

    def _deciding(self, schema: StructType) -> list[tuple[Column, StructField]]:
        if self.order is None:
            return []
        return [(column(schema, self.order), order_field(schema, self.order, self))]

    def _takes_part(self, schema: StructType) -> Column | None:
        return column(schema, self.argument).isNotNull() if self.ignore_nulls else None


@dataclass(frozen=True)
class Last(First):
    """Value of the last row in the order; NULL if there is no row.

    Like `First`, but among rows equal in the order the greatest value wins.

    Examples
    --------
    >>> str(Last("status", order="_commit_seq"))
    'last(status)'
    """

    function: ClassVar[str] = "last"
    greatest: ClassVar[bool] = True


@dataclass(frozen=True)
class MinBy(_Picked):
    """Value of the row with the smallest key; NULL if no row has a key. Rows whose key is NULL are skipped.

    Among rows with equal keys the first in the order wins, or the last with ``last=True``, as in PyFlink. Without an
    order, or among rows equal in it, the smallest value wins; NULL is smaller than all (`MaxBy`: the greatest value). A
    value without an order, such as a map, needs an order column that is unique within the key.

    Parameters
    ----------
    argument : str
        The value: a column's name, ``*`` for the whole row as a struct, or an expression in Spark SQL.
    key : str
        The key: a column's name or an expression in Spark SQL.
    order : str, optional
        Column that orders the rows; NULL first. A keyed stream passes its own, see `with_order`.
    last : bool, default False
        Take the last of the rows with equal keys. Needs an order.

    Examples
    --------
    >>> MinBy("city", "price", order="_commit_seq").name
    'min_by_city_price'
    """

    function: ClassVar[str] = "min_by"
    greatest: ClassVar[bool] = False

    key: str
    last: bool = field(default=False, kw_only=True)

    def arguments(self) -> tuple[str, ...]:
        return (self.argument, self.key)

    def _deciding(self, schema: StructType) -> list[tuple[Column, StructField]]:
        kind = type_of(schema, self.key, self)
        if not is_orderable(kind):
            raise BacklogError(
                f"{self} AS {self.name}: {self.key} is of type {kind.simpleString()}.",
                "The key must be a number, string, binary, boolean, date or time.",
            )
        deciding = [(column(schema, self.key), StructField("key", kind))]
        if self.order is not None:
            order, where = column(schema, self.order), order_field(schema, self.order, self)
            # The smallest struct has the smallest order. To get the last row, the order is reversed; likewise for
            # MaxBy.
            deciding.append((order, where) if self.last == self.greatest else _reversed(order, where.dataType))
        elif self.last or not is_orderable(self._type(schema)):
            raise BacklogError(
                f"{self} AS {self.name}: rows with equal {self.key} need an order.",
                "Name the column that orders rows: order.",
            )
        return deciding

    def _takes_part(self, schema: StructType) -> Column | None:
        return column(schema, self.key).isNotNull()


@dataclass(frozen=True)
class MaxBy(MinBy):
    """Value of the row with the greatest key; NULL if no row has a key. See `MinBy`.

    Examples
    --------
    >>> MaxBy("*", "price", order="_commit_seq", name="dearest").name
    'dearest'
    """

    function: ClassVar[str] = "max_by"
    greatest: ClassVar[bool] = True


@dataclass(frozen=True)
class FirstRow(_Picked):
    """Value of the row that ``ROW_NUMBER() OVER (… ORDER BY …)`` gives the number 1.

    Among rows equal in the order the smallest value wins; NULL is smaller than all.

    Parameters
    ----------
    argument : str
        The value, as in `First`.
    by : tuple of (str, bool, bool)
        The items of ORDER BY: an expression in Spark SQL, whether it is descending, and whether NULL comes first.

    Examples
    --------
    >>> FirstRow("*", (("price", True, False),), name="dearest").name
    'dearest'
    """

    function: ClassVar[str] = "first_row"
    greatest: ClassVar[bool] = False

    by: tuple[tuple[str, bool, bool], ...]

    def arguments(self) -> tuple[str, ...]:
        return (self.argument, *(expression for expression, *_ in self.by))

    def _deciding(self, schema: StructType) -> list[tuple[Column, StructField]]:
        deciding: list[tuple[Column, StructField]] = []
        for number, (expression, descending, nulls_first) in enumerate(self.by):
            kind = type_of(schema, expression, self)
            if not is_orderable(kind):
                raise BacklogError(
                    f"ORDER BY {expression}: the type {kind.simpleString()} has no order.", "Order by other columns."
                )
            value = column(schema, expression)
            if nulls_first == descending:  # the other way than by default
                flag = value.isNotNull() if nulls_first else value.isNull()
                deciding.append((flag, StructField(f"null{number}", BooleanType())))
            if descending:
                value, where = _reversed(value, kind)
                kind = where.dataType
            deciding.append((value, StructField(f"key{number}", kind)))
        return deciding

    def _takes_part(self, schema: StructType) -> Column | None:
        return None


def _without_value(slot: Column, kind: StructType) -> Column:
    return F.struct(*(slot.getField(name).alias(name) for name in kind.fieldNames() if name != "value"))


def _reversed(value: Column, kind: DataType) -> tuple[Column, StructField]:
    """A struct that orders the values backwards; NULL is greatest."""
    parts = [(value.isNull(), BooleanType()), *_opposite(value, kind)]
    fields = [StructField(f"part{index}", each) for index, (_, each) in enumerate(parts)]
    named = [part.alias(where.name) for (part, _), where in zip(parts, fields, strict=True)]
    return F.struct(*named), StructField("order", StructType(fields))


def _opposite(value: Column, kind: DataType) -> list[tuple[Column, DataType]]:
    if isinstance(kind, IntegralType):
        return [(F.bitwise_not(value), kind)]  # negating the smallest number would overflow
    if isinstance(kind, BooleanType):
        return [(~value, kind)]
    if isinstance(kind, DecimalType):
        return [(-value, kind)]
    if isinstance(kind, FloatType | DoubleType):
        return [(~F.isnan(value), BooleanType()), (-value, kind)]
    if isinstance(kind, DateType):
        return [(F.bitwise_not(F.unix_date(value)), IntegerType())]
    if isinstance(kind, TimestampType):
        return [(F.bitwise_not(F.unix_micros(value)), LongType())]
    if isinstance(kind, TimestampNTZType):
        return [(F.expr("timestamp_ntz'1970-01-01'") - value, DayTimeIntervalType(0, 3))]
    if isinstance(kind, StringType | BinaryType):
        # Hexadecimal keeps the order of bytes. Each digit becomes its opposite, and the end is greater than any digit.
        digits = F.translate(F.hex(value), "0123456789ABCDEF", "FEDCBA9876543210")
        return [(F.concat(digits, F.lit("G")), StringType())]
    raise BacklogError(f"An order column of type {kind.simpleString()} cannot be reversed.", "Cast it to a number.")
