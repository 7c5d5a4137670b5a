"""The event log's files: what is written when, what stays, and that no failure reaches the query."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from backlog_spark.runner import event_log
from backlog_spark.runner.event_log import EventLog, in_order


class Files:
    """A directory in memory."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.writes = 0
        self.fails = False

    def names_in(self, name: str) -> list[str]:
        return [path.rpartition("/")[2] for path in self.texts if path.startswith(f"{name}/")]

    def make_directory(self, name: str) -> None:
        pass

    def read_file(self, name: str) -> str | None:
        return self.texts.get(name)

    def write_file(self, name: str, text: str) -> None:
        if self.fails:
            raise OSError("the store is away")
        self.writes += 1
        self.texts[name] = text

    def delete(self, name: str) -> None:
        self.texts.pop(name, None)

    def events(self) -> list[dict[str, Any]]:
        names = in_order(self.names_in(event_log.DIRECTORY))
        return [json.loads(line) for name in names for line in self.texts[f"{event_log.DIRECTORY}/{name}"].splitlines()]


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(files: Files, clock: Clock) -> EventLog:
    return EventLog(files, clock, clock)


def test_a_line_says_when_what_and_who(log: EventLog, files: Files) -> None:
    log.add("switch", query="orders", batch=7, why="source orders has left its backlog", mode=None)
    assert files.events() == [
        {
            "v": 1,
            "at": "2023-11-14T22:13:20.000+00:00",
            "kind": "switch",
            "query": "orders",
            "batch": 7,
            "why": "source orders has left its backlog",
        }
    ]


def test_batches_wait_and_rare_events_do_not(log: EventLog, files: Files, clock: Clock) -> None:
    log.add("batch", batch=0)  # the first flush is due
    for number in range(1, 10):
        log.add("batch", batch=number)
    assert files.writes == 1
    log.add("switch", batch=10)
    assert files.writes == 2
    log.add("batch", batch=10)
    clock.now += 4
    log.flush_if_due()
    assert files.writes == 2
    clock.now += 2
    log.flush_if_due()
    log.flush_if_due()
    assert files.writes == 3
    assert [event["batch"] for event in files.events()] == [*range(10), 10, 10]


def test_close_writes_what_waits(log: EventLog, files: Files) -> None:
    log.add("end")
    log.add("batch", batch=1)
    assert len(files.events()) == 1
    log.close()
    log.close()
    assert len(files.events()) == 2
    assert files.writes == 2


def test_the_next_process_goes_on_with_the_numbers(log: EventLog, files: Files, clock: Clock) -> None:
    log.add("start")
    EventLog(files, clock, clock).add("start")
    assert [name[:24] for name in sorted(files.texts)] == ["backlog/events/00000001-", "backlog/events/00000002-"]


def test_two_drivers_do_not_write_the_same_file(log: EventLog, files: Files, clock: Clock) -> None:
    log.add("start")
    newer = EventLog(files, clock, clock)
    newer.add("start")
    log.add("end")  # as of a driver that a newer one has overtaken
    newer.add("switch")
    assert len(files.texts) == 4
    assert sorted(event["kind"] for event in files.events()) == ["end", "start", "start", "switch"]


def test_small_files_are_merged_in_order(log: EventLog, files: Files, clock: Clock) -> None:
    for number in range(100):
        clock.now += 10
        log.add("batch", batch=number)
    assert [event["batch"] for event in files.events()] == list(range(100))
    assert len(files.texts) == 3 + 100 % event_log._MERGED


def test_no_file_is_written_twice(log: EventLog, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_FILES", 4)
    written: list[str] = []
    write = files.write_file

    def noted(name: str, text: str) -> None:
        written.append(name)
        write(name, text)

    monkeypatch.setattr(files, "write_file", noted)
    for number in range(1_000):
        log.add("restart", attempt=number)
    assert len(written) == len(set(written)) > 1_000


def test_rare_events_outlive_batches(
    log: EventLog, files: Files, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_MERGED", 4)
    monkeypatch.setattr(event_log, "_FILES", 6)
    log.add("start")
    for number in range(400):
        clock.now += 10
        log.add("batch", batch=number)
        if number == 5:
            log.add("switch", batch=number)
    found = files.events()
    assert [event["kind"] for event in found if event["kind"] != "batch"] == ["start", "switch"]
    batches = [event["batch"] for event in found if event["kind"] == "batch"]
    assert batches == list(range(batches[0], 400))
    assert 0 < len(batches) < 50
    assert len(files.texts) <= 6 + 4


def test_rare_events_are_bounded_too(log: EventLog, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_MERGED", 4)
    monkeypatch.setattr(event_log, "_FILES", 6)
    monkeypatch.setattr(event_log, "_RARE_BYTES", 2_000)
    for number in range(500):
        log.add("restart", attempt=number)
    assert sum(map(len, files.texts.values())) < 2_000 + 10 * 4 * 100
    assert files.events()[-1]["attempt"] == 499


def test_a_crash_while_files_are_merged_loses_nothing(
    log: EventLog, files: Files, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_MERGED", 4)
    monkeypatch.setattr(event_log, "_FILES", 6)
    deletes = 0

    def dies(name: str) -> None:
        nonlocal deletes
        deletes += 1
        if deletes % 3 == 0:
            raise OSError("killed")
        del files.texts[name]

    monkeypatch.setattr(files, "delete", dies)
    for number in range(200):
        if number % 20 == 0:
            log = EventLog(files, clock, clock)  # another process
        log.add("restart", attempt=number)
    assert sorted({event["attempt"] for event in files.events()}) == list(range(200))


def test_the_files_of_short_runs_are_bounded(files: Files, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that a scheduler starts each minute writes a few files and ends."""
    monkeypatch.setattr(event_log, "_MERGED", 4)
    monkeypatch.setattr(event_log, "_FILES", 6)
    for run in range(300):
        log = EventLog(files, clock, clock)
        log.add("start", run=run)
        clock.now += 10
        log.add("batch", batch=run)
        clock.now += 50
        log.close()
        assert len(files.texts) <= 6 + 4
    found = files.events()
    assert [event["run"] for event in found if event["kind"] == "start"] == list(range(300))
    batches = [event["batch"] for event in found if event["kind"] == "batch"]
    assert batches == list(range(batches[0], 300))  # the newest
    assert len(batches) > 4


def test_many_files_of_an_older_version_are_merged_step_by_step(
    files: Files, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_MERGED", 4)
    monkeypatch.setattr(event_log, "_FILES", 6)
    for number in range(1, 501):
        line = {"v": 1, "at": "2026-11-26T16:00:00.000+00:00", "kind": "restart", "attempt": number}
        files.texts[f"{event_log.DIRECTORY}/{number:08d}-0a1b2c3d.jsonl"] = f"{json.dumps(line)}\n"
    reads = 0
    read = files.read_file

    def counted(name: str) -> str | None:
        nonlocal reads
        reads += 1
        return read(name)

    monkeypatch.setattr(files, "read_file", counted)
    log = EventLog(files, clock, clock)
    for number in range(501, 601):
        reads = 0
        log.add("restart", attempt=number)
        assert reads <= 4 + 6  # a start with a full log waits for no more
    assert len(files.texts) <= 6 + 4
    assert sorted(event["attempt"] for event in files.events()) == list(range(1, 601))


@pytest.mark.parametrize("seed", range(20))
def test_two_drivers_that_merge_at_the_same_time_lose_nothing(
    files: Files, clock: Clock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Between any two steps of one driver the other one may write, merge and reduce. Each may be killed anywhere."""
    monkeypatch.setattr(event_log, "_MERGED", 4)
    monkeypatch.setattr(event_log, "_FILES", 6)
    chance = random.Random(seed)
    logs = [EventLog(files, clock, clock) for _ in range(2)]
    added: list[int] = []
    busy: set[int] = set()

    def add(driver: int) -> None:
        busy.add(driver)
        added.append(len(added))
        logs[driver].add("restart", attempt=added[-1])
        busy.remove(driver)

    def between(step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: str) -> Any:
            for _ in range(chance.randrange(6)):
                if free := sorted({0, 1} - busy):
                    add(free[0])
            if chance.random() < 0.02:
                raise OSError("killed")
            return step(*arguments)

        return stepped

    for name in ("names_in", "read_file", "delete"):
        monkeypatch.setattr(files, name, between(getattr(files, name)))
    while len(added) < 600:
        driver = chance.randrange(2)
        if chance.random() < 0.1:
            logs[driver] = EventLog(files, clock, clock)  # another process
        add(driver)
    monkeypatch.undo()
    for log in logs:
        log.close()
    assert {event["attempt"] for event in files.events()} == set(added)


def test_a_clock_that_is_set_back_delays_and_loses_nothing(files: Files, clock: Clock) -> None:
    steady = Clock()
    log = EventLog(files, clock, steady)
    log.add("start")
    clock.now -= 24 * 3_600
    for number in range(2_000):
        steady.now += 10
        log.add("batch", batch=number)
        log.flush_if_due()
    found = files.events()
    assert [event["batch"] for event in found[1:]] == list(range(2_000))
    assert {event["at"] for event in found} == {"2023-11-14T22:13:20.000+00:00", "2023-11-13T22:13:20.000+00:00"}


def test_a_line_that_a_crash_has_torn_stops_no_merge(
    log: EventLog, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_MERGED", 4)
    monkeypatch.setattr(event_log, "_FILES", 6)
    files.texts[f"{event_log.DIRECTORY}/00000001-0a1b2c3d.jsonl"] = '{"v": 1, "kind": "sta'
    for number in range(100):
        log.add("restart", attempt=number)
    assert len(files.texts) <= 6 + 4
    monkeypatch.setattr(files, "texts", {n: t.replace('{"v": 1, "kind": "sta\n', "") for n, t in files.texts.items()})
    assert [event["attempt"] for event in files.events()] == list(range(100))


def test_a_failing_store_does_not_reach_the_query(
    log: EventLog, files: Files, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_WAITING", 20)
    files.fails = True
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            log.add("restart", attempt=number)
    assert len(caplog.records) == 1
    assert "the store is away" in caplog.text
    files.fails = False
    log.add("end")
    found = files.events()
    assert found[-1]["kind"] == "end"
    assert [event["attempt"] for event in found[:-1]] == list(range(80, 100))  # the newest that wait


def test_long_texts_are_cut(log: EventLog, files: Files) -> None:
    log.add("restart", error="x" * 5_000)
    assert len(files.events()[0]["error"]) == 1_000


def test_other_files_are_no_part_of_it() -> None:
    assert in_order(["10.jsonl", "9-rare.jsonl", "9-1a.jsonl", ".9.jsonl.crc", "x.jsonl", "00000000.jsonl"]) == [
        "00000000.jsonl",
        "9-1a.jsonl",
        "9-rare.jsonl",
        "10.jsonl",
    ]
