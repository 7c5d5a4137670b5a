"""A block of Avro records, read at the same place of each at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["Block"]

# A number of 10 bytes is the longest, so a read at a record's end stays within the block.
_PADDING = 16


class Block:
    """Records, and a place in each.

    Parameters
    ----------
    content : bytes
        The records, one after the other.
    offsets : numpy.ndarray
        Where each begins, and where the last one ends.
    skipped : int
        Bytes at the beginning of each that are no Avro.

    Attributes
    ----------
    bad : numpy.ndarray
        Which records are not of the schema.
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
        """The next length of some records; 0 of those that are bad."""
        found = self.longs(rows)
        wrong = (found < 0) | (found > self.end[rows] - self.at[rows])
        self.refuse(rows, wrong)
        return np.where(wrong, 0, found)

    def skip(self, rows: np.ndarray, size: np.ndarray | int) -> np.ndarray:
        """Pass over bytes of some records; gives where they began, which is within the block for up to 16 bytes."""
        at = self.at[rows]
        self._move(rows, at + size)
        return np.asarray(at)

    def fixed(self, rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Where as many bytes of some records began, and how many there are: none of those that are bad."""
        starts = self.skip(rows, size)
        return starts, np.where(self.bad[rows], 0, size)

    def refuse(self, rows: np.ndarray, wrong: np.ndarray) -> None:
        """Mark those of some records that are wrong."""
        if wrong.any():
            self.bad[rows[wrong]] = True

    def _move(self, rows: np.ndarray, at: np.ndarray) -> None:
        beyond = at > self.end[rows]
        self.refuse(rows, beyond)
        self.at[rows] = np.where(beyond, self.end[rows], at)

    def close(self) -> None:
        """Mark records of which something is left."""
        self.bad |= self.at != self.end

    def gathered(self, starts: np.ndarray, sizes: np.ndarray) -> pa.Array:
        """Parts of the content as binary values."""
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.data[places])]
        return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)

    def matrix(self, starts: np.ndarray, size: int) -> np.ndarray:
        """As many bytes from each place, a row each."""
        return np.asarray(self.data[starts[:, None] + np.arange(size)])
