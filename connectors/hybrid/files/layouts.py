"""Where a file can be cut, and how many rows lie between two places of it (pure).

A place is a number: of a row group or stripe in files of columns, of a byte in files of text. None is the file's end.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Layout", "TextLayout", "UnitLayout"]


class Layout(ABC):
    """How one file is made up."""

    @abstractmethod
    def rows(self, first: int, end: int | None) -> float:
        """Rows from one place to another; estimated for text."""

    @abstractmethod
    def advance(self, first: int, wanted: float) -> tuple[int | None, float]:
        """The next place with at least so many rows before it, and how many they are; the file's end if it has fewer.

        Beyond ``first`` even where nothing is wanted.
        """

    @abstractmethod
    def cuts(self, first: int, end: int | None, most: int) -> list[tuple[int, int | None, int]]:
        """The same part in pieces of about ``most`` bytes: where they begin, where they end, how large they are.

        Depends on the file and the arguments alone.
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
        for place in range(first, len(self.units)):
            counted += self.units[place]
            if counted >= wanted and counted:
                return (place + 1 if place + 1 < len(self.units) else None), counted
        return None, counted

    def cuts(self, first: int, end: int | None, most: int) -> list[tuple[int, int | None, int]]:
        per_row = self.size / max(1, sum(self.units))
        last = len(self.units) if end is None else end
        found: list[tuple[int, int | None, int]] = []
        began, taken = first, 0.0
        for place in range(first, last):
            taken += self.units[place] * per_row
            # One more would be further from what is asked for than to stop here.
            following = self.units[place + 1] * per_row if place + 1 < last else math.inf
            if taken + following / 2 > most:
                if taken:
                    found.append((began, None if place + 1 == len(self.units) else place + 1, round(taken)))
                began, taken = place + 1, 0.0
        return found


@dataclass(frozen=True)
class TextLayout(Layout):
    """A file of records of unknown length.

    Parameters
    ----------
    size : int
        Bytes of the file.
    rows_per_byte : float
        As measured at its beginning, or at another's.
    splits : bool
        Whether a piece may begin at any byte.
    """

    size: int
    rows_per_byte: float
    splits: bool

    def rows(self, first: int, end: int | None) -> float:
        return ((self.size if end is None else end) - first) * self.rows_per_byte

    def advance(self, first: int, wanted: float) -> tuple[int | None, float]:
        place = first + max(1, math.ceil(wanted / self.rows_per_byte))
        if not self.splits or place >= self.size:
            return None, self.rows(first, None)
        return place, self.rows(first, place)

    def cuts(self, first: int, end: int | None, most: int) -> list[tuple[int, int | None, int]]:
        last = self.size if end is None else end
        number = max(1, round((last - first) / most)) if self.splits else 1
        places = [first + (last - first) * i // number for i in range(number)]
        return [
            (place, following, (self.size if following is None else following) - place)
            for place, following in zip(places, [*places[1:], end], strict=True)
        ]
