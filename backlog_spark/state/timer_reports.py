"""Key groups' reports about timers to the driver, and the number of timers that a batch may fire.

Flink checks a flag between two timers. Here a replayed batch must fire the same timers, because its output may have
been written already. So the number of timers is fixed before the batch, and is part of Spark's offset log.

Source: FLIP-443.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark.accumulators import AccumulatorParam

from backlog_spark.state.store import NEVER

__all__ = ["FiringBudget", "GroupReport", "GroupReports", "Report"]

# Budget of each key group before the first measurement. With 16 groups a core and 1 ms per timer it takes 1.6 s.
_FIRST_BUDGET: Final = 100
# Weight of the newest measurement. Single batches may be slow for other reasons.
_NEWEST_SHARE: Final = 0.5


class GroupReport(NamedTuple):
    """The report of one key group of an operator after a batch.

    Parameters
    ----------
    watermark : int
        Event-time timers up to this watermark were due.
    next_event, next_processing : int
        When the next remaining timer is due.
    partition : int
        The task's partition.
    late : int
        Late rows that were dropped.
    fired : int
        Number of timers that fired.
    seconds : float
        Time for these timers. In batches where timers fired, it may be the time of the whole group.
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
        """Whether due event-time timers are left."""
        return self.next_event <= min(self.watermark, NEVER - 1)

    def after(self, earlier: GroupReport) -> GroupReport:
        """This report with the totals of an earlier one added."""
        return self._replace(
            late=self.late + earlier.late, fired=self.fired + earlier.fired, seconds=self.seconds + earlier.seconds
        )


Report = dict[tuple[str, int], GroupReport]
"""The reports, by operator and key group."""


class GroupReports(AccumulatorParam[Report]):
    """The newest report of each key group. Late rows, fired timers and seconds are added up."""

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
        Number of key groups, and of tasks.
    """

    def __init__(self, max_firing_ms: int, key_groups: int, tasks: int) -> None:
        self._seconds = max_firing_ms / 1000
        self._key_groups = key_groups
        self._tasks = tasks
        self._cost: float | None = None
        self._counted = (0, 0.0)

    def of(self, reports: Mapping[int, GroupReport]) -> int:
        """The budget of the next batch, at least 1. Takes the newest report of each key group."""
        fired = sum(report.fired for report in reports.values())
        seconds = sum(report.seconds for report in reports.values())
        counted, self._counted = self._counted, (fired, seconds)
        if fired > counted[0] and seconds > counted[1]:
            newest = (seconds - counted[1]) / (fired - counted[0])
            self._cost = newest if self._cost is None else _NEWEST_SHARE * newest + (1 - _NEWEST_SHARE) * self._cost
        if self._cost is None:
            return _FIRST_BUDGET
        # The task with the most groups that have timers to fire decides.
        firing = Counter(report.partition for report in reports.values() if report.is_firing)
        groups = max(firing.values(), default=-(-self._key_groups // self._tasks))
        return max(1, int(self._seconds / self._cost / groups))
