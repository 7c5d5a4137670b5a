"""Sum, count and average over rows that may be retracted: each value counts with the sign of its row.

Source: Flink's ``SumWithRetractAggFunction`` and ``AvgAggFunction``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, DoubleType, IntegralType, LongType, StructType

from backlog_spark.operators.aggregates.aggregate import Aggregate
from backlog_spark.operators.aggregates.single import SingleValue
from backlog_spark.operators.aggregates.sums import Avg, Count, Sum

if TYPE_CHECKING:
    import numpy as np

__all__ = ["SIGN", "Signed", "signed"]

SIGN: Final = "__backlog_sign"
"""Column of the rows: 1 if a row is added, -1 if it is retracted."""


def signed(aggregate: Aggregate, schema: StructType) -> Aggregate | None:
    """The aggregate over rows with signs. None if its accumulators cannot retract rows exactly.

    Sums of floating point cannot: what is lost to rounding, or to an infinity, stays lost.
    """
    if isinstance(aggregate, SingleValue):
        return replace(aggregate, where=f"{SIGN} > 0" + (f" AND ({aggregate.where})" if aggregate.where else ""))
    if isinstance(aggregate, Count):
        return Signed(aggregate.name, replace(aggregate, name="_"))
    if isinstance(aggregate, Avg) and isinstance(aggregate._type(schema), IntegralType):
        return Signed(aggregate.name, ExactAvg(aggregate.argument, name="_", where=aggregate.where))
    if isinstance(aggregate, Sum | Avg) and isinstance(aggregate._type(schema), IntegralType | DecimalType):
        return Signed(aggregate.name, replace(aggregate, name="_"))
    return None


@dataclass(frozen=True)
class ExactAvg(Avg):
    """An average of integers with an exact sum: what is lost to rounding stays lost."""

    def slots(self, schema: StructType) -> list[DataType]:
        return [DecimalType(38, 0), LongType()]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        return super().finish(schema, [slots[0].cast(DoubleType()), slots[1]])


@dataclass(frozen=True)
class Signed(Aggregate):
    """A sum, count or average over rows with signs.

    It has the accumulators of the inner aggregate. A sum also counts its values, because none may be left.

    Parameters
    ----------
    name : str
    inner : Sum, Count or Avg
    """

    name: str
    inner: Sum | Count | Avg = field()

    def __str__(self) -> str:
        return str(self.inner)

    def slots(self, schema: StructType) -> list[DataType]:
        return [*self.inner.slots(schema), *([LongType()] if isinstance(self.inner, Sum) else [])]

    def lift(self, schema: StructType) -> list[Column]:
        plain = self.inner.lift(schema)
        if isinstance(self.inner, Sum):
            plain.append(F.when(plain[0].isNotNull(), F.lit(1).cast(LongType())))
        return [F.when(F.col(SIGN) > 0, value).otherwise(-value) for value in plain]

    def reduce(self, schema: StructType) -> list[Column]:
        return [F.sum(value).cast(kind) for value, kind in zip(self.lift(schema), self.slots(schema), strict=True)]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        if not isinstance(self.inner, Sum):
            return self.inner.merge(schema, left, right)
        return [
            *self.inner.merge(schema, left[:1], right[:1]),
            *Count(name="_").merge(schema, left[1:], right[1:]),
        ]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        if not isinstance(self.inner, Sum):
            return self.inner.finish(schema, slots)
        return F.when(slots[1] != 0, slots[0])

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        if not isinstance(self.inner, Sum):
            return self.inner.merge_groups(slots, starts)
        return [*self.inner.merge_groups(slots[:1], starts), *Count(name="_").merge_groups(slots[1:], starts)]
