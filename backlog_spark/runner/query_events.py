"""What a query tells its event log and its metrics, and when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backlog_spark.common.failure_causes import first_line
from backlog_spark.common.log_fields import event
from backlog_spark.runner.event_log import EventFiles, EventLog
from backlog_spark.runner.metrics import QueryMetrics, served
from backlog_spark.spi.offset_flags import committed_ms, rows_behind

if TYPE_CHECKING:
    from backlog_spark.decide.reports import ProgressReport, SourceReport
    from backlog_spark.runner.estimate import SourceRows
    from backlog_spark.runner.query_progress import QueryTracker

__all__ = ["QueryEvents"]

_log = logging.getLogger(__name__)

# A batch of the backlog may run for hours. An hour has 240 lines of it, a small part of the log.
_ESTIMATE_S = 15.0
# The first one comes as soon as there is one.
_FIRST_S = 2.0


class QueryEvents:
    """The events of one query. The kinds and their fields stand in docs/events.md.

    Parameters
    ----------
    name : callable
        The query's name. It may be known only when the first run has started.
    files : EventFiles
        The checkpoint.
    tracker : QueryTracker
    settings : mapping
        Whether there is a log, and where the metrics are served.

    Raises
    ------
    SettingError
        If the metrics cannot be served.
    """

    def __init__(
        self,
        name: Callable[[], str],
        files: EventFiles,
        tracker: QueryTracker,
        settings: Mapping[str, int | float | str | None],
    ) -> None:
        self._name = name
        self._files = files
        self._tracker = tracker
        self._log = EventLog(files) if settings["spark.backlog.eventLog"] == "on" else None
        self._server = served(settings)
        self._metrics: QueryMetrics | None = None  # when the query has a name
        self._switches = 0
        self._estimated = time.monotonic()
        self._has_estimate = False

    def add(self, kind: str, **fields: Any) -> None:
        """Add an event of any kind."""
        if self._log is not None:
            self._log.add(kind, query=self._name(), **fields)

    def started(self, described: Mapping[str, Any]) -> None:
        """Called when the first run has started."""
        self.add("start", **described)
        if self._server is not None:
            self._metrics = QueryMetrics(self._server, self._name())
            coordinator = self._tracker.coordinator
            flags = coordinator.flags
            self._metrics.started({name: flags[n] for n, name in coordinator.names.items() if n in flags})

    def restart(self, **fields: Any) -> None:
        """Called when the query failed and will be restarted."""
        self.add("restart", **fields)
        if self._metrics is not None:
            self._metrics.restarted()

    def run(self, run_id: str, described: Mapping[str, Any]) -> None:
        """Called when a run has started."""
        self.add("run", run_id=run_id, **described)
        self.switches()

    def batch(self, report: ProgressReport) -> None:
        """Called when a batch was reported for the first time."""
        if self._metrics is not None:
            self._metrics.batch(
                report,
                [self._tracker.coordinator.names.get(source.index) for source in report.sources],
                written_at=self._tracker.written_at(report.batch_id),
                now=time.time(),
            )
        written = self._tracker.progress.last_write
        written_at = self._tracker.written_at(report.batch_id)
        # The report itself may have switched the mode, from the next batch on.
        in_force = next(s for s in reversed(self._tracker.history) if s.batch_id <= report.batch_id)
        self.add(
            "batch",
            batch=report.batch_id,
            rows=report.num_input_rows,
            backlog=report.is_backlog,
            started=report.timestamp,
            took_ms=report.duration_ms.get("triggerExecution"),
            parts_ms={part: ms for part, ms in report.duration_ms.items() if part != "triggerExecution"},
            interval_ms=in_force.commit_interval_ms,
            backlog_rows=self._tracker.backlog_rows,
            backlog_total=self._tracker.backlog_total,
            sources=[self._source(source) for source in report.sources],
            state=[{"name": s.name, "rows": s.rows, "bytes": s.bytes} for s in report.state] or None,
            written_ms=None if written_at is None else round(written_at * 1000),
            writer=None if written is None or written.batch_id != report.batch_id else written.writer,
        )

    def _source(self, source: SourceReport) -> dict[str, Any]:
        name = self._tracker.coordinator.names.get(source.index)
        told = {
            "name": name,
            "rows": source.num_input_rows,
            "backlog": source.is_processing_backlog,
            "rows_behind": rows_behind(source.end_offset),
            "committed_ms": committed_ms(source.end_offset) if source.num_input_rows else None,
        }
        return {field: value for field, value in told.items() if value is not None}

    def switches(self) -> None:
        """Add the switches since the last call. Called after each report too."""
        if self._metrics is not None:
            self._metrics.backlog(self._tracker.coordinator.is_processing_backlog)
        history = self._tracker.history
        for switch in history[self._switches :]:
            if self._metrics is not None:
                self._metrics.mode(switch, is_start=switch is history[0])
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
        # Not louder: the caller gets the error itself.
        _log.info(
            "Query %s could not be started: %s", self._name(), first_line(error),
            extra=event("refused", query=self._name(), error=first_line(error)),
        )  # fmt: skip
        try:
            is_there = bool(self._files.names_in("backlog"))
        except Exception:  # the filesystem is perhaps what refused
            return
        if is_there:
            self.add("refused", error=first_line(error))

    def ended(self, failure: BaseException | None, *, was_stopped: bool) -> None:
        """Called once, after the last run."""
        status = "failed" if failure is not None else "stopped" if was_stopped else "finished"
        if self._metrics is not None:
            self._metrics.ended()
        told = None if failure is None else first_line(failure)
        _log.info(
            "Query %s has ended: %s", self._name(), status,
            extra=event("end", query=self._name(), status=status, error=told),
        )  # fmt: skip
        self.add("end", status=status, error=told)
        if self._log is not None:
            self._log.close()

    def look(self, sources: Callable[[], Sequence[SourceRows]]) -> None:
        """Write what waits, and now and then how far a running batch of the backlog is.

        Called a few times a second while there is nothing else to do.

        Parameters
        ----------
        sources : callable
            Estimates the rows of each source in backlog. It asks Spark.
        """
        now = time.monotonic()
        every = _ESTIMATE_S if self._has_estimate else _FIRST_S
        if self._tracker.coordinator.is_processing_backlog and now - self._estimated >= every:
            self._estimated = now
            try:
                found = sources()
            except Exception as error:  # it is for display only
                _log.debug("No estimate of query %s: %s", self._name(), first_line(error))
            else:
                self._has_estimate = self._has_estimate or any(each.rows or each.total for each in found)
                if self._has_estimate:
                    told = [{"name": each.name, "rows": round(each.rows), "total": each.total} for each in found]
                    self.add("estimate", after_batch=self._tracker.last_batch, sources=told)
                if self._metrics is not None:
                    self._metrics.estimated(found)
        if self._log is not None:
            self._log.flush_if_due()
