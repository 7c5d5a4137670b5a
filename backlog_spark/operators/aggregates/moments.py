"""Variance and standard deviation, of the population and of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, NumericType, StringType, StructType

from backlog_spark.operators.aggregates import groups
from backlog_spark.operators.aggregates.base import ArgumentAggregate

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["StdDev", "StdDevPop", "Variance", "VariancePop"]


class _Moments(ArgumentAggregate):
    """Slots: number of values, their mean, the sum of squared distances from it; like Spark's CentralMomentAgg.

    They are merged with the formula of Chan, Golub and LeVeque, which never subtracts large numbers.
    """

    sample: ClassVar[bool]
    root: ClassVar[bool]

    def slots(self, schema: StructType) -> list[DataType]:
        found = self._type(schema)
        if not isinstance(found, NumericType | StringType):
            raise self._refusal(found, "numbers")
        return [DoubleType(), DoubleType(), DoubleType()]

    def lift(self, schema: StructType) -> list[Column]:
        value = self._value(schema).cast(DoubleType())
        return [F.when(value.isNotNull(), F.lit(1.0)), value, value - value]  # NaN of infinity, as in Spark

    def reduce(self, schema: StructType) -> list[Column]:
        value = self._value(schema).cast(DoubleType())
        # regr_sxx is Spark's only function that gives the plain sum of squared distances.
        return [F.nullif(F.count(value).cast(DoubleType()), F.lit(0.0)), F.avg(value), F.regr_sxx(value, value)]

    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        n_left, mean_left, m2_left = left
        n_right, mean_right, m2_right = right
        n = n_left + n_right
        delta = mean_right - mean_left
        merged = (n, mean_left + delta * (n_right / n), m2_left + m2_right + delta * delta * (n_left * (n_right / n)))
        return [F.coalesce(*each) for each in zip(merged, left, right, strict=True)]

    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        n, _, m2 = slots
        result = m2 / F.nullif(n - 1.0 if self.sample else n, F.lit(0.0))
        return F.sqrt(result) if self.root else result

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        valid = groups.any_valid(slots[0], starts)
        n, mean, m2 = (groups.values(slot, 0.0) for slot in slots)
        sizes = groups.group_sizes(starts, len(n))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            total = np.add.reduceat(n, starts)
            # Multiply by the weights first: a sum of huge values would overflow although their mean does not.
            merged_mean = np.add.reduceat(mean * _share(n, np.repeat(total, sizes)), starts)
            distance = np.where(n > 0, mean - np.repeat(merged_mean, sizes), 0.0)
            merged_m2 = np.add.reduceat(m2 + n * distance * distance, starts)
        return [groups.from_values(each, valid, slots[0].type) for each in (total, merged_mean, merged_m2)]


@dataclass(frozen=True)
class Variance(_Moments):
    """Variance of a sample (divided by n - 1); NULL for fewer than two values. Like Spark's var_samp.

    Examples
    --------
    >>> Variance("price").name
    'var_samp_price'
    """

    function: ClassVar[str] = "var_samp"
    sample: ClassVar[bool] = True
    root: ClassVar[bool] = False


@dataclass(frozen=True)
class VariancePop(_Moments):
    """Variance of the population (divided by n); NULL if there is no value. Like Spark's var_pop.

    Examples
    --------
    >>> VariancePop("price").name
    'var_pop_price'
    """

    function: ClassVar[str] = "var_pop"
    sample: ClassVar[bool] = False
    root: ClassVar[bool] = False


@dataclass(frozen=True)
class StdDev(_Moments):
    """Standard deviation of a sample; NULL for fewer than two values. Like Spark's stddev_samp.

    Examples
    --------
    >>> StdDev("price").name
    'stddev_price'
    """

    function: ClassVar[str] = "stddev"
    sample: ClassVar[bool] = True
    root: ClassVar[bool] = True


@dataclass(frozen=True)
class StdDevPop(_Moments):
    """Standard deviation of the population; NULL if there is no value. Like Spark's stddev_pop.

    Examples
    --------
    >>> StdDevPop("price").name
    'stddev_pop_price'
    """

    function: ClassVar[str] = "stddev_pop"
    sample: ClassVar[bool] = False
    root: ClassVar[bool] = True


def _share(part: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
