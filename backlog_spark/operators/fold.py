"""What a keyed operator is to both vehicles: how rows become state, how states merge, how state becomes output.

Driver-side methods give Spark expressions and DataFrames; worker-side ones take Arrow arrays. A fold is bound to the
schema of its rows, immutable, and travels to the workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregate import Aggregate
from backlog_spark.state.keys import check_keys, group_of, hash_of, normalised
from backlog_spark.state.seeds import PackRows, Unpack
from backlog_spark.state.tables import GROUP, HASH, StateSchema, arrow_schema, combine, merged

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.attributes import RecordAttributes

__all__ = ["AggregateFold", "Arrived", "Clock", "Fold", "MergeFold", "StayEnd", "Step"]

CHANGED = "__changed"


@dataclass(frozen=True)
class Arrived:
    """What a batch of the stream brought for one key group; in each table the hash is the first column.

    Parameters
    ----------
    seeds : tuple of (RecordBatch, bool)
        State that was handed over, and whether its keys are to be put out.
    live : pyarrow.RecordBatch
        Input, of the fold's `Fold.live_schema`.
    """

    seeds: tuple[tuple[pa.RecordBatch, bool], ...]
    live: pa.RecordBatch

    def hashes(self) -> np.ndarray:
        """Of all keys that it brought something for."""
        found = [batch.column(0).to_numpy() for batch, _ in self.seeds]
        return np.concatenate([*found, self.live.column(0).to_numpy()])


@dataclass(frozen=True)
class Clock:
    """What a key group knows of time in one batch, in milliseconds since 1970.

    Parameters
    ----------
    before, watermark : int
        The watermark before the batch, and the one that it brought or else the same.
    now : int or None
        Processing-time timers up to then fire; None fires none.
    is_backlog : bool
        The input's RecordAttributes.
    """

    before: int
    watermark: int
    now: int | None
    is_backlog: bool


@dataclass(frozen=True)
class Step:
    """What one batch of the stream did to one key group.

    Parameters
    ----------
    state : pyarrow.RecordBatch or None
        In the place of the rows that were given; None if they stay.
    outputs : list of (int, pyarrow.RecordBatch)
        Number of the output and rows; 0 is the main one.
    late : int
        Rows that were late and went nowhere.
    """

    state: pa.RecordBatch | None
    outputs: list[tuple[int, pa.RecordBatch]] = field(default_factory=list)
    late: int = 0


@dataclass(frozen=True)
class StayEnd:
    """The end of a stay in backlog: its last batch has been folded, and all that it puts out is due.

    Parameters
    ----------
    watermark : int or None
        The greatest one of the stay, in milliseconds since 1970; None if the inputs have given none.
    """

    watermark: int | None


class Fold(ABC):
    """A keyed operator bound to its input. See the module's text."""

    keys: tuple[str, ...]
    state: StateSchema
    timed = False
    """Whether it needs the control source: watermarks, timers, record attributes."""
    mergeable = True
    """Whether states made from different rows can be merged, so that a later stay in backlog can run sorted."""
    waits = False
    """Whether it puts out nothing before the end of a stay, and then by `output_at_end` instead of `output_of`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the state means, kept in the checkpoint and compared: ``meaning``, which must stay, and ``slots``, a
        list of texts, one for each accumulator, to which a later version may add at the end."""

    @property
    def side_outputs(self) -> Mapping[str, StructType]:
        """Columns of each side output, which are numbered from 1 on in this order."""
        return {}

    @abstractmethod
    def live_schema(self) -> pa.Schema:
        """Of the rows that the stream vehicle ships to the key groups, the hash first."""

    @abstractmethod
    def packer(self, lifted: pa.Schema) -> Callable[[Any], Any]:
        """For ``mapInArrow``: from what `lift` gives to packed rows of `live_schema`."""

    @abstractmethod
    def lift(self, rows: DataFrame) -> DataFrame:
        """Group, hash, keys and values of each row: what the stream vehicle packs."""

    @abstractmethod
    def step(self, old: pa.RecordBatch, arrived: Arrived, clock: Clock) -> Step:
        """The stream vehicle, in a worker: one batch for one key group.

        Parameters
        ----------
        old : pyarrow.RecordBatch
            State of the keys that it brought something for, and of others.
        arrived : Arrived
        clock : Clock
        """

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """When the first event-time and processing-time timer of each row of state is due. For `timed` folds."""
        raise TypeError(f"{type(self).__name__} has no timers")

    def attributes_of_output(self, attributes: RecordAttributes) -> RecordAttributes:
        """What holds for the rows that it puts out when these hold for its input."""
        return attributes

    @abstractmethod
    def version_schema(self) -> StructType:
        """Columns of what `fold` gives."""

    @abstractmethod
    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        """The sorted vehicle: the state after a batch of backlog, and what the batch puts out.

        Parameters
        ----------
        rows : DataFrame
            The batch.
        base : DataFrame, optional
            The state before it, as `state_of` gave it.
        """

    @abstractmethod
    def state_of(self, version: DataFrame) -> DataFrame:
        """The rows of state in what `fold` gave: group, hash, keys, accumulators."""

    @abstractmethod
    def output_of(self, version: DataFrame) -> DataFrame:
        """The main output in what `fold` gave."""

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        """What the stay puts out, from the version of its last batch. For folds that wait."""
        raise TypeError(f"{type(self).__name__} does not wait")

    def handed_over(self, version: DataFrame, end: StayEnd | None) -> DataFrame:
        """Rows of state for the stream vehicle: group, hash, keys, accumulators.

        Parameters
        ----------
        version : DataFrame
            That of the stay's last batch.
        end : StayEnd, optional
            With which `output_at_end` was asked; None if it was not, and everything is still to be put out.
        """
        return self.state_of(version)

    def side_output_of(self, version: DataFrame, name: str) -> DataFrame:
        """A side output in what `fold` gave."""
        raise KeyError(name)

    @abstractmethod
    def unpack(self, packed: DataFrame) -> DataFrame:
        """The main output from the stream vehicle's rows of ``tag`` and ``data``."""

    def unpack_side_output(self, packed: DataFrame, name: str) -> DataFrame:
        """A side output from the stream vehicle's rows."""
        raise KeyError(name)

    @abstractmethod
    def finish(self, state: DataFrame) -> DataFrame:
        """State as a user reads it, from keys and accumulators."""


class MergeFold(Fold):
    """A fold whose states merge: it puts out the state of each key that changed."""

    @abstractmethod
    def lift(self, rows: DataFrame, *more: Column) -> DataFrame:
        """As `Fold.lift`, with further columns at the end."""

    @abstractmethod
    def finish(self, state: DataFrame, *more: Column) -> DataFrame:
        """As `Fold.finish`, with further columns of the state at the end."""

    @abstractmethod
    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        """Accumulators from lifted rows; as `Aggregate.pack_groups`, over all slots. In a worker."""

    @abstractmethod
    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        """Accumulators from accumulators; as `Aggregate.merge_groups`, over all slots. In a worker."""

    def live_schema(self) -> pa.Schema:
        return self.state.arrow()

    def packer(self, lifted: pa.Schema) -> Callable[[Any], Any]:
        return PackRows(self, lifted)

    def step(self, old: pa.RecordBatch, arrived: Arrived, clock: Clock) -> Step:
        # What is handed over is older than what arrives with it.
        incoming = [*(batch for batch, _ in arrived.seeds), arrived.live]
        loud = [*(emit for _, emit in arrived.seeds), True]
        flags = np.repeat([False, *loud], [old.num_rows, *(b.num_rows for b in incoming)])
        both = combine([old, *incoming], self.state.arrow())
        if both.num_rows == old.num_rows:
            return Step(None)
        state, order, starts = merged(both, self.state, self, lifted=False)
        return Step(state, [(0, state.filter(pa.array(np.logical_or.reduceat(flags[order], starts))))])

    def version_schema(self) -> StructType:
        from pyspark.sql.types import BooleanType, IntegerType, StructType

        fields = [*StructType().add(GROUP, IntegerType()).fields, *self.state.spark().fields]
        return StructType(fields).add(CHANGED, BooleanType())

    def state_of(self, version: DataFrame) -> DataFrame:
        return version.drop(CHANGED)

    def output_of(self, version: DataFrame) -> DataFrame:
        return self.finish(version.where(CHANGED))

    def unpack(self, packed: DataFrame) -> DataFrame:
        from pyspark.sql.types import StructType

        schema = StructType(self.state.spark().fields[1:])
        return self.finish(packed.mapInArrow(Unpack(self.state.arrow(), arrow_schema(schema), skip=1), schema))


def describe_keys(keys: Sequence[str], state: StateSchema) -> str:
    """The keys with their types, for `Fold.describe`."""
    return "by " + ", ".join(f"{key} {kind.simpleString()}" for key, kind in zip(keys, state.keys, strict=True))


class AggregateFold(MergeFold):
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
    hidden : sequence of str, optional
        Keys that are no part of the rows that the aggregates see.
    """

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Sequence[Aggregate],
        schema: StructType,
        key_groups: int,
        hidden: Sequence[str] = (),
    ) -> None:
        from pyspark.sql.types import StructType

        check_keys(keys, schema)
        names = [*keys, *(a.name for a in aggregates)]
        twice = sorted({name for name in names if [n.lower() for n in names].count(name.lower()) > 1})
        if twice:
            raise BacklogError(
                f"The output would have two columns {twice[0]!r}.", "Name the aggregate otherwise: sum(x) AS total."
            )
        self.keys = tuple(keys)
        self._aggregates = tuple(aggregates)
        self._key_schema = schema
        self._schema = schema = StructType([field for field in schema if field.name not in hidden])
        self._key_groups = key_groups
        slots = [a.slots(schema) for a in aggregates]
        self._widths = [len(s) for s in slots]
        self.state = StateSchema(tuple(self._key_schema[k].dataType for k in keys), tuple(t for s in slots for t in s))

    def describe(self) -> dict[str, Any]:
        # Without the results' names, which may change.
        said = [repr(replace(a, name="_")) if is_dataclass(a) else repr(a) for a in self._aggregates]
        slots = [f"{name} {i}" for name, width in zip(said, self._widths, strict=True) for i in range(width)]
        types = [kind.simpleString() for kind in self.state.slots]
        return {
            "meaning": describe_keys(self.keys, self.state),
            "slots": [f"{slot}: {kind}" for slot, kind in zip(slots, types, strict=True)],
        }

    def _key_columns(self) -> list[Column]:
        named = zip(self.keys, self.state.key_names, strict=True)
        return [normalised(k, self._key_schema).alias(n) for k, n in named]

    def lift(self, rows: DataFrame, *more: Column) -> DataFrame:
        keys = self._key_columns()
        lifted = [c for a in self._aggregates for c in a.lift(self._schema)]
        named = [c.alias(f"l{i}") for i, c in enumerate(lifted)]
        hashed = rows.select(hash_of(keys).alias(HASH), *keys, *named, *more)
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

    def finish(self, state: DataFrame, *more: Column) -> DataFrame:
        from pyspark.sql import functions as F

        columns = [F.col(n).alias(k) for n, k in zip(self.state.key_names, self.keys, strict=True)]
        at = 0
        for aggregate, width in zip(self._aggregates, self._widths, strict=True):
            mine = self.state.slot_names[at : at + width]
            columns.append(aggregate.finish(self._schema, [F.col(n) for n in mine]).alias(aggregate.name))
            at += width
        return state.select(*columns, *more)

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
