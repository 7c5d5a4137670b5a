"""Reads the row images of an event, also of compressed and partial ones (pure).

Sources: MySQL source documentation, "Rows_event" and "Partial_update_rows_event"; MariaDB source, sql/log_event.h
(``WRITE_ROWS_COMPRESSED_EVENT``).
"""

from __future__ import annotations

from typing import Any

from backlog_spark.errors import BacklogError

from ..schema.packed import read_length
from .inflating import inflated
from .log_position import HEADER
from .records import DELETE, INSERT, UPDATE
from .row_decoder import RowDecoder

__all__ = ["COMPRESSED_ROWS", "ROWS", "Images", "inflated_event", "read_images", "renumbered", "step_of"]

_PARTIAL_UPDATE = 39
_OF_COMPRESSED = {166: INSERT, 167: UPDATE, 168: DELETE, 169: INSERT, 170: UPDATE, 171: DELETE}
COMPRESSED_ROWS = frozenset(_OF_COMPRESSED)
"""MariaDB's events with ``log_bin_compress``."""
ROWS = {
    **{23: INSERT, 24: UPDATE, 25: DELETE, 30: INSERT, 31: UPDATE, 32: DELETE, _PARTIAL_UPDATE: UPDATE},
    **_OF_COMPRESSED,
}
"""Kinds of change by type of event."""
_SHORT_HEADER = {23, 24, 25, 166, 167, 168}

Images = list[tuple[int, list[Any] | None, list[Any] | None]]
"""As `RowsChange.rows`."""


def _bitmaps(data: bytes, kind: int) -> tuple[int, int, int]:
    """Where an event's bitmaps of present columns begin, the bytes of each, and how many there are."""
    offset = HEADER + 8
    if kind not in _SHORT_HEADER:
        offset += int.from_bytes(data[offset : offset + 2], "little")
    count, offset = read_length(data, offset)
    return offset, (count + 7) // 8, step_of(ROWS[kind])


def inflated_event(data: bytes, kind: int, end: int, most: int) -> bytes:
    """A compressed event with its rows inflated, without checksum.

    Parameters
    ----------
    data, kind, end
        As for `read_images`.
    most : int
        Most bytes that the rows may inflate to.
    """
    offset, width, bitmaps = _bitmaps(data, kind)
    offset += width * bitmaps
    return data[:offset] + inflated(data[offset:end], most)


def read_images(decoder: RowDecoder, data: bytes, kind: int, end: int, base: int, *, counts: bool = False) -> Images:
    """The images of an event.

    Parameters
    ----------
    data : bytes
        The event with one byte before it.
    end : int
        Where the rows end: before the checksum.
    base : int
        The sequence of ``data[0]``. The sequences of inflated rows have no meaning: see `renumbered`.
    counts : bool
        Only count the rows: they have no values.

    Raises
    ------
    BacklogError
        The images do not fill the event.
    """
    change = ROWS[kind]
    offset, width, bitmaps = _bitmaps(data, kind)
    first = decoder.of_images(data[offset : offset + width])
    last = decoder.of_images(data[offset + width : offset + 2 * width]) if bitmaps > 1 else first
    offset += bitmaps * width
    is_partial = kind == _PARTIAL_UPDATE
    skips = counts and not is_partial
    read_row, read_after = (first.skip_row, last.skip_row) if skips else (first.read_row, last.read_row)
    rows: Images = []
    before: list[Any] | None
    after: list[Any] | None
    if change == UPDATE:
        while offset < end:
            sequence = base + offset
            before, offset = read_row(data, offset)
            after, offset = last.read_partial(data, offset, before) if is_partial else read_after(data, offset)
            rows.append((sequence, before, after))
    elif change == INSERT:
        while offset < end:
            sequence = base + offset
            after, offset = read_row(data, offset)
            rows.append((sequence, None, after))
    else:
        while offset < end:
            sequence = base + offset
            before, offset = read_row(data, offset)
            rows.append((sequence, before, None))
    if offset != end:
        raise BacklogError(
            f"The binary log has a row image of {decoder.schema.name} that does not end where its event ends.",
            "Report this with the table.",
        )
    return rows


def step_of(change: str) -> int:
    """Numbers that an image of `RowsChange.rows` takes."""
    return 2 if change == UPDATE else 1


def renumbered(rows: Images, change: str, first: int) -> Images:
    """The images with sequences from ``first`` on. Compressed rows have no bytes of their own in the file."""
    step = step_of(change)
    return [(first + step * i, before, after) for i, (_, before, after) in enumerate(rows)]
