"""Decides which small files of a Delta table are merged, when, and within which budget. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["TARGET_SIZE", "DataFile", "TimeShare", "merges", "tiers"]

TARGET_SIZE: Final = 64 << 20
"""Files are merged up to this size in bytes; the table's ``delta.targetFileSize`` overrides it."""

_SMALLEST_TIER: Final = 128 << 10
_TIER_RATIO: Final = 16
# More than the ratio: so many files of one tier make a file of the next one, even if they shrink by a third when they
# are one. Then no row is rewritten more than once a tier: three times from 10 kB to 64 MB.
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
    """Upper bounds of file sizes in bytes, ascending; a file from half of `target_size` on is in none."""
    sizes = [max(1, target_size // 2)]
    while sizes[0] // _TIER_RATIO >= _SMALLEST_TIER:
        sizes.insert(0, sizes[0] // _TIER_RATIO)
    return tuple(sizes)


def merges(
    files: Iterable[DataFile], target_size: int = TARGET_SIZE, *, enough: int = _ENOUGH, most_bytes: int | None = None
) -> list[list[DataFile]]:
    """What to merge next: each list becomes one file, all of them in one commit.

    A partition is due when it has `enough` files of one tier. Smaller tiers come first, as they take more files away
    for a byte; then partitions with more files.

    Parameters
    ----------
    files : iterable of DataFile
        All files of the table, oldest first: neighbours are merged, so a file's rows stay close in time.
    target_size : int
        No list is larger, in bytes.
    enough : int
        At least 2.
    most_bytes : int, optional
        All lists together are not larger, unless two files are; `target_size` by default. The rest waits for the next
        call.

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
    """Runs of neighbours up to the target; a single file is not rewritten."""
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
    """Keeps work to a share of the time: after a second of work, `1 / share` seconds pass before there is more.

    Parameters
    ----------
    share : float
        Above 0, 1 at most.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._free_at: float | None = None

    def allows(self, now: float) -> bool:
        """Whether there is time for work at `now`, in seconds of a clock that never goes back."""
        return self._free_at is None or now >= self._free_at

    def spent(self, began: float, ended: float) -> None:
        """Note work that was done."""
        self._free_at = began + (ended - began) / self._share
