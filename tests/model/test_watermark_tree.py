"""The watermark of each operator in a tree, from its inputs, their ends, and the clock."""

from __future__ import annotations

from typing import Any

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import Node
from backlog_spark.model.plan_checks import check_tree
from backlog_spark.model.trees import informed
from backlog_spark.model.watermark_tree import WatermarkTree
from backlog_spark.model.watermarks import END_OF_TIME, MIN_WATERMARK, Watermark
from backlog_spark.spi import SourceInfo, WatermarkCharacteristic


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def timed(name: str, delay: str = "10 ms", **more: Any) -> Any:
    return bs.source("hybrid", name=name).with_watermark("ts", delay, **more)


class Pass(bs.KeyedProcessFunction):
    output = "k long"


class Both(bs.KeyedCoProcessFunction):
    output = "k long"


def one(stream: Any, name: str = "one") -> Any:
    return stream.key_by("k").process(Pass(), name=name)


def two(left: Any, right: Any, name: str = "two") -> Any:
    return left.key_by("k").connect(right.key_by("k")).process(Both(), name=name)


def tree(stream: Any, clock: Clock | None = None) -> WatermarkTree:
    node: Node = stream._node
    return WatermarkTree(node, clock or Clock())


def at(found: dict[str, Watermark]) -> dict[str, int]:
    assert not any(each.use_processing_time for each in found.values())
    return {name: each.timestamp for name, each in found.items()}


def test_the_greatest_time_less_the_delay() -> None:
    times = tree(one(timed("a")))
    times.follow([False], [False])
    assert at(times.watermarks()) == {"one": MIN_WATERMARK}
    assert times.least() is None
    assert times.take([100])
    assert not times.take([50])
    assert not times.take([None])
    assert times.greatest == [100]
    assert at(times.watermarks()) == {"one": 89}
    assert times.least() == 89


@pytest.mark.parametrize(
    ("greatest", "finished", "expected"),
    [
        ([100, None], [], MIN_WATERMARK),
        ([100, 500], [], 89),
        ([1_000, 500], [], 399),
        ([100, 500], [0], 399),  # a finished input holds nothing back
        ([None, 500], [0], 399),
        ([100, 500], [0, 1], END_OF_TIME),
        ([None, None], [0, 1], END_OF_TIME),
    ],
)
@pytest.mark.parametrize("how", ["union", "connect"])
def test_the_least_of_those_that_run(how: str, greatest: list[int | None], finished: list[int], expected: int) -> None:
    a, b = timed("a"), timed("b", "100 ms")
    times = tree(one(a.union(b), "x") if how == "union" else two(a, b, "x"))
    times.take(greatest)
    times.follow([False, False], [number in finished for number in range(2)])
    assert at(times.watermarks()) == {"x": expected}
    assert times.least() == (None if expected == MIN_WATERMARK else expected)


def test_each_operator_has_the_watermark_of_its_own_inputs() -> None:
    times = tree(two(one(timed("a"), "first"), timed("b"), "second"))
    times.follow([False, False], [False, False])
    # Inputs that are not keyed come first in the plan.
    times.take([None, 100])
    assert at(times.watermarks()) == {"first": 89, "second": MIN_WATERMARK}
    times.take([50, None])
    assert at(times.watermarks()) == {"first": 89, "second": 39}
    assert times.least() == 39


def test_time_waits_for_timers_of_an_earlier_operator() -> None:
    times = tree(one(one(timed("a"), "first"), "second"))
    times.follow([False], [False])
    times.take([100])
    assert at(times.watermarks({"first": None})) == {"first": 89, "second": MIN_WATERMARK}
    assert at(times.watermarks({"first": 50})) == {"first": 89, "second": 50}
    assert at(times.watermarks({"first": 89})) == {"first": 89, "second": 89}


def test_an_operator_without_event_time_only_gets_the_end() -> None:
    times = tree(one(bs.source("hybrid", name="a")))
    times.follow([False], [False])
    assert times.watermarks() == {}
    times.follow([False], [True])
    assert at(times.watermarks()) == {"one": END_OF_TIME}


def test_idle_inputs() -> None:
    clock = Clock()
    times = tree(one(timed("a").union(timed("b", idle_timeout="1 second"))), clock)
    times.follow([False, False], [False, False])
    times.take([100, None])
    assert at(times.watermarks()) == {"one": MIN_WATERMARK}
    clock.now += 1_001
    assert at(times.watermarks()) == {"one": 89}
    times.take([None, 60])
    assert at(times.watermarks()) == {"one": 89}, "it is behind, and not aligned"
    times.take([200, 120])
    assert at(times.watermarks()) == {"one": 109}


CLOCKED = SourceInfo(watermark_characteristic=WatermarkCharacteristic.ANY_WATERMARK, use_processing_time=True)


def clocked(name: str) -> bs.BacklogStream:
    """A source whose connector says that event time follows the clock after the backlog."""
    return bs.BacklogStream(informed(bs.source("mysql_cdc", name=name)._node, [CLOCKED]))


def test_processing_time_begins_when_the_backlog_ends() -> None:
    clock = Clock()
    times = tree(one(clocked("a")), clock)
    times.follow([True], [False])
    assert at(times.watermarks()) == {"one": MIN_WATERMARK}
    clock.now += 10
    times.follow([False], [False])
    expected = Watermark(clock.now - 1, use_processing_time=True)
    assert times.watermarks() == {"one": expected}
    clock.now += 10
    assert times.watermarks() == {"one": expected}
    assert times.least() == clock.now
    times.follow([True], [False])
    assert times.watermarks() == {"one": expected}, "never back"
    times.follow([False], [True])
    assert times.least() == END_OF_TIME


def test_processing_time_beside_event_time() -> None:
    clock = Clock()
    users = clocked("users")
    for stream in (one(users.union(timed("clicks")), "x"), two(users, timed("clicks"), "x")):
        times = tree(stream, clock)
        times.follow([True, False], [False, False])
        times.take([100])
        assert at(times.watermarks()) == {"x": MIN_WATERMARK}
        times.follow([False, False], [False, False])
        assert at(times.watermarks()) == {"x": 89}


def test_a_strategy_and_processing_time_exclude_each_other() -> None:
    message = r"with_watermark\('ts'\): a source of the stream uses processing time"
    with pytest.raises(BacklogError, match=message):
        clocked("a").filter("x > 1").with_watermark("ts", "1 second")
    # Of a source that was declared it is known at the start.
    declared = one(bs.source("mysql_cdc", name="a").filter("x > 1").with_watermark("ts", "1 second"))
    check_tree(informed(declared._node, [SourceInfo()]))
    with pytest.raises(BacklogError, match=message):
        check_tree(informed(declared._node, [CLOCKED]))


# -- inputs that have ended ---------------------------------------------------------------------------------------


def finished(times: WatermarkTree, *flags: bool) -> None:
    times.follow([False] * len(flags), flags)


@pytest.mark.parametrize("join", [lambda a, b: one(a.union(b), "x"), lambda a, b: two(a, b, "x")])
def test_an_input_that_ended_does_not_end_an_idle_one(join: Any) -> None:
    clock = Clock()
    times = tree(join(timed("a"), timed("b", idle_timeout="1 second")), clock)
    finished(times, False, False)
    times.take([100, 50])
    assert at(times.watermarks()) == {"x": 39}
    finished(times, True, False)
    clock.now += 1_001
    assert times.watermarks()["x"].timestamp < END_OF_TIME
    times.take([None, 500])
    assert at(times.watermarks()) == {"x": 489}
    finished(times, True, True)
    assert at(times.watermarks()) == {"x": END_OF_TIME}


@pytest.mark.parametrize("join", [lambda a, b: one(a.union(b), "x"), lambda a, b: two(a, b, "x")])
@pytest.mark.parametrize("first", [True, False])
def test_an_event_time_that_ended_beside_processing_time(join: Any, first: bool) -> None:
    clock = Clock()
    users = clocked("users")
    times = tree(join(timed("a"), users) if first else join(users, timed("a")), clock)
    finished(times, False, False)
    times.take([100])
    assert at(times.watermarks()) == {"x": 89}
    finished(times, first, not first)
    found = times.watermarks()["x"]
    assert found.use_processing_time, "what is left goes by the clock"
    assert found.at(clock.now) == clock.now
    finished(times, True, True)
    assert at(times.watermarks()) == {"x": END_OF_TIME}


@pytest.mark.parametrize("which", [0, 1])
def test_an_input_without_event_time_keeps_the_operator_from_its_end(which: int) -> None:
    users = clocked("users")
    plain = bs.source("hybrid", name="plain")
    times = tree(two(users, plain, "x"))
    finished(times, which == 0, which == 1)
    assert all(each.timestamp < END_OF_TIME for each in times.watermarks().values())
    finished(times, True, True)
    assert at(times.watermarks()) == {"x": END_OF_TIME}


def test_results_without_event_time_end_although_another_input_continues() -> None:
    clock = Clock()
    users = clocked("users")
    times = tree(two(one(bs.source("hybrid", name="plain"), "first"), users, "x"), clock)
    finished(times, False, False)
    assert times.watermarks()["x"].use_processing_time
    # Inputs that are not keyed come first.
    finished(times, False, True)
    found = times.watermarks()
    assert found["first"] == Watermark(END_OF_TIME)
    assert found["x"].at(clock.now) == clock.now


def test_the_end_waits_for_timers_of_an_earlier_operator() -> None:
    clock = Clock()
    users = clocked("users")
    for stream, by_clock in ((users, True), (timed("a"), False)):
        times = tree(one(one(stream, "first"), "second"), clock)
        finished(times, False)
        times.take([] if by_clock else [100])
        reached = clock.now if by_clock else 89
        assert times.watermarks({"first": 50})["second"].at(clock.now) == (reached if by_clock else 50)
        assert times.watermarks({"first": 50}, {"first"})["second"].at(clock.now) == 50
        finished(times, True)
        assert at(times.watermarks({"first": 50})) == {"first": END_OF_TIME, "second": 50}
        assert at(times.watermarks({"first": None})) == {"first": END_OF_TIME, "second": MIN_WATERMARK}
        assert at(times.watermarks({"first": END_OF_TIME})) == {"first": END_OF_TIME, "second": END_OF_TIME}


def test_an_event_time_ahead_of_the_clock_lets_the_clock_go_on() -> None:
    clock = Clock()
    users = clocked("users")
    times = tree(two(users, timed("a"), "x"), clock)
    finished(times, False, False)
    times.take([clock.now + 1_000])
    found = times.watermarks()["x"]
    assert found.use_processing_time, "so that it is told when something is due, and not at every question"
    assert found.at(clock.now) == clock.now
    clock.now += 5_000
    assert at(times.watermarks()) == {"x": clock.now - 5_000 + 1_000 - 10 - 1}
