"""What a declared aggregate is: rows become accumulators, accumulators merge, accumulators become the result.

An aggregate runs in two places. In backlog Spark itself aggregates: `reduce` over the rows of a batch, `merge` with
the state. In stream mode each row is `lift`-ed by Spark, a Python worker merges the lifted rows into the key group's
state with `merge_groups`, and Spark applies `finish`. Both give the same values, or the switch would show.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

__all__ = ["Aggregate"]


class Aggregate(ABC):
    """One aggregate function over the rows of a key, with a name for its result.

    Immutable, small and picklable: it travels to the workers. Its accumulators are a fixed number of columns, the
    *slots*, each nullable. All Spark expressions are unresolved columns over the rows of the keyed stream, whose
    ``schema`` every method that runs on the driver is given. Those that run in a worker take it from Arrow's types.

    Parameters
    ----------
    name : str
        Column of the result.
    """

    name: str

    @abstractmethod
    def slots(self, schema: StructType) -> list[DataType]:
        """Spark types of the accumulators, for rows of ``schema``.

        Raises
        ------
        BacklogError
            When the argument's type does not fit; it names the aggregate, the column and the type.
        """

    @abstractmethod
    def lift(self, schema: StructType) -> list[Column]:
        """The accumulators of a single row, of the types of `slots` (or what `pack_groups` takes instead)."""

    @abstractmethod
    def reduce(self, schema: StructType) -> list[Column]:
        """Spark aggregate expressions over rows: the accumulators of all of them, of the types of `slots`.

        Equal to lifting each row and merging all; of no row at all it is never asked.
        """

    @abstractmethod
    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        """Scalar Spark expressions that merge two sets of accumulators, of which ``left`` is the older.

        A set of NULLs stands for no row at all, so an outer join's missing side needs no special case.
        """

    @abstractmethod
    def finish(self, schema: StructType, slots: Sequence[Column]) -> Column:
        """The result from the accumulators, with the type that Spark's own aggregate has."""

    @abstractmethod
    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        """Merge accumulators in a worker.

        Parameters
        ----------
        slots : sequence of pyarrow.Array
            One array a slot, of equal length > 0; rows of one key stand together, older ones first.
        starts : numpy.ndarray of int64
            Index of each key's first row: ascending, the first is 0.

        Returns
        -------
        list of pyarrow.Array
            For each slot one value a key, with the slot's Arrow type.

        Raises
        ------
        BacklogError
            On overflow, as Spark's own aggregate would with ANSI mode; never a wrapped value.
        """

    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        """As `merge_groups`, for what `lift` gives. Differs only where a lifted row is not an accumulator yet."""
        return self.merge_groups(lifted, starts)
