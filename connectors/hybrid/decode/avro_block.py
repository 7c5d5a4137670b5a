"""Reads a block of Avro records together, each record at its own offset."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["Block"]

# The longest number has 10 bytes, so with this a read at the end of a record stays within the block.
_PADDING = 16


class Block:
    """Records, and an offset in each.

    Parameters
    ----------
    content : bytes
        The contiguous records.
    offsets : numpy.ndarray
        Offset of each record, and the end of the last one.
    skipped : int
        Bytes at the beginning of each record that are not Avro.

    Attributes
    ----------
    bad : numpy.ndarray
        Which records do not match the schema.
    """

    def __init__(self, content: bytes, offsets: np.ndarray, skipped: int = 0) -> None:
        self.data = np.frombuffer(content + bytes(_PADDING), np.uint8)
        self.at = offsets[:-1].astype(np.int64) + skipped
        self.end = offsets[1:].astype(np.int64)
        self.bad = np.zeros(len(self.at), bool)

    def longs(self, rows: np.ndarray) -> np.ndarray:
        """The next number of some records."""
        at = self.at[rows]
        byte = self.data[at]
        found = (byte & 0x7F).astype(np.uint64)
        at += 1
        more = np.flatnonzero(byte >= 0x80)
        shift = 7
        while len(more):
            byte = self.data[at[more]]
            if shift == 63:
                self.bad[rows[more[byte > 1]]] = True
                byte = byte & 1
            found[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more = more[byte >= 0x80]
            shift += 7
        self._move(rows, at)
        return np.asarray((found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64))

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """The next length of some records; 0 for bad ones."""
        found = self.longs(rows)
        wrong = (found < 0) | (found > self.end[rows] - self.at[rows])
        self.refuse(rows, wrong)
        return np.where(wrong, 0, found)

    def skip(self, rows: np.ndarray, size: np.ndarray | int) -> np.ndarray:
        """Skip bytes of some records. Returns their offsets, which are within the block for up to 16 bytes."""
        at = self.at[rows]
        self._move(rows, at + size)
        return np.asarray(at)

    def fixed(self, rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The offsets of the next ``size`` bytes of some records, and their number: 0 for bad ones."""
        starts = self.skip(rows, size)
        return starts, np.where(self.bad[rows], 0, size)

    def refuse(self, rows: np.ndarray, wrong: np.ndarray) -> None:
        """Mark the wrong ones of some records."""
        if wrong.any():
            self.bad[rows[wrong]] = True

    def _move(self, rows: np.ndarray, at: np.ndarray) -> None:
        beyond = at > self.end[rows]
        self.refuse(rows, beyond)
        self.at[rows] = np.where(beyond, self.end[rows], at)

    def close(self) -> None:
        """Mark records with bytes left over."""
        self.bad |= self.at != self.end

    def gathered(self, starts: np.ndarray, sizes: np.ndarray) -> pa.Array:
        """Parts of the content as binary values."""
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        indices = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.data[indices])]
        return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)

    def matrix(self, starts: np.ndarray, size: int) -> np.ndarray:
        """``size`` bytes from each offset, one row each."""
        return np.asarray(self.data[starts[:, None] + np.arange(size)])
