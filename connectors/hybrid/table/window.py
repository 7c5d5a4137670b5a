"""The commits of a table that are being read, and the places in their files (pure)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..files.entries import DataFile
from .commits import TableState

__all__ = ["Entry", "Window"]


@dataclass(frozen=True)
class Entry:
    """One commit.

    Parameters
    ----------
    files : tuple of DataFile
        With its rows; empty if it has none.
    time_ms : int or None
        When it was written.
    is_whole : bool
        Whether its rows may not be in several batches.
    """

    files: tuple[DataFile, ...]
    time_ms: int | None
    is_whole: bool = False


@dataclass(frozen=True)
class Window:
    """Some commits, one after the other.

    Parameters
    ----------
    first : int
        Version of the first one.
    state : TableState
        Of the table after the last one.
    entries : tuple of Entry
    """

    first: int
    state: TableState
    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        bases = accumulate((len(entry.files) for entry in self.entries), initial=0)
        object.__setattr__(self, "_bases", tuple(bases))

    _bases: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The version after the last one."""
        return self.first + len(self.entries)

    @property
    def files(self) -> Sequence[DataFile]:
        """The files of all commits, in order."""
        return [file for entry in self.entries for file in entry.files]

    def index(self, version: int, file: int = 0) -> int:
        """The number of a file of a version among all files."""
        return self._bases[version - self.first] + file

    def place(self, index: int) -> tuple[int, int]:
        """The version and number of a file. Commits without files are passed."""
        at = bisect_right(self._bases, index) - 1
        return self.first + at, index - self._bases[at]

    def whole(self, index: int, offset: int) -> int | None:
        """The end of the commit, if a place is within one that may not be cut; else None."""
        version, file = self.place(index)
        entry = None if version == self.end else self.entries[version - self.first]
        return None if entry is None or not entry.is_whole or not (file or offset) else self.index(version + 1)

    def unread(self, version: int, file: int) -> tuple[int, int, float]:
        """Commits with files from a place on, their bytes, and when the oldest was written.

        In seconds since 1970; infinity if no time is known.
        """
        rest = self.entries[version - self.first :]
        left = [entry.files[file if i == 0 else 0 :] for i, entry in enumerate(rest)]
        count = sum(bool(files) for files in left)
        times = [entry.time_ms for entry, files in zip(rest, left, strict=True) if files and entry.time_ms is not None]
        return count, sum(f.size for files in left for f in files), min(times) / 1000 if times else math.inf
