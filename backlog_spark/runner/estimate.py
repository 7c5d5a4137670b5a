"""Estimates the progress of a backlog, including the running batch. For display only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backlog_spark.common.figures import rows_left

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.runner.query_progress import QueryTracker
    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["BacklogEstimate", "SourceRows", "rows_before"]

_Offsets = list[dict[str, Any] | None]


@dataclass(frozen=True)
class SourceRows:
    """Rows of one source's backlog.

    Parameters
    ----------
    name : str
    rows : float
        Rows read so far, including the finished share of the running batch.
    total : int
        An estimate of all its rows; 0 if unknown.
    """

    name: str
    rows: float
    total: int

    @property
    def left(self) -> int | None:
        """Rows that are not read yet; None if unknown."""
        return rows_left(self.rows, self.total or None)


def rows_before(checkpoint: Checkpoint) -> int:
    """Rows of the backlog that earlier processes have committed, as the sources count them."""
    committed = checkpoint.latest_committed()
    return 0 if committed is None else _sums(checkpoint.offsets(committed) or [])[0]


class BacklogEstimate:
    """Estimates how far the backlog of one query is. Any thread may ask.

    Parameters
    ----------
    spark : SparkSession
    checkpoint : Checkpoint
    tracker : QueryTracker
        The query's.
    """

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint, tracker: QueryTracker) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._tracker = tracker
        # The newest batch and how often the query had failed before; the share. One value, as any thread may set it.
        self._finished = ((-1, 0), 0.0)

    def of_all(self) -> tuple[float, int]:
        """Rows of the backlog read so far, and the sources' estimate of all its rows (0: unknown)."""
        committed, total = self._tracker.backlog_rows, self._tracker.backlog_total or 0
        newest = self._checkpoint.latest_batch()
        if newest is None or newest <= self._tracker.last_batch:
            return float(committed), total
        planned, at_start = self._offsets(newest)
        (rows, of_sources), (before, _) = _sums(planned), _sums(at_start)
        return committed + (rows - before) * self._share(newest), of_sources or total

    def of_sources(self) -> list[SourceRows]:
        """The same for each source that is in backlog."""
        coordinator = self._tracker.coordinator
        flags = coordinator.flags
        declared = {number: name for number, name in coordinator.names.items() if flags.get(number)}
        newest = self._checkpoint.latest_batch()
        if newest is None:
            return [SourceRows(name, 0.0, 0) for name in declared.values()]
        share = self._share(newest)
        planned, at_start = self._offsets(newest)
        found = []
        for index, name in declared.items():
            (rows, total), (before, _) = _sums(planned[index : index + 1]), _sums(at_start[index : index + 1])
            found.append(SourceRows(name, before + (rows - before) * share, total))
        return found

    def _offsets(self, newest: int) -> tuple[_Offsets, _Offsets]:
        """The sources' offsets at the end and at the start of the newest batch."""
        return self._checkpoint.offsets(newest) or [], (self._checkpoint.offsets(newest - 1) or []) if newest else []

    def _share(self, newest: int) -> float:
        """The finished share of the newest batch: finished tasks of its widest stage.

        It never shrinks within an attempt: later stages of a batch start at 0 again.
        """
        if newest <= self._tracker.last_batch or newest == self._checkpoint.latest_committed():
            return 1.0
        attempt = (newest, self._tracker.progress.restarts)
        known, before = self._finished
        share = max(before if known == attempt else 0.0, self._share_of_tasks())
        self._finished = attempt, share
        return share

    def _share_of_tasks(self) -> float:
        status = self._spark.sparkContext.statusTracker()
        stages = [status.getStageInfo(s) for s in status.getActiveStageIds()]
        widest = max((s for s in stages if s), key=lambda s: s.numTasks, default=None)
        return widest.numCompletedTasks / widest.numTasks if widest and widest.numTasks else 0.0


def _sums(offsets: _Offsets) -> tuple[int, int]:
    """Rows planned and rows in all, over the sources that report them."""
    known = [o for o in offsets if o]
    return sum(_whole(o.get("rows")) for o in known), sum(_whole(o.get("total")) for o in known)


def _whole(value: Any) -> int:
    """The value if it is an int, else 0: a foreign source may use the same key for something else."""
    return value if type(value) is int else 0
