"""The figures about a query (pure). Its handle, progress line, metrics, event log and report all compute them here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

__all__ = ["Phase", "freshness_s", "phase", "recent_rate", "rows_left", "seconds_left", "whole_rate", "work_ms"]

Phase = Literal["backlog", "live", "empty"]

_RATE_OVER_S = 60.0
"""A running batch's rate is that of so many seconds: its tasks end in groups, so a shorter time varies too much."""


def phase(rows: int, is_backlog: bool) -> Phase:
    """What a committed batch counts as. One without rows is of neither phase."""
    if not rows:
        return "empty"
    return "backlog" if is_backlog else "live"


def work_ms(duration_ms: Mapping[str, int], is_backlog: bool) -> int:
    """Milliseconds that a batch worked, at least 1. A live source may have waited for rows in ``latestOffset``.

    Parameters
    ----------
    duration_ms : mapping of str to int
        Spark's phases of the batch, such as ``triggerExecution``.
    is_backlog : bool
        Of the batch's rows. A source in backlog never waits.

    Examples
    --------
    >>> work_ms({"triggerExecution": 1_000, "latestOffset": 900}, is_backlog=False)
    100
    """
    waited = 0 if is_backlog else duration_ms.get("latestOffset", 0)
    return max(1, duration_ms.get("triggerExecution", 1) - waited)


def recent_rate(samples: Sequence[tuple[float, float]]) -> float:
    """Rows per second of a running batch over the newest minute; 0.0 without a row in it.

    Parameters
    ----------
    samples : sequence of (float, float)
        Seconds, and the rows that were read until then. Oldest first.

    Examples
    --------
    >>> recent_rate([(0.0, 0), (100.0, 5_000), (130.0, 8_000)])
    100.0
    """
    return whole_rate([sample for sample in samples if sample[0] > samples[-1][0] - _RATE_OVER_S])


def whole_rate(samples: Sequence[tuple[float, float]]) -> float:
    """The same over the whole time. The tasks of a large batch may end less than once a minute."""
    if len(samples) < 2:
        return 0.0
    (began, first), (ended, last) = samples[0], samples[-1]
    return max(0.0, last - first) / (ended - began) if ended > began else 0.0


def rows_left(rows: float, total: int | None) -> int | None:
    """Rows of a backlog that are not read yet; 0 if the estimate of all was too low, None without one."""
    return None if total is None else max(0, total - round(rows))


def seconds_left(left: int | None, rate: float) -> float | None:
    """Time until a backlog ends, at a rate in rows per second; None if unknown."""
    if left == 0:
        return 0.0
    return left / rate if left and rate > 0 else None


def freshness_s(committed_ms: float, written_ms: float) -> float:
    """Seconds from a row's commit at the source until the target had it. Clocks may differ, but it is at least 0."""
    return max(0.0, (written_ms - committed_ms) / 1000)
