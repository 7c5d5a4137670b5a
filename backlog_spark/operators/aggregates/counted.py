"""Aggregates that count each value, so that rows can be retracted. The state grows with the number of values.

Source: Flink's ``MinWithRetractAggFunction`` and ``MaxWithRetractAggFunction``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, StructField, StructType

from backlog_spark.operators.aggregates import groups, ordering
from backlog_spark.operators.aggregates.aggregate import Aggregate
from backlog_spark.operators.aggregates.extremes import BoolAnd, BoolOr, Max, Min
from backlog_spark.operators.aggregates.signed import SIGN
from backlog_spark.operators.aggregates.sums import Avg, Sum

if TYPE_CHECKING:
    from backlog_spark.operators.aggregates.base import ArgumentAggregate

__all__ = ["Counted", "counted"]


def counted(aggregate: Aggregate) -> Counted | None:
    """The aggregate over rows with signs. None if its result needs more than the values and their counts."""
    if isinstance(aggregate, Min | Max | BoolAnd | BoolOr | Sum | Avg):
        return Counted(aggregate.name, aggregate)
    return None


@dataclass(frozen=True)
class Counted(Aggregate):
    """A minimum, maximum, sum or average over rows with signs.

    Its accumulator is a list of values and counts. A value may be in it more than once. A value that was retracted
    before it came has a negative count.

    Parameters
    ----------
    name : str
    inner : Min, Max, BoolAnd, BoolOr, Sum or Avg
        A sum or average of other types than floating point is exact without this, see `signed.Signed`.
    """

    name: str
    inner: ArgumentAggregate = field()

    def __str__(self) -> str:
        return str(self.inner)

    def slots(self, schema: StructType) -> list[DataType]:
        value = StructField("value", self._kind(schema))
        return [ArrayType(StructType([value, StructField("number", LongType())]))]

    def lift(self, schema: StructType) -> list[Column]:
        one = F.array(self._entry(schema))
        return [F.when(self._value(schema).isNotNull(), one).cast(self.slots(schema)[0])]

    def reduce(self, schema: StructType) -> list[Column]:
        entries = F.collect_list(F.when(self._value(schema).isNotNull(), self._entry(schema)))
        return [entries.cast(self.slots(schema)[0])]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        return [F.coalesce(F.concat(left[0], right[0]), left[0], right[0])]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        is_sum = isinstance(self.inner, Sum | Avg)
        kind = self._kind(schema)
        nothing, zero = F.lit(None).cast(kind), F.lit(0).cast(LongType())

        def taken(so_far: Column) -> list[Column]:
            """The result and its number of rows, after all counts of the present value."""
            result, rows = so_far.getField("result"), so_far.getField("rows")
            value, number = so_far.getField("value"), so_far.getField("number")
            # Spark's sums start from 0.0.
            more = F.coalesce(result, F.lit(0.0)) + value * number if is_sum else F.coalesce(result, value)
            is_there = number > 0
            return [F.when(is_there, more).otherwise(result), F.when(is_there, rows + number).otherwise(rows)]

        def step(so_far: Column, entry: Column) -> Column:
            value, number = entry.getField("value"), entry.getField("number")
            same = so_far.getField("value").eqNullSafe(value)
            parts = [
                *(
                    F.when(same, so_far.getField(name)).otherwise(new)
                    for name, new in zip(("result", "rows"), taken(so_far), strict=True)
                ),
                value,
                F.when(same, so_far.getField("number") + number).otherwise(number),
            ]
            return F.struct(*(p.alias(n) for p, n in zip(parts, _SO_FAR, strict=True)))

        def end(so_far: Column) -> Column:
            result, rows = taken(so_far)
            return result / rows if isinstance(self.inner, Avg) else result

        begin = F.struct(*(p.alias(n) for p, n in zip((nothing, zero, nothing, zero), _SO_FAR, strict=True)))
        ascending = is_sum or not getattr(self.inner, "greatest", False)
        return F.aggregate(F.sort_array(slots[0], asc=ascending), begin, step, end)

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        lists = slots[0]
        entries = lists.flatten()
        group_of = np.repeat(np.arange(len(starts)), np.add.reduceat(groups.list_lengths(lists), starts))
        values, numbers = entries.field("value"), entries.field("number")
        rows, sums = ordering.distinct(values, group_of, groups.values(numbers))
        rows, sums = rows[sums != 0], sums[sums != 0]
        kept = pa.StructArray.from_arrays([values.take(pa.array(rows)), pa.array(sums)], fields=list(entries.type))
        offsets = np.append(0, np.cumsum(np.bincount(group_of[rows], minlength=len(starts))))
        return [groups.lists_of(offsets, kept, groups.any_valid(lists, starts), lists.type)]

    def _kind(self, schema: StructType) -> DataType:
        return self.inner.slots(schema)[0]

    def _value(self, schema: StructType) -> Column:
        return self.inner.lift(schema)[0]

    def _entry(self, schema: StructType) -> Column:
        return F.struct(self._value(schema).alias("value"), F.col(SIGN).cast(LongType()).alias("number"))


_SO_FAR = ("result", "rows", "value", "number")
