"""Reports of key groups, and the resulting number of timers that they may fire."""

from __future__ import annotations

from backlog_spark.model.watermarks import END_OF_TIME
from backlog_spark.state.store import NEVER
from backlog_spark.state.timer_reports import FiringBudget, GroupReport, GroupReports


def test_the_newest_report_counts_and_counts_add_up() -> None:
    reports = GroupReports()
    total = reports.zero({})
    for one in (
        {("f", 1): GroupReport(5, next_processing=NEVER, late=2, fired=10, seconds=0.5)},
        {("f", 1): GroupReport(9, next_event=70, late=1), ("f", 2): GroupReport(9, fired=1, seconds=1.0)},
    ):
        total = reports.addInPlace(total, one)
    assert total == {
        ("f", 1): GroupReport(9, next_event=70, late=3, fired=10, seconds=0.5),
        ("f", 2): GroupReport(9, fired=1, seconds=1.0),
    }


def test_a_group_fires_until_nothing_of_its_watermark_is_left() -> None:
    assert GroupReport(10, next_event=10).is_firing
    assert not GroupReport(10, next_event=11).is_firing
    assert GroupReport(END_OF_TIME, next_event=END_OF_TIME - 1).is_firing
    assert not GroupReport(END_OF_TIME).is_firing, "nothing is due at the end of time that is never due"


def test_the_budget_is_what_the_time_suffices_for() -> None:
    budget = FiringBudget(2_000, key_groups=4, tasks=2)
    assert budget.of({}) == 100, "before anything is known"
    # A millisecond a timer; two groups of the same task have more to fire, so each has half of the task's 2000.
    first = {n: GroupReport(10, 5 if n < 2 else NEVER, partition=n // 2, fired=100, seconds=0.1) for n in range(4)}
    assert budget.of(first) == 1_000
    # Timers became twice as slow: half of what is new counts, so 1.5 ms. Nothing is left: two groups a task again.
    second = {n: GroupReport(10, partition=n // 2, fired=200, seconds=0.3) for n in range(4)}
    assert budget.of(second) == int(2 / 0.0015 / 2)
    assert budget.of(second) == int(2 / 0.0015 / 2), "nothing fired, nothing learned"
    assert FiringBudget(0, 4, 2).of(first) == 1, "one at least"
