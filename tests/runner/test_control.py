"""Messages of control sources, and that no other process can ask for them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import Any

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import END_OF_TIME, MIN_WATERMARK, Watermark
from backlog_spark.runner.control import ControlDataSource, ControlMessages, ControlServer
from backlog_spark.state.seeds import CONTROL, Control
from backlog_spark.state.store import AT_EVERY_TICK, NEVER

START: dict[str, Any] = {
    "watermark": None, "now": None, "isBacklog": None, "firing": None, "budget": None, "at": None
}  # fmt: skip


class Clock:
    now = 10_000

    def __call__(self) -> int:
        return self.now


def settled(
    messages: ControlMessages, operator: str = "f", *, next_event: int = NEVER, next_processing: int = NEVER
) -> None:
    """All key groups have reported, and none has timers to fire."""
    messages.report(operator, next_event=next_event, next_processing=next_processing, is_firing=False, budget=None)


def at(time: int) -> Callable[[], dict[str, Watermark]]:
    return lambda: {"f": Watermark(time)}


def test_a_watermark_is_sent_once_and_never_goes_back() -> None:
    messages = ControlMessages(clock=Clock())
    assert messages.answer("f", START, at_once=False) == START, "before there is anything to tell"
    settled(messages)
    messages.tell(watermarks=at(50), backlog={"f": False, "g": True})
    told = messages.answer("f", START, at_once=False)
    assert told == {**START, "watermark": 50, "isBacklog": False, "at": 10_000}
    assert messages.answer("f", told, at_once=False) == told
    messages.tell(watermarks=at(40), backlog={"f": False})
    assert messages.answer("f", told, at_once=False) == told
    messages.tell(watermarks=dict, backlog={"f": True})
    assert messages.answer("f", told, at_once=False) == {**told, "isBacklog": True}
    messages.hold()
    assert messages.answer("f", START, at_once=False) == START


def test_each_operator_gets_its_own_watermark() -> None:
    messages = ControlMessages(clock=Clock())
    settled(messages)
    settled(messages, "g")
    messages.tell(watermarks=lambda: {"f": Watermark(50), "g": Watermark(MIN_WATERMARK)}, backlog={})
    assert messages.answer("f", START, at_once=False)["watermark"] == 50
    assert messages.answer("g", START, at_once=False) == START


def test_ticks_come_when_a_timer_is_due() -> None:
    clock = Clock()
    messages = ControlMessages(clock=clock)
    messages.tell(watermarks=dict, backlog={})
    first = messages.answer("f", START, at_once=False)
    assert first["now"] == 10_000, "what is due after a start is not known"
    settled(messages)
    clock.now += 10**6
    assert messages.answer("f", first, at_once=False) == first
    settled(messages, next_processing=clock.now + 500)
    assert messages.answer("f", first, at_once=False) == first
    clock.now += 500
    second = messages.answer("f", first, at_once=False)
    assert second["now"] == clock.now
    clock.now += 50
    assert messages.answer("f", second, at_once=False) == second, "not one after another without a pause"
    clock.now += 50
    assert messages.answer("f", second, at_once=False)["now"] == clock.now
    # A run that ends when all is read: once at its start, whatever comes due meanwhile.
    messages.begin({})
    once = messages.answer("f", second, at_once=True)
    assert once["now"] == clock.now
    settled(messages, next_processing=clock.now + 10)
    clock.now += 1_000
    assert messages.answer("f", once, at_once=True) == once


def test_remaining_timers_fire_at_once_while_time_stops() -> None:
    clock = Clock()
    messages = ControlMessages(clock=clock)
    settled(messages)
    messages.report("f", next_event=NEVER, next_processing=NEVER, is_firing=False, budget=100)
    messages.tell(watermarks=at(50), backlog={})
    told = messages.answer("f", START, at_once=True)
    assert (told["watermark"], told["budget"], told["firing"]) == (50, 100, None)
    messages.tell(watermarks=at(60), backlog={})
    for round_ in (1, 2, 3):
        messages.report("f", next_event=40, next_processing=NEVER, is_firing=True, budget=100 * round_)
        before, told = told, messages.answer("f", told, at_once=True)
        assert told != before
        assert (told["watermark"], told["budget"], told["firing"]) == (50, 100 * round_, round_)
    messages.report("f", next_event=55, next_processing=NEVER, is_firing=False, budget=300)
    told = messages.answer("f", told, at_once=True)
    assert (told["watermark"], told["budget"], told["firing"]) == (60, 300, None)
    assert messages.answer("f", told, at_once=True) == told


def test_interrupted_processing_timers_continue_although_the_run_ends_when_all_is_read() -> None:
    clock = Clock()
    messages = ControlMessages(clock=clock)
    messages.begin({"f": 10})
    messages.tell(watermarks=dict, backlog={})
    first = messages.answer("f", START, at_once=True)
    assert (first["now"], first["budget"]) == (10_000, 10)
    clock.now += 200
    messages.report("f", next_event=NEVER, next_processing=9_000, is_firing=False, budget=10)
    second = messages.answer("f", first, at_once=True)
    assert second["now"] == clock.now
    clock.now += 200
    # Those that wait for something else than a time are not left of anything.
    messages.report("f", next_event=NEVER, next_processing=AT_EVERY_TICK, is_firing=False, budget=10)
    assert messages.answer("f", second, at_once=True) == second
    assert messages.answer("f", second, at_once=False)["now"] == clock.now


def test_event_time_by_the_clock_is_sent_when_a_timer_is_due() -> None:
    clock = Clock()
    messages = ControlMessages(clock=clock)
    settled(messages, next_event=10_500)
    messages.tell(watermarks=lambda: {"f": Watermark(9_999, use_processing_time=True)}, backlog={})
    first = messages.answer("f", START, at_once=False)
    assert first["watermark"] == 10_000
    clock.now = 10_499
    assert messages.answer("f", first, at_once=False) == first
    clock.now = 10_501
    second = messages.answer("f", first, at_once=False)
    assert second["watermark"] == 10_501
    clock.now += 50
    assert messages.answer("f", second, at_once=False) == second
    settled(messages)
    clock.now += 10**6
    assert messages.answer("f", second, at_once=False) == second, "nothing is due"
    messages.tell(watermarks=lambda: {"f": Watermark(END_OF_TIME, use_processing_time=True)}, backlog={})
    assert messages.answer("f", second, at_once=True)["watermark"] == END_OF_TIME


def test_a_run_that_ends_when_all_is_read_gets_the_clock_once() -> None:
    clock = Clock()
    messages = ControlMessages(clock=clock)
    messages.begin({})
    messages.tell(watermarks=lambda: {"f": Watermark(9_999, use_processing_time=True)}, backlog={})
    before = {**START, "watermark": 500, "now": 400}
    told = messages.answer("f", before, at_once=True)
    assert (told["watermark"], told["now"]) == (10_000, 10_000)
    settled(messages, next_event=10_050)
    clock.now += 10_000
    assert messages.answer("f", told, at_once=True) == told


def test_rows_that_wait_for_the_end_of_a_backlog_are_processed_when_it_is_sent() -> None:
    clock = Clock()
    messages = ControlMessages(clock=clock)
    settled(messages, next_processing=AT_EVERY_TICK)
    messages.tell(watermarks=dict, backlog={"f": 0})
    before = {**START, "now": 9_990, "isBacklog": 2}
    told = messages.answer("f", before, at_once=True)
    assert (told["isBacklog"], told["now"]) == (0, 10_000)
    settled(messages)
    messages.tell(watermarks=dict, backlog={"f": 2})
    assert messages.answer("f", told, at_once=True) == {**told, "isBacklog": 2}, "nothing waits"


def test_a_run_without_listeners_may_need_a_batch() -> None:
    clock = Clock()
    messages = ControlMessages(clock=clock)
    messages.tell(watermarks=at(50), backlog={"f": 0})
    messages.hold(wakes=True)
    told = messages.answer("f", START, at_once=True)
    assert {k: told[k] for k in START} == START
    assert told != START
    assert messages.answer("f", told, at_once=True) == told, "one in each run"
    reader: Any = ControlDataSource({"port": "1", "token": "", "keygroups": "3"}).streamReader(None)  # type: ignore[arg-type]
    assert not reader.partitions(START, told)
    clock.now += 1
    messages.hold(wakes=True)
    assert messages.answer("f", told, at_once=True) != told


def test_a_source_asks_the_server() -> None:
    messages = ControlMessages(clock=Clock())
    settled(messages)
    messages.tell(watermarks=at(7), backlog={"f": 1})
    server = ControlServer(messages)
    options = {**server.options, "operator": "f", "keyGroups": "3"}
    try:
        port = int(options["port"])
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            Client(("127.0.0.1", port), authkey=b"guessed")
        reader: Any = ControlDataSource({k.lower(): v for k, v in options.items()}).streamReader(None)  # type: ignore[arg-type]
        start = reader.initialOffset()
        end = reader.latestOffset(start, None)
        assert end == {**START, "watermark": 7, "isBacklog": 1, "at": 10_000}
        assert json.loads(json.dumps(end)) == end
        assert not reader.partitions(end, end)
        (message,) = reader.partitions(start, end)
        (batch,) = reader.read(message)
        assert batch.column("__group").to_pylist() == [0, 1, 2]
        assert set(batch.column("origin").to_pylist()) == {CONTROL}
        assert {Control.from_bytes(d.as_py()) for d in batch.column("data")} == {Control(7, None, 1, at=10_000)}
    finally:
        server.close()
    lost: Any = ControlDataSource({k.lower(): v for k, v in options.items()}).streamReader(None)  # type: ignore[arg-type]
    with pytest.raises(BacklogError, match=rf"does not answer on 127\.0\.0\.1:{options['port']}"):
        lost.latestOffset(start, None)


def test_one_that_says_nothing_keeps_nobody_waiting() -> None:
    messages = ControlMessages(clock=Clock())
    settled(messages)
    messages.tell(watermarks=at(7), backlog={})
    server = ControlServer(messages)
    options = {**server.options, "operator": "f", "keygroups": "3"}
    answers: list[Any] = []

    def ask() -> None:
        reader: Any = ControlDataSource(options).streamReader(None)  # type: ignore[arg-type]
        answers.append(reader.latestOffset(reader.initialOffset(), None))

    try:
        with socket.create_connection(("127.0.0.1", int(options["port"]))):
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(30)
            assert answers == [{**START, "watermark": 7, "at": 10_000}]
    finally:
        server.close()
