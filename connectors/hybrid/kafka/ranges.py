"""Decides how much of each partition a batch reads, and how its tasks share it (pure).

Source: Spark's KafkaMicroBatchStream.rateLimit and KafkaOffsetRangeCalculator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .offsets import Partition

__all__ = ["Range", "limited", "split"]


@dataclass(frozen=True)
class Range:
    """Offsets of a partition from ``start`` on, before ``until``."""

    partition: Partition
    start: int
    until: int

    @property
    def size(self) -> int:
        """Number of offsets. There may be fewer records."""
        return self.until - self.start


def limited(start: Mapping[Partition, int], latest: Mapping[Partition, int], rows: int | None) -> dict[Partition, int]:
    """Where a batch ends in each partition of ``start``.

    With a limit, each partition's share is proportional to its unread offsets, and at least one if it has any. Shares
    are rounded up, so their sum is at least the limit. Spark rounds them down.

    Parameters
    ----------
    start, latest : mapping
        For each partition the next offset to read, and the one after the last. If a log ends before ``start``, the
        batch has nothing of it.
    rows : int or None
        About this many offsets in all; None for all.
    """
    sizes = {p: max(0, latest.get(p, offset) - offset) for p, offset in start.items()}
    total = sum(sizes.values())
    if rows is None or total <= rows:
        return {p: start[p] + size for p, size in sizes.items()}
    return {p: start[p] + min(size, -(-rows * size // total)) for p, size in sizes.items()}


def split(ranges: Sequence[Range], least: int | None) -> list[Range]:
    """Cut ranges into about ``least`` pieces, if it is given. Large ranges get more pieces, small ones stay whole.

    Ranges keep their order. Empty ones are dropped.
    """
    ranges = [r for r in ranges if r.size > 0]
    if least is None or len(ranges) >= least:
        return ranges
    total = sum(r.size for r in ranges)
    # Ranges that stay whole are counted first. The others share the rest of the wanted number.
    whole = {r.partition for r in ranges if _pieces(r.size, total, least) == 1}
    large = sum(r.size for r in ranges if r.partition not in whole)
    wanted = max(least - len(whole), 1)
    found: list[Range] = []
    for r in ranges:
        found += [r] if r.partition in whole else _cut(r, _pieces(r.size, large, wanted))
    return found


def _pieces(size: int, total: int, wanted: int) -> int:
    # Rounds half up, as Java's Math.round does. Python rounds half to even.
    return max(1, (2 * size * wanted + total) // (2 * total))


def _cut(whole: Range, pieces: int) -> list[Range]:
    found: list[Range] = []
    start, left = whole.start, whole.size
    for index in range(pieces):
        size = left // (pieces - index)
        left -= size
        if size:
            found.append(Range(whole.partition, start, start + size))
        start += size
    return found
