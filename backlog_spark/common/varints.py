"""Decodes integers of variable length, as in Protocol Buffers, Snappy and MySQL's JSON."""

from __future__ import annotations

__all__ = ["varint"]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned integer with seven bits per byte, least significant first, and the index after it.

    Parameters
    ----------
    data : bytes
    at : int
        Index of its first byte.

    Raises
    ------
    IndexError
        If ``data`` ends before the integer does.
    """
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
