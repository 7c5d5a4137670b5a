"""Blocks of records as Arrow arrays of binary values. Shared by the fast paths."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["content_of", "either", "joined", "not_utf8", "offsets_of", "spread"]


def joined(values: pa.Array) -> pa.Buffer:
    """The records, with a line feed between them."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(whole, b"\n")[0].as_buffer()


def offsets_of(values: pa.Array) -> np.ndarray:
    """The offset of each record in its buffer, and the end of the last one."""
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def content_of(values: pa.Array) -> bytes:
    """The bytes of the records, contiguous."""
    data, offsets = values.buffers()[2], offsets_of(values)
    return memoryview(data)[offsets[0] : offsets[-1]].tobytes() if data is not None else b""


def not_utf8(values: pa.Array) -> np.ndarray | None:
    """Which records are not UTF-8; None if all are."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([not _is_utf8(record) for record in values.to_pylist()])
    return None


def _is_utf8(record: bytes) -> bool:
    try:
        record.decode()
    except UnicodeDecodeError:
        return False
    return True


def either(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """The union of two masks. None: all false."""
    if one is None or other is None:
        return other if one is None else one
    return np.asarray(one | other)


def spread(found: tuple[list[pa.Array], np.ndarray | None], seen: np.ndarray) -> tuple[list[pa.Array], np.ndarray]:
    """Extend the rows and doubts of the seen records to all records. The others are in doubt."""
    columns, doubts = found
    doubted = ~seen
    if doubts is not None:
        doubted[seen] = doubts
    rows = pa.array(np.cumsum(seen) - 1, mask=~seen)
    return [column.take(rows) for column in columns], doubted
