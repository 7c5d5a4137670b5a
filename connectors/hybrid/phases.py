"""What a phase of a hybrid source is: a part that is read to its end before the next one starts.

A phase plans beside the driver and reads in the workers. All that it knows between two calls of the planner is in
its position, which Spark logs: the same two positions give the same partitions, and a partition the same rows,
however often and after whatever failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from .decode.roads import Decoder

__all__ = ["METADATA", "TIME", "Columns", "DecoderOf", "Limit", "Phase", "Position", "Step"]

# Makes the decoder of records that hold these columns. Pickled with the phase.
DecoderOf = Callable[[pa.Schema], Decoder]

# JSON object with a stable order of its keys; small, as each batch's is logged.
Position = dict[str, Any]

# In the metadata of a file of keys for the next phase: the column with the rows' times. Files of earlier versions have
# none, and rows are known from them by key alone.
TIME = b"backlog_spark.time"

# Metadata columns that a stream may ask for. NULL where a phase has no such thing. Not asked for, they are data.
METADATA: dict[str, pa.DataType] = {
    "_phase": pa.string(),
    "_file": pa.string(),
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": pa.timestamp("us", "UTC"),
    "_key": pa.binary(),
}


@dataclass(frozen=True)
class Columns:
    """The columns of the stream, which are those of every phase.

    Parameters
    ----------
    data : pyarrow.Schema
        As the stream is declared, in Arrow's types (timestamps with zone are in UTC, microseconds), all nullable.
    metadata : tuple of str
        Names out of `METADATA`, which follow the data.
    """

    data: pa.Schema
    metadata: tuple[str, ...] = ()

    @property
    def arrow(self) -> pa.Schema:
        """The schema that every batch of every phase has."""
        return pa.schema([*self.data, *(pa.field(name, METADATA[name]) for name in self.metadata)])


@dataclass(frozen=True)
class Limit:
    """How much the next batch may hold.

    Parameters
    ----------
    rows : int or None
        About so many rows, and no fewer if there are as many; None: all that there is.
    """

    rows: int | None = None


@dataclass(frozen=True)
class Step:
    """The end of the next batch of a phase.

    Parameters
    ----------
    position : dict
        Where it ends; equal to the start if there is nothing to read.
    rows : int
        Rows of the batch, as far as known without reading it.
    is_finished : bool
        Nothing of the phase is left after it. Never of one that is unbounded.
    is_backlog : bool
        Whether what follows `position` still is backlog. Of a bounded phase always, of an unbounded one as its
        thresholds say.
    total : int or None
        Rows of the whole phase, or of its backlog, if there is an estimate.
    """

    position: Position
    rows: int
    is_finished: bool = False
    is_backlog: bool = True
    total: int | None = None


class Phase(ABC):
    """One part of a hybrid source. Pickled to the workers: connections are opened lazily and left out of it.

    Parameters
    ----------
    name : str
        As the user calls it.
    """

    # Whether it has an end. Only the last phase of a source may be unbounded.
    is_bounded: ClassVar[bool]
    # For a phase of records in bytes, what decodes them. Set before anything is asked of the phase; None: such a phase
    # has columns of its own.
    decoder_of: DecoderOf | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The data columns that the phase's own data declare, or None if they have to be told.

        Asked before `open`, of phases in their order, when the stream was declared without a schema.
        """

    def schema_at(self, position: Position) -> pa.Schema | None:
        """What `schema` gave when the phase began, if a position fixes that and it can still be told."""
        return None

    @abstractmethod
    def open(self, columns: Columns) -> None:
        """Tell the columns. Called once, before anything that follows; nothing is read.

        Raises
        ------
        BacklogError
            If the phase cannot give these columns.
        """

    def pin(self) -> Position | None:
        """What fixes the phase as of the time when the query first starts; None if that is left until it begins.

        Called before the first phase begins, of the phases after it, the last one first. Logged until the phase begins.
        """
        return None

    def check(self) -> None:  # noqa: B027 - there may be nothing to look at
        """See that what the options name is there, beyond what `columns_at_hand` looks at.

        Called after `open`, before a query first starts.

        May take seconds, and keeps nothing: what is there may change until `begin`, which looks again.

        Raises
        ------
        BacklogError
        """

    def columns_at_hand(self) -> list[pa.Schema] | None:
        """Columns that the phase's data have, of some of the data each; None if that cannot be told beforehand.

        Called after `check`. Raises a `BacklogError` where there are no data and there must be some.
        """
        return None

    @abstractmethod
    def begin(self, before: Mapping[str, Any]) -> Position:
        """The position before the phase's first row. It fixes everything that the phase reads.

        The planner calls it when the phase before has ended, or the query starts. Until its result is logged it may be
        called again for the same phase, also by another process: the new position is then as good as the first.

        Parameters
        ----------
        before : mapping
            What `ended` of the phase before gave, as ``pinned`` what `pin` did, and as ``fixedAt`` when all phases were
            pinned, milliseconds since 1970. Empty for the first.
        """

    @abstractmethod
    def first(self, position: Position) -> Position:
        """The position that `begin` gave, from any later one."""

    @abstractmethod
    def next(self, start: Position, limit: Limit, now_ms: float) -> Step:
        """Where the next batch ends. Called by the planner for every trigger; should take milliseconds."""

    @abstractmethod
    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        """What workers are to read between two positions, in the order of the rows; empty if there is nothing.

        Called by the planner, after a failure again by another process, which gives the same.
        """

    @abstractmethod
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, of 1,000 to 50,000 a batch, in the schema ``columns.arrow``. Called in a worker."""

    def target(self, start: Position) -> Position | None:
        """Where an unbounded phase ends at present, for a query that ends there (``availableNow``); else None."""
        return None

    def next_until(self, start: Position, target: Position, limit: Limit, now_ms: float) -> Step:
        """`next`, but not past ``target``; ``is_finished`` of the step is whether it is reached."""
        raise AssertionError("only of an unbounded phase")

    def is_backlog(self, position: Position) -> bool:
        """Whether what follows a position is backlog, as its `Step` said, or as was found when it began."""
        return True

    def ended(self, position: Position) -> Mapping[str, Any]:
        """What the next phase is told. Called by the planner with the last position."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """Close what is open. Not always called: the process may be killed."""
