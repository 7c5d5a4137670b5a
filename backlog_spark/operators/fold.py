"""What a keyed operator is to both vehicles: how rows become state, how states merge, how state becomes output.

Driver-side methods give Spark expressions and DataFrames; worker-side ones take Arrow arrays. A fold is bound to the
schema of its rows, immutable, and travels to the workers.
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

__all__ = ["CHANGED", "Arrived", "Clock", "Fold", "Gathered", "StayEnd", "Step", "describe_keys"]

CHANGED = "__backlog_changed"


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
    backlog : int
        The RecordAttributes of the inputs: bit 0 is set if the rows of the first one are backlog, bit 1 of the second.
        Bit 2, `backlog_spark.model.record_attributes.STANDS_STILL`, is set while time stands still.
    budget : int or None
        After so many timers firing stops, between two of them; what is left is due in the next batch (FLIP-443). Of
        folds that are `Fold.interruptible`. Default None: all fire.
    told_at : int or None
        When the control source told this; None if it told nothing in this batch.
    """

    before: int
    watermark: int
    now: int | None
    backlog: int
    budget: int | None = None
    told_at: int | None = None

    @property
    def timeless(self) -> Clock:
        """The same without a watermark, while time stands still; else itself."""
        if not self.backlog & STANDS_STILL:
            return self
        return replace(self, before=MIN_WATERMARK, watermark=MIN_WATERMARK)


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
    fired : int
        How many timers have fired, if the fold counts them.
    firing_seconds : float
        What that took, if the fold measures it.
    """

    state: pa.RecordBatch | None
    outputs: list[tuple[int, pa.RecordBatch]] = field(default_factory=list)
    late: int = 0
    fired: int = 0
    firing_seconds: float = 0.0


@dataclass(frozen=True)
class StayEnd:
    """The end of a stay in backlog: its last batch has been folded, and all that it puts out is due.

    Parameters
    ----------
    watermark : int or None
        The greatest one of the stay, in milliseconds since 1970; None if the inputs have given none.
    """

    watermark: int | None


@dataclass(frozen=True)
class Gathered:
    """Rows of a stay's last batch, and what comes of them at its end: for folds that wait.

    Parameters
    ----------
    rows : DataFrame
    by : tuple of str
        The columns by which they are brought together. That is run once, and what it gives is read twice.
    left : callable
        From the rows so brought together, and the end of the stay: what `Fold.handed_over` makes of a version.
    output : callable
        From this, with its rows so brought together, and the end: what `Fold.output_at_end` makes of a version.
    sides : str, optional
        The column that is 0 or 1, if the rows of the one are joined with those of the other by the columns ``by``.
    sizes : (int, int), optional
        About how many bytes the largest partition of each side has, if they are so brought together and it is known.
    """

    rows: DataFrame
    by: tuple[str, ...]
    left: Callable[[DataFrame, StayEnd], DataFrame]
    output: Callable[[Gathered, StayEnd], DataFrame]
    sides: str | None = None
    sizes: tuple[int, int] | None = None


class Fold(ABC):
    """A keyed operator bound to its input. See the module's text."""

    keys: tuple[str, ...]
    state: StateSchema
    timed = False
    """Whether it needs the control source: watermarks, timers, record attributes. If not, `step` is given rows of no
    other hashes than what has arrived, and gives none of others."""
    mergeable = True
    """Whether states made from different rows can be merged, so that a later stay in backlog can run sorted."""
    interruptible = False
    """Whether what is due at a watermark may be worked on in several batches, some keys in each (FLIP-443)."""
    sees_no_time_in_backlog = False
    """Whether it is as if there was no watermark while time stands still, so that no row is late. Not where the results
    of the watermark before are out, and what they were made of is gone."""
    waits = False
    """Whether it puts out nothing before the end of a stay, and then by `output_at_end` instead of `output_of`."""
    hands_over_version = False
    """Of folds that wait: whether what is put out is in the version, and `handed_over` only chooses from its rows, from
    all or from those that it chose before, so that stream mode may start from the version and do so itself."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the state means, kept in the checkpoint and compared: ``meaning``, which must stay, and ``slots``, a
        list of texts, one for each accumulator, to which a later version may add at the end, unless ``grows`` is
        False."""

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
            State of the keys that it brought something for, and of others if the fold is `timed`; in any order, but a
            key's rows in that in which `step` gave them.
        arrived : Arrived
        clock : Clock
        """

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """When the first event-time and processing-time timer of each row of state is due. For `timed` folds."""
        raise TypeError(f"{type(self).__name__} has no timers")

    def next_processing_timer(self, version: DataFrame) -> int | None:
        """When the first processing-time timer is due that fires in backlog; None, the default, if there is none."""
        return None

    def attributes_of_output(self, *inputs: RecordAttributes) -> RecordAttributes:
        """What holds for the rows that it puts out when these hold for its inputs."""
        from backlog_spark.model.record_attributes import propagate_join

        return propagate_join(inputs)

    def clocked(self) -> Fold:
        """Itself where event time goes on with the system time, though rows have none (FLIP-326)."""
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
        """The sorted vehicle: the state after a batch of backlog, and what the batch puts out.

        Parameters
        ----------
        rows : DataFrame
            The batch.
        base : DataFrame, optional
            The state before it, as `state_of` gave it.
        """

    def reduces_by(self) -> Sequence[Column]:
        """Columns by which `fold` reduces rows where they are before it brings them together; empty if it does not."""
        return ()

    @abstractmethod
    def state_of(self, version: DataFrame) -> DataFrame:
        """The rows of state in what `fold` gave: hash, keys, accumulators."""

    def chosen_rows(self) -> ChosenRows | None:
        """What `state_of` does, for workers: the rows that it takes, as they are. None if it does more."""
        return None

    @abstractmethod
    def output_of(self, version: DataFrame) -> DataFrame:
        """The main output in what `fold` gave."""

    def output_of_stay(self, version: DataFrame) -> DataFrame:
        """The main output of a stay that began without state, from its last version. For folds that do not wait."""
        raise TypeError(f"{type(self).__name__} waits")

    def held_rows(self, version: DataFrame) -> DataFrame | None:
        """What `fold` gave to be put out and no state tells: the next version has it too while nothing is put out.

        None, the default, if there is no such thing.
        """
        return None

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        """What the stay puts out, from the version of its last batch. For folds that wait."""
        raise TypeError(f"{type(self).__name__} does not wait")

    def gathered(self, rows: DataFrame, base: DataFrame | None) -> Gathered | None:
        """In a stay's last batch in the place of `fold`, so that no version need be written of rows that are read again
        at once; None, the default, if it is to be. For folds that wait.

        Parameters
        ----------
        rows, base
            As for `fold`.
        """
        return None

    def handed_over(self, version: DataFrame, end: StayEnd | None) -> DataFrame:
        """Rows of state for the stream vehicle: hash, keys, accumulators.

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


def describe_keys(keys: Sequence[str], state: StateSchema) -> str:
    """The keys with their types, for `Fold.describe`."""
    return "by " + ", ".join(f"{key} {kind.simpleString()}" for key, kind in zip(keys, state.keys, strict=True))
