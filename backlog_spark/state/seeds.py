"""Packs rows for the stream vehicle: state or input, as Arrow bytes by key group.

Packed values reach the worker that holds the state unchanged. Unpacked they would go through pandas, which turns an
integer column with a NULL into floating point and loses digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.common.stored_values import checked, reading_stored

from .keys import groups_of
from .tables import (
    EMIT,
    GROUP,
    Merging,
    StateSchema,
    combine,
    cut,
    from_bytes,
    merged,
    split_by,
    to_bytes,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq


__all__ = [
    "ALL_OF_THEM",
    "CONTROL",
    "LIVE",
    "SEED_EMIT",
    "SEED_OUTPUT",
    "SEED_SCHEMA",
    "SEED_SILENT",
    "ChosenRows",
    "Control",
    "PackFiles",
    "PackHeld",
    "PackRows",
    "PackState",
    "Unpack",
    "packed",
    "packed_control",
    "seed_prefix",
    "seeds_of",
]

# Where a packed row comes from: input, handed-over state (to be emitted or not), or the control source. Output of an
# operator in front is packed already.
LIVE: Final = 0
SEED_SILENT: Final = 1
SEED_EMIT: Final = 2
CONTROL: Final = 3
SEED_OUTPUT: Final = 4

# ``slots``: for rows of state the number of accumulators when they were written, for outputs their number, else 0.
SEED_SCHEMA: Final = f"{GROUP} int, origin int, slots int, data binary"
_ARROW: Final = pa.schema([(GROUP, pa.int32()), ("origin", pa.int32()), ("slots", pa.int32()), ("data", pa.binary())])


def seeds_of(operator: str) -> str:
    """The directory of an operator's seeds within the checkpoint. Stream mode reads it."""
    return f"backlog/seed/{operator}"


def seed_prefix(epoch: int) -> str:
    """Prefix of the file names of an epoch's seeds."""
    return f"e{epoch}-"


@dataclass(frozen=True)
class Control:
    """A control message for every key group. Fields at their default change nothing.

    Parameters
    ----------
    watermark : int
        Milliseconds since 1970. Default: the lowest watermark.
    now : int or None
        Processing-time timers up to then are due.
    backlog : int or None
        RecordAttributes of the operator's inputs, as in `backlog_spark.operators.fold.Clock`.
    budget : int or None
        How many timers a key group may fire; None: all due timers.
    at : int or None
        The time of the message.
    """

    watermark: int = -(2**63)
    now: int | None = None
    backlog: int | None = None
    budget: int | None = None
    at: int | None = None

    def to_bytes(self) -> bytes:
        """The bytes in a packed row."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`. BacklogError for a damaged one."""
        with reading_stored("A control message in the checkpoint"):
            return checked(cls(**json.loads(data)))


# Rows, and bytes, that are merged before they are shipped. They bound the memory of a task.
ALL_OF_THEM: Final = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""Options for reading files of state. They replace the session's settings."""
_PACK_ROWS: Final = 200_000
_PACK_BYTES: Final = 64 << 20
# Rows of a file that are decoded at a time: a few bytes in the file may decode to long values.
_READ_ROWS: Final = 10_000
# Most rows in one packed row: a few MB at usual widths, far below Spark's limit for a row.
DATA_ROWS: Final = 20_000


def packed(groups: pa.Array, batch: pa.RecordBatch, origin: int, slots: int = 0) -> Iterator[pa.RecordBatch]:
    """Packs rows by key group, as rows of `SEED_SCHEMA`."""
    found: list[tuple[int, bytes]] = []
    for group, rows in split_by(groups.to_numpy(), batch):
        found += [(group, to_bytes(piece)) for piece in cut(rows, DATA_ROWS)]
    if found:
        yield _packed_rows(found, origin, slots)


def _packed_rows(found: Sequence[tuple[int, bytes]], origin: int, slots: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([g for g, _ in found], pa.int32()),
            pa.array([origin] * len(found), pa.int32()),
            pa.array([slots] * len(found), pa.int32()),
            pa.array([d for _, d in found], pa.binary()),
        ],
        schema=_ARROW,
    )


def packed_control(groups: int, control: Control) -> pa.RecordBatch:
    """One packed row with the same message for each key group."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(groups), pa.int32()),
            pa.array([CONTROL] * groups, pa.int32()),
            pa.array([0] * groups, pa.int32()),
            pa.array([control.to_bytes()] * groups, pa.binary()),
        ],
        schema=_ARROW,
    )


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Groups batches, without empty ones, into portions that are packed together."""
    keep_imports()
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            pending.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _PACK_ROWS or size >= _PACK_BYTES:
            yield pending
            pending, rows, size = [], 0, 0
    if rows:
        yield pending


class PackRows:
    """For ``mapInArrow``: merges lifted rows (`Fold.lift`) by key and packs them by key group."""

    def __init__(self, fold: Merging, lifted: pa.Schema) -> None:
        self._fold = fold
        self._lifted = lifted

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for pending in gathered(batches):
            yield from self._pack(pending)

    def _pack(self, pending: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whole = combine(pending, self._lifted)
        without = whole.remove_column(0)
        state, order, starts = merged(without, self._fold.state, self._fold, lifted=True)
        yield from packed(whole.column(0).take(pa.array(order[starts])), state, LIVE)


class PackState:
    """For ``mapInArrow``: packs handed-over rows of state by key group.

    It computes the group itself: one column fewer saves Spark 0.1 s for six million rows.

    Parameters
    ----------
    state : StateSchema
        The columns' schema.
    key_groups : int
    emit : bool or None
        Whether the stream vehicle emits the keys. None: the additional column ``EMIT`` decides.
    """

    def __init__(self, state: StateSchema, key_groups: int, emit: bool | None) -> None:
        self._state = state
        self._key_groups = key_groups
        self._emit = emit

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for pending in gathered(batches):
            if self._emit is not None:
                yield from self._packed(pending, SEED_EMIT if self._emit else SEED_SILENT)
                continue
            whole = pa.Table.from_batches(pending)
            for origin, chosen in ((SEED_SILENT, pc.invert(whole.column(EMIT))), (SEED_EMIT, whole.column(EMIT))):
                yield from self._packed(whole.filter(chosen).drop_columns([EMIT]).to_batches(), origin)

    def _packed(self, batches: Sequence[pa.RecordBatch], origin: int) -> Iterator[pa.RecordBatch]:
        state = combine(batches, self._state.arrow())
        groups = pa.array(groups_of(state.column(0).to_numpy(), self._key_groups))
        yield from packed(groups, state, origin, len(self._state.slots))


class PackHeld:
    """For ``mapInArrow``: packs handed-over state together with packed outputs. For a stay that has emitted nothing.

    Parameters
    ----------
    state : StateSchema
        The columns' schema.
    key_groups : int
    tag, data : str
        The columns of outputs: the output's number (NULL in rows of state), and its packed rows.
    """

    def __init__(self, state: StateSchema, key_groups: int, tag: str, data: str) -> None:
        self._pack = PackState(state, key_groups, emit=False)
        self._key_groups = key_groups
        self._tag, self._data = tag, data

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for pending in gathered(batches):
            whole = pa.Table.from_batches(pending)
            is_output = pc.is_valid(whole.column(self._tag))
            state = whole.filter(pc.invert(is_output)).drop_columns([self._tag, self._data])
            yield from self._pack(iter(state.to_batches()))
            for batch in whole.filter(is_output).to_batches():
                # Outputs belong to no key any more, so any group may emit them.
                groups = pa.array([at % self._key_groups for at in range(batch.num_rows)], pa.int32())
                origins = pa.array([SEED_OUTPUT] * batch.num_rows, pa.int32())
                columns = [groups, origins, batch.column(self._tag), batch.column(self._data)]
                yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)


@dataclass(frozen=True)
class ChosenRows:
    """Decides in a worker which rows of a version are state.

    Parameters
    ----------
    columns : tuple of str
        The columns that decide.
    among : callable, optional
        Takes these columns as Arrow arrays and returns an Arrow array of bool. Default: all rows are state.
    """

    columns: tuple[str, ...] = ()
    among: Callable[..., pa.Array] | None = None


class PackFiles:
    """For ``mapInArrow``: packs handed-over state by key group, from the bytes of its Parquet files.

    The input columns are a file's path and its bytes. If Spark reads the rows and converts them to Arrow, six million
    rows take 0.7 s longer on two cores.

    Parameters
    ----------
    state : StateSchema
        Names of the columns. A column that is missing in a file is NULL.
    key_groups : int
    emit : bool or None
        As in `PackState`. None: keys of every epoch but the first are emitted.
    chosen : ChosenRows
        Which rows of the files are state.
    """

    def __init__(self, state: StateSchema, key_groups: int, emit: bool | None, chosen: ChosenRows) -> None:
        self._state = state
        self._key_groups = key_groups
        self._emit = emit
        self._chosen = chosen

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = (file for batch in batches for file in zip(*batch.columns, strict=True))
        for path, content in files:
            emit = self._emit
            if emit is None:
                emit = not path.as_py().rpartition("/")[2].startswith(seed_prefix(0))
            pack = PackState(self._state, self._key_groups, emit)
            yield from pack(self._rows(_opened(content.as_buffer())))

    def _rows(self, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        wanted, chosen = self._state.arrow(), self._chosen
        names = [name for name in (*wanted.names, *chosen.columns) if name in file.schema_arrow.names]
        for rows in file.iter_batches(_READ_ROWS, columns=names, use_threads=False):
            if chosen.among is not None:
                rows = rows.filter(chosen.among(*(rows.column(name) for name in chosen.columns)))
            columns = [
                rows.column(f.name).cast(f.type) if f.name in names else pa.nulls(rows.num_rows, f.type) for f in wanted
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _opened(content: pa.Buffer) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(content))


class Unpack:
    """For ``mapInArrow``: unpacks packed rows.

    Parameters
    ----------
    packed, unpacked : pyarrow.Schema
        Schemas of the packed bytes and of the result.
    skip : int
        Number of leading columns to drop.
    """

    def __init__(self, packed: pa.Schema, unpacked: pa.Schema, skip: int = 0) -> None:
        self._packed = packed
        self._unpacked = unpacked
        self._skip = list(range(skip, len(packed)))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        for batch in batches:
            for data in batch.column(batch.num_columns - 1):
                yield combine([from_bytes(data.as_py(), self._packed).select(self._skip)], self._unpacked)
