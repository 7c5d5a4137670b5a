"""Splits what is too large to hold at once into pieces of bounded size (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from backlog_spark.errors import SettingError

__all__ = ["PIECE_BYTES", "RowTooLarge", "pieces", "too_large"]

PIECE_BYTES = 4 << 20
"""Bytes of rows that are held at a time. In Python and in Arrow they take several times as much memory."""
_T = TypeVar("_T")


def pieces(items: Iterable[_T], size: Callable[[_T], int], most: int) -> Iterator[list[_T]]:
    """Lists of at most ``most`` items. A list ends at the item with which it reaches `PIECE_BYTES`.

    Parameters
    ----------
    size : callable
        Bytes of an item.
    """
    piece: list[_T] = []
    total = 0
    for item in items:
        piece.append(item)
        total += size(item)
        if total >= PIECE_BYTES or len(piece) >= most:
            yield piece
            piece, total = [], 0
    if piece:
        yield piece


class RowTooLarge(Exception):
    """A row has ``size`` or more bytes, which is more than allowed."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def too_large(what: str, size: int, most: int) -> SettingError:
    """The error for a row, or the event of one, of ``size`` or more bytes."""
    return SettingError(
        "maxRowBytes", most, f"{what} has at least {size:,} bytes.",
        "Raise it, and the memory of Spark's Python workers to several times that, or store the value elsewhere.",
    )  # fmt: skip
