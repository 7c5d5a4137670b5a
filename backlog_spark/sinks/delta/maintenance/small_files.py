"""Decides which small files of a Delta table to merge, when, and within which budget. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["TARGET_SIZE", "DataFile", "TimeShare", "merges", "tiers"]

TARGET_SIZE: Final = 64 << 20
"""Files are merged up to this size in bytes; the table's ``delta.targetFileSize`` overrides it."""

_SMALLEST_TIER: Final = 128 << 10
_TIER_RATIO: Final = 16
# More than the ratio of two tiers: so many files of one tier make a file of the next tier, even if merging shrinks them
# by a third. So no row is rewritten more than once per tier: three times from 10 kB to 64 MB.
_ENOUGH: Final = 24


@dataclass(frozen=True)
class DataFile:
    """A file of the table's newest version.

    Parameters
    ----------
    path : str
        As in the table's log.
    size : int
        In bytes.
    partition : hashable
        Values of the partition columns.
    """

    path: str
    size: int
    partition: Hashable = ()


def tiers(target_size: int = TARGET_SIZE) -> tuple[int, ...]:
    """Upper bounds of file sizes in bytes, ascending. Files of at least half of `target_size` are in no tier."""
    sizes = [max(1, target_size // 2)]
    while sizes[0] // _TIER_RATIO >= _SMALLEST_TIER:
        sizes.insert(0, sizes[0] // _TIER_RATIO)
    return tuple(sizes)


def merges(
    files: Iterable[DataFile], target_size: int = TARGET_SIZE, *, enough: int = _ENOUGH, most_bytes: int | None = None
) -> list[list[DataFile]]:
    """What to merge next: each list becomes one file. All lists go into one commit.

    A partition is due when it has `enough` files of one tier. Smaller tiers come first, as they remove more files per
    byte; then partitions with more files.

    Parameters
    ----------
    files : iterable of DataFile
        All files of the table, oldest first. Neighbours are merged, so a file's rows stay close in time.
    target_size : int
        Maximum bytes of one list.
    enough : int
        At least 2.
    most_bytes : int, optional
        Maximum bytes of all lists together, `target_size` by default; two files are always allowed. The rest waits for
        the next call.

    Returns
    -------
    list of list of DataFile
        Empty if nothing is due.
    """
    budget = target_size if most_bytes is None else most_bytes
    bounds = tiers(target_size)
    groups: dict[tuple[int, Hashable], list[DataFile]] = {}
    for file in files:
        tier = next((bound for bound in bounds if file.size < bound), None)
        if tier is not None:
            groups.setdefault((tier, file.partition), []).append(file)
    due = [(tier, -len(group), group) for (tier, _), group in groups.items() if len(group) >= enough]
    found: list[list[DataFile]] = []
    for _, _, group in sorted(due, key=lambda one: one[:2]):
        for merge in _cut(group, target_size):
            size = sum(file.size for file in merge)
            if size > budget and found:
                return found
            found.append(merge)
            budget -= size
    return found


def _cut(files: Iterable[DataFile], target_size: int) -> Iterator[list[DataFile]]:
    """Runs of neighbours up to the target size. Runs of one file are left out."""
    run: list[DataFile] = []
    size = 0
    for file in files:
        if run and size + file.size > target_size:
            if len(run) > 1:
                yield run
            run, size = [], 0
        run.append(file)
        size += file.size
    if len(run) > 1:
        yield run


class TimeShare:
    """Limits work to a share of the time: after a second of work, no work starts for `1 / share` seconds.

    Parameters
    ----------
    share : float
        Greater than 0, at most 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._free_at: float | None = None

    def allows(self, now: float) -> bool:
        """Whether work may start at `now`, in seconds of a clock that never goes back."""
        return self._free_at is None or now >= self._free_at

    def spent(self, began: float, ended: float) -> None:
        """Note completed work."""
        self._free_at = began + (ended - began) / self._share
