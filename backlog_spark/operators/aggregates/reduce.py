"""Reduces the rows of a key with a Python function."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.errors import BacklogError
from backlog_spark.operators.fold import CHANGED, describe_keys
from backlog_spark.operators.merge import MergeFold
from backlog_spark.operators.row_types import row_type
from backlog_spark.state.keys import check_keys, group_of, hash_of, normalised
from backlog_spark.state.merge_sorted import MergeSorted
from backlog_spark.state.tables import GROUP, HASH, StateSchema

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["ReduceFold", "RowsMergeFold"]

ReduceFunction = Callable[[Any, Any], Any]


class RowsMergeFold(MergeFold):
    """A fold in which a Python function works on whole rows.

    Parameters
    ----------
    keys : sequence of str
        Columns of the rows.
    schema : StructType
        Schema of the rows.
    key_groups : int
        ``spark.backlog.keyGroups``.
    hidden : sequence of str, optional
        Keys that the function does not get as columns.
    changes : str, optional
        See `MergeFold.changes`.
    """

    def __init__(
        self, keys: Sequence[str], schema: StructType, key_groups: int, hidden: Sequence[str], changes: str
    ) -> None:
        check_keys(keys, schema)
        self.keys = tuple(keys)
        self.changes = changes
        self._schema = schema
        self._key_groups = key_groups
        self.names = [name for name in schema.names if name not in hidden]
        """The columns that the function gets."""

    def hashed(self, rows: DataFrame, prefix: str, *more: Column) -> DataFrame:
        """Hash, keys, and the columns for the function. These are named by the prefix and a number."""
        from pyspark.sql import functions as F

        keys = [normalised(k, self._schema).alias(n) for k, n in zip(self.keys, self.state.key_names, strict=True)]
        values: list[Column] = [F.col(f"`{n.replace('`', '``')}`") for n in self.names]
        named = [c.alias(f"{prefix}{i}") for i, c in enumerate(values)]
        return rows.select(hash_of(keys).alias(HASH), *keys, *named, *more)

    def lift(self, rows: DataFrame, *more: Column) -> DataFrame:
        hashed = self.hashed(rows, "l", *more)
        return hashed.select(group_of(hashed[HASH], self._key_groups).alias(GROUP), "*")

    @abstractmethod
    def new_rows(self, rows: DataFrame) -> DataFrame:
        """A backlog batch as rows of state: hash, keys, accumulators. A key may have several rows."""

    def merge_rows(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        from pyspark.sql import functions as F

        both = self.new_rows(rows).withColumn(CHANGED, F.lit(True))
        if base is not None:
            both = base.withColumn(CHANGED, F.lit(False)).unionByName(both)
        # Rows of a key are together if equal hashes are. Spark's fastest sort is by one column of eight bytes.
        placed = both.repartition(HASH).sortWithinPartitions(HASH)
        return map_in_arrow(placed, MergeSorted(self), both.schema)


class ReduceFold(RowsMergeFold):
    """One row per key: all its rows are combined two at a time.

    Parameters
    ----------
    keys : sequence of str
        Columns of the rows.
    function : callable
        Takes two rows as named tuples of all columns and returns one, as a tuple of the same columns with the same
        key. Associative and commutative: rows are reduced per partition, then the results, in any order.
    schema, key_groups, hidden, changes
        As for `RowsMergeFold`.
    """

    def __init__(
        self,
        keys: Sequence[str],
        function: ReduceFunction,
        schema: StructType,
        key_groups: int,
        hidden: Sequence[str] = (),
        changes: str = "",
    ) -> None:
        super().__init__(keys, schema, key_groups, hidden, changes)
        self._function = function
        # The slots include the key: the function gets whole rows.
        self.state = StateSchema(
            tuple(schema[k].dataType for k in keys), tuple(schema[name].dataType for name in self.names)
        )

    def describe(self) -> dict[str, Any]:
        # Functions cannot be compared, and an improved one may replace an older one.
        return {
            "meaning": f"{describe_keys(self.keys, self.state)}: reduce{self.described_changes}",
            "slots": [f"{name}: {self._schema[name].dataType.simpleString()}" for name in self.names],
        }

    def new_rows(self, rows: DataFrame) -> DataFrame:
        return self.hashed(rows, "s")

    def finish(self, state: DataFrame, *more: Column) -> DataFrame:
        from pyspark.sql import functions as F

        keys = [F.col(n).alias(k) for n, k in zip(self.state.key_names, self.keys, strict=True)]
        values = [F.col(f"s{i}").alias(name) for i, name in enumerate(self.names) if name not in self.keys]
        return state.select(*keys, *values, *more)

    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return self.merge_groups(lifted, starts)

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        import numpy as np

        ends = np.append(starts[1:], len(slots[0]))
        several = np.flatnonzero(ends - starts > 1)
        if not len(several):
            return [slot.take(pa.array(starts)) for slot in slots]
        make = row_type(tuple(self.names))
        reduced = []
        for first, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
            rows = [make(*r) for r in zip(*(s.slice(first, end - first).to_pylist() for s in slots), strict=True)]
            result = rows[0]
            for row in rows[1:]:
                result = self._function(result, row)
                if type(result) is not make:
                    result = self._as_row(result, make)
            reduced.append(self._checked(result, rows[0]))
        # The reduced rows replace the first rows of their groups.
        indices = np.arange(len(starts))
        single = starts.copy()
        single[several] = len(slots[0]) + np.arange(len(several))
        columns = list(zip(*reduced, strict=True))
        return [
            pa.concat_arrays([slot, self._array(i, columns[i], slot.type)]).take(pa.array(single[indices]))
            for i, slot in enumerate(slots)
        ]

    def _as_row(self, result: Any, make: Any) -> Any:
        """A result that is a plain tuple, as a named tuple for the next call."""
        if not isinstance(result, tuple | list) or len(result) != len(self.names):
            raise BacklogError(
                f"The function of reduce returned {type(result).__name__} {result!r:.100}.",
                f"It must return a tuple of {len(self.names)} values: {', '.join(self.names)}.",
            )
        return make(*result)

    def _checked(self, result: Any, first: Any) -> Any:
        for key in self.keys:
            if key not in self.names:
                continue
            at = self.names.index(key)
            # NaN is a key too, although it does not equal itself.
            if result[at] != first[at] and not (result[at] != result[at] and first[at] != first[at]):
                raise BacklogError(
                    f"The function of reduce changed the key {key!r} from {first[at]!r} to {result[at]!r}.",
                    "Return the key unchanged.",
                )
        return result

    def _array(self, index: int, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise BacklogError(
                f"The function of reduce returned a value for {self.names[index]!r} that is not {kind}: {error}.",
                "Return values of the column's type.",
            ) from None
