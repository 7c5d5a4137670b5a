"""What control sources are told, and that nobody else can ask."""

from __future__ import annotations

import json
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import Any

import pytest

from backlog_spark.control import Clerk, ControlDataSource, ControlServer, GroupReports
from backlog_spark.errors import BacklogError
from backlog_spark.state.seeds import CONTROL, Control
from backlog_spark.state.store import NEVER

START: dict[str, Any] = {"watermark": None, "now": None, "isBacklog": None}


class Clock:
    now = 10_000

    def __call__(self) -> int:
        return self.now


def test_a_watermark_is_told_once_and_never_goes_back() -> None:
    clerk = Clerk(has_timers=False, clock=Clock())
    assert clerk.answer("f", START, at_once=False) == START, "before there is anything to tell"
    clerk.tell(watermark=50, next_timer=None, backlog={"f": False, "g": True})
    told = clerk.answer("f", START, at_once=False)
    assert told == {"watermark": 50, "now": None, "isBacklog": False}
    assert clerk.answer("f", told, at_once=False) == told
    clerk.tell(watermark=40, next_timer=None, backlog={"f": False})
    assert clerk.answer("f", told, at_once=False) == told
    clerk.tell(watermark=None, next_timer=None, backlog={"f": True})
    assert clerk.answer("f", told, at_once=False) == {**told, "isBacklog": True}
    clerk.hold()
    assert clerk.answer("f", START, at_once=False) == START


def test_ticks_come_when_a_timer_is_due() -> None:
    clock = Clock()
    clerk = Clerk(has_timers=True, clock=clock)
    clerk.tell(watermark=None, next_timer=None, backlog={})
    first = clerk.answer("f", START, at_once=False)
    assert first["now"] == 10_000, "what is due after a start is not known"
    clerk.tell(watermark=None, next_timer=NEVER, backlog={})
    clock.now += 10**6
    assert clerk.answer("f", first, at_once=False) == first
    clerk.tell(watermark=None, next_timer=clock.now + 500, backlog={})
    assert clerk.answer("f", first, at_once=False) == first
    clock.now += 500
    second = clerk.answer("f", first, at_once=False)
    assert second["now"] == clock.now
    clock.now += 50
    assert clerk.answer("f", second, at_once=False) == second, "not one after another without a pause"
    clock.now += 50
    assert clerk.answer("f", second, at_once=False)["now"] == clock.now
    # A run that ends when all is read: once at its start, whatever comes due meanwhile.
    clerk.begin()
    once = clerk.answer("f", second, at_once=True)
    assert once["now"] == clock.now
    clerk.tell(watermark=None, next_timer=clock.now + 10, backlog={})
    clock.now += 1_000
    assert clerk.answer("f", once, at_once=True) == once


def test_reports_add_up() -> None:
    reports = GroupReports()
    total = reports.zero({})
    for one in ({("f", 1): (NEVER, 2)}, {("f", 1): (70, 1), ("f", 2): (50, 0)}, {("f", 2): (NEVER, 0)}):
        total = reports.addInPlace(total, one)
    assert total == {("f", 1): (70, 3), ("f", 2): (NEVER, 0)}


def test_a_source_asks_the_server() -> None:
    clerk = Clerk(has_timers=False, clock=Clock())
    clerk.tell(watermark=7, next_timer=None, backlog={"f": True})
    server = ControlServer(clerk)
    options = {**server.options, "operator": "f", "keyGroups": "3"}
    try:
        port = int(options["port"])
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            Client(("127.0.0.1", port), authkey=b"guessed")
        reader: Any = ControlDataSource({k.lower(): v for k, v in options.items()}).streamReader(None)  # type: ignore[arg-type]
        start = reader.initialOffset()
        end = reader.latestOffset(start, None)
        assert end == {"watermark": 7, "now": None, "isBacklog": True}
        assert json.loads(json.dumps(end)) == end
        assert not reader.partitions(end, end)
        (message,) = reader.partitions(start, end)
        (batch,) = reader.read(message)
        assert batch.column("__group").to_pylist() == [0, 1, 2]
        assert set(batch.column("origin").to_pylist()) == {CONTROL}
        assert {Control.from_bytes(d.as_py()) for d in batch.column("data")} == {Control(7, None, True)}
    finally:
        server.close()
    lost: Any = ControlDataSource({k.lower(): v for k, v in options.items()}).streamReader(None)  # type: ignore[arg-type]
    with pytest.raises(BacklogError, match=rf"does not answer on 127\.0\.0\.1:{options['port']}"):
        lost.latestOffset(start, None)
