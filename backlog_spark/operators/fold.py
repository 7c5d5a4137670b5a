"""What a keyed operator is to both vehicles: how rows become state, how states merge, how state becomes output.

Driver-side methods give Spark expressions and DataFrames; worker-side ones take Arrow arrays. A fold is bound to the
schema of its rows, immutable, and travels to the workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING

from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregate import Aggregate
from backlog_spark.state.keys import check_keys, group_of, hash_of, normalised
from backlog_spark.state.tables import GROUP, HASH, StateSchema

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["AggregateFold", "Fold"]

CHANGED = "__changed"


class Fold(ABC):
    """A keyed operator bound to its input. See the module's text."""

    keys: tuple[str, ...]
    state: StateSchema

    @abstractmethod
    def describe(self) -> str:
        """What the state means, in words that change when it does: kept in the checkpoint and compared."""

    @abstractmethod
    def lift(self, rows: DataFrame) -> DataFrame:
        """Group, hash, keys and lifted values of each row: what the stream vehicle ships to the key groups."""

    @abstractmethod
    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        """The sorted vehicle: the state after a batch of backlog.

        Parameters
        ----------
        rows : DataFrame
            The batch.
        base : DataFrame, optional
            The state before it, as an earlier call gave it.

        Returns
        -------
        DataFrame
            Group, hash, keys, accumulators and ``__changed``, whether the key had a row in this batch.
        """

    @abstractmethod
    def finish(self, state: DataFrame) -> DataFrame:
        """The operator's output from keys and accumulators."""

    @abstractmethod
    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        """Accumulators from lifted rows; as `Aggregate.pack_groups`, over all slots. In a worker."""

    @abstractmethod
    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        """Accumulators from accumulators; as `Aggregate.merge_groups`, over all slots. In a worker."""


class AggregateFold(Fold):
    """Declared aggregates by key.

    Parameters
    ----------
    keys : sequence of str
        Columns of the rows.
    aggregates : sequence of Aggregate
        Their names become columns of the output, after the keys.
    schema : StructType
        Of the rows.
    key_groups : int
        ``spark.backlog.keyGroups``.
    """

    def __init__(
        self, keys: Sequence[str], aggregates: Sequence[Aggregate], schema: StructType, key_groups: int
    ) -> None:
        check_keys(keys, schema)
        names = [*keys, *(a.name for a in aggregates)]
        twice = sorted({name for name in names if [n.lower() for n in names].count(name.lower()) > 1})
        if twice:
            raise BacklogError(
                f"The output would have two columns {twice[0]!r}.", "Name the aggregate otherwise: sum(x) AS total."
            )
        self.keys = tuple(keys)
        self._aggregates = tuple(aggregates)
        self._schema = schema
        self._key_groups = key_groups
        slots = [a.slots(schema) for a in aggregates]
        self._widths = [len(s) for s in slots]
        self.state = StateSchema(tuple(schema[k].dataType for k in keys), tuple(t for s in slots for t in s))

    def describe(self) -> str:
        # Without the results' names, which may change.
        said = [repr(replace(a, name="_")) if is_dataclass(a) else repr(a) for a in self._aggregates]
        return f"by {', '.join(self.keys)}: {', '.join(said)}; {self.state.text()}"

    def _key_columns(self) -> list[Column]:
        return [normalised(k, self._schema).alias(n) for k, n in zip(self.keys, self.state.key_names, strict=True)]

    def lift(self, rows: DataFrame) -> DataFrame:
        keys = self._key_columns()
        lifted = [c for a in self._aggregates for c in a.lift(self._schema)]
        named = [c.alias(f"l{i}") for i, c in enumerate(lifted)]
        hashed = rows.select(hash_of(keys).alias(HASH), *keys, *named)
        return hashed.select(group_of(hashed[HASH], self._key_groups).alias(GROUP), "*")

    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        from pyspark.sql import functions as F

        reduced = [c for a in self._aggregates for c in a.reduce(self._schema)]
        slots = [c.cast(t).alias(n) for c, t, n in zip(reduced, self.state.slots, self.state.slot_names, strict=True)]
        # Hashed after the aggregation: there are fewer keys than rows.
        new = rows.groupBy(*self._key_columns()).agg(*slots)
        new = new.select(hash_of([F.col(n) for n in self.state.key_names]).alias(HASH), "*")
        new = new.withColumn(CHANGED, F.lit(True)) if base is None else self._onto(base, new)
        return new.select(group_of(new[HASH], self._key_groups).alias(GROUP), "*")

    def _onto(self, base: DataFrame, new: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        old, add = base.alias("old"), new.alias("new")
        on = F.col(f"old.{HASH}") == F.col(f"new.{HASH}")
        for name in self.state.key_names:
            on = on & F.col(f"old.{name}").eqNullSafe(F.col(f"new.{name}"))
        is_new = F.col(f"new.{HASH}").isNotNull()
        columns = [
            F.when(is_new, F.col(f"new.{n}")).otherwise(F.col(f"old.{n}")).alias(n)
            for n in (HASH, *self.state.key_names)
        ]
        at = 0
        names = self.state.slot_names
        for aggregate, width in zip(self._aggregates, self._widths, strict=True):
            mine = names[at : at + width]
            # A key that only one side has comes with NULLs from the other, which merge like no row at all.
            both = aggregate.merge(self._schema, [F.col(f"old.{n}") for n in mine], [F.col(f"new.{n}") for n in mine])
            columns += [column.alias(n) for column, n in zip(both, mine, strict=True)]
            at += width
        return old.join(add, on, "full_outer").select(*columns, is_new.alias(CHANGED))

    def finish(self, state: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        columns = [F.col(n).alias(k) for n, k in zip(self.state.key_names, self.keys, strict=True)]
        at = 0
        for aggregate, width in zip(self._aggregates, self._widths, strict=True):
            mine = self.state.slot_names[at : at + width]
            columns.append(aggregate.finish(self._schema, [F.col(n) for n in mine]).alias(aggregate.name))
            at += width
        return state.select(*columns)

    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return self._each("pack_groups", lifted, starts)

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return self._each("merge_groups", slots, starts)

    def _each(self, what: str, columns: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        out: list[pa.Array] = []
        at = 0
        # An aggregate lifts to as many columns as it has slots.
        for aggregate, width in zip(self._aggregates, self._widths, strict=True):
            out += getattr(aggregate, what)(columns[at : at + width], starts)
            at += width
        return out
