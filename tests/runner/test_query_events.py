"""What a query tells its event log while a batch runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backlog_spark.common.settings import parse_settings
from backlog_spark.runner import query_events
from backlog_spark.runner.estimate import SourceRows
from backlog_spark.runner.metrics import served
from backlog_spark.runner.query_events import QueryEvents

from .test_event_log import Files
from .test_metrics import scraped
from .test_query_progress import ON, began, report, source, take


def events(monkeypatch: pytest.MonkeyPatch, *, in_backlog: bool) -> tuple[QueryEvents, Files]:
    for name in ("_ESTIMATE_S", "_FIRST_S"):
        monkeypatch.setattr(query_events, name, 0.0)
    tracker, files = began("orders", ON, {0: in_backlog}, {0: "orders"}), Files()
    return QueryEvents(lambda: "orders", files, tracker, parse_settings({})), files


def told(files: Files) -> list[dict[str, Any]]:
    return [json.loads(line) for text in files.texts.values() for line in text.splitlines()]


def test_a_running_batch_of_the_backlog_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    made, files = events(monkeypatch, in_backlog=True)
    made.look(lambda: [SourceRows("orders", 12.6, 100)])
    [line] = told(files)
    assert (line["kind"], line["after_batch"]) == ("estimate", -1)
    assert line["sources"] == [{"name": "orders", "rows": 13, "total": 100}]


def test_the_first_estimate_comes_when_something_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    made, files = events(monkeypatch, in_backlog=True)
    monkeypatch.setattr(query_events, "_ESTIMATE_S", 1_000.0)
    for rows, total in ((0.0, 0), (0.0, 100), (50.0, 100)):
        made.look(lambda rows=rows, total=total: [SourceRows("orders", rows, total)])
    assert [line["sources"][0]["total"] for line in told(files)] == [100]


def test_an_estimate_that_fails_does_not_reach_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    made, files = events(monkeypatch, in_backlog=True)

    def fails() -> list[SourceRows]:
        raise RuntimeError("the JVM is gone")

    made.look(fails)
    assert told(files) == []


def test_live_batches_are_not_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    made, files = events(monkeypatch, in_backlog=False)

    def unexpected() -> list[SourceRows]:
        raise AssertionError("it was asked")

    made.look(unexpected)
    assert told(files) == []


def test_the_metrics_show_the_backlog_of_sources_without_a_name() -> None:
    """Streaming DataFrames and queries of Spark's own sources: rules decide whether they are in backlog."""
    settings = parse_settings({"spark.backlog.metrics.port": "0", "spark.backlog.eventLog": "off"})
    tracker = began("foreign", ON, {})
    made = QueryEvents(lambda: "foreign", Files(), tracker, settings)
    server = served(settings)
    assert server is not None

    def is_backlog() -> float:
        return scraped(server.port, "foreign")["backlog_spark_query_is_processing_backlog",]

    made.started({})
    made.run("run-1", {})
    assert is_backlog() == 0
    for number, flag in enumerate((True, False)):
        taken = report(number, source(0, number, number + 1, 10, (True, flag)))
        assert take(tracker, taken)
        made.batch(taken)
        made.switches()
        assert is_backlog() == flag
    take(tracker, report(2, source(0, 2, 3, 10, (True, True))))
    made.switches()
    assert is_backlog() == 1
    tracker.switched(tracker.coordinator.drain(0))
    made.run("run-2", {})
    assert is_backlog() == 0


def test_rows_of_the_backlog_count_those_of_earlier_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, files = events(monkeypatch, in_backlog=True)
    tracker = made._tracker
    tracker.rows_before = 1_000  # of a process that was killed
    for taken in (
        report(5, source(0, 5, 6, 600, (True, True), rows=1_600, total=2_500)),
        report(6, source(0, 6, 7, 900, (True, False), total=2_500)),
        report(7, source(0, 7, 8, 7, (False, False), total=2_500)),
    ):
        take(tracker, taken)
        made.batch(taken)
    made.ended(None, was_stopped=True)
    shown = [(line["backlog_rows"], line["backlog_total"]) for line in told(files) if line["kind"] == "batch"]
    assert shown == [(1_600, 2_500), (2_500, 2_500), (2_500, 2_500)]
