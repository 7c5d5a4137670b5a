"""Reports in, history and counts out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backlog_spark.common.intervals import Intervals
from backlog_spark.decide.coordinator import Coordinator
from backlog_spark.decide.reports import ProgressReport, SourceReport
from backlog_spark.decide.steps import Facts, Mode
from backlog_spark.runner.query_progress import QueryTracker

ON = Intervals(1_000, 10_000, "builder", "builder")
OFF = Intervals(1_000, None, "builder", "default")


def source(
    index: int, start: int | None, end: int, rows: int, flags: tuple[bool, bool], /, **more: Any
) -> SourceReport:
    """A source that went from ``start`` to ``end``; ``flags`` of the batch and from its end on."""
    offsets = [None if n is None else {"n": n, **more} for n in (start, end)]
    return SourceReport(index, "", offsets[0], offsets[1], None, rows, flags[1], flags[0], bool(more.get("finished")))


def report(batch: int, *sources: SourceReport, took_ms: int = 500) -> ProgressReport:
    return ProgressReport("q", "r", batch, "", {"triggerExecution": took_ms}, sources)


def tracker(intervals: Intervals = ON, flags: tuple[bool, ...] = (True,)) -> QueryTracker:
    return began("orders", intervals, dict(enumerate(flags)), clock=lambda: 7.0)


def began(
    name: str, intervals: Intervals, flags: dict[int, bool], names: dict[int, str] | None = None, **more: Any
) -> QueryTracker:
    coordinator = Coordinator(Facts(intervals.interval_ms, intervals.during_backlog_ms))
    made = QueryTracker(name, coordinator, **more)
    made.began(coordinator.begin(flags, names))
    return made


def take(made: QueryTracker, report: ProgressReport) -> bool:
    """As the runner does."""
    return made.took(report, made.coordinator.take(report))


def switches(made: QueryTracker) -> list[tuple[int, Mode, int | None]]:
    assert all(s.timestamp == 7.0 for s in made.history)
    return [(s.batch_id, s.mode, s.commit_interval_ms) for s in made.history]


@pytest.mark.parametrize(
    ("intervals", "flags", "names", "why"),
    [
        (ON, {0: True}, {0: "orders"}, "source orders reads its backlog"),
        (ON, {0: True, 1: False, 2: True}, {0: "a", 1: "b", 2: "c"}, "sources a, c read their backlog"),
        (ON, {0: True}, {}, "there is backlog"),
        (ON, {0: False}, {0: "orders"}, "no source has backlog"),
        (OFF, {0: True}, {0: "orders"}, "no interval during backlog is set"),
    ],
)
def test_the_first_mode_has_a_reason(
    intervals: Intervals, flags: dict[int, bool], names: dict[int, str], why: str
) -> None:
    assert [switch.why for switch in began("q", intervals, flags, names).history] == [why]


def test_the_switch_is_the_batch_after_the_last_backlog_batch() -> None:
    made = tracker()
    take(made, report(0, source(0, None, 1, 100, (True, True), total=150)))
    assert (made.coordinator.mode, made.coordinator.is_processing_backlog) == (Mode.BACKLOG, True)
    take(made, report(1, source(0, 1, 2, 50, (True, False), total=150)))
    assert (made.coordinator.mode, made.coordinator.is_processing_backlog) == (Mode.STREAM, False)
    take(made, report(2, source(0, 2, 3, 5, (False, False))))
    assert switches(made) == [(-1, Mode.BACKLOG, 10_000), (2, Mode.STREAM, 1_000)]
    progress = made.progress
    assert (progress.rows, progress.backlog_rows, progress.backlog_total) == (155, 150, 150)
    assert (progress.commits_in_backlog, progress.commits_after, progress.commits_without_rows) == (2, 1, 0)
    assert progress.rows_per_second == 10.0  # 5 rows in 500 ms


def test_after_the_backlog_its_total_is_the_number_of_read_rows() -> None:
    """A source that estimated more has not lost rows."""
    made = tracker()
    take(made, report(0, source(0, None, 1, 100, (True, True), total=210)))
    assert (made.progress.backlog_rows, made.progress.backlog_total) == (100, 210)
    take(made, report(1, source(0, 1, 2, 50, (True, False), total=160)))
    assert (made.progress.backlog_rows, made.progress.backlog_total) == (150, 150)
    take(made, report(2, source(0, 2, 3, 5, (False, False), total=160)))
    assert (made.progress.rows, made.progress.backlog_rows, made.progress.backlog_total) == (155, 150, 150)
    made = tracker()
    take(made, report(0, source(0, None, 1, 100, (True, True), total=80)))
    assert (made.progress.backlog_rows, made.progress.backlog_total) == (100, 100), "never less than what was read"


def test_a_batch_of_a_source_whose_offsets_are_no_json_objects_is_backlog_too() -> None:
    """Spark's source ``rate`` has numbers. A rule says that it is in backlog."""
    made = tracker()
    take(made, report(0, source(0, None, 1, 100, (True, True))))
    take(made, report(1, replace(source(0, 1, 2, 50, (True, False)), start_offset=None, end_offset=None)))
    progress = made.progress
    assert (progress.backlog_rows, progress.commits_in_backlog, progress.commits_after) == (150, 2, 0)


def test_a_batch_without_rows_that_only_takes_the_flag_back_is_counted_apart() -> None:
    made = tracker()
    take(made, report(0, source(0, None, 1, 100, (True, True))))
    take(made, report(1, source(0, 1, 2, 0, (True, False))))
    assert switches(made)[-1] == (2, Mode.STREAM, 1_000)
    assert (made.progress.commits_in_backlog, made.progress.commits_without_rows) == (1, 1)
    assert made.progress.rows_per_second == 200.0  # of the last batch with rows


def test_a_batch_reported_again_after_a_restart_is_not_counted_twice() -> None:
    made = tracker()
    for _ in range(2):
        take(made, report(0, source(0, None, 1, 100, (True, True))))
        made.restarted()
    assert (made.progress.rows, made.progress.commits_in_backlog, made.progress.restarts) == (100, 1, 2)
    assert made.last_batch == 0


def test_any_running_source_keeps_the_query_in_backlog() -> None:
    made = tracker(flags=(True, True))
    take(made, report(0, source(0, None, 1, 9, (True, False)), source(1, None, 1, 9, (True, True))))
    assert made.coordinator.mode is Mode.BACKLOG
    # It stands still: no report of its own, so its last one counts.
    take(made, report(1, source(0, 1, 2, 9, (False, False)), source(1, 1, 1, 0, (False, True))))
    assert made.coordinator.mode is Mode.BACKLOG
    take(made, report(2, source(0, 2, 3, 9, (False, False)), source(1, 1, 2, 9, (True, True), finished=True)))
    assert (made.coordinator.mode, switches(made)[-1]) == (Mode.STREAM, (3, Mode.STREAM, 1_000))


def test_without_the_interval_during_backlog_the_flag_is_shown_but_nothing_is_switched() -> None:
    made = tracker(OFF)
    take(made, report(0, source(0, None, 1, 100, (True, True))))
    assert (made.coordinator.mode, made.coordinator.is_processing_backlog) == (Mode.STREAM, True)
    assert switches(made) == [(-1, Mode.STREAM, 1_000)]


def test_no_source_runs_when_all_have_finished() -> None:
    made = tracker(flags=(True, True))
    assert made.coordinator.flags
    take(made, report(0, source(0, None, 1, 9, (True, False), finished=True), source(1, None, 1, 9, (True, True))))
    assert made.coordinator.flags
    take(made, report(1, source(0, 1, 1, 0, (False, False), finished=True), source(1, 1, 2, 9, (True, False))))
    assert made.coordinator.flags, "it has left its backlog and goes on"
    take(
        made,
        report(2, source(0, 1, 1, 0, (False, False), finished=True), source(1, 2, 3, 9, (False, False), finished=True)),
    )
    assert not made.coordinator.flags


def test_a_batch_that_may_mix_rows_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    unlimited = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@4e2"

    def told(description: str, *sources: SourceReport) -> list[str]:
        caplog.clear()
        made = began("orders", ON, {0: True}, {0: "log"})
        take(made, report(0, *(replace(source, description=description) for source in sources)))
        take(made, report(1, *(replace(source, description=description) for source in sources)))
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    mixed = source(0, None, 1, 100, (True, False))
    (message,) = told(unlimited, mixed)
    assert "batch 0 began in the backlog of source log" in message
    for fine in (
        source(0, None, 1, 100, (True, True)),
        source(0, None, 1, 0, (True, False)),
        source(0, None, 1, 100, (False, False)),
        source(0, None, 1, 100, (True, False), finished=True),
        source(1, None, 1, 100, (True, False)),
    ):
        assert told(unlimited, fine) == []
    # Spark's names of sources that take a limit.
    for more in ("WithAdmissionControl", "WithTriggerAvailableNow"):
        assert told(unlimited.replace("@", f"{more}@"), mixed) == []
