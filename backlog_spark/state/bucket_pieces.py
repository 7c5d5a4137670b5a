"""State that is handed over as a key group's buckets have it: a new one takes it in without looking at it (pure).

Rows would be decoded, brought together and packed once more by the worker that has the group. What it is given instead
are its buckets, each in as many pieces as workers have read files, to be put one behind the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from backlog_spark.state.keys import groups_of
from backlog_spark.state.state_codec import joined, packed_rows, unpacked_rows
from backlog_spark.state.tables import PIECE_BYTES, StateSchema, buckets_of, cut, from_bytes, split_by, to_bytes

__all__ = ["Piece", "buckets_from", "packed_pieces", "unpacked_pieces"]

_SCHEMA: Final = pa.schema(
    [("bits", pa.int32()), ("bucket", pa.int32()), ("rows", pa.int32()), ("slots", pa.int32()), ("text", pa.string())]
)
# Of texts that travel in one packed row, unless one has more.
_ROW_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class Piece:
    """Some rows of a bucket.

    Parameters
    ----------
    bits : int
        Of the hash that tell the group's buckets apart, as who packed it saw it.
    bucket, rows : int
        Its number, and how many rows these are.
    slots : int
        Accumulators that they were written with.
    text : str
        The rows, as `backlog_spark.state.state_codec.packed_rows` gives them.
    """

    bits: int
    bucket: int
    rows: int
    slots: int
    text: str

    def unpacked(self, schema: StateSchema) -> pa.RecordBatch:
        """The rows."""
        return unpacked_rows(self.text, self.slots, schema)


def packed_pieces(rows: pa.RecordBatch, schema: StateSchema, key_groups: int, bits: int) -> Iterator[tuple[int, bytes]]:
    """Rows of state by key group, in pieces of its buckets, for `unpacked_pieces`."""
    hashes = rows.column(0).to_numpy()
    numbers = groups_of(hashes, key_groups).astype(np.int64) << bits | buckets_of(hashes, bits)
    pending, size, before = list[Piece](), 0, -1
    for number, mine in split_by(numbers, rows):
        group, bucket = number >> bits, number & ((1 << bits) - 1)
        for some in cut(mine, mine.num_rows, PIECE_BYTES):
            if pending and (group != before or size >= _ROW_BYTES):
                yield before, _to_bytes(pending)
                pending, size = [], 0
            text, slots = packed_rows(some, schema)
            pending.append(Piece(bits, bucket, some.num_rows, slots, text))
            size, before = size + len(text), group
    if pending:
        yield before, _to_bytes(pending)


def _to_bytes(pieces: Sequence[Piece]) -> bytes:
    columns = [pa.array([getattr(piece, f.name) for piece in pieces], f.type) for f in _SCHEMA]
    return to_bytes(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))


def unpacked_pieces(data: bytes) -> list[Piece]:
    """Read back what `packed_pieces` gave of a key group."""
    return [Piece(**row) for row in from_bytes(data, _SCHEMA).to_pylist()]


def buckets_from(pieces: Iterable[Piece], bits: int, schema: StateSchema) -> dict[int, str]:
    """The buckets that they make, when so many bits of the hash tell these apart.

    Pieces with more bits are taken as they are: the lower ones are the same, so a bucket has all rows of those that it
    would be cut into. Those with less, of a task that took the state for a smaller one, are cut.
    """
    found = defaultdict[int, list[str]](list)
    for piece in pieces:
        if piece.bits >= bits:
            found[piece.bucket & ((1 << bits) - 1)].append(piece.text)
            continue
        rows = piece.unpacked(schema)
        for number, mine in split_by(buckets_of(rows.column(0).to_numpy(), bits), rows):
            found[number].append(packed_rows(mine, schema)[0])
    return {number: joined(texts) for number, texts in found.items()}
