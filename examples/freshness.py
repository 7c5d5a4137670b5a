"""Freshness of a Delta table: time from a change at the source to the commit with it, from the table's log (pure)."""

from __future__ import annotations

import bisect
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backlog_spark.tools.history import percentile

__all__ = ["Commit", "freshness", "gaps", "greatest", "percentile", "read_log", "waits"]


@dataclass(frozen=True)
class Commit:
    """A version of a Delta table.

    Parameters
    ----------
    at : float
        When its file in the log was written, in seconds since 1970.
    files : sequence of dict
        The ``add`` actions with new rows. Those that only rewrite rows, as in OPTIMIZE, are missing.
    """

    at: float
    files: Sequence[dict[str, Any]]


def read_log(table: Path) -> list[Commit]:
    """All versions of a table on a local disk, oldest first."""
    commits = []
    for file in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        added = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
        commits.append(Commit(file.stat().st_mtime, added))
    return commits


def greatest(commit: Commit, column: str) -> Any:
    """The greatest value of a column in the files' statistics, or None. A time is a text."""
    stats = [json.loads(file.get("stats") or "{}").get("maxValues", {}).get(column) for file in commit.files]
    return max((value for value in stats if value is not None), default=None)


def waits(commits: Iterable[tuple[float, Any]], changes: Iterable[tuple[Any, float]]) -> list[float]:
    """Seconds from each change to the first commit with it. Changes that are in no commit are skipped.

    Parameters
    ----------
    commits : iterable of (float, mark)
        Time, oldest first, and the newest change in it; None if there is none. A commit has all changes up to its
        newest one, because a micro-batch is a range of the source. A newest change that is older than that of an
        earlier commit comes from rewritten files and is ignored.
    changes : iterable of (mark, float)
        A change's mark, which grows with each transaction, and the time of its commit.

    Examples
    --------
    >>> waits([(10.0, 1), (12.0, 1), (14.0, 3)], [(1, 9.5), (2, 11.0), (3, 13.0), (4, 13.5)])
    [0.5, 3.0, 1.0]
    """
    times: list[float] = []
    marks: list[Any] = []
    for at, mark in commits:
        if mark is not None and (not marks or mark > marks[-1]):
            times.append(at)
            marks.append(mark)
    found = ((bisect.bisect_left(marks, mark), at) for mark, at in changes)
    return [times[index] - at for index, at in found if index < len(times)]


def gaps(times: Sequence[float]) -> list[float]:
    """Seconds from each time to the next."""
    return [after - before for before, after in itertools.pairwise(times)]


def freshness(commits: Iterable[Commit], column: str, changed: Iterable[datetime], since: float) -> str:
    """How long after their change rows were in the table, as a sentence.

    Parameters
    ----------
    commits : iterable of Commit
    column : str
        The column with the time of a row's last change.
    changed : iterable of datetime
        That column of the table's rows, in UTC without a zone.
    since : float
        Only rows and commits from this time on count, in seconds since 1970.
    """

    def milliseconds(time: datetime) -> int:  # statistics have milliseconds
        return int(time.timestamp() * 1000)

    marks: list[tuple[float, int | None]] = []
    for commit in commits:
        newest = greatest(commit, column)
        marks.append((commit.at, None if newest is None else milliseconds(datetime.fromisoformat(newest))))
    zoned = (time.replace(tzinfo=UTC) for time in changed)
    waited = waits(marks, [(milliseconds(t), t.timestamp()) for t in zoned if t.timestamp() >= since])
    between = gaps([at for at, newest in marks if at >= since and newest is not None])
    if not waited or not between:
        return "Freshness after the switch: too few commits to tell"
    return (
        f"Freshness after the switch: {statistics.median(waited):.1f} s from a change in MySQL to the commit in Delta "
        f"in the median, {percentile(waited, 95):.1f} s for 95 %; a commit every {statistics.median(between):.1f} s"
    )
