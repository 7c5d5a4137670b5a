"""collect_list and collect_set: all values of a key. The state of a key grows with its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from backlog_spark.operators.aggregates import groups, ordering
from backlog_spark.operators.aggregates.base import (
    ArgumentAggregate,
    column,
    is_orderable,
    order_field,
    without_negative_zero,
)

__all__ = ["CollectList", "CollectSet"]


@dataclass(frozen=True)
class CollectList(ArgumentAggregate):
    """All values that are not NULL, as an array; empty if there is none.

    With an order column the array is in that order; rows equal in it are ordered by value. Without one the order is
    undefined, as in Spark. A value without an order, such as a map, needs an order column that is unique within the
    key.

    Parameters
    ----------
    argument : str
        A column's name, ``*`` for the whole row as a struct, or an expression in Spark SQL over the rows.
    order : str, optional
        Column that orders the rows; NULL first. A keyed stream passes its own, see `with_order`.

    Examples
    --------
    >>> CollectList("page", order="clicked_at").name
    'collect_list_page'
    """

    function: ClassVar[str] = "collect_list"

    order: str | None = field(default=None, kw_only=True)

    def with_order(self, order: str | None) -> Self:
        return self if self.order is not None else replace(self, order=order)

    def slots(self, schema: StructType) -> list[DataType]:
        kind = self._type(schema)
        if self.order is None:
            return [ArrayType(kind)]
        return [ArrayType(StructType([order_field(schema, self.order, self), StructField("value", kind)]))]

    def lift(self, schema: StructType) -> list[Column]:
        return [F.when(self._value(schema).isNotNull(), F.array(self._element(schema))).cast(self.slots(schema)[0])]

    def reduce(self, schema: StructType) -> list[Column]:
        collected = F.collect_list(F.when(self._value(schema).isNotNull(), self._element(schema)))
        return [collected.cast(self.slots(schema)[0])]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        return [F.coalesce(F.concat(left[0], right[0]), left[0], right[0])]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        slot = slots[0]
        if self.order is not None:
            ordered = F.array_sort(slot) if is_orderable(self._type(schema)) else F.array_sort(slot, _by_order)
            slot = F.transform(ordered, lambda each: each.getField("value"))
        return _array(slot, self._type(schema))

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        lists = slots[0]
        ends = np.append(starts, len(lists))
        # The lists of neighbouring rows are contiguous, so the lists of a group already form its list.
        offsets = np.append(0, np.cumsum(groups.list_lengths(lists)))[ends]
        return [groups.lists_of(offsets, lists.flatten(), groups.any_valid(lists, starts), lists.type)]

    def _element(self, schema: StructType) -> Column:
        value = column(schema, self.argument)
        if self.order is None:
            return value
        return F.struct(column(schema, self.order).alias("order"), value.alias("value"))


@dataclass(frozen=True)
class CollectSet(ArgumentAggregate):
    """The distinct values that are not NULL, as an array; empty if there is none.

    The array is sorted (Spark does not promise that). Equal values count once, so -0.0 counts as 0.0.

    Examples
    --------
    >>> CollectSet("country").name
    'collect_set_country'
    """

    function: ClassVar[str] = "collect_set"

    def slots(self, schema: StructType) -> list[DataType]:
        found = self._type(schema)
        if not is_orderable(found):
            raise self._refusal(found, "numbers, strings (UTF8_BINARY), binaries, booleans, dates, times and structs")
        return [ArrayType(found)]

    def lift(self, schema: StructType) -> list[Column]:
        value = self._element(schema)
        return [F.when(value.isNotNull(), F.array(value)).cast(self.slots(schema)[0])]

    def reduce(self, schema: StructType) -> list[Column]:
        return [F.collect_set(self._element(schema)).cast(self.slots(schema)[0])]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        return [F.coalesce(F.array_union(left[0], right[0]), left[0], right[0])]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        return _array(F.array_sort(slots[0]), self._type(schema))

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        lists = slots[0]
        per_group = np.add.reduceat(groups.list_lengths(lists), starts)
        values = lists.flatten()
        group_of = np.repeat(np.arange(len(starts)), per_group)
        rows, _ = ordering.distinct(values, group_of, np.ones(len(values), np.int64))
        kept = np.bincount(group_of[rows], minlength=len(starts))
        offsets = np.append(0, np.cumsum(kept))
        return [groups.lists_of(offsets, values.take(pa.array(rows)), groups.any_valid(lists, starts), lists.type)]

    def _element(self, schema: StructType) -> Column:
        return without_negative_zero(self._value(schema), self._type(schema))


def _by_order(left: Column, right: Column) -> Column:
    """Compares (order, value) structs whose values have no order. NULL comes first."""
    older, newer = left.getField("order"), right.getField("order")
    return F.when(older.eqNullSafe(newer), 0).when(older.isNull() | (older < newer), -1).otherwise(1)


def _array(slot: Column, kind: DataType) -> Column:
    """An array whose type says that it contains no NULL, like the type of Spark's own result."""
    return F.array_compact(F.coalesce(slot, F.array().cast(ArrayType(kind))))
