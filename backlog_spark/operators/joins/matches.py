"""Finds rows of two sides with the same key and close times, without comparing each pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from backlog_spark.operators.sides import LEFT
from backlog_spark.state.keys import order_of

__all__ = ["Matches", "shifted"]


@dataclass(frozen=True)
class Matches:
    """The matches of each left row: a run of right rows, which are sorted by key and time.

    Parameters
    ----------
    lefts, rights : numpy.ndarray
        Indices of rows.
    first, end : numpy.ndarray
        For each of ``lefts``: begin and end of its run in ``rights``.
    """

    lefts: np.ndarray
    rights: np.ndarray
    first: np.ndarray
    end: np.ndarray

    @classmethod
    def of(
        cls, lefts: np.ndarray, rights: np.ndarray, code: np.ndarray, time: np.ndarray, lower: int, upper: int
    ) -> Matches:
        """Combines key and time in one number. It uses the rank of the time: distant times would overflow.

        ``time``, ``lower`` and ``upper`` have the same unit.
        """
        times, rank = np.unique(time[rights], return_inverse=True)
        width = len(times) + 1
        key_and_time = code[rights] * width + rank
        order = order_of(key_and_time)
        key_and_time, base, own = key_and_time[order], code[lefts] * width, time[lefts]
        first = np.searchsorted(key_and_time, base + np.searchsorted(times, shifted(own, lower), "left"))
        end = np.searchsorted(key_and_time, base + np.searchsorted(times, shifted(own, upper), "right"))
        return cls(lefts, rights[order], first, end)

    def mark(self, matched: np.ndarray) -> None:
        """Set it for all rows that have a match."""
        some = self.end > self.first
        matched[self.lefts[some]] = True
        matched[self.rights[self._begun(some) > 0]] = True

    def counts(self, side: int, size: int) -> np.ndarray:
        """The number of matches of each row, for the ``size`` rows of one side."""
        found = np.zeros(size, dtype=np.int64)
        if side == LEFT:
            found[self.lefts] = self.end - self.first
        else:
            found[self.rights] = self._begun(np.ones(len(self.lefts), dtype=bool))
        return found

    def _begun(self, some: np.ndarray) -> np.ndarray:
        """For each of ``rights``: the number of runs of these left rows that contain it."""
        size = len(self.rights) + 1
        begun = np.bincount(self.first[some], minlength=size) - np.bincount(self.end[some], minlength=size)
        found: np.ndarray = np.cumsum(begun)[:-1]
        return found

    def pieces(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Indices of the left and right rows of all pairs, at most ``size`` pairs at a time."""
        ends = np.cumsum(self.end - self.first)
        offsets = self.end - ends
        total = int(ends[-1]) if len(ends) else 0
        for start in range(0, total, size):
            numbers = np.arange(start, min(start + size, total))
            of = np.searchsorted(ends, numbers, "right")
            yield self.lefts[of], self.rights[numbers + offsets[of]]


def shifted(times: np.ndarray, more: int) -> np.ndarray:
    """Sums that stop at the least and the greatest number of 64 bits."""
    found: np.ndarray = np.minimum(times, 2**63 - 1 - more) if more > 0 else np.maximum(times, -(2**63) - more)
    return found + more
