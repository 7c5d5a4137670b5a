"""Turns Spark's progress events into reports on a queue, and nothing else.

Reaches for: the class with which PySpark takes events from the JVM (seen in Spark 4.2; entry "progress text" of
`backlog_spark.spark.jvm.internals`). The fallback is PySpark's own listener, which reads each field in a call of its
own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark import SparkContext
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

from backlog_spark.decide.reports import ProgressReport, Report, SourceReport, StateReport, Terminated
from backlog_spark.model.watermarks import observed_input
from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spi import offset_flags
from backlog_spark.spi.offset_flags import parse_offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
        StreamingQueryProgress,
    )

__all__ = ["BacklogListener", "to_report"]

_log = logging.getLogger(__name__)


# Events between start() and subscribe(). A query that fails at once sends two or three, a fast one a few batches.
# Queries without a subscriber send events too, so the number is bounded, and large enough for several queries.
_UNCLAIMED = 256


def _events_as_json(listener: BacklogListener) -> Any:
    """The listener that the JVM calls. It takes a progress event as one text.

    PySpark's own listener reads every field and metric in a call of its own: 1,700 calls to the JVM for a batch with a
    stateful operator. That takes more than 0.1 s of both processes, and delays the end of a run.
    """
    from pyspark.sql.streaming.listener import JStreamingQueryListener

    class EventsAsJson(JStreamingQueryListener):
        def onQueryProgress(self, jevent: Any) -> None:
            try:
                event = QueryProgressEvent.fromJson({"progress": json.loads(jevent.progress().json())})
            except Exception:  # Spark's JSON omits rates that are not numbers
                event = QueryProgressEvent.fromJObject(jevent)
            self.pylistener.onQueryProgress(event)

    return EventsAsJson(listener)


class BacklogListener(StreamingQueryListener):
    """Puts a report on a queue for each event of a subscribed query.

    Spark calls the ``on…`` methods on its listener bus, one at a time, some time after the event. They never raise and
    never block. Except for `starts` they never call Spark: a callback that stops a query would wait for its own bus.
    Events of one query arrive in order, so `Terminated` is the last report of a run.

    One instance serves all queries of a session (``spark.streams.addListener``). `subscribe` may be called at any time
    and from any thread, also after ``start()``. The last 256 events of queries without a subscriber are kept and
    delivered on subscription. So the end of a query that fails at once is not missed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, queue.Queue[Report]] = {}
        self._unclaimed: deque[Report] = deque(maxlen=_UNCLAIMED)
        self.starts: list[Callable[[str], None]] = []
        """Called with the id of a query that starts, before it reads its settings. They must not raise."""

    @functools.cached_property
    def _jlistener(self) -> Any:
        if is_usable("progress text"):
            with contextlib.suppress(ImportError, Py4JError):
                jvm: Any = SparkContext._jvm
                return jvm.PythonStreamingQueryListenerWrapper(_events_as_json(self))
        return super()._jlistener

    def subscribe(self, query_id: str, queue: queue.Queue[Report]) -> None:
        """Deliver the reports of a query from now on, and those that were kept for it.

        Parameters
        ----------
        query_id : str
            ``query.id``: it stays the same when the query restarts on its checkpoint, and so does the
            subscription. Reports of an earlier run carry another ``run_id``.
        queue : queue.Queue
            The reports are put here without waiting. If the queue is bounded and full, the report is dropped and a
            warning is logged. A second subscription of the same query replaces the first.
        """
        query_id = str(query_id)
        with self._lock:
            self._queues[query_id] = queue
            missed = [report for report in self._unclaimed if report.query_id == query_id]
            kept = [report for report in self._unclaimed if report.query_id != query_id]
            self._unclaimed = deque(kept, maxlen=_UNCLAIMED)
            for report in missed:
                _put(queue, report)

    def unsubscribe(self, query_id: str) -> None:
        """Stop delivering a query's reports. An unknown id has no effect."""
        with self._lock:
            self._queues.pop(str(query_id), None)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Called inside ``start()``, and Spark waits for it. It blocks no bus, but must return at once."""
        for callback in tuple(self.starts):
            callback(str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Put a `ProgressReport`. Called after each committed batch."""
        self._deliver(lambda: to_report(event.progress))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Put a `Terminated`. Called once at the end of each run."""
        self._deliver(lambda: Terminated(str(event.id), str(event.runId), event.exception))

    def _deliver(self, convert: Callable[[], Report]) -> None:
        # Spark's bus would only log an exception from here, after py4j and far from its cause.
        try:
            report = convert()
            with self._lock:
                subscriber = self._queues.get(report.query_id)
                if subscriber is None:
                    self._unclaimed.append(report)
                else:
                    _put(subscriber, report)
        except Exception:
            _log.exception("a streaming event could not be reported")


def _put(subscriber: queue.Queue[Report], report: Report) -> None:
    try:
        subscriber.put_nowait(report)
    except queue.Full:
        _log.warning("a full queue dropped a report of query %s", report.query_id)


def to_report(progress: StreamingQueryProgress) -> ProgressReport:
    """Convert Spark's progress into a report that holds plain Python values only.

    Parameters
    ----------
    progress : StreamingQueryProgress
        As in ``event.progress`` and ``query.lastProgress``, or ``StreamingQueryProgress.fromJson``.

    Returns
    -------
    ProgressReport
        Offsets of foreign sources that are not JSON objects become None and their flags false.
    """
    return ProgressReport(
        # progress.id is a UUID whereas query.id is a str: subscriptions are by str.
        query_id=str(progress.id),
        run_id=str(progress.runId),
        batch_id=progress.batchId,
        timestamp=progress.timestamp,
        duration_ms=dict(progress.durationMs),
        sources=tuple(_source_report(index, source) for index, source in enumerate(progress.sources)),
        watermark_ms=_watermark((progress.eventTime or {}).get("watermark")),
        state=tuple(StateReport(s.operatorName, s.numRowsTotal, s.memoryUsedBytes) for s in progress.stateOperators),
        event_times=_event_times(progress.observedMetrics or {}),
    )


def _event_times(observed: Mapping[str, Any]) -> dict[int, int]:
    found = {observed_input(name): row.asDict().get("greatest") for name, row in observed.items()}
    return {number: at for number, at in found.items() if number is not None and at is not None}


def _watermark(text: str | None) -> int | None:
    # Spark reports 1970 for a watermark that no row has moved yet.
    at = datetime.fromisoformat(text) if text else None
    return int(at.timestamp() * 1000) or None if at else None


def _source_report(index: int, source: SourceProgress) -> SourceReport:
    start = parse_offset(source.startOffset)
    end = parse_offset(source.endOffset)
    return SourceReport(
        index=index,
        description=source.description,
        start_offset=start,
        end_offset=end,
        latest_offset=parse_offset(source.latestOffset),
        num_input_rows=source.numInputRows,
        is_processing_backlog=offset_flags.is_processing_backlog(end),
        is_backlog=offset_flags.is_backlog(start, end),
        finished=offset_flags.is_finished(end),
    )
