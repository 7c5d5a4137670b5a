"""How far a backlog is, also while a batch runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backlog_spark.runner.estimate import BacklogEstimate, SourceRows
from backlog_spark.runner.query_progress import QueryTracker

from .test_query_progress import ON, began, report, source, take


class Query:
    """A query that has planned some batches: each has the rows read until its end, of 1,000."""

    def __init__(self, *ends: int, committed: int | None = None) -> None:
        self.tracker: QueryTracker = began("copy", ON, {0: True}, {0: "orders"})
        self.tasks = (0, 1)
        self.spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: self))
        self.checkpoint: Any = SimpleNamespace(
            latest_batch=lambda: len(ends) - 1 if ends else None,
            latest_committed=lambda: committed,
            offsets=lambda batch: [{"rows": ends[batch], "total": 1_000}],
        )
        self.estimate = BacklogEstimate(self.spark, self.checkpoint, self.tracker)

    def getActiveStageIds(self) -> list[int]:
        return [7, 8]

    def getStageInfo(self, stage: int) -> Any:
        finished, tasks = self.tasks
        return SimpleNamespace(numTasks=tasks, numCompletedTasks=finished) if stage == 7 else None

    def rows(self) -> float:
        """The same for the one source and for all."""
        [found] = self.estimate.of_sources()
        assert (found.rows, found.total) == pytest.approx(self.estimate.of_all())
        return found.rows


def test_a_running_batch_counts_by_its_finished_tasks() -> None:
    query = Query(400)
    query.tasks = (1, 4)
    assert query.rows() == 100.0
    query = Query(400, 900, committed=0)
    take(query.tracker, report(0, source(0, None, 1, 400, (True, True), total=1_000)))
    query.tasks = (3, 5)
    assert query.rows() == 700.0
    assert SourceRows("orders", 700.4, 1_000).left == 300
    assert SourceRows("orders", 700.4, 0).left is None


def test_before_the_first_batch_nothing_is_read() -> None:
    query = Query()
    assert query.estimate.of_sources() == [SourceRows("orders", 0.0, 0)]
    assert query.estimate.of_all() == (0.0, 0)


def test_a_second_stage_takes_no_rows_back_but_a_restart_does() -> None:
    query = Query(400)
    shown = []
    for finished in (0, 3, 0, 5):
        query.tasks = (finished, 10)
        shown.append(query.rows())
    query.tracker.restarted()
    query.tasks = (2, 10)
    shown.append(query.rows())
    assert shown == [0, 120, 120, 200, 80]


def test_a_batch_that_is_committed_and_not_yet_reported_counts_whole() -> None:
    """Its tasks are gone. Spark reports up to a second later."""
    query = Query(400, committed=0)
    query.tasks = (0, 4)
    assert query.rows() == 400.0


def test_rows_of_earlier_processes_are_in_the_total() -> None:
    query = Query(400, 1_000, committed=1)
    query.tracker.rows_before = 400
    take(query.tracker, report(1, source(0, 1, 2, 600, (True, False), total=1_000)))
    assert query.estimate.of_all() == (1_000.0, 1_000)
    assert (query.tracker.progress.backlog_rows, query.tracker.backlog_total) == (600, 1_000)
