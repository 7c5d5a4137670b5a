"""Progress of one query: the history of its modes, and counts (pure). The coordinator decides, this only records."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backlog_spark.common.figures import rows_left, work_ms
from backlog_spark.common.log_fields import event
from backlog_spark.decide.coordinator import Change, Coordinator
from backlog_spark.decide.reports import ProgressReport, SourceReport
from backlog_spark.decide.steps import Decision, Mode

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
    commits_without_rows : int
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
    commits_without_rows: int = 0
    restarts: int = 0
    direct_commits: int = 0
    last_write: Written | None = None

    @property
    def commits(self) -> int:
        """All committed batches with rows."""
        return self.commits_in_backlog + self.commits_after


class QueryTracker:
    """Records one query over all its runs in this process. The runner writes; any thread may read.

    Parameters
    ----------
    name : str
        The query's name, for the log.
    coordinator : Coordinator
        The query's.
    clock : callable
        Seconds since 1970.
    """

    def __init__(self, name: str, coordinator: Coordinator, clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._clock = clock
        self.coordinator = coordinator
        self.lock = threading.RLock()
        """Held while a report is taken: mode, history and counts change together."""
        self._history: list[Switch] = []
        self._progress = BacklogProgress()
        self._last_batch = -1
        self._warned: set[int] = set()
        self._written: dict[int, float] = {}
        self.rows_before = 0
        """Rows of the backlog that earlier processes have committed. Set once, before the first run."""
        self.rows_before_of: dict[int, int] = {}
        """The same by source, as far as known. Set once, too."""
        self._rows_of: dict[int, int] = {}

    def began(self, decision: Decision) -> None:
        """Record the mode at the start. Called once, before any `took`."""
        with self.lock:
            self._note((-1, decision, self._why_at_start(decision)))

    def _why_at_start(self, decision: Decision) -> str:
        flags, names = self.coordinator.flags, self.coordinator.names
        sources = [names[number] for number in names if flags.get(number)]
        if decision.mode is Mode.STREAM and self.coordinator.is_processing_backlog:
            return "no interval during backlog is set"
        if not self.coordinator.is_processing_backlog:
            return "no source has backlog"
        if not sources:
            return "there is backlog"
        one = len(sources) == 1
        return f"source{'' if one else 's'} {', '.join(sources)} read{'s its' if one else ' their'} backlog"

    def took(self, report: ProgressReport, changes: Sequence[Change]) -> bool:
        """Record a committed batch, and the switches that followed from its report.

        Returns
        -------
        bool
            Whether it is the batch's first report. One that is reported again after a restart is not counted twice.
        """
        with self.lock:
            first_time = report.batch_id > self._last_batch
            self._last_batch = max(self._last_batch, report.batch_id)
            for source in report.sources:
                self._warn_of_mixed_rows(source, report.batch_id)
            if first_time:
                self._count(report)
        self.switched(changes)
        return first_time

    def switched(self, changes: Sequence[Change]) -> None:
        """Record switches."""
        for change in changes:
            batch_id, decision, why = change
            with self.lock:
                self._note(change)
            _log.info(
                "Query %s: %s mode from batch %d on, because %s", self._name, decision.mode, batch_id, why,
                extra=event(
                    "switch", query=self._name, batch=batch_id, mode=str(decision.mode),
                    interval_ms=decision.commit_interval_ms, why=why,
                ),
            )  # fmt: skip

    def wrote(self, batch_id: int, written: Written | None) -> None:
        """Called when the main output's sink has written a batch, before Spark commits it."""
        with self.lock:
            self._written = {**dict(list(self._written.items())[-_UNREPORTED:]), batch_id: self._clock()}
            before, direct = self._progress.last_write, written is not None and written.writer == "direct"
            self._progress = replace(
                self._progress, last_write=written, direct_commits=self._progress.direct_commits + direct
            )
        if written is not None and (before is None or before.writer != written.writer):
            _log.info(
                "Query %s: batch %d was written by the writer %s%s",
                self._name, written.batch_id, written.writer, f", because {written.reason}" if written.reason else "",
            )  # fmt: skip

    def written_at(self, batch_id: int) -> float | None:
        """When the main output had a batch, seconds since 1970; None if the query has no sink or the batch is old."""
        with self.lock:
            return self._written.get(batch_id)

    def restarted(self) -> None:
        """Called when the query runs again after a failure."""
        with self.lock:
            self._progress = replace(self._progress, restarts=self._progress.restarts + 1)

    def _warn_of_mixed_rows(self, source: SourceReport, batch_id: int) -> None:
        """Warn once per source if a batch began in backlog, ended after it, and the source takes no read limit."""
        left = source.is_backlog and not source.is_processing_backlog and not source.finished
        if not (left and source.num_input_rows and source.takes_no_limit):
            return
        name = self.coordinator.names.get(source.index)
        if name is not None and source.index not in self._warned:
            self._warned.add(source.index)
            _log.warning(
                "Query %s: batch %d began in the backlog of source %s and ended after it, and the source takes no "
                "read limit. Live rows of this batch count as backlog. Give the reader latestOffset(start, limit), and "
                "end a batch where the backlog ends (docs/sources.md).",
                self._name, batch_id, name,
            )  # fmt: skip

    def _note(self, change: Change) -> None:
        batch_id, decision, why = change
        self._history.append(Switch(batch_id, decision.mode, decision.commit_interval_ms, self._clock(), why))

    def _count(self, report: ProgressReport) -> None:
        p, rows, phase = self._progress, report.num_input_rows, report.phase
        backlog_rows = p.backlog_rows + (rows if phase == "backlog" else 0)
        for source in report.sources:
            if source.is_backlog:
                self._rows_of[source.index] = self._rows_of.get(source.index, 0) + source.num_input_rows
        # Read rows are counted. Only what is left is an estimate.
        known = [left for left in map(self._left, report.sources) if left is not None]
        total = self.rows_before + backlog_rows + sum(known) if known else p.backlog_total
        if total is not None and not self.coordinator.is_processing_backlog:
            total = backlog_rows  # an estimate that was too high would look like lost rows
        self._progress = replace(
            p,
            rows=p.rows + rows,
            backlog_rows=backlog_rows,
            backlog_total=total,
            rows_per_second=rows * 1000 / work_ms(report.duration_ms, report.is_backlog) if rows else p.rows_per_second,
            commits_in_backlog=p.commits_in_backlog + (phase == "backlog"),
            commits_after=p.commits_after + (phase == "live"),
            commits_without_rows=p.commits_without_rows + (phase == "empty"),
        )

    def _left(self, source: SourceReport) -> int | None:
        """Rows of a source's backlog that are in no batch yet, as it estimates; None if it does not."""
        rows, total = (source.end_offset or {}).get("rows"), (source.end_offset or {}).get("total")
        if type(total) is not int:
            return None
        if not source.is_processing_backlog:
            return 0
        return rows_left(rows if type(rows) is int else self.backlog_rows_of(source.index), total)

    @property
    def backlog_rows(self) -> int:
        """Committed rows of the backlog, including those of earlier processes."""
        return self.rows_before + self.progress.backlog_rows

    def backlog_rows_of(self, index: int) -> int:
        """The same of one source, given by its number."""
        with self.lock:
            return self.rows_before_of.get(index, 0) + self._rows_of.get(index, 0)

    @property
    def backlog_total(self) -> int | None:
        """The sources' estimate of all rows of the backlog, also those of earlier processes; None if unknown."""
        total = self.progress.backlog_total
        return None if total is None else max(total, self.backlog_rows)

    @property
    def last_batch(self) -> int:
        """The newest batch that was reported as committed; -1 before the first."""
        with self.lock:
            return self._last_batch

    @property
    def history(self) -> tuple[Switch, ...]:
        """The mode at the start and every switch since."""
        with self.lock:
            return tuple(self._history)

    @property
    def progress(self) -> BacklogProgress:
        """Rows, commits and restarts so far."""
        with self.lock:
            return self._progress
