"""The part of a query's handle that works like Spark's ``StreamingQuery``, over all runs of the query."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from backlog_spark.common.familiar_names import HANDLE, Guided
from backlog_spark.common.figures import rows_left
from backlog_spark.decide.steps import Mode
from backlog_spark.runner.interrupts import ending_on_interrupt
from backlog_spark.runner.query_progress import BacklogProgress, QueryTracker, Switch

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from pyspark.sql.streaming import StreamingQuery

    from backlog_spark.runner.estimate import SourceRows

__all__ = ["JobStatus", "QueryHandle"]


class JobStatus(StrEnum):
    """Status of a query, with Flink's names."""

    RUNNING = "RUNNING"
    """The query runs, or will be restarted after a failure."""
    FINISHED = "FINISHED"
    """The query reached the end of its input and committed all of it."""
    CANCELED = "CANCELED"
    """The query was stopped, by its own ``stop`` or through Spark."""
    FAILED = "FAILED"
    """The query failed, and restarts did not help."""


class QueryHandle(Guided, ABC):
    """Offers what a ``StreamingQuery`` offers, and the backlog's state. `BacklogQuery` is the only subclass."""

    _habits = HANDLE
    _name: str
    _tracker: QueryTracker
    _ended: threading.Event
    _stopping: threading.Event
    _ending: threading.Event
    _failure: BaseException | None
    _show: str
    _summary: str

    @property
    @abstractmethod
    def streamingQuery(self) -> StreamingQuery:
        """Spark's own handle of the present run; another one after a restart."""

    @property
    @abstractmethod
    def backlogRowsCommitted(self) -> int:
        """Committed rows of the backlog."""

    @abstractmethod
    def backlogRows(self) -> tuple[float, int]:
        """Rows of the backlog read so far, including those of the batch under way, and an estimate of all its rows."""

    @abstractmethod
    def backlogSources(self) -> Sequence[SourceRows]:
        """The same for each source that is in backlog."""

    # -- the backlog's state --------------------------------------------------------------------------------

    @property
    def isProcessingBacklog(self) -> bool:
        """Whether any running source reports backlog, as of the last reported batch."""
        with self._tracker.lock:
            return self._tracker.coordinator.is_processing_backlog

    @property
    def mode(self) -> Mode:
        """``Mode.BACKLOG`` or ``Mode.STREAM``; always the latter with the interval during backlog unset."""
        with self._tracker.lock:
            return self._tracker.coordinator.mode

    @property
    def history(self) -> tuple[Switch, ...]:
        """The mode at the start and every switch since, in this process."""
        return self._tracker.history

    @property
    def backlogProgress(self) -> BacklogProgress:
        """Rows, commits and restarts so far."""
        return self._tracker.progress

    @property
    def showsProgress(self) -> bool:
        """Whether it prints its progress and its end itself: ``spark.backlog.progress`` is not off."""
        return self._show != "off" and sys.stderr is not None  # a program without a console has none

    @property
    def summary(self) -> str:
        """One line about what the query has done, after its end: rows, commits, time, targets. Empty while it runs."""
        return self._summary

    # -- what a StreamingQuery offers -----------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Spark's query id: the same for all runs on one checkpoint."""
        return str(self.streamingQuery.id)

    @property
    def runId(self) -> str:
        """Spark's id of the present run."""
        return str(self.streamingQuery.runId)

    @property
    def name(self) -> str:
        """The query's name."""
        return self._name

    @property
    def isActive(self) -> bool:
        """Whether the query runs or is about to be restarted."""
        return not self._ended.is_set()

    @property
    def isEnding(self) -> bool:
        """Whether the query was told to end: it starts no further batch."""
        return self._ending.is_set()

    @abstractmethod
    def stop(self, *, after_batch: bool = False) -> None:
        """Stop the query."""

    @property
    def jobStatus(self) -> JobStatus:
        """Whether the query runs, or how it ended. It ends by itself when all sources have finished (FLIP-147)."""
        if not self._ended.is_set():
            return JobStatus.RUNNING
        if self._failure is not None:
            return JobStatus.FAILED
        return JobStatus.CANCELED if self._stopping.is_set() else JobStatus.FINISHED

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the present run."""
        return dict(self.streamingQuery.status)

    @property
    def lastProgress(self) -> Any:
        """Spark's progress of the last trigger, or None."""
        return self.streamingQuery.lastProgress

    @property
    def recentProgress(self) -> Any:
        """Spark's progress of the last triggers of the present run."""
        return self.streamingQuery.recentProgress

    def exception(self) -> BaseException | None:
        """The error that ended the query. None if it runs, was stopped or reached the end of its input."""
        return self._failure if self._ended.is_set() else None

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends. In the main thread Ctrl-C ends it after its running batch, a second one at once.

        Parameters
        ----------
        timeout : float, optional
            Seconds. Default: no limit.

        Returns
        -------
        bool or None
            With a timeout, whether the query has ended; else None.

        Raises
        ------
        Exception
            The error that the query failed with.
        KeyboardInterrupt
            When the query has ended after Ctrl-C, and not by an error.
        """
        with ending_on_interrupt(self):
            ended = self._ended.wait(timeout)
        if self._failure is not None and ended:
            raise self._failure
        return None if timeout is None else ended

    def __repr__(self) -> str:
        progress, phase = self.backlogProgress, "no backlog"
        if self.isProcessingBacklog:
            left = rows_left(self._tracker.backlog_rows, self._tracker.backlog_total)
            phase = f"backlog rows left: {'unknown' if left is None else f'{left:,}'}"
        rows = f"{progress.rows:,} rows in {progress.commits} commit{'' if progress.commits == 1 else 's'}"
        return f"<{type(self).__name__} {self._name!r} {self.jobStatus}, mode {self.mode}, {phase}; {rows}>"

    def explain(self, extended: bool = False) -> None:
        """Print the plan of the last batch."""
        self.streamingQuery.explain(extended)
