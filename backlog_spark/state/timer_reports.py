"""What key groups report to the driver of their timers, and how much a batch may fire.

Flink looks at a flag between two timers. Here a batch that is replayed must fire the same ones, as its output may have
been written already: so what it may fire is a number, measured before and kept in Spark's offset log.

Source: FLIP-443.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark.accumulators import AccumulatorParam

from backlog_spark.state.store import NEVER

__all__ = ["FiringBudget", "GroupReport", "GroupReports", "Report"]

# For each key group, before anything was measured: with 16 groups a core and a slow function of 1 ms it is 1.6 s.
_FIRST_BUDGET: Final = 100
# A measured batch counts so much; the others may have been slow for other reasons.
_NEWEST_SHARE: Final = 0.5


class GroupReport(NamedTuple):
    """What one key group of an operator says of a batch.

    Parameters
    ----------
    watermark : int
        Up to which event-time timers are due.
    next_event, next_processing : int
        When the first timer that is left is due.
    partition : int
        Of which task it was.
    late : int
        Rows that came behind the watermark and went nowhere.
    fired : int
        Timers that fired.
    seconds : float
        What they took, or the whole group in the batches where some did.
    """

    watermark: int
    next_event: int = NEVER
    next_processing: int = NEVER
    partition: int = 0
    late: int = 0
    fired: int = 0
    seconds: float = 0.0

    @property
    def is_firing(self) -> bool:
        """Whether timers of the watermark are left."""
        return self.next_event <= min(self.watermark, NEVER - 1)

    def after(self, earlier: GroupReport) -> GroupReport:
        """With what was counted before."""
        return self._replace(
            late=self.late + earlier.late, fired=self.fired + earlier.fired, seconds=self.seconds + earlier.seconds
        )


Report = dict[tuple[str, int], GroupReport]
"""By operator and key group."""


class GroupReports(AccumulatorParam[Report]):
    """The newest report of each key group, with late rows, fired timers and seconds added up."""

    def zero(self, value: Report) -> Report:
        return {}

    def addInPlace(self, value1: Report, value2: Report) -> Report:
        for group, report in value2.items():
            earlier = value1.get(group)
            value1[group] = report if earlier is None else report.after(earlier)
        return value1


class FiringBudget:
    """How many timers each key group of one operator may fire in a batch.

    Parameters
    ----------
    max_firing_ms : int
        How long a task may fire, in milliseconds.
    key_groups, tasks : int
        How many key groups there are, and tasks.
    """

    def __init__(self, max_firing_ms: int, key_groups: int, tasks: int) -> None:
        self._seconds = max_firing_ms / 1000
        self._key_groups = key_groups
        self._tasks = tasks
        self._cost: float | None = None
        self._counted = (0, 0.0)

    def of(self, reports: Mapping[int, GroupReport]) -> int:
        """The budget of the next batch, from all reports so far by key group; 1 or more."""
        fired = sum(report.fired for report in reports.values())
        seconds = sum(report.seconds for report in reports.values())
        counted, self._counted = self._counted, (fired, seconds)
        if fired > counted[0] and seconds > counted[1]:
            newest = (seconds - counted[1]) / (fired - counted[0])
            self._cost = newest if self._cost is None else _NEWEST_SHARE * newest + (1 - _NEWEST_SHARE) * self._cost
        if self._cost is None:
            return _FIRST_BUDGET
        # The task with most groups that have something to fire decides.
        firing = Counter(report.partition for report in reports.values() if report.is_firing)
        groups = max(firing.values(), default=-(-self._key_groups // self._tasks))
        return max(1, int(self._seconds / self._cost / groups))
