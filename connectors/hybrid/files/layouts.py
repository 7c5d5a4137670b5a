"""Where a file can be cut, and the number of rows between two offsets (pure).

An offset is the number of a row group or stripe in a columnar file, or a byte in a text file. None is the end of the
file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Layout", "TextLayout", "UnitLayout"]


class Layout(ABC):
    """The layout of one file."""

    @abstractmethod
    def rows(self, first: int, end: int | None) -> float:
        """Rows between two offsets; estimated for text."""

    @abstractmethod
    def advance(self, first: int, wanted: float) -> tuple[int | None, float]:
        """The first offset that is at least ``wanted`` rows after ``first``, and these rows; else the file's end.

        It is always after ``first``, even if no rows are wanted.
        """

    @abstractmethod
    def cuts(self, first: int, end: int | None, most: int) -> list[tuple[int, int | None, int]]:
        """Cut this part into pieces of about ``most`` bytes: begin, end and size of each.

        The result depends only on the file and the arguments.
        """


@dataclass(frozen=True)
class UnitLayout(Layout):
    """A file of row groups or stripes.

    Parameters
    ----------
    size : int
        Bytes of the file.
    units : sequence of int
        Rows of each.
    """

    size: int
    units: Sequence[int]

    def rows(self, first: int, end: int | None) -> float:
        return sum(self.units[first:end])

    def advance(self, first: int, wanted: float) -> tuple[int | None, float]:
        counted = 0
        for unit in range(first, len(self.units)):
            counted += self.units[unit]
            if counted >= wanted and counted:
                return (unit + 1 if unit + 1 < len(self.units) else None), counted
        return None, counted

    def cuts(self, first: int, end: int | None, most: int) -> list[tuple[int, int | None, int]]:
        per_row = self.size / max(1, sum(self.units))
        last = len(self.units) if end is None else end
        found: list[tuple[int, int | None, int]] = []
        began, taken = first, 0.0
        for unit in range(first, last):
            taken += self.units[unit] * per_row
            # With one more unit the size would be further from the wanted one.
            following = self.units[unit + 1] * per_row if unit + 1 < last else math.inf
            if taken + following / 2 > most:
                if taken:
                    found.append((began, None if unit + 1 == len(self.units) else unit + 1, round(taken)))
                began, taken = unit + 1, 0.0
        return found


@dataclass(frozen=True)
class TextLayout(Layout):
    """A file of records of unknown length.

    Parameters
    ----------
    size : int
        Bytes of the file.
    rows_per_byte : float
        Measured at the beginning of this file or another one.
    splits : bool
        Whether a piece may begin at any byte.
    """

    size: int
    rows_per_byte: float
    splits: bool

    def rows(self, first: int, end: int | None) -> float:
        return ((self.size if end is None else end) - first) * self.rows_per_byte

    def advance(self, first: int, wanted: float) -> tuple[int | None, float]:
        offset = first + max(1, math.ceil(wanted / self.rows_per_byte))
        if not self.splits or offset >= self.size:
            return None, self.rows(first, None)
        return offset, self.rows(first, offset)

    def cuts(self, first: int, end: int | None, most: int) -> list[tuple[int, int | None, int]]:
        last = self.size if end is None else end
        number = max(1, round((last - first) / most)) if self.splits else 1
        starts = [first + (last - first) * i // number for i in range(number)]
        return [
            (start, following, (self.size if following is None else following) - start)
            for start, following in zip(starts, [*starts[1:], end], strict=True)
        ]
