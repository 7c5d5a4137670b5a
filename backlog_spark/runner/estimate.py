"""Estimates the progress of a backlog, including the running batch. For display only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.runner.query_progress import QueryTracker
    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["SourceRows", "backlog_rows", "backlog_sources", "rows_before"]


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


def rows_before(checkpoint: Checkpoint) -> int:
    """Rows of the backlog that earlier processes have committed, as the sources count them."""
    committed = checkpoint.latest_committed()
    return 0 if committed is None else _sums(checkpoint.offsets(committed))[0]


def backlog_rows(spark: SparkSession, checkpoint: Checkpoint, tracker: QueryTracker) -> tuple[float, int]:
    """Rows of the backlog read so far, and the sources' estimate of all its rows (0: unknown)."""
    committed, total = tracker.backlog_rows, tracker.progress.backlog_total or 0
    newest = checkpoint.latest_batch()
    if newest is None or newest <= tracker.last_batch:
        return float(committed), total
    planned = _sums(checkpoint.offsets(newest))
    at_start = _sums(checkpoint.offsets(newest - 1)) if newest else (0, 0)
    return committed + (planned[0] - at_start[0]) * _share_of_tasks(spark), planned[1] or total


def backlog_sources(spark: SparkSession, checkpoint: Checkpoint, tracker: QueryTracker) -> list[SourceRows]:
    """The same for each source that is in backlog."""
    flags = tracker.coordinator.flags
    declared = {number: name for number, name in tracker.coordinator.names.items() if flags.get(number)}
    newest = checkpoint.latest_batch()
    if newest is None:
        return [SourceRows(name, 0.0, 0) for name in declared.values()]
    is_running = newest > tracker.last_batch and newest != checkpoint.latest_committed()
    share = _share_of_tasks(spark) if is_running else 1.0
    planned, at_start = checkpoint.offsets(newest) or [], (checkpoint.offsets(newest - 1) or []) if newest else []
    found = []
    for index, name in declared.items():
        (rows, total), (before, _) = _sums(planned[index : index + 1]), _sums(at_start[index : index + 1])
        found.append(SourceRows(name, before + (rows - before) * share, total))
    return found


def _share_of_tasks(spark: SparkSession) -> float:
    """The finished share of the running batch: finished tasks of its widest stage."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(s) for s in tracker.getActiveStageIds()]
    widest = max((s for s in stages if s), key=lambda s: s.numTasks, default=None)
    return widest.numCompletedTasks / widest.numTasks if widest and widest.numTasks else 0.0


def _sums(offsets: list[dict[str, Any] | None] | None) -> tuple[int, int]:
    """Rows planned and rows in all, over the sources that report them."""
    known = [o for o in offsets or [] if o]
    return sum(_whole(o.get("rows")) for o in known), sum(_whole(o.get("total")) for o in known)


def _whole(value: Any) -> int:
    """The value if it is an int, else 0: a foreign source may use the same key for something else."""
    return value if type(value) is int else 0
