"""Converts rows of a server's binary protocol to Arrow, column by column (pure).

Python only steps from row to row, since a row's length gives the offset of the next one. numpy then takes the values of
a column from all rows at once. Arrow does so for values without a fixed size.

Source: MySQL source documentation, "Binary Protocol Resultset" and "Protocol::ColumnType"; mysys/my_time.cc for packed
temporal values.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlog_spark.errors import BacklogError

__all__ = [
    "BYTES",
    "FLOAT",
    "HEADER",
    "INTEGER",
    "SLACK",
    "TEMPORAL",
    "PacketOffsets",
    "RowDecoder",
    "WireColumn",
    "whole_rows",
]

HEADER: Final = 4
"""Bytes before a packet's payload: its length and its number."""
SLACK: Final = 16
"""Bytes of any content that must follow the rows in memory, because values are read in words of up to that size."""
_MOST: Final = 0xFFFFFF
_MOST_BYTES: Final = 2**31 - 1
_header = struct.Struct("<I").unpack_from

_Ints = npt.NDArray[np.int64]
_Nulls = npt.NDArray[np.bool_] | None

INTEGER, FLOAT, TEMPORAL, BYTES = "an integer", "a floating point number", "a date", "a text or bytes"
_FIXED = {1: "1", 2: "2", 13: "2", 3: "4", 9: "4", 8: "8"}
_TEMPORAL = {7, 10, 12}
_TIME = 11


class WireColumn(NamedTuple):
    """A column as a result describes it.

    Parameters
    ----------
    code : int
        Its type.
    unsigned : bool
    """

    code: int
    unsigned: bool

    @property
    def kind(self) -> str:
        """The kind of its values, readable for people: `INTEGER`, `FLOAT`, `TEMPORAL` or `BYTES`."""
        if self.code in _FIXED:
            return INTEGER
        if self.code in (4, 5):
            return FLOAT
        return TEMPORAL if self.code in _TEMPORAL else "a time" if self.code == _TIME else BYTES

    @property
    def dtype(self) -> np.dtype[np.generic] | None:
        """The type of values of fixed size; None for other values."""
        if self.code in (4, 5):
            return np.dtype("<f4" if self.code == 4 else "<f8")
        size = _FIXED.get(self.code)
        return None if size is None else np.dtype(f"<{'u' if self.unsigned else 'i'}{size}")


class PacketOffsets(NamedTuple):
    """Offsets of packets in memory.

    Parameters
    ----------
    starts : list of int
        Offsets of the packets that are complete.
    end : int
        Offset of the first packet that is not.
    """

    starts: list[int]
    end: int


def whole_rows(data: bytes | bytearray, at: int, end: int) -> PacketOffsets:
    """The packets between two offsets, up to one that continues in another packet.

    Parameters
    ----------
    data : bytes or bytearray
        With `SLACK` bytes after ``end``.
    at, end : int
    """
    starts: list[int] = []
    add = starts.append
    # Such a packet is longer than ``data`` mostly is. Then the loop need not look for it.
    may_be_continued = end - at >= HEADER + _MOST
    while at + HEADER <= end:
        size = _header(data, at)[0] & _MOST
        if may_be_continued and size == _MOST:
            return PacketOffsets(starts, at)
        add(at)
        at += HEADER + size
    if at > end:
        at = starts.pop()
    return PacketOffsets(starts, at)


class RowDecoder:
    """Decodes rows.

    Parameters
    ----------
    columns : sequence of WireColumn
        None may be a TIME (see `WireColumn.kind`): select it as text.
    """

    def __init__(self, columns: Sequence[WireColumn]) -> None:
        self._columns = columns

    def decode(self, data: bytes | bytearray, starts: Sequence[int]) -> list[pa.Array]:
        """The columns of rows.

        Parameters
        ----------
        data : bytes or bytearray
            With `SLACK` bytes after the last row.
        starts : sequence of int
            Offsets of their packets; at least one.

        Returns
        -------
        list of pyarrow.Array
            Integers and floating point numbers in their own size; bytes as binary; dates and times in the packed form
            that `temporal` describes.

        Raises
        ------
        BacklogError
            The values do not fill their rows.
        """
        at = np.array(starts, dtype=np.int64)
        sizes = _view(data, "<u4", 0)[at].astype(np.int64) & _MOST
        # A row that was joined from several packets has no size in its header, and nothing follows it.
        ends = np.where(sizes == 0, len(data) - SLACK, at + HEADER + sizes)
        try:
            rows = _Rows(data, at + (HEADER + 1), ends, len(self._columns))
            found = [rows.take(column) for column in self._columns]
        except (IndexError, ValueError) as error:  # beyond the memory
            raise _does_not_fit() from error
        if not rows.are_whole():
            raise _does_not_fit()
        return found


def _does_not_fit() -> BacklogError:
    return BacklogError(
        "A row of the server has a value that is longer than the row, or other values than its columns.",
        "Check the network.",
    )


def _view(data: bytes | bytearray, dtype: np.dtype[np.generic] | str, at: int) -> npt.NDArray[Any]:
    """Values that begin at each byte from ``at`` on."""
    kind = np.dtype(dtype)
    return np.ndarray((len(data) - at - kind.itemsize + 1,), kind, data, offset=at, strides=(1,))


class _Rows:
    """Rows whose columns are decoded one after the other."""

    def __init__(self, data: bytes | bytearray, starts: _Ints, ends: _Ints, columns: int) -> None:
        self._data = data
        self._ends = ends
        bitmap = (columns + 9) // 8
        wide = np.lib.stride_tricks.as_strided(np.frombuffer(data, np.uint8), (len(data) - bitmap + 1, bitmap), (1, 1))
        self._nulls = wide[starts]
        self._has_nulls = np.bitwise_or.reduce(self._nulls, axis=0)
        # The next value's offset is the row's own offset in _at, plus _past, which is the same for all rows.
        self._at, self._past = starts, bitmap
        self._column = 2  # the first two bits are reserved

    def are_whole(self) -> bool:
        """Whether the columns that were taken fill the rows."""
        return bool(np.array_equal(self._at + self._past, self._ends))

    def take(self, column: WireColumn) -> pa.Array:
        byte, bit = divmod(self._column, 8)
        self._column += 1
        null = (self._nulls[:, byte] >> bit & 1).astype(np.bool_) if self._has_nulls[byte] >> bit & 1 else None
        if column.dtype is not None:
            return self._fixed(column.dtype, null)
        return self._temporal(null) if column.code in _TEMPORAL else self._bytes(null)

    def _values(self, dtype: np.dtype[np.generic] | str, behind: int = 0) -> npt.NDArray[Any]:
        """The value in each row, ``behind`` bytes after the present offset."""
        found: npt.NDArray[Any] = _view(self._data, dtype, self._past + behind)[self._at]
        return found

    def _go(self, sizes: _Ints, null: _Nulls) -> None:
        """Skip values of these sizes. A NULL has no bytes."""
        if null is not None:
            sizes[null] = 0
        sizes += self._past
        self._at, self._past = self._at + sizes, 0

    def _fixed(self, dtype: np.dtype[np.generic], null: _Nulls) -> pa.Array:
        values = self._values(dtype)
        if null is None:
            self._past += dtype.itemsize
        else:
            self._go(np.full(len(null), dtype.itemsize, dtype=np.int64), null)
        return pa.array(values, mask=null)

    def _temporal(self, null: _Nulls) -> pa.Array:
        size = self._values("u1").astype(np.int64)
        if null is not None:
            size[null] = 0
        # The year, then a byte for each of month, day, hour, minute and second.
        word = self._values("<i8", 1)
        day = ((word & 0xFFFF) * 13 + (word >> 16 & 255)) << 5 | word >> 24 & 255
        clock = (word >> 32 & 255) << 12 | (word >> 40 & 255) << 6 | word >> 48 & 255
        fraction = self._values("<u4", 8).astype(np.int64)
        # Trailing zeros are not sent.
        if (least := int(size.min())) < 11:
            fraction[size < 11] = 0
        if least < 7:
            clock[size < 7] = 0
        if least < 4:
            day[size < 4] = 0
        self._go(size + 1, null)
        return pa.array((day << 17 | clock) << 24 | fraction, mask=null)

    def _bytes(self, null: _Nulls) -> pa.Array:
        size = self._values("u1").astype(np.int64)
        if null is not None:
            size[null] = 0
        before: int | _Ints = 1
        if int(size.max()) > 250:
            before, size = self._long(size)
        begins = self._at + self._past + before
        if null is not None:
            begins[null] -= 1
        ends = begins + size
        rows = len(begins)
        if bool(np.any((size < 0) | (size > len(self._data)) | (ends > self._ends))):
            # Arrow would read beyond the memory.
            raise _does_not_fit()
        if int(ends[-1]) > _MOST_BYTES:
            raise BacklogError(
                f"A row has {int(ends[-1]):,} bytes, more than the {_MOST_BYTES:,} that Arrow holds together.",
                "Leave the largest columns out of the table, or store them elsewhere.",
            )
        # The bytes between two values are values here too, and are not taken.
        offsets = np.empty(2 * rows, dtype=np.int32)
        offsets[::2], offsets[1::2] = begins, ends
        every = pa.Array.from_buffers(
            pa.binary(), 2 * rows - 1, [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        )
        self._at, self._past = ends, 0
        return every.take(pa.array(np.arange(0, 2 * rows, 2), mask=null))

    def _long(self, first: _Ints) -> tuple[_Ints, _Ints]:
        """Bytes of the length prefix, and the length, if some prefixes have more than one byte."""
        word = self._values("<i8", 1)
        is_long = [first == 252, first == 253, first == 254]
        return (
            np.select(is_long, [3, 4, 9], 1),
            np.select(is_long, [word & 0xFFFF, word & 0xFFFFFF, word], first),
        )
