"""When a Kafka phase is backlog: the rule as a truth table, then on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from backlog_spark.connectors.hybrid.kafka.backlog import Flag, OffsetThresholds

from .broker import Broker, step

LAG = OffsetThresholds(lag_ms=1000, lag_leave_ms=400)
COUNT = OffsetThresholds(offsets=100, offsets_leave=50)
BOTH = OffsetThresholds(lag_ms=1000, lag_leave_ms=400, offsets=100, offsets_leave=50)
NONE = OffsetThresholds()
# None: the very start.
IN, OUT, START = Flag(True, 7), Flag(False, 7), None


def _oldest(age_ms: int) -> Callable[[int], bool]:
    return lambda ms: age_ms > ms


@pytest.mark.parametrize(
    ("rule", "flag", "unread", "age_ms", "expected"),
    [
        # The age of the oldest unread record: in above 1000, out at 400 or less.
        (LAG, START, 1, 1001, True),
        (LAG, START, 1, 1000, False),
        (LAG, OUT, 1, 1001, True),
        (LAG, OUT, 1, 1000, False),
        (LAG, IN, 1, 1000, True),
        (LAG, IN, 1, 401, True),
        (LAG, IN, 1, 400, False),
        (LAG, OUT, 10**9, 400, False),
        # The number of unread offsets: in above 100, out at 50 or less.
        (COUNT, START, 101, 0, True),
        (COUNT, START, 100, 0, False),
        (COUNT, OUT, 101, 0, True),
        (COUNT, OUT, 100, 0, False),
        (COUNT, IN, 51, 0, True),
        (COUNT, IN, 50, 0, False),
        (COUNT, OUT, 1, 10**9, False),
        # Either is enough to be in, both are needed to be out.
        (BOTH, OUT, 101, 0, True),
        (BOTH, OUT, 1, 1001, True),
        (BOTH, OUT, 100, 1000, False),
        (BOTH, IN, 51, 400, True),
        (BOTH, IN, 50, 401, True),
        (BOTH, IN, 50, 400, False),
        # Nothing unread is never backlog; nor is anything without a threshold.
        (BOTH, IN, 0, 10**9, False),
        (NONE, START, 10**9, 10**9, False),
        (NONE, OUT, 10**9, 10**9, False),
        (NONE, IN, 10**9, 10**9, False),
    ],
)
def test_truth_table(rule: OffsetThresholds, flag: Flag | None, unread: int, age_ms: int, expected: bool) -> None:
    found = rule.next(flag, unread, _oldest(age_ms), 5000.5)
    # What stays is the same, since the same time: a position that has not changed must be equal.
    assert found == (flag if flag is not None and flag.is_backlog == expected else Flag(expected, 5000))


@pytest.mark.parametrize(
    ("flag", "now_ms", "expected"),
    [
        (Flag(True, 1000), 2999, True),
        (Flag(True, 1000), 3000, False),
        (Flag(False, 1000), 2999, False),
        (Flag(False, 1000), 3000, True),
        (None, 0, True),
    ],
)
def test_a_flag_stays_for_a_while(flag: Flag | None, now_ms: int, expected: bool) -> None:
    rule = OffsetThresholds(offsets=10, offsets_leave=5, min_stay_ms=2000)
    wanted = 11 if flag is None or not flag.is_backlog else 0
    assert rule.next(flag, wanted, _oldest(0), now_ms).is_backlog is expected


def test_brokers_are_asked_only_if_the_answer_decides() -> None:
    def never(_: int) -> bool:
        raise AssertionError("asked")

    assert BOTH.next(OUT, 0, never, 0) == OUT
    assert BOTH.next(OUT, 101, never, 0).is_backlog
    assert COUNT.next(OUT, 1, never, 0) == OUT
    assert OffsetThresholds(lag_ms=1, min_stay_ms=10).next(OUT, 1, never, 16) == OUT


DAY = 86_400_000


def _run(broker: Broker, options: dict[str, str], now: int, rows: int | None) -> list[tuple[bool, Any]]:
    """Flag and rows of each batch, until nothing is new."""
    phase = broker.phase(**options)
    position = phase.begin({})
    found: list[tuple[bool, Any]] = [(phase.is_backlog(position), 0)]
    while (planned := step(phase, position, rows, now)).position != position:
        assert phase.is_backlog(planned.position) == planned.is_backlog
        assert planned.total == (100 if planned.is_backlog else None)
        found.append((planned.is_backlog, planned.rows))
        position = planned.position
    return found


@pytest.mark.slow
def test_five_days_enter_backlog_and_leave_it_once(broker: Broker) -> None:
    topic = broker.topic(2)
    now = int(time.time() * 1000)
    # One record each 72 minutes, in turns, the newest a minute old.
    ages = [60_000 + i * 5 * DAY // 100 for i in reversed(range(100))]
    for number in range(2):
        broker.send(topic, map(str, range(50)), number, at=[now - age for age in ages[number::2]])
    options = {"subscribe": topic, "backlogLagThreshold": "1 day"}
    # All at once: at the end nothing is unread.
    assert _run(broker, options, now, None) == [(True, 0), (False, 100)]
    # 20 records are a day. It is left when none is unread that is older than half a day, the last ten.
    found = _run(broker, options, now, 10)
    assert [rows for _, rows in found] == [0, *[10] * 10]
    assert [flag for flag, _ in found] == [True] * 9 + [False] * 2
    # A lower bound of its own: the last two are of a minute and of 73.
    late = _run(broker, {**options, "backlogLagLeaveThreshold": "90 min"}, now, 2)
    assert [flag for flag, _ in late] == [True] * 49 + [False] * 2
    assert _run(broker, {"subscribe": topic}, now, None) == [(False, 0), (False, 100)]


def test_the_number_of_unread_offsets(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, map(str, range(100)))
    options = {"subscribe": topic, "backlogOffsetsThreshold": "60"}
    found = _run(broker, options, int(time.time() * 1000), 20)
    # Unread after each: 100, 80, 60, 40, 20, 0. In above 60, out at 30.
    assert [flag for flag, _ in found] == [True, True, True, True, False, False]


def test_back_into_backlog_and_a_change_of_the_flag_alone(broker: Broker) -> None:
    topic = broker.topic()
    phase = broker.phase(subscribe=topic, backlogOffsetsThreshold="10", backlogMinStay="1 min")
    start = phase.begin({})
    assert not phase.is_backlog(start)
    broker.send(topic, map(str, range(50)))
    now = start["since"]
    held = step(phase, start, 10, now + 59_999)
    assert (held.is_backlog, held.rows) == (False, 10)
    entered = step(phase, held.position, 10, now + 60_000)
    assert (entered.is_backlog, entered.rows, entered.position["since"]) == (True, 10, now + 60_000)
    done = step(phase, entered.position, None, now + 60_001)
    assert (done.is_backlog, done.rows) == (True, 30)
    assert step(phase, done.position, None, now + 119_999).position is done.position
    # A batch without rows tells that it is over.
    left = step(phase, done.position, None, now + 120_000)
    assert (left.is_backlog, left.rows) == (False, 0)
    assert list(phase.partitions(done.position, left.position)) == []
    assert step(phase, left.position, None, now + 10**9).position is left.position
