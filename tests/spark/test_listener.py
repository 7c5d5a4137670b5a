"""Progress events to reports: on progress JSON as Spark writes it, and on a real query."""

from __future__ import annotations

import json
import queue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from backlog_spark.decide.reports import ProgressReport, Report, SourceReport, Terminated
from backlog_spark.spark.jvm.listener import BacklogListener, _events_as_json, to_report
from backlog_spark.spi.offset_flags import parse_offset

ID = "1f6a44cf-0e7d-4c4c-a0b0-0a5b2a0d5c11"
RUN = "6e1cf5a8-6f6f-4b1e-9d6e-8a1f0d8a9a55"


def source_json(start: object, end: object, description: str = "source", rows: int = 10) -> dict[str, Any]:
    """One source's progress, in the shape of Spark's SourceProgress.json."""
    return {
        "description": description,
        "startOffset": start,
        "endOffset": end,
        "latestOffset": end,
        "numInputRows": rows,
        "inputRowsPerSecond": 5.0,
        "processedRowsPerSecond": 20.0,
    }


def progress_json(*sources: dict[str, Any], batch_id: int = 7) -> dict[str, Any]:
    """A query's progress, in the shape of Spark's StreamingQueryProgress.json."""
    return {
        "id": ID,
        "runId": RUN,
        "name": None,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "batchId": batch_id,
        "batchDuration": 500,
        "numInputRows": sum(source["numInputRows"] for source in sources),
        "inputRowsPerSecond": 5.0,
        "processedRowsPerSecond": 20.0,
        "durationMs": {"addBatch": 300, "triggerExecution": 500},
        "stateOperators": [],
        "sources": list(sources),
        "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
    }


def report_of(*sources: dict[str, Any]) -> ProgressReport:
    """The report of a progress with these sources."""
    return to_report(StreamingQueryProgress.fromJson(json.loads(json.dumps(progress_json(*sources)))))


def test_whole_report() -> None:
    start = {"file": "binlog.000001", "isProcessingBacklog": True, "isBacklog": True}
    end = {"file": "binlog.000002", "isProcessingBacklog": False, "isBacklog": True}
    assert report_of(source_json(start, end, "mysql_cdc"), source_json(4, 9, "RateStream", rows=3)) == (
        ProgressReport(
            query_id=ID,
            run_id=RUN,
            batch_id=7,
            timestamp="2026-01-02T03:04:05.678Z",
            duration_ms={"addBatch": 300, "triggerExecution": 500},
            sources=(
                SourceReport(0, "mysql_cdc", start, end, end, 10, False, True, False),
                SourceReport(1, "RateStream", None, None, None, 3, False, False, False),
            ),
        )
    )


@pytest.mark.parametrize(
    ("start", "end", "is_processing_backlog", "is_backlog", "finished"),
    [
        # The flag of the end offset is the source's, that of the start offset the rows'.
        ({"isProcessingBacklog": True}, {"isProcessingBacklog": True}, True, True, False),
        ({"isProcessingBacklog": True}, {"isProcessingBacklog": False}, False, True, False),
        ({"isProcessingBacklog": False}, {"isProcessingBacklog": True}, True, False, False),
        (
            {"isProcessingBacklog": False},
            {"isProcessingBacklog": False, "isFinished": True},
            False,
            False,
            True,
        ),
        # The start offset decides over the end offset's isBacklog.
        (
            {"isProcessingBacklog": False},
            {"isProcessingBacklog": True, "isBacklog": True},
            True,
            False,
            False,
        ),
        # First batch: no start offset.
        (None, {"isProcessingBacklog": False, "isBacklog": True}, False, True, False),
        (None, {"isProcessingBacklog": True, "isBacklog": False}, True, False, False),
        (None, {"isProcessingBacklog": True}, True, False, False),
        # Foreign sources.
        ({"topic": {"0": 5}}, {"topic": {"0": 9}}, False, False, False),
        ({"logOffset": 1}, {"logOffset": 2}, False, False, False),
        (1, 2, False, False, False),
        ("not json", "not json {", False, False, False),
        ([1], [2], False, False, False),
        (None, None, False, False, False),
        (
            {"isProcessingBacklog": "true"},
            {"isProcessingBacklog": 1, "isFinished": "yes"},
            False,
            False,
            False,
        ),
    ],
)
def test_flags(start: Any, end: Any, is_processing_backlog: bool, is_backlog: bool, finished: bool) -> None:
    (source,) = report_of(source_json(start, end)).sources
    assert (source.is_processing_backlog, source.is_backlog, source.finished) == (
        is_processing_backlog,
        is_backlog,
        finished,
    )


@pytest.mark.parametrize("text", [None, "None", "null", "", "7", "[1]", '"x"', "{", "kafka"])
def test_what_is_not_a_json_object_is_no_offset(text: str | None) -> None:
    assert parse_offset(text) is None


def progress_event(query_id: str = ID) -> QueryProgressEvent:
    """A progress event as the listener bus hands it over."""
    return QueryProgressEvent.fromJson({"progress": progress_json() | {"id": query_id}})


def drain(reports: queue.Queue[Report]) -> list[Report]:
    """Everything on the queue now."""
    return [reports.get_nowait() for _ in range(reports.qsize())]


def test_events_go_to_their_subscriber_in_order() -> None:
    listener, mine, other = BacklogListener(), queue.Queue[Report](), queue.Queue[Report]()
    other_id = ID.replace("1f", "2f")
    listener.subscribe(ID, mine)
    listener.subscribe(other_id, other)
    listener.onQueryProgress(progress_event())
    listener.onQueryTerminated(
        QueryTerminatedEvent.fromJson({"id": ID, "runId": RUN, "exception": "boom", "errorClassOnException": None})
    )
    listener.onQueryProgress(progress_event(other_id))
    progress, end = drain(mine)
    assert isinstance(progress, ProgressReport)
    assert end == Terminated(ID, RUN, "boom")
    assert [report.query_id for report in drain(other)] == [other_id]


def test_events_before_the_subscription_are_delivered_once() -> None:
    listener, first, second = BacklogListener(), queue.Queue[Report](), queue.Queue[Report]()
    listener.onQueryProgress(progress_event())
    listener.onQueryProgress(progress_event(ID.replace("1f", "2f")))
    listener.subscribe(ID, first)
    assert [report.query_id for report in drain(first)] == [ID]
    listener.subscribe(ID, second)
    assert drain(second) == []


def test_only_the_last_unheard_events_are_kept() -> None:
    listener, mine = BacklogListener(), queue.Queue[Report]()
    for _ in range(300):
        listener.onQueryProgress(progress_event())
    listener.subscribe(ID, mine)
    assert mine.qsize() == 256


def test_unsubscribed_queue_gets_nothing_more() -> None:
    listener, mine = BacklogListener(), queue.Queue[Report]()
    listener.subscribe(ID, mine)
    listener.unsubscribe(ID)
    listener.unsubscribe("unknown")
    listener.onQueryProgress(progress_event())
    assert mine.empty()


def test_never_raises_and_never_blocks() -> None:
    listener, full = BacklogListener(), queue.Queue[Report](maxsize=1)
    listener.subscribe(ID, full)
    listener.onQueryProgress(progress_event())
    listener.onQueryProgress(progress_event())
    listener.onQueryProgress(cast(QueryProgressEvent, SimpleNamespace(progress=None)))
    listener.onQueryTerminated(cast(QueryTerminatedEvent, None))
    assert full.qsize() == 1


@pytest.mark.parametrize("text", [None, "{}"])
def test_progress_whose_json_lacks_something_is_taken_field_by_field(
    monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    def of_jvm() -> str:
        if text is None:
            raise ValueError("no JSON")
        return text

    monkeypatch.setattr(QueryProgressEvent, "fromJObject", lambda event: progress_event())
    listener, mine = BacklogListener(), queue.Queue[Report]()
    listener.subscribe(ID, mine)
    _events_as_json(listener).onQueryProgress(SimpleNamespace(progress=lambda: SimpleNamespace(json=of_jvm)))
    assert [report.query_id for report in drain(mine)] == [ID]


def test_greatest_event_times_of_inputs() -> None:
    observed = {
        "backlog_spark_event_time_0": {"greatest": 1_700_000_000_000},
        "backlog_spark_event_time_1": {"greatest": None},  # no rows
        "backlog_spark_event_time_x": {"greatest": 1},
        "of_the_user": {"rows": 5},
    }
    told = progress_json(source_json({}, {})) | {"observedMetrics": observed}
    report = to_report(StreamingQueryProgress.fromJson(json.loads(json.dumps(told))))
    assert report.event_times == {0: 1_700_000_000_000}
