"""Batch sizes and ticks, against a simulated source with known speed."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.common.loopback import LoopbackServer
from backlog_spark.spi.pacing import (
    FLOOR_ROWS,
    MAX_GROWTH,
    PROBE_ROWS,
    BacklogSizer,
    GrowingLimit,
    LongPoll,
    Pacer,
    QueryBacklog,
)


def durations(fixed_ms: float, rows_per_ms: float, target_ms: int, batches: int, warm_up_ms: float = 0) -> list[float]:
    """The duration of each batch on a source with a fixed cost per batch and a steady rate."""
    sizer, now, took = BacklogSizer(target_ms), 0.0, []
    for number in range(batches):
        rows = sizer.next_rows(now)
        sizer.started(rows, now)
        took.append(fixed_ms + rows / rows_per_ms + (warm_up_ms if number == 0 else 0))
        now += took[-1]
    return took


@given(
    fixed=st.floats(0, 4_000), rate=st.floats(10, 1_000), target=st.integers(10_000, 600_000), warm=st.floats(0, 20_000)
)
def test_batches_come_to_take_about_the_target(fixed: float, rate: float, target: int, warm: float) -> None:
    last = durations(fixed, rate, target, 12, warm)[-1]
    assert 0.7 * target <= last <= 1.05 * target


@given(rate=st.floats(0.1, 1_000), target=st.integers(1_000, 10_000_000))
def test_a_batch_grows_by_a_bounded_factor(rate: float, target: int) -> None:
    sizer, now, before = BacklogSizer(target), 0.0, PROBE_ROWS
    for _ in range(8):
        rows = sizer.next_rows(now)
        assert FLOOR_ROWS <= rows <= max(FLOOR_ROWS, before * MAX_GROWTH)
        sizer.started(rows, now)
        now, before = now + rows / rate, rows


def test_the_first_batch_is_the_probe_and_slow_warm_up_does_not_shrink_the_second() -> None:
    sizer = BacklogSizer(10_000)
    assert sizer.next_rows(0) == PROBE_ROWS
    sizer.started(PROBE_ROWS, 0)
    assert sizer.next_rows(30_000) == PROBE_ROWS
    sizer.started(PROBE_ROWS, 30_000)
    # measured twice: 50,000 rows in 20 s, so 9 s want 22,500
    assert sizer.next_rows(50_000) == 22_500


def test_an_upper_bound_holds() -> None:
    sizer = BacklogSizer(10_000, most=1_000)
    assert sizer.next_rows(0) == 1_000


def test_a_pacer_lets_one_batch_through_a_tick_at_multiples_of_the_interval() -> None:
    pacer = Pacer(1_000)
    assert pacer.due(10_400)  # the first at once
    pacer.released(10_400)
    assert not pacer.due(10_999)
    assert pacer.due(11_000)
    pacer.released(11_900)
    assert not pacer.due(11_999)
    assert pacer.due(12_000)
    pacer.released(12_000)
    assert pacer.due(15_700)  # busy past ticks: at once


def test_while_others_are_in_backlog_the_longer_interval_holds() -> None:
    asked: list[bool] = []
    answers = [True]

    def in_backlog() -> bool:
        asked.append(answers[0])
        return answers[0]

    pacer = Pacer(1_000, 60_000, in_backlog)
    assert pacer.due(10_400)
    pacer.released(10_400)
    assert not pacer.due(10_999)
    assert len(asked) == 1, "not before a tick"
    assert not pacer.due(59_999)
    assert pacer.due(60_000)
    pacer.released(60_000)
    assert not pacer.due(119_000)
    answers[0] = False
    assert pacer.due(119_001)


def test_with_nothing_committed_in_backlog_live_rows_wait_for_all_others() -> None:
    answers = [True]
    pacer = Pacer(1_000, 0, lambda: answers[0])
    assert not pacer.due(10_400)
    assert not pacer.due(10**12)
    answers[0] = False
    assert pacer.due(10**12)


def test_a_source_asks_the_runner() -> None:
    answers = [True]
    server = LoopbackServer(lambda _: {"isProcessingBacklog": answers[0]})
    in_backlog = QueryBacklog(f"{server.port}:{server.token}")
    try:
        assert in_backlog()
        # Readers travel to the workers.
        assert pickle.loads(pickle.dumps(in_backlog))()
        answers[0] = False
        assert not in_backlog()
        answers[0] = True
        assert not QueryBacklog(f"{server.port}:guessed")(), "nobody else is answered"
        assert in_backlog()
    finally:
        server.close()
    # Without a runner nothing is known. The same holds for a runner that has ended.
    assert not QueryBacklog(f"{server.port}:{server.token}")()
    assert not QueryBacklog()()


def test_interval_zero_lets_everything_through() -> None:
    pacer = Pacer(0)
    pacer.released(5)
    assert pacer.due(5)


def test_a_fixed_cost_beyond_the_target_does_not_shrink_batches_without_end() -> None:
    sizer, now = BacklogSizer(1_000), 0.0
    for _ in range(10):
        rows = sizer.next_rows(now)
        sizer.started(rows, now)
        now += 3_000 + rows / 100
    assert rows == FLOOR_ROWS


class _Clock:
    """Time that passes only while one sleeps."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.now += seconds

    def poll(self, wait_ms: int, every_ms: int) -> LongPoll:
        return LongPoll(wait_ms, every_ms, lambda: self.now, lambda: self.now - 5, self.sleep)


def test_a_question_waits_until_the_tick() -> None:
    clock, pacer = _Clock(10.25), Pacer(1_000)
    pacer.released(10_000)
    looks: list[float] = []

    def look() -> str | None:
        looks.append(round(clock.now, 3))
        return "rows" if pacer.due(clock.now * 1000 + 1e-6) else None

    assert clock.poll(800, 100)(look, pacer.due_in) == "rows"
    assert looks == [10.25, 11.0]


def test_after_a_tick_without_rows_the_source_polls_repeatedly() -> None:
    clock, pacer = _Clock(10.25), Pacer(1_000)
    pacer.released(8_000)
    found = iter([None, None, "rows"])
    assert clock.poll(800, 100)(lambda: next(found), pacer.due_in) == "rows"
    assert clock.slept == [0.1, 0.1]


def test_a_question_is_answered_in_time() -> None:
    clock, pacer = _Clock(10.25), Pacer(10_000)
    pacer.released(10_000)
    assert clock.poll(500, 1_000)(lambda: None, pacer.due_in) is None
    assert clock.slept == [0.5]
    assert clock.poll(0, 1_000)(lambda: None, pacer.due_in) is None
    assert clock.slept == [0.5]


def test_batches_grow_until_they_take_all_that_comes_during_a_commit() -> None:
    """40,000 rows a second, and commits of 10 s whatever their size: a limit of 200,000 would lag ever more."""
    limit, left, taken = GrowingLimit(200_000), 0, []
    for _ in range(12):
        left += 400_000
        rows = min(left, limit.rows)
        left -= rows
        limit.taken(rows, all_of_them=not left)
        taken.append(rows)
    assert taken == [200_000, 400_000, 600_000] + 9 * [400_000]


def test_a_limit_grows_no_further_than_memory_allows() -> None:
    limit = GrowingLimit(1_000)
    for _ in range(10):
        limit.taken(limit.rows, all_of_them=False)
    assert limit.rows == 16_000
    limit.taken(10, all_of_them=False)  # ended by an ALTER TABLE
    assert limit.rows == 16_000
    limit.taken(5_000, all_of_them=True)
    assert limit.rows == 10_000
    limit.taken(400, all_of_them=True)
    assert limit.rows == 1_000


def test_a_clock_that_is_set_back_holds_no_rows_back() -> None:
    pacer = Pacer(1_000)
    pacer.released(7_200_500)
    assert not pacer.due(7_200_900)
    assert pacer.due(3_600_500)
    pacer.released(3_600_500)
    assert not pacer.due(3_600_900)
    assert pacer.due(3_601_000)
