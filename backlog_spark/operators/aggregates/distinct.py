"""Approximate number of distinct values, by a HyperLogLog sketch that Spark and Python both read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, LongType, StructType

from backlog_spark.common.requirements import require
from backlog_spark.operators.aggregates.base import ArgumentAggregate, is_hashable, without_negative_zero

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ApproxCountDistinct"]


@dataclass(frozen=True)
class ApproxCountDistinct(ArgumentAggregate):
    """Approximate number of distinct values; NULL does not count.

    The sketch is Apache DataSketches' HLL with eight bits per register, as made by Spark's ``hll_sketch_agg``. Spark's
    ``approx_count_distinct`` uses another one, so the estimates differ within the error of both. For up to some dozens
    of values it is practically exact.

    The sketch takes Spark's ``xxhash64`` of the value. That works for every type but maps, counts the empty string
    (which DataSketches skips), and gives the same hash in Python.

    Parameters
    ----------
    argument : str
        A column's name, ``*`` for the whole row as a struct, or an expression in Spark SQL over the rows.
    lg_k : int, default 12
        Binary logarithm of the number of registers, from 7 to 21. The state of a key has at most about ``2 ** lg_k``
        bytes. The relative standard error is about ``1.04 / sqrt(2 ** lg_k)``, for 12 it is 1.6 %.

    Examples
    --------
    >>> ApproxCountDistinct("user_id").name
    'approx_count_distinct_user_id'
    """

    function: ClassVar[str] = "approx_count_distinct"

    lg_k: int = field(default=12, kw_only=True)

    def slots(self, schema: StructType) -> list[DataType]:
        require(self.function, "datasketches")
        found = self._type(schema)
        if not is_hashable(found):
            raise self._refusal(found, "all but maps and variants")
        return [BinaryType()]

    def lift(self, schema: StructType) -> list[Column]:
        value = without_negative_zero(self._value(schema), self._type(schema))
        return [F.when(value.isNotNull(), F.xxhash64(value))]

    def reduce(self, schema: StructType) -> list[Column]:
        return [F.hll_sketch_agg(self.lift(schema)[0], F.lit(self.lg_k))]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        return [F.coalesce(F.hll_union(left[0], right[0]), left[0], right[0])]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        # A sketch that was never merged uses an estimator that depends on the order of its rows. A union with itself
        # changes no register and switches that estimator off. So the result does not depend on the merges.
        estimate = F.hll_sketch_estimate(F.hll_union(slots[0], slots[0]))
        return F.coalesce(estimate, F.lit(0).cast(LongType()))

    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        from datasketches import hll_sketch, tgt_hll_type  # type: ignore[import-untyped]

        sketches: list[bytes | None] = []
        for hashes in _grouped(lifted[0], starts):
            sketch = hll_sketch(self.lg_k, tgt_hll_type.HLL_8)
            for each in hashes:
                sketch.update(each)
            sketches.append(sketch.serialize_compact() if hashes else None)
        return [pa.array(sketches, type=pa.binary())]

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        from datasketches import hll_sketch, hll_union, tgt_hll_type

        sketches: list[bytes | None] = []
        for parts in _grouped(slots[0], starts):
            if len(parts) < 2:
                sketches.append(parts[0] if parts else None)
                continue
            union = hll_union(self.lg_k)
            for each in parts:
                union.update(hll_sketch.deserialize(each))
            sketches.append(union.get_result(tgt_hll_type.HLL_8).serialize_compact())
        return [pa.array(sketches, type=slots[0].type)]


def _grouped(array: pa.Array, starts: np.ndarray) -> Iterator[list[Any]]:
    """The values of each group, without NULL."""
    values = array.to_pylist()
    for start, end in pairwise([*starts.tolist(), len(values)]):
        yield [each for each in values[start:end] if each is not None]
