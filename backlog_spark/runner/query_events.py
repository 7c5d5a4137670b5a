"""What a query writes to its event log, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from backlog_spark.common.failure_causes import first_line
from backlog_spark.runner.event_log import FREQUENT, EventFiles, EventLog

if TYPE_CHECKING:
    from backlog_spark.decide.reports import ProgressReport, SourceReport
    from backlog_spark.runner.query_progress import QueryTracker

__all__ = ["QueryEvents"]


class QueryEvents:
    """The events of one query. The kinds and their fields stand in docs/events.md.

    Parameters
    ----------
    name : callable
        The query's name. It may be known only when the first run has started.
    files : EventFiles
        The checkpoint.
    tracker : QueryTracker
    enabled : bool
        If false, nothing is written.
    """

    def __init__(self, name: Callable[[], str], files: EventFiles, tracker: QueryTracker, *, enabled: bool) -> None:
        self._name = name
        self._files = files
        self._tracker = tracker
        self._log = EventLog(files) if enabled else None
        self._switches = 0

    def add(self, kind: str, **fields: Any) -> None:
        """Add an event of any kind."""
        if self._log is not None:
            self._log.add(kind, query=self._name(), **fields)

    def run(self, run_id: str, described: Mapping[str, Any]) -> None:
        """Called when a run has started."""
        self.add("run", run_id=run_id, **described)
        self.switches()

    def batch(self, report: ProgressReport) -> None:
        """Called when a batch was reported for the first time."""
        progress = self._tracker.progress
        written = progress.last_write
        # The report itself may have switched the mode, from the next batch on.
        in_force = next(s for s in reversed(self._tracker.history) if s.batch_id <= report.batch_id)
        self.add(
            FREQUENT,
            batch=report.batch_id,
            rows=sum(source.num_input_rows for source in report.sources),
            backlog=any(s.is_backlog for s in report.sources if s.start_offset != s.end_offset),
            started=report.timestamp,
            took_ms=report.duration_ms.get("triggerExecution"),
            parts_ms={part: ms for part, ms in report.duration_ms.items() if part != "triggerExecution"},
            interval_ms=in_force.commit_interval_ms,
            backlog_rows=progress.backlog_rows,
            backlog_total=progress.backlog_total,
            sources=[self._source(source) for source in report.sources],
            road=None if written is None or written.batch_id != report.batch_id else written.road,
        )

    def _source(self, source: SourceReport) -> dict[str, Any]:
        name = self._tracker.name_of(source.index)
        return {"name": name, "rows": source.num_input_rows, "backlog": source.is_processing_backlog}

    def switches(self) -> None:
        """Add the switches since the last call."""
        history = self._tracker.history
        for switch in history[self._switches :]:
            self.add(
                "switch",
                batch=switch.batch_id,
                mode=str(switch.mode),
                interval_ms=switch.commit_interval_ms,
                why=switch.why,
            )
        self._switches = len(history)

    def refused(self, error: BaseException) -> None:
        """Called if the query could not start. A checkpoint without files of ours gets none for it."""
        try:
            is_there = bool(self._files.names_in("backlog"))
        except Exception:  # the filesystem is perhaps what refused
            return
        if is_there:
            self.add("refused", error=first_line(error))

    def ended(self, failure: BaseException | None, *, was_stopped: bool) -> None:
        """Called once, after the last run."""
        status = "failed" if failure is not None else "stopped" if was_stopped else "finished"
        self.add("end", status=status, error=None if failure is None else first_line(failure))
        if self._log is not None:
            self._log.close()

    def flush_if_due(self) -> None:
        """Write what waits. Called a few times a second while there is nothing else to do."""
        if self._log is not None:
            self._log.flush_if_due()
