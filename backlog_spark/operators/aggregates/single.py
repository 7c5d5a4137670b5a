"""The value of the only row that satisfies a condition. Translations use it; users have `first` and `last`.

Source: Flink's ``SINGLE_VALUE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StructType

from backlog_spark.operators.aggregates import groups
from backlog_spark.operators.aggregates.base import ArgumentAggregate, is_orderable

__all__ = ["SingleValue"]


@dataclass(frozen=True)
class SingleValue(ArgumentAggregate):
    """Value of the row for which ``where`` is true; NULL if there is none.

    A key has at most one such row. If a batch replaces it, the new row's value counts, so nothing has to be retracted.
    The second accumulator is 1 if there was a row.
    """

    function: ClassVar[str] = "single_value"

    def slots(self, schema: StructType) -> list[DataType]:
        return [self._type(schema), IntegerType()]

    def lift(self, schema: StructType) -> list[Column]:
        return [self._value(schema).cast(self._type(schema)), self._kept(F.lit(1))]

    def reduce(self, schema: StructType) -> list[Column]:
        value, found = self.lift(schema)
        return [F.max(value) if is_orderable(self._type(schema)) else F.max_by(value, found), F.max(found)]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        return [F.when(right[1].isNull(), left[0]).otherwise(right[0]), F.coalesce(right[1], left[1])]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        return slots[0]

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        last = np.maximum.reduceat(np.where(groups.is_valid(slots[1]), np.arange(len(slots[1])), -1), starts)
        rows = pa.array(last, mask=last < 0)
        return [slot.take(rows) for slot in slots]
