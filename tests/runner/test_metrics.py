"""The metrics of a driver: what is counted, served and refused."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backlog_spark.common.settings import parse_settings
from backlog_spark.decide.reports import ProgressReport, SourceReport, StateReport
from backlog_spark.decide.steps import Mode
from backlog_spark.errors import SettingError
from backlog_spark.runner.metrics import METRICS, QueryMetrics, served
from backlog_spark.runner.query_progress import Switch

_NAME = 'orders "of 2026"\n'  # a name may have anything


def settings(**values: str) -> dict[str, Any]:
    return parse_settings({f"spark.backlog.metrics.{name}": value for name, value in values.items()})


def source(num: int, start: bool, end: bool, **more: Any) -> SourceReport:
    offsets = {"n": 1, "isProcessingBacklog": start}, {"n": 2, "isProcessingBacklog": end, **more}
    return SourceReport(0, "", *offsets, None, num, end, start, False)


def report(batch: int, took_ms: int, *sources: SourceReport, state: tuple[StateReport, ...] = ()) -> ProgressReport:
    return ProgressReport("q", "r", batch, "", {"triggerExecution": took_ms}, sources, state=state)


def scraped(port: int, query: str = _NAME) -> dict[tuple[str, ...], float]:
    """Each sample of a query by its name and the values of its labels, sorted by the labels' names."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    assert {f"{f.name}_total" if f.type == "counter" else f.name for f in families} >= METRICS.keys()
    return {
        (s.name, *(v for k, v in sorted(s.labels.items()) if k != "query")): s.value
        for f in families
        for s in f.samples
        if s.labels.get("query") == query
    }


def test_a_backlog_a_switch_and_live_batches() -> None:
    server = served(settings(port="0"))
    assert server is not None
    assert served(settings(port="0")) is server  # queries share it
    metrics = QueryMetrics(server, _NAME)
    metrics.started({"orders": True})
    metrics.mode(Switch(-1, Mode.BACKLOG, None, 0.0), is_start=True)
    found = scraped(server.port)
    assert found["backlog_spark_query_commit_interval_seconds",] == float("inf")
    # What is counted is there before the first commit: an alert can wait for it, and no first increase is lost.
    counted = {m.name: m.labels for m in METRICS.values() if m.type == "counter"}
    assert {name for name, *_ in found} >= counted.keys()
    assert {found[key] for key in found if key[0] in counted} == {0}
    first = source(1_000, True, True, rows=1_000, total=2_500)
    metrics.batch(report(0, 4_000, first), ["orders"], written_at=None, now=50.0)
    metrics.backlog(True)
    found = scraped(server.port)
    assert found["backlog_spark_source_rows_behind", "orders"] == 1_500
    assert found["backlog_spark_source_is_processing_backlog", "orders"] == 1
    assert found["backlog_spark_query_is_processing_backlog",] == 1
    last = source(1_500, True, False, rows=2_500, total=2_500, committedMs=[1_000, 2_000])
    metrics.batch(report(1, 5_000, last), ["orders"], written_at=60.0, now=60.5)
    metrics.backlog(False)
    metrics.mode(Switch(2, Mode.STREAM, 1_000, 60.5), is_start=False)
    live = source(7, False, False, committedMs=[61_000, 61_700])
    state = (StateReport("a", 3, 100), StateReport("b", 4, 200))
    metrics.batch(report(2, 300, live, state=state), ["orders"], written_at=62.0, now=62.5)
    metrics.batch(report(3, 20, source(0, False, False)), ["orders"], written_at=63.0, now=63.5)
    metrics.restarted()
    metrics.ended()
    found = scraped(server.port)
    for (name, *labels), value in {
        ("source_rows_behind", "orders"): 0,
        ("source_is_processing_backlog", "orders"): 0,
        ("source_rows_total", "orders"): 2_507,
        # Rows of the backlog are not late: only the batch of 7 counts, by its oldest row.
        ("source_freshness_seconds_count", "orders"): 1,
        ("source_freshness_seconds_sum", "orders"): 1.0,
        ("query_running",): 0,
        ("query_is_processing_backlog",): 0,
        ("query_commit_interval_seconds",): 1.0,
        ("query_switches_total", "stream"): 1,
        ("query_switches_total", "backlog"): 0,
        ("query_batches_total", "backlog"): 2,
        ("query_batches_total", "live"): 1,
        ("query_batches_total", "empty"): 1,
        ("query_batch_duration_seconds_count",): 3,
        ("query_batch_duration_seconds_sum",): 9.3,
        ("query_last_commit_timestamp_seconds",): 63.5,
        ("query_restarts_total",): 1,
        ("query_state_rows",): 0,
    }.items():
        assert found[f"backlog_spark_{name}", *labels] == pytest.approx(value), name


def test_only_the_documented_series_are_served() -> None:
    """And none for the time at which each was created, which would double them."""
    server = served(parse_settings({"spark.backlog.metrics.port": "0"}))
    assert server is not None
    QueryMetrics(server, "series").started({"orders": True})
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
        names = {line.split("{")[0] for line in answer.read().decode().splitlines() if line and line[0] != "#"}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in names} == set(METRICS)


def test_it_is_off_by_default() -> None:
    assert served(settings()) is None


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(
            SettingError, match=rf"metrics\.port = {port}: cannot be used on 127\.0\.0\.1: .*in use.*0 for"
        ):
            served(settings(port=port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(SettingError, match=f"cannot be used on {host}"):
        served(settings(port="0", host=host))


@pytest.mark.parametrize(("name", "value"), [("port", "65536"), ("port", "http"), ("host", "http://x/"), ("host", "")])
def test_malformed_settings(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=rf"spark\.backlog\.metrics\.{name}"):
        settings(**{name: value})


@pytest.mark.process
def test_a_missing_package_is_one_error() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from backlog_spark.common.settings import parse_settings\n"
        "from backlog_spark.runner.metrics import served\n"
        "served(parse_settings({'spark.backlog.metrics.port': '9400'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "SettingError: " in done.stderr
    assert "spark.backlog.metrics.port = 9400: It needs the Python package prometheus_client" in done.stderr
    assert "'backlog-spark[metrics]'" in done.stderr
