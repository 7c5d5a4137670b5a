"""Whole numbers of as many bytes as they need, as Protocol Buffers, Snappy and MySQL's JSON write them."""

from __future__ import annotations

__all__ = ["varint"]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of seven bits a byte, the least significant first, and where it ends.

    Parameters
    ----------
    data : bytes
    at : int
        Where it begins.

    Raises
    ------
    IndexError
        ``data`` end before the number does.
    """
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
