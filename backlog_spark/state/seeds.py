"""What travels into the stream vehicle: rows of state or of input, packed as Arrow bytes by key group.

Packed, a value reaches the worker that holds the state exactly as it is. Spark's way to such a worker leads through
pandas, where an integer column with a NULL becomes floating point and loses digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from .tables import GROUP, StateSchema, combine, cut, from_bytes, merged, split_by, to_bytes

if TYPE_CHECKING:
    from backlog_spark.operators.fold import Fold

__all__ = ["LIVE", "SEED_EMIT", "SEED_SCHEMA", "SEED_SILENT", "PackRows", "PackState", "Unpack"]

# Where a packed row comes from: input, or state that was handed over, to be put out or not.
LIVE: Final = 0
SEED_SILENT: Final = 1
SEED_EMIT: Final = 2

SEED_SCHEMA: Final = f"{GROUP} int, origin int, data binary"
_ARROW: Final = pa.schema([(GROUP, pa.int32()), ("origin", pa.int32()), ("data", pa.binary())])

# Rows, and bytes, that are merged before they are shipped: what bounds a task's memory.
_PACK_ROWS: Final = 200_000
_PACK_BYTES: Final = 64 << 20
# Most rows of one packed row: a few MB at usual widths, far below what a row may hold.
DATA_ROWS: Final = 20_000


def _packed(groups: pa.Array, batch: pa.RecordBatch, origin: int) -> Iterator[pa.RecordBatch]:
    found: list[tuple[int, bytes]] = []
    for group, rows in split_by(groups.to_numpy(), batch):
        found += [(group, to_bytes(piece)) for piece in cut(rows, DATA_ROWS)]
    if found:
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([g for g, _ in found], pa.int32()),
                pa.array([origin] * len(found), pa.int32()),
                pa.array([d for _, d in found], pa.binary()),
            ],
            schema=_ARROW,
        )


class PackRows:
    """For ``mapInArrow``: lifted rows (`Fold.lift`) merged by key and packed by key group."""

    def __init__(self, fold: Fold, lifted: pa.Schema) -> None:
        self._fold = fold
        self._lifted = lifted

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pending: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            if batch.num_rows:
                pending.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _PACK_ROWS or size >= _PACK_BYTES:
                yield from self._pack(pending)
                pending, rows, size = [], 0, 0
        if rows:
            yield from self._pack(pending)

    def _pack(self, pending: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whole = combine(pending, self._lifted)
        without = whole.remove_column(0)
        state, order, starts = merged(without, self._fold.state, self._fold, lifted=True)
        yield from _packed(whole.column(0).take(pa.array(order[starts])), state, LIVE)


class PackState:
    """For ``mapInArrow``: rows of a state version packed by key group, to be handed over."""

    def __init__(self, state: StateSchema, *, emit: bool) -> None:
        self._state = state
        self._origin = SEED_EMIT if emit else SEED_SILENT

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self._state.arrow()
        for batch in batches:
            if batch.num_rows:
                yield from _packed(batch.column(0), combine([batch.remove_column(0)], schema), self._origin)


class Unpack:
    """For ``mapInArrow``: packed rows of state as rows, without the hash."""

    def __init__(self, state: StateSchema, unpacked: pa.Schema) -> None:
        self._state = state
        self._unpacked = unpacked

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self._state.arrow()
        for batch in batches:
            for data in batch.column(0):
                yield combine([from_bytes(data.as_py(), schema).remove_column(0)], self._unpacked)
