"""What a query's handle shows of itself."""

from __future__ import annotations

import threading
from typing import Any

from backlog_spark.runner.handle import QueryHandle
from backlog_spark.runner.query_progress import QueryTracker

from .test_query_progress import report, source, take, tracker


class Handle(QueryHandle):
    """A handle without a query."""

    def __init__(self, made: QueryTracker) -> None:
        self._name = "orders"
        self._tracker = made
        self._ended, self._stopping, self._ending = threading.Event(), threading.Event(), threading.Event()
        self._failure = None

    @property
    def streamingQuery(self) -> Any:
        raise AssertionError("a repr asks no JVM")

    @property
    def backlogRowsCommitted(self) -> int:
        raise AssertionError("a repr asks no JVM")

    def stop(self, *, after_batch: bool = False) -> None:
        self._stopping.set()

    def backlogSources(self) -> Any:
        raise AssertionError("a repr asks no JVM")

    def backlogRows(self) -> tuple[float, int]:
        raise AssertionError("a repr asks no JVM")


def test_a_handle_shows_name_status_mode_and_rows() -> None:
    made = tracker()
    handle = Handle(made)
    assert repr(handle) == "<Handle 'orders' RUNNING, mode backlog, backlog rows left: unknown; 0 rows in 0 commits>"
    take(made, report(0, source(0, None, 1, 1_000, (True, True), total=2_500)))
    assert repr(handle) == "<Handle 'orders' RUNNING, mode backlog, backlog rows left: 1,500; 1,000 rows in 1 commit>"
    take(made, report(1, source(0, 1, 2, 1_500, (True, False), total=2_500)))
    take(made, report(2, source(0, 2, 3, 7, (False, False))))
    assert repr(handle) == "<Handle 'orders' RUNNING, mode stream, no backlog; 2,507 rows in 3 commits>"
    again = tracker()
    again.rows_before = 1_000  # of a process that was killed
    take(again, report(1, source(0, 1, 2, 600, (True, True), rows=1_600, total=2_500)))
    assert "mode backlog, backlog rows left: 900; 600 rows in 1 commit>" in repr(Handle(again))
    handle._stopping.set()
    handle._ended.set()
    assert repr(handle) == "<Handle 'orders' CANCELED, mode stream, no backlog; 2,507 rows in 3 commits>"
