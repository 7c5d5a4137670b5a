"""The interface of a phase of a hybrid source. A phase is read to its end before the next one starts.

A phase plans next to the driver and reads in the workers. Between two calls of the planner all its state is in its
position, which Spark logs. The same two positions always give the same partitions, and a partition the same rows, also
after failures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from backlog_spark.spi.examination import Finding

from .decode.base import Decoder
from .evolution import Evolution
from .needed import Fields

__all__ = [
    "FILE",
    "METADATA",
    "OF_HISTORY",
    "TIME",
    "Columns",
    "DecoderOf",
    "Limit",
    "Outlook",
    "Phase",
    "Position",
    "Seen",
    "Step",
    "type_of",
]

# Makes the decoder for records with these columns; with a second argument, the last one is for values that do not fit.
# Pickled with the phase.
DecoderOf = Callable[..., Decoder]

# A JSON object with a fixed order of its keys. It must be small, because each batch logs one.
Position = dict[str, Any]

# In the metadata of a file with keys for the next phase: the column with the rows' times. Files of earlier versions
# lack it; their rows are matched by key alone.
TIME = b"backlog_spark.time"

# The struct ``_metadata``, with the fields of Spark's own for files.
FILE = pa.struct(
    [
        ("file_path", pa.string()),
        ("file_name", pa.string()),
        ("file_size", pa.int64()),
        ("file_block_start", pa.int64()),
        ("file_block_length", pa.int64()),
        ("file_modification_time", pa.timestamp("us", "UTC")),
    ]
)

# Metadata columns that a stream may ask for. NULL in phases without one. If not asked for, such a column is data.
METADATA: dict[str, pa.DataType] = {
    "_phase": pa.string(),
    "_file": pa.string(),
    "_metadata": FILE,
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": pa.timestamp("us", "UTC"),
    "_key": pa.binary(),
    "_change_type": pa.string(),
    "_commit_timestamp": pa.timestamp("us", "UTC"),
    "_commit_seq": pa.int64(),
    "_database": pa.string(),
    "_table": pa.string(),
}

# Rows of a history are inserts, and older than all changes.
OF_HISTORY = {"_change_type": "insert", "_commit_seq": 0}


@dataclass(frozen=True)
class Columns:
    """The columns of the stream. Every phase has them.

    Parameters
    ----------
    data : pyarrow.Schema
        The declared data columns in Arrow's types (timestamps with zone in UTC, microseconds), all nullable.
    metadata : tuple of str
        Names from `METADATA`, after that of the column for rescued data if there is one. They follow the data.
    needed : mapping, optional
        The data columns that the query reads, each with the fields of a struct that it reads, or nothing for the whole
        column. Others may be NULL. Default: all.
    """

    data: pa.Schema
    metadata: tuple[str, ...] = ()
    needed: Fields | None = None
    evolution: Evolution | None = None

    @property
    def arrow(self) -> pa.Schema:
        """The schema of every batch of every phase."""
        return pa.schema([*self.data, *(pa.field(name, type_of(name)) for name in self.metadata)])


def type_of(metadata: str) -> pa.DataType:
    """The type of a metadata column. The column for rescued data may have any name."""
    return METADATA.get(metadata, pa.string())


@dataclass(frozen=True)
class Limit:
    """The size limit of the next batch.

    Parameters
    ----------
    rows : int or None
        About this many rows, and not fewer if there are as many; None: all rows.
    least : int
        An unbounded phase of a topic gives no live batch before this many new rows exist.
    """

    rows: int | None = None
    least: int = 0


@dataclass(frozen=True)
class Step:
    """The end of the next batch of a phase.

    Parameters
    ----------
    position : dict
        The end. Equal to the start if there is nothing to read.
    rows : int
        Rows of the batch, as far as known without reading.
    is_finished : bool
        Whether the phase ends here. Never true for an unbounded phase.
    is_backlog : bool
        Whether the data after `position` are still backlog. Always true in a bounded phase. In an unbounded one its
        thresholds decide.
    total : int or None
        Estimate of the rows of the whole phase, or of its backlog; None if unknown.
    is_behind : bool
        Of an unbounded phase: whether data after `position` exist already.
    """

    position: Position
    rows: int
    is_finished: bool = False
    is_backlog: bool = True
    total: int | None = None
    is_behind: bool = False


@dataclass(frozen=True)
class Outlook:
    """What the phases before give to a phase, as far as it can be known before they are read.

    Parameters
    ----------
    last_ms : int or None
        Time of their newest row, milliseconds since 1970; None: they give none.
    is_sure : bool
        Whether ``last_ms`` is known. Otherwise the rows must be read for it.
    wait_ms : int
        Rough time until the phase begins.
    """

    last_ms: int | None = None
    is_sure: bool = True
    wait_ms: int = 0


@dataclass(frozen=True)
class Seen:
    """What was found in a phase's data before a query starts.

    Parameters
    ----------
    findings : sequence of Finding
    first : sequence of Finding
        Those that matter only at a query's first start.
    then : Outlook
        For the next phase.
    """

    findings: Sequence[Finding] = ()
    first: Sequence[Finding] = ()
    then: Outlook = Outlook()


class Phase(ABC):
    """One part of a hybrid source. Pickled to the workers, so connections are opened lazily and not pickled.

    Parameters
    ----------
    name : str
        The user's name for it.
    """

    # Whether the phase is bounded. Only the last phase of a source may be unbounded.
    is_bounded: ClassVar[bool]
    # Whether it has no end, and is backlog while it is far behind. Then it counts its rows exactly.
    may_lag: ClassVar[bool] = False
    # For a phase with records in bytes: makes their decoder. Set before any other call. None: the phase has columns of
    # its own.
    decoder_of: DecoderOf | None = None

    # Whether `schema` infers columns, and does not only read those that the data declare.
    infers_schema = False
    # Whether `schema` and `inferred` store what they infer. False if the query is only looked at.
    stores_schema = True

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def starts_in_backlog(self) -> bool:
        """Whether a source whose first phase this is starts in backlog."""
        return self.is_bounded

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The columns that the phase's own data declare; None if the user must declare them.

        Called before `open`, in the order of the phases, if the stream was declared without a schema.
        """

    def inferred(self) -> pa.Schema | None:
        """The columns that values of the phase's data suggest; None if it does not look at them.

        Called like `schema`, if no phase declares columns.
        """
        return None

    def evolution(self, *, is_inferred: bool) -> Evolution | None:
        """What the options say about fields that the schema does not have; None for a phase without such options.

        Parameters
        ----------
        is_inferred : bool
            Whether this phase has given the stream's columns as inferred ones.

        Raises
        ------
        SettingError
            If the options do not fit that.
        """
        return None

    def schema_at(self, position: Position) -> pa.Schema | None:
        """The result of `schema` at the start of the phase, if the position defines it and it can still be read."""
        return None

    @abstractmethod
    def open(self, columns: Columns) -> None:
        """Set the columns. Called once, before all of the following; reads nothing.

        Raises
        ------
        BacklogError
            If the phase cannot give these columns.
        """

    def pin(self) -> Position | None:
        """A position that fixes the present content of the phase; None if that is done when the phase begins.

        Called at the query's first start for all phases but the first, the last phase first. Logged until the phase
        begins.
        """
        return None

    def check(self) -> None:  # noqa: B027 - there may be nothing to look at
        """Check that the data named in the options exist, in addition to `columns_at_hand`.

        Called after `open`, before a query first starts. May take seconds and keeps nothing. The data may change until
        `begin`, which checks again.

        Raises
        ------
        BacklogError
        """

    def examine(self, before: Outlook) -> Seen:
        """Look at the data for ``backlog-spark check``. Needs no `open`, and reads no rows.

        Raises
        ------
        BacklogError
            The data cannot be read at a query's first start.
        """
        return Seen(then=before)

    def columns_at_hand(self) -> list[pa.Schema] | None:
        """Columns of a sample of the phase's data, one schema per part; None if they cannot be known beforehand.

        Called after `check`. Raises a `BacklogError` if there are no data although there must be some.
        """
        return None

    @abstractmethod
    def begin(self, before: Mapping[str, Any]) -> Position:
        """The position before the phase's first row. It fixes everything that the phase reads.

        The planner calls it when the phase before has ended, or when the query starts. Until the result is logged it
        may be called again, also by another process. Then the new position is as good as the first.

        Parameters
        ----------
        before : mapping
            The result of `ended` of the phase before; as ``pinned`` the result of `pin`; as ``fixedAt`` the time when
            all phases had been pinned, in milliseconds since 1970. Empty for the first phase.
        """

    @abstractmethod
    def first(self, position: Position) -> Position:
        """The position that `begin` returned, computed from any later one."""

    @abstractmethod
    def next(self, start: Position, limit: Limit, now_ms: float) -> Step:
        """The end of the next batch. The planner calls it at every trigger, so it should take milliseconds."""

    @abstractmethod
    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        """The partitions between two positions, in the order of the rows; empty if there is nothing to read.

        Called by the planner. After a failure another process calls it and must get the same.
        """

    @abstractmethod
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, 1,000 to 50,000 per batch, with the schema ``columns.arrow``. Called in a worker."""

    def target(self, start: Position) -> Position | None:
        """The present end of an unbounded phase, for a query that ends there (``availableNow``); None if bounded."""
        return None

    def next_until(self, start: Position, target: Position, limit: Limit, now_ms: float) -> Step:
        """Like `next`, but not past ``target``. ``is_finished`` says whether the target is reached."""
        raise AssertionError("only for an unbounded phase")

    def is_backlog(self, position: Position) -> bool:
        """Whether the data after a position are backlog, as reported by its `Step`, or found when the phase began."""
        return True

    def ended(self, position: Position) -> Mapping[str, Any]:
        """Information for the next phase. The planner calls it with the last position."""
        return {}

    def committed(self, position: Position) -> None:  # noqa: B027 - most phases have nothing to do
        """All rows up to a position of the phase are committed. Called by the planner, also several times.

        Not called after each batch: a later call is for all batches before. Must not raise for what can be done later.
        """

    def close(self) -> None:  # noqa: B027 - most phases have nothing to close
        """Close connections and files. Not always called: the process may be killed."""
