"""The interface of a keyed operator to both vehicles: rows become state, states merge, state becomes output.

Driver-side methods return Spark expressions and DataFrames; worker-side methods take Arrow arrays. A fold is bound to
the schema of its rows, is immutable, and is sent to the workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from backlog_spark.model.record_attributes import STANDS_STILL
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.state.tables import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.model.record_attributes import RecordAttributes
    from backlog_spark.state.seeds import ChosenRows

__all__ = ["CHANGED", "Arrived", "Clock", "EmittingFold", "Fold", "Step", "describe_keys"]

CHANGED = "__backlog_changed"


@dataclass(frozen=True)
class Arrived:
    """The rows that a batch of the stream brought for one key group. In each table the hash is the first column.

    Parameters
    ----------
    seeds : tuple of (RecordBatch, bool)
        State that was handed over, and whether its keys are to be emitted.
    live : pyarrow.RecordBatch
        Input, of the fold's `Fold.live_schema`.
    """

    seeds: tuple[tuple[pa.RecordBatch, bool], ...]
    live: pa.RecordBatch

    def hashes(self) -> np.ndarray:
        """The hashes of all keys with rows."""
        found = [batch.column(0).to_numpy() for batch, _ in self.seeds]
        return np.concatenate([*found, self.live.column(0).to_numpy()])


@dataclass(frozen=True)
class Clock:
    """A key group's times in one batch, in milliseconds since 1970.

    Parameters
    ----------
    before, watermark : int
        The watermark before the batch, and the one of the batch. They may be equal.
    now : int or None
        Processing-time timers up to this time fire. None: none fires.
    backlog : int
        The record attributes of the inputs: bit 0 is set if the first input's rows are backlog, bit 1 for the second.
        Bit 2, `backlog_spark.model.record_attributes.STANDS_STILL`, is set while time stands still.
    budget : int or None
        Firing stops after this many timers. The next batch fires the rest (FLIP-443). For folds that are
        `Fold.interruptible`. Default None: all fire.
    told_at : int or None
        The time of the control message; None if the batch has none.
    """

    before: int
    watermark: int
    now: int | None
    backlog: int
    budget: int | None = None
    told_at: int | None = None

    @property
    def timeless(self) -> Clock:
        """The same without a watermark while time stands still; otherwise itself."""
        if not self.backlog & STANDS_STILL:
            return self
        return replace(self, before=MIN_WATERMARK, watermark=MIN_WATERMARK)


@dataclass(frozen=True)
class Step:
    """The result of one batch of the stream for one key group.

    Parameters
    ----------
    state : pyarrow.RecordBatch or None
        Replaces the given rows of state; None keeps them.
    outputs : list of (int, pyarrow.RecordBatch)
        Number of the output, and its rows. 0 is the main output.
    late : int
        Late rows that were dropped.
    fired : int
        Number of timers that fired, if the fold counts them.
    firing_seconds : float
        Time that firing took, if the fold measures it.
    """

    state: pa.RecordBatch | None
    outputs: list[tuple[int, pa.RecordBatch]] = field(default_factory=list)
    late: int = 0
    fired: int = 0
    firing_seconds: float = 0.0


class Fold(ABC):
    """A keyed operator bound to its input. See the module's docstring."""

    keys: tuple[str, ...]
    state: StateSchema
    timed = False
    """Whether it needs the control source: watermarks, timers, record attributes. If not, `step` gets and returns only
    rows whose hashes have arrived."""
    mergeable = True
    """Whether states made from different rows can be merged, so that a later stay in backlog can run sorted."""
    interruptible = False
    """Whether the work due at a watermark may be spread over several batches, some keys in each (FLIP-443)."""
    sees_no_time_in_backlog = False
    """Whether it ignores the watermark while time stands still, so that no row is late. False if results up to the last
    watermark are out and their rows are gone."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The meaning of the state, kept in the checkpoint and compared. ``meaning`` must not change. ``slots`` is a
        list of texts, one per accumulator; a later version may add some at the end, unless ``grows`` is False."""

    @property
    def side_outputs(self) -> Mapping[str, StructType]:
        """Columns of each side output. Side outputs are numbered from 1, in this order."""
        return {}

    @abstractmethod
    def live_schema(self) -> pa.Schema:
        """Schema of the rows that the stream vehicle sends to the key groups, the hash first."""

    @abstractmethod
    def packer(self, lifted: pa.Schema) -> Callable[[Any], Any]:
        """For ``mapInArrow``: packs the rows of `lift` into packed rows of `live_schema`."""

    @abstractmethod
    def lift(self, rows: DataFrame) -> DataFrame:
        """Group, hash, keys and values of each row. The stream vehicle packs them."""

    @abstractmethod
    def step(self, old: pa.RecordBatch, arrived: Arrived, clock: Clock) -> Step:
        """The stream vehicle, in a worker: one batch for one key group.

        Parameters
        ----------
        old : pyarrow.RecordBatch
            State of the keys with arrived rows, and of other keys if the fold is `timed`. The order is arbitrary, but
            the rows of a key are in the order in which `step` returned them.
        arrived : Arrived
        clock : Clock
        """

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """When the first event-time and processing-time timer of each row of state is due. For `timed` folds."""
        raise TypeError(f"{type(self).__name__} has no timers")

    def next_processing_timer(self, version: DataFrame) -> int | None:
        """When the first processing-time timer that fires in backlog is due. None (the default) if there is none."""
        return None

    def _attributes_of_output(self, *inputs: RecordAttributes) -> RecordAttributes:
        """The record attributes of its output, given those of its inputs."""
        from backlog_spark.model.record_attributes import propagate_join

        return propagate_join(inputs)

    def clocked(self) -> Fold:
        """This fold for event time that follows the system time, though rows have none (FLIP-326)."""
        return self

    def with_attributes(self, backlog: int) -> Fold:
        """This fold for a sorted batch whose inputs have these record attributes, as in `Clock`."""
        return self

    def close(self) -> None:  # noqa: B027
        """Called in a worker when a task that used the fold has ended."""

    @abstractmethod
    def version_schema(self) -> StructType:
        """Columns of the result of `fold`."""

    @abstractmethod
    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        """The sorted vehicle: the state after a backlog batch, and the output of the batch.

        Parameters
        ----------
        rows : DataFrame
            The batch.
        base : DataFrame, optional
            The state before it, as returned by `state_of`.
        """

    def reduces_by(self) -> Sequence[Column]:
        """Columns by which `fold` reduces rows before it shuffles them; empty if it does not."""
        return ()

    @abstractmethod
    def state_of(self, version: DataFrame) -> DataFrame:
        """The rows of state in a result of `fold`: hash, keys, accumulators."""

    def side_output_of(self, version: DataFrame, name: str) -> DataFrame:
        """A side output in a result of `fold`."""
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


class EmittingFold(Fold):
    """A fold whose results change with each batch: aggregates, process functions."""

    @abstractmethod
    def output_of(self, version: DataFrame) -> DataFrame:
        """The main output in a result of `fold`."""

    @abstractmethod
    def output_of_stay(self, version: DataFrame) -> DataFrame:
        """The main output of a stay that began without state, from its last version."""

    def held_rows(self, version: DataFrame) -> DataFrame | None:
        """The part of the output in a result of `fold` that state does not contain. While nothing is emitted, the next
        version keeps these rows.

        None, the default, if there is no such part.
        """
        return None

    def chosen_rows(self) -> ChosenRows | None:
        """What `state_of` does, as a selection of rows in a worker. None if it does more than select."""
        return None


def describe_keys(keys: Sequence[str], state: StateSchema) -> str:
    """The keys with their types, for `Fold.describe`."""
    return "by " + ", ".join(f"{key} {kind.simpleString()}" for key, kind in zip(keys, state.keys, strict=True))
