"""Ctrl-C while queries are awaited, without Spark."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from backlog_spark.runner.interrupts import ending_on_interrupt


class Query:
    """Ends its batch when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.isActive = True
        self.isEnding = False
        self.stops: list[bool] = []
        self.failure: Exception | None = None
        self.showsProgress = False

    @property
    def summary(self) -> str:
        return f"Query {self.name} has {'ended' if self.failure is None else 'failed'}."

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self, *, after_batch: bool = False) -> None:
        self.stops.append(after_batch)
        self.isEnding = True
        self.isActive = after_batch


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _handlers_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # as it was, after the test
    assert callable(signal.getsignal(signal.SIGINT))


def test_the_first_one_lets_all_end_and_the_wait_raises_when_they_have() -> None:
    orders, clicks = Query("orders"), Query("clicks")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ending_on_interrupt(orders, clicks):  # noqa: PT012
        ctrl_c()
        assert (orders.stops, clicks.stops) == ([True], [True])
        orders.isActive = clicks.isActive = False
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_one_stops_them() -> None:
    orders, clicks = Query("orders"), Query("clicks")
    with pytest.raises(KeyboardInterrupt), ending_on_interrupt(orders, clicks):  # noqa: PT012
        ctrl_c()
        clicks.isActive = False  # its batch was short
        ctrl_c()
    assert (orders.stops, clicks.stops) == ([True, False], [True])


def test_waits_with_a_timeout_are_one_wait() -> None:
    query = Query("orders")
    with ending_on_interrupt(query):
        ctrl_c()
    assert query.stops == [True]
    with pytest.raises(KeyboardInterrupt), ending_on_interrupt(query):
        query.isActive = False
    with ending_on_interrupt(query):
        pass  # it was told once


def test_a_failure_is_said_and_left_to_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    orders, clicks = Query("orders"), Query("clicks")
    with ending_on_interrupt(orders, clicks):
        ctrl_c()
        orders.isActive = clicks.isActive = False
        orders.failure = ValueError("It broke.")
    told = capsys.readouterr().err
    assert told.splitlines()[2:] == ["Query orders has failed.", "Query clicks has ended."]


def test_a_second_one_says_what_failed_before(capsys: pytest.CaptureFixture[str]) -> None:
    orders, clicks = Query("orders"), Query("clicks")
    with pytest.raises(KeyboardInterrupt), ending_on_interrupt(orders, clicks):  # noqa: PT012
        ctrl_c()
        orders.isActive, orders.failure = False, ValueError("It broke.")
        ctrl_c()
    assert (orders.stops, clicks.stops) == ([True], [True, False])
    assert "Query orders has failed." in capsys.readouterr().err


def test_a_query_with_progress_says_its_end_itself(capsys: pytest.CaptureFixture[str]) -> None:
    query = Query("orders")
    query.showsProgress = True
    with pytest.raises(KeyboardInterrupt), ending_on_interrupt(query):  # noqa: PT012
        ctrl_c()
        query.isActive = False
    assert capsys.readouterr().err.splitlines() == [
        "Query orders ends after its running batch. Press Ctrl-C again to end it at once."
    ]


@pytest.mark.parametrize("times", [1, 2])
def test_only_this_error_has_no_traceback(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, found: printed.append(error))
    query = Query("orders")
    with pytest.raises(KeyboardInterrupt) as raised, ending_on_interrupt(query):  # noqa: PT012
        for _ in range(times):
            ctrl_c()
        query.isActive = False
    others = [KeyboardInterrupt(), ValueError("It broke.")]
    for error in [raised.value, *others]:
        sys.excepthook(type(error), error, None)
    assert printed == others


def test_a_query_that_is_stopped_otherwise_raises_nothing() -> None:
    query = Query("orders")
    with ending_on_interrupt(query):
        query.stop()


def test_other_threads_get_no_signals() -> None:
    before = signal.getsignal(signal.SIGINT)
    found = []

    def wait() -> None:
        with ending_on_interrupt(Query("orders")):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert found == [before]
