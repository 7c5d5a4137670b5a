"""Bytes as text, for Spark's state server (pure).

What a worker reads of Spark's state comes pickled, in a protocol that writes bytes as Latin-1 text and that text as
UTF-8: 14 ns a byte on its way, against 3 ns for a text that is ASCII. So eight characters of seven bits take the place
of seven bytes; there and back that is 1 ns a byte.
"""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["as_text", "from_text"]

_LOW: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
# Seven rows of words; the top bit of each row's bytes goes to a place of its own in an eighth row.
_ROWS: Final = 7
_SHIFTS: Final = np.arange(7, 0, -1, dtype=np.uint64)[:, None]


def as_text(data: bytes) -> str:
    """Any bytes as ASCII, a seventh more characters than bytes; the last one says how many bytes were added."""
    added = -len(data) % (8 * _ROWS)
    words = np.frombuffer(data + bytes(added), dtype=np.uint64).reshape(_ROWS, -1)
    out = np.empty((_ROWS + 1, words.shape[1]), dtype=np.uint64)
    np.bitwise_and(words, _LOW, out=out[:_ROWS])
    tops = words ^ out[:_ROWS]
    tops >>= _SHIFTS
    np.bitwise_or.reduce(tops, axis=0, out=out[_ROWS])
    return out.tobytes().decode("ascii") + chr(added)


def from_text(text: str) -> memoryview:
    """Read back what `as_text` gave."""
    words = np.frombuffer(text.encode("ascii"), dtype=np.uint64, count=len(text) // 8).reshape(_ROWS + 1, -1)
    out = words[_ROWS] << _SHIFTS
    out &= ~_LOW
    out |= words[:_ROWS]
    data = out.reshape(-1).view(np.uint8)
    return memoryview(data[: len(data) - ord(text[-1])])
