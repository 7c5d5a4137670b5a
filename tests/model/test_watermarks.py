"""Watermarks by the tables and rules of FLIP-326, and which column is the event time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import (
    EVENT_TIME,
    MIN_WATERMARK,
    CombinedWatermarkStatus,
    Watermark,
    WatermarkOutput,
    WatermarkValve,
    event_time_of,
)


def event(timestamp: int) -> Watermark:
    return Watermark(timestamp)


def clock(timestamp: int) -> Watermark:
    return Watermark(timestamp, use_processing_time=True)


def test_event_time_is_the_default() -> None:
    assert Watermark(5) == Watermark(5, use_processing_time=False)
    assert Watermark(5).at(9) == 5
    assert clock(5).at(9) == 9


# -- what a source sends (WatermarkToDataOutput) ------------------------------------------------------------------


def test_event_times_are_sent_when_they_are_greater() -> None:
    output = WatermarkOutput(lambda: 100)
    sent = [output.emit(event(t)) for t in (3, 3, 2, 7)]
    assert sent == [event(3), None, None, event(7)]
    assert output.last == event(7)


def test_processing_time_is_always_sent() -> None:
    output = WatermarkOutput(lambda: 100)
    output.emit(event(50))
    assert output.emit(clock(40)) == clock(40)
    assert output.emit(clock(40)) == clock(40)


@pytest.mark.parametrize(
    ("before", "now", "watermark", "message"),
    [
        ([clock(5)], 100, event(50), "event time 50 came after one of processing time"),
        ([], 100, clock(100), "timestamp 100, and it is 100 now"),
        ([], 100, clock(101), "timestamp 101, and it is 100 now"),
        ([event(150)], 100, clock(20), "came at 100, but one of event time 150 had been sent"),
    ],
)
def test_what_must_not_be_sent(before: list[Watermark], now: int, watermark: Watermark, message: str) -> None:
    output = WatermarkOutput(lambda: now)
    for each in before:
        output.emit(each)
    with pytest.raises(BacklogError, match=message):
        output.emit(watermark)
    assert output.last == (before[-1] if before else None), "nothing has changed"


def test_processing_time_may_follow_when_the_clock_has_reached_event_time() -> None:
    output = WatermarkOutput(lambda: 150)
    output.emit(event(150))
    assert output.emit(clock(149)) == clock(149)


# -- one input of several channels (StatusWatermarkValve) ---------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        # The table of FLIP-326: t1 = 10, t2 = 20 and the other way round.
        (clock(10), clock(20), clock(10)),
        (clock(20), clock(10), clock(10)),
        (clock(10), event(20), event(20)),
        (clock(20), event(10), event(10)),
        (event(10), clock(20), event(10)),
        (event(20), clock(10), event(20)),
        (event(10), event(20), event(10)),
        (event(20), event(10), event(10)),
    ],
)
def test_two_channels(one: Watermark, two: Watermark, expected: Watermark) -> None:
    for order in ([(0, one), (1, two)], [(1, two), (0, one)]):
        valve = WatermarkValve(2)
        for channel, watermark in order:
            valve.input_watermark(channel, watermark)
        assert valve.watermark == expected


def test_nothing_is_known_before_every_channel_has_said_something() -> None:
    valve = WatermarkValve(2)
    assert valve.input_watermark(0, event(10)) is None
    assert valve.watermark == event(MIN_WATERMARK)
    assert valve.input_watermark(1, clock(5)) == event(10)
    assert valve.input_watermark(1, clock(6)) is None, "the other one holds it"
    assert valve.input_watermark(0, event(9)) is None, "a channel never goes back"
    assert valve.input_watermark(0, clock(50)) == clock(6)


def test_an_idle_channel_holds_nothing_back_and_is_aligned_again_when_it_has_caught_up() -> None:
    valve = WatermarkValve(2)
    valve.input_watermark(0, event(10))
    assert valve.input_status(1, idle=True) == event(10)
    assert valve.input_watermark(0, event(30)) == event(30)
    assert valve.input_watermark(1, event(40)) is None, "idle: what it says is left alone"
    assert valve.input_status(1, idle=False) is None
    assert valve.input_watermark(1, event(20)) is None
    assert valve.input_watermark(0, event(35)) == event(35), "not aligned: it is behind"
    assert valve.input_watermark(1, event(36)) is None
    assert valve.input_watermark(0, event(50)) == event(36), "aligned: it counts"


def test_all_channels_idle_give_the_greatest() -> None:
    valve = WatermarkValve(2)
    valve.input_watermark(0, event(10))
    valve.input_watermark(1, event(20))
    assert valve.input_status(0, idle=True) == event(20)
    assert not valve.is_idle
    assert valve.input_status(1, idle=True) is None
    assert valve.is_idle
    valve.input_status(0, idle=False)
    assert not valve.is_idle
    assert valve.input_watermark(0, event(15)) is None, "not aligned: behind what was said"
    assert valve.input_watermark(0, event(25)) == event(25)


def test_processing_time_makes_a_channel_active_for_good() -> None:
    valve = WatermarkValve(2)
    valve.input_status(0, idle=True)
    valve.input_status(1, idle=True)
    assert valve.is_idle
    assert valve.input_watermark(0, clock(5)) == clock(5)
    assert not valve.is_idle
    assert valve.input_status(0, idle=True) is None
    assert not valve.is_idle


def test_after_processing_time_only_such_channels_are_aligned() -> None:
    valve = WatermarkValve(2)
    valve.input_status(1, idle=True)
    assert valve.input_watermark(0, clock(5)) == clock(5)
    valve.input_status(1, idle=False)
    assert valve.input_watermark(1, event(100)) is None, "back to event time would be an error: it is left out"
    assert valve.watermark == clock(5)
    assert valve.input_watermark(1, clock(120)) is None
    assert valve.input_watermark(0, clock(7)) == clock(7)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.booleans(), st.booleans()), max_size=40))
def test_a_valve_never_goes_back(moves: list[tuple[int, int, bool, bool]]) -> None:
    valve = WatermarkValve(3)
    last = valve.watermark
    for channel, timestamp, by_clock, idle in moves:
        valve.input_status(channel, idle=idle)
        valve.input_watermark(channel, Watermark(timestamp, by_clock))
        now = valve.watermark
        assert now.use_processing_time >= last.use_processing_time
        # By the clock the timestamp is only when that was last said.
        if now.use_processing_time == last.use_processing_time:
            assert now.timestamp >= last.timestamp
        last = now


# -- an operator of several inputs (IndexedCombinedWatermarkStatus) -----------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        # At 100: all by the clock, or else the least, of which those by the clock are at 100.
        (clock(10), clock(20), clock(10)),
        (clock(10), event(20), event(20)),
        (clock(10), event(120), event(100)),
        (event(10), clock(20), event(10)),
        (event(10), event(20), event(10)),
        (event(20), event(10), event(10)),
    ],
)
def test_two_inputs(one: Watermark, two: Watermark, expected: Watermark) -> None:
    for first, second in ((0, 1), (1, 0)):
        combined = CombinedWatermarkStatus(2)
        combined.update(first, one)
        combined.update(second, two)
        assert combined.watermark(100) == expected


def test_an_idle_input_holds_nothing_back_unless_it_goes_by_the_clock() -> None:
    combined = CombinedWatermarkStatus(2)
    combined.update(0, event(10))
    assert combined.watermark(100) == event(MIN_WATERMARK)
    combined.update_status(1, idle=True)
    assert combined.watermark(100) == event(10)
    combined.update_status(1, idle=False)
    combined.update(1, event(5))
    assert combined.watermark(100) == event(10), "it never goes back"
    combined.update_status(0, idle=True)
    combined.update_status(1, idle=True)
    assert combined.is_idle
    combined.update(1, clock(50))
    combined.update_status(1, idle=True)
    assert not combined.is_idle
    assert combined.watermark(100) == clock(50)


# -- columns ------------------------------------------------------------------------------------------------------


def test_event_time_column() -> None:
    mark = {EVENT_TIME: "ts"}
    assert event_time_of(StructType().add("ts", "timestamp")) is None
    assert event_time_of(StructType().add("renamed", "timestamp", metadata=mark)) == "renamed"
    both = StructType().add("copy", "timestamp", metadata=mark)
    assert event_time_of(both.add("ts", "timestamp", metadata=mark)) == "ts"
    with pytest.raises(BacklogError, match="Columns a, b are all the event time ts"):
        event_time_of(StructType().add("a", "timestamp", metadata=mark).add("b", "timestamp", metadata=mark))
