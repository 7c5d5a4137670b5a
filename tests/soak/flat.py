"""The rule by which a figure is flat: its line over the judged time rises little, by percent or in absolute terms."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WARM_UP = 0.4
"""Part of a driver's life that is not judged: caches, the JIT and Spark's queues of the last 100 batches fill."""
PERCENT_AN_HOUR = 10.0
LEAST_POINTS = 10
# A line through all pairs of points; more than so many take long and tell nothing more.
_MOST_POINTS = 300
_NEAR_ZERO = 1e-6

Point = tuple[float, float]


@dataclass(frozen=True)
class Verdict:
    """The line through a series.

    Parameters
    ----------
    first, last : float
        Where the line begins and ends.
    rise_an_hour : float
        In the series' unit.
    percent_an_hour : float
        Of the line's beginning.
    is_flat : bool or None
        None: too few points.
    """

    first: float
    last: float
    rise_an_hour: float
    percent_an_hour: float
    is_flat: bool | None


def judge(points: Sequence[Point], least: float) -> Verdict:
    """Whether a series is flat.

    The line is Theil and Sen's: its slope is the median of the slopes of all pairs of points, so that a process that
    was killed and begins small, or a short peak, hardly moves it.

    Parameters
    ----------
    points : sequence of (seconds, value)
        Of the judged time only.
    least : float
        A rise of less than this over the whole judged time is flat, whatever it would be in percent of an hour.

    Returns
    -------
    Verdict
    """
    step = -(-len(points) // _MOST_POINTS) or 1
    chosen = points[::step]
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in itertools.combinations(chosen, 2) if t > s]
    if len(points) < LEAST_POINTS or not slopes:
        value = points[-1][1] if points else 0.0
        return Verdict(value, value, 0.0, 0.0, None)
    slope = statistics.median(slopes)
    middle = statistics.median(value - slope * at for at, value in chosen)
    first, last = middle + slope * points[0][0], middle + slope * points[-1][0]
    an_hour = slope * 3600
    # A line that begins near zero rises by no percentage that could be judged.
    percent = 100 * an_hour / first if first > _NEAR_ZERO else math.copysign(math.inf, slope) if slope else 0.0
    return Verdict(first, last, an_hour, percent, percent < PERCENT_AN_HOUR or last - first < least)


def judged(points: Sequence[Point], begin: float, end: float, settles_s: float = 0.0) -> list[Point]:
    """The points of a life from ``begin`` to ``end`` without its warm-up, which takes at least ``settles_s``."""
    begin += max((end - begin) * WARM_UP, settles_s)
    return [point for point in points if begin <= point[0] <= end]
