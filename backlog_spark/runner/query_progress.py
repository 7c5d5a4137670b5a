"""Progress of one query: feeds reports to the coordinator and keeps history and counts (pure)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backlog_spark.common.intervals import Intervals
from backlog_spark.common.log_fields import event
from backlog_spark.decide.coordinator import Coordinator, Decision, Mode
from backlog_spark.decide.reports import ProgressReport, SourceReport

if TYPE_CHECKING:
    from backlog_spark.sinks.base import Written

__all__ = ["BacklogProgress", "QueryTracker", "Switch"]

_log = logging.getLogger(__name__)

# Batches that are written before the first of them is reported: Spark's listener bus is up to 1.3 s late.
_UNREPORTED = 256


@dataclass(frozen=True)
class Switch:
    """A change of mode.

    Parameters
    ----------
    batch_id : int
        The first batch of the new mode; -1 for the mode at the start.
    mode : Mode
        The new mode.
    commit_interval_ms : int or None
        Milliseconds from then on; None: no commit until the backlog ends.
    timestamp : float
        Seconds since 1970 at which the runner learned of it.
    why : str
        The reason in words, for example "source orders has left its backlog".
    """

    batch_id: int
    mode: Mode
    commit_interval_ms: int | None
    timestamp: float
    why: str = ""


@dataclass(frozen=True)
class BacklogProgress:
    """Progress of the query, over all its runs in this process.

    Parameters
    ----------
    rows : int
        Rows of committed batches.
    backlog_rows, backlog_total : int, int or None
        Committed rows of the backlog, and an estimate of all its rows if a source gives one.
    rows_per_second : float
        Rate of the last committed batch with rows; 0.0 before the first.
    commits_in_backlog, commits_after : int
        Committed batches with rows, counted by their flag at the start.
    commits_of_flag_only : int
        Committed batches without rows.
    restarts : int
        Restarts after failures.
    direct_commits : int
        Batches that the sink committed from the driver, without Spark.
    last_write : Written or None
        How the main output's newest batch was written and why, if its sink reports it.
    """

    rows: int = 0
    backlog_rows: int = 0
    backlog_total: int | None = None
    rows_per_second: float = 0.0
    commits_in_backlog: int = 0
    commits_after: int = 0
    commits_of_flag_only: int = 0
    restarts: int = 0
    direct_commits: int = 0
    last_write: Written | None = None


class QueryTracker:
    """Follows one query over all its runs in this process. The runner writes; any thread may read.

    Parameters
    ----------
    name : str
        The query's name, for the log.
    intervals : Intervals
    clock : callable
        Seconds since 1970.
    """

    def __init__(self, name: str, intervals: Intervals, clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._clock = clock
        self._coordinator = Coordinator(intervals.interval_ms, intervals.during_backlog_ms)
        self._lock = threading.Lock()
        self._history: list[Switch] = []
        self._progress = BacklogProgress()
        self._last_batch = -1
        self._names: dict[int, str] = {}
        self._warned: set[int] = set()
        self._written: dict[int, float] = {}
        self.rows_before = 0
        """Rows of the backlog that earlier processes have committed. Set once, before the first run."""

    def begin(self, flags: Mapping[int, bool], names: Mapping[int, str] | None = None) -> None:
        """Called once, before any `take`.

        Parameters
        ----------
        flags : mapping of int to bool
            Flags of the declared sources before the first report, by Spark's source number.
        names : mapping of int to str, optional
            Names of the sources, by the same number.
        """
        with self._lock:
            self._names = dict(names or {})
            for index, flag in flags.items():
                self._coordinator.register(index)
                self._coordinator.report(index, flag)
            self._note(self._coordinator.decision, -1, "the mode at the start")

    def take(self, report: ProgressReport) -> bool:
        """Take the report of a committed batch. A batch reported again after a restart is not counted twice.

        Returns
        -------
        bool
            Whether it is the batch's first report.
        """
        with self._lock:
            first_time = report.batch_id > self._last_batch
            self._last_batch = max(self._last_batch, report.batch_id)
            for source in report.sources:
                self._warn_of_mixed_rows(source, report.batch_id)
                self._report(source, report.batch_id)
            if first_time:
                self._count(report)
            return first_time

    def all_read(self, sources: frozenset[int] | None = None) -> None:
        """Called when a run found nothing more to read. These sources, or all, have left backlog."""
        with self._lock:
            for source in self._coordinator.sources:
                if sources is None or source in sources:
                    why = f"{self._source(source)} has no more rows that were there at the start"
                    self._decide(self._coordinator.report(source, False), self._last_batch + 1, why)

    def wrote(self, batch_id: int, written: Written | None) -> None:
        """Called when the main output's sink has written a batch, before Spark commits it."""
        with self._lock:
            self._written = {**dict(list(self._written.items())[-_UNREPORTED:]), batch_id: self._clock()}
            before, direct = self._progress.last_write, written is not None and written.road == "direct"
            self._progress = replace(
                self._progress, last_write=written, direct_commits=self._progress.direct_commits + direct
            )
        if written is not None and (before is None or before.road != written.road):
            _log.info(
                "Query %s: batch %d was written by road %s%s",
                self._name, written.batch_id, written.road, f", because {written.reason}" if written.reason else "",
            )  # fmt: skip

    def written_at(self, batch_id: int) -> float | None:
        """When the main output had a batch, seconds since 1970; None if the query has no sink or the batch is old."""
        with self._lock:
            return self._written.get(batch_id)

    def restarted(self) -> None:
        """Called when the query runs again after a failure."""
        with self._lock:
            self._progress = replace(self._progress, restarts=self._progress.restarts + 1)

    def _warn_of_mixed_rows(self, source: SourceReport, batch_id: int) -> None:
        """Warn once per source if a batch began in backlog, ended after it, and the source takes no read limit."""
        left = source.is_backlog and not source.is_processing_backlog and not source.finished
        if not (left and source.num_input_rows and source.takes_no_limit):
            return
        name = self._names.get(source.index)
        if name is not None and source.index not in self._warned:
            self._warned.add(source.index)
            _log.warning(
                "Query %s: batch %d began in the backlog of source %s and ended after it, and the source takes no "
                "read limit. Live rows of this batch count as backlog. Give the reader latestOffset(start, limit), and "
                "end a batch where the backlog ends (docs/sources.md).",
                self._name, batch_id, name,
            )  # fmt: skip

    def _report(self, source: SourceReport, batch_id: int) -> None:
        name, coordinator = self._source(source.index), self._coordinator
        enters, leaves = f"{name} reports backlog", f"{name} has left its backlog"
        if source.start_offset != source.end_offset or source.num_input_rows:
            is_backlog = source.is_backlog
            self._decide(coordinator.report(source.index, is_backlog), batch_id, enters if is_backlog else leaves)
        if source.finished:
            self._decide(coordinator.finish(source.index), batch_id + 1, f"{name} has finished")
        else:
            is_backlog = source.is_processing_backlog
            self._decide(coordinator.report(source.index, is_backlog), batch_id + 1, enters if is_backlog else leaves)

    def name_of(self, index: int) -> str | None:
        """The name of the declared source with this number in Spark; None for another source."""
        with self._lock:
            return self._names.get(index)

    @property
    def in_backlog(self) -> dict[int, str]:
        """The names of the declared sources in backlog, by Spark's number."""
        with self._lock:
            flags = self._coordinator.flags
            return {index: name for index, name in self._names.items() if flags.get(index)}

    @property
    def flags_by_name(self) -> dict[str, bool]:
        """Whether each declared source that still runs is in backlog."""
        with self._lock:
            flags = self._coordinator.flags
            return {name: flags[index] for index, name in self._names.items() if index in flags}

    def _source(self, index: Hashable) -> str:
        name = self._names.get(index) if isinstance(index, int) else None
        return f"source {name}" if name else "a streaming DataFrame"

    def _decide(self, decision: Decision, batch_id: int, why: str) -> None:
        if decision.switched:
            self._note(decision, batch_id, why)
            _log.info(
                "Query %s: %s mode from batch %d on, because %s", self._name, decision.mode, batch_id, why,
                extra=event(
                    "switch", query=self._name, batch=batch_id, mode=str(decision.mode),
                    interval_ms=decision.commit_interval_ms, why=why,
                ),
            )  # fmt: skip

    def _note(self, decision: Decision, batch_id: int, why: str) -> None:
        self._history.append(Switch(batch_id, decision.mode, decision.commit_interval_ms, self._clock(), why))

    def _count(self, report: ProgressReport) -> None:
        p, sources, backlog = self._progress, report.sources, report.is_backlog
        rows = sum(s.num_input_rows for s in sources)
        # A live source may have waited for rows in latestOffset.
        waited = 0 if backlog else report.duration_ms.get("latestOffset", 0)
        took = max(1, report.duration_ms.get("triggerExecution", 1) - waited)
        totals = [s.end_offset["total"] for s in sources if s.end_offset and "total" in s.end_offset]
        backlog_rows = p.backlog_rows + (rows if backlog else 0)
        total = max(sum(totals), backlog_rows) if totals else p.backlog_total
        if total is not None and not self._coordinator.is_processing_backlog:
            total = backlog_rows  # an estimate that was too high would look like lost rows
        self._progress = replace(
            p,
            rows=p.rows + rows,
            backlog_rows=backlog_rows,
            backlog_total=total,
            rows_per_second=rows * 1000 / took if rows else p.rows_per_second,
            commits_in_backlog=p.commits_in_backlog + (1 if rows and backlog else 0),
            commits_after=p.commits_after + (1 if rows and not backlog else 0),
            commits_of_flag_only=p.commits_of_flag_only + (0 if rows else 1),
        )

    @property
    def backlog_rows(self) -> int:
        """Committed rows of the backlog, including those of earlier processes."""
        return self.rows_before + self.progress.backlog_rows

    @property
    def last_batch(self) -> int:
        """The newest batch that was reported as committed; -1 before the first."""
        with self._lock:
            return self._last_batch

    @property
    def has_running_sources(self) -> bool:
        """Whether any source has not yet reported that it is finished."""
        with self._lock:
            return bool(self._coordinator.sources)

    @property
    def is_processing_backlog(self) -> bool:
        """Whether any running source reports backlog."""
        with self._lock:
            return self._coordinator.is_processing_backlog

    @property
    def mode(self) -> Mode:
        """The coordinator's mode."""
        with self._lock:
            return self._coordinator.mode

    @property
    def history(self) -> tuple[Switch, ...]:
        """The mode at the start and every switch since."""
        with self._lock:
            return tuple(self._history)

    @property
    def progress(self) -> BacklogProgress:
        """Rows, commits and restarts so far."""
        with self._lock:
            return self._progress
