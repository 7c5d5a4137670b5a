"""The interface of a declared aggregate: rows become accumulators, accumulators merge, they become the result.

An aggregate runs in both vehicles. In backlog Spark itself aggregates: `reduce` over the rows of a batch, then `merge`
with the state. In stream mode Spark applies `lift` to each row, a Python worker merges the lifted rows into the key
group's state with `merge_groups`, and Spark applies `finish`. Both must give the same values.
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

    Immutable, small and picklable: it is sent to the workers. Its accumulators are a fixed number of nullable columns,
    the *slots*. All Spark expressions are unresolved columns over the rows of the keyed stream. Methods that run on the
    driver get the ``schema`` of these rows; methods that run in a worker use Arrow's types.

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
            If the argument's type does not fit. The error has the aggregate, the column and the type.
        """

    @abstractmethod
    def lift(self, schema: StructType) -> list[Column]:
        """The accumulators of a single row, of the types of `slots` (or in the form that `pack_groups` takes)."""

    @abstractmethod
    def reduce(self, schema: StructType) -> list[Column]:
        """Spark aggregate expressions: the accumulators of all rows, of the types of `slots`.

        The same as lifting each row and merging all. Never called for no rows.
        """

    @abstractmethod
    def merge(self, schema: StructType, left: Sequence[Column], right: Sequence[Column]) -> list[Column]:
        """Scalar Spark expressions that merge two sets of accumulators; ``left`` is the older.

        NULLs mean: no rows. So the missing side of an outer join needs no special case.
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
            One array per slot, of equal length > 0. Rows of one key are together, older ones first.
        starts : numpy.ndarray of int64
            Index of each key's first row: ascending, the first is 0.

        Returns
        -------
        list of pyarrow.Array
            For each slot one value per key, with the slot's Arrow type.

        Raises
        ------
        BacklogError
            On overflow, like Spark's own aggregate in ANSI mode. Values never wrap around.
        """

    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        """Like `merge_groups`, for the output of `lift`. Differs only if a lifted row is not an accumulator yet."""
        return self.merge_groups(lifted, starts)
