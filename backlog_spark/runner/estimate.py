"""Counts the rows of a backlog, and estimates those of the running batch and what is left. For display only.

Committed rows are counted: Spark reports them with each batch. A source's offset has its own number of them, which may
be an estimate. It counts only where there is no report: for the running batch, and after a restart for batches that are
not in the event log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backlog_spark.common.figures import rows_left
from backlog_spark.runner.event_log import counted_rows

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


def rows_before(checkpoint: Checkpoint) -> tuple[int, dict[int, int]]:
    """Rows of the backlog that earlier processes have committed, of all sources and of each.

    The event log has the counted rows of all. It may lack the newest batches of a process that was killed.
    """
    committed = checkpoint.latest_committed()
    if committed is None:
        return 0, {}
    offsets = checkpoint.offsets(committed) or []
    of_sources = {index: _rows(offsets[index : index + 1]) for index in range(len(offsets))}
    every = sum(of_sources.values())
    batch, counted = counted_rows(checkpoint, committed) or (None, 0)
    then = None if batch is None else checkpoint.offsets(batch)
    if then is None:
        return every, of_sources
    every = counted + max(0, every - _rows(then))
    reporting = [index for index, rows in of_sources.items() if rows]
    return every, {**of_sources, **({reporting[0]: every} if len(reporting) == 1 else {})}


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
        batch, left = _rows(planned) - _rows(at_start), _left(planned)
        return committed + batch * self._share(newest), total if left is None else committed + batch + left

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
            of_source, before = planned[index : index + 1], at_start[index : index + 1]
            batch = _rows(of_source) - _rows(before) if newest > self._tracker.last_batch else 0
            counted, left = self._tracker.backlog_rows_of(index), _left(of_source)
            found.append(SourceRows(name, counted + batch * share, 0 if left is None else counted + batch + left))
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


def _left(offsets: _Offsets) -> int | None:
    """Rows that are in no batch yet, over the sources that report them; None if none does."""
    known = [o for o in offsets if o and type(o.get("total")) is int]
    waiting = [o for o in known if o.get("isProcessingBacklog") is not False]
    return sum(max(0, o["total"] - _whole(o.get("rows"))) for o in waiting) if known else None


def _rows(offsets: _Offsets) -> int:
    """Planned rows, over the sources that report them."""
    return sum(_whole(o.get("rows")) for o in offsets if o)


def _whole(value: Any) -> int:
    """The value if it is an int, else 0: a foreign source may use the same key for something else."""
    return value if type(value) is int else 0
