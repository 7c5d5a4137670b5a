"""How far a backlog is, also while a batch runs."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from backlog_spark.runner.estimate import BacklogEstimate, SourceRows, rows_before
from backlog_spark.runner.event_log import EventLog
from backlog_spark.runner.query_progress import QueryTracker
from tests.runner.test_event_log import Files

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


@pytest.mark.parametrize("seed", range(200))
def test_read_rows_are_counted_however_wrong_the_source_estimates(seed: int) -> None:
    """In every process that takes part, also with batches missing in the log of one that was killed."""
    rng = random.Random(seed)
    files = Files()
    sizes = [rng.randint(1, 1_000) for _ in range(rng.randint(1, 12))]
    offsets: list[list[dict[str, Any]]] = []
    said = 0
    for at, size in enumerate(sizes):
        said += round(size * rng.uniform(0.3, 2.5))
        left = 0 if at == len(sizes) - 1 else round(sum(sizes[at + 1 :]) * rng.uniform(0.3, 2.5))
        offsets.append([{"rows": said, "total": said + left, "isProcessingBacklog": at < len(sizes) - 1}])
    committed: list[int | None] = [None]
    files.latest_committed = lambda: committed[0]
    files.offsets = lambda batch: offsets[batch]
    log, tracker = EventLog(files), began("copy", ON, {0: True}, {0: "orders"})
    for batch, size in enumerate(sizes):
        if rng.random() < 0.3:  # another process goes on
            log.close()
            log, tracker = EventLog(files), began("copy", ON, {0: True}, {0: "orders"})
            tracker.rows_before, tracker.rows_before_of = rows_before(files)
        start = None if batch == 0 else batch
        flags = (True, offsets[batch][0]["isProcessingBacklog"])
        take(tracker, report(batch, source(0, start, batch + 1, size, flags, **offsets[batch][0])))
        committed[0] = batch
        read = sum(sizes[: batch + 1])
        left = offsets[batch][0]["total"] - offsets[batch][0]["rows"]
        assert (tracker.backlog_rows, tracker.backlog_rows_of(0)) == (read, read)
        assert tracker.backlog_total == read + left
        log.add("batch", batch=batch, backlog_rows=tracker.backlog_rows)
    log.close()
    files.write_file("backlog/events/99999999-x.jsonl", '{"kind": "bat')  # a crash of the machine
    assert rows_before(files) == (sum(sizes), {0: sum(sizes)})


def test_only_batches_that_no_log_has_count_as_the_source_estimates_them() -> None:
    files = Files()
    files.latest_committed = lambda: 2
    files.offsets = lambda batch: [{"rows": (150, 290, 400)[batch], "total": 1_000}]
    assert rows_before(files) == (400, {0: 400})
    log = EventLog(files)
    log.add("batch", batch=0, backlog_rows=100)
    log.add("batch", batch=3, backlog_rows=900)  # another driver's, replayed
    log.close()
    assert rows_before(files) == (100 + 250, {0: 350})
