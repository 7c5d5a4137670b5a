"""The event log's files: what is written when, what stays, and that no failure reaches the query."""

from __future__ import annotations

import json
import logging
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
        del self.texts[name]

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
    return EventLog(files, clock)


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
    EventLog(files, clock).add("start")
    assert [name[:24] for name in sorted(files.texts)] == ["backlog/events/00000001-", "backlog/events/00000002-"]


def test_two_drivers_do_not_write_the_same_file(log: EventLog, files: Files, clock: Clock) -> None:
    log.add("start")
    newer = EventLog(files, clock)
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
            log = EventLog(files, clock)  # another process
        log.add("restart", attempt=number)
    assert sorted({event["attempt"] for event in files.events()}) == list(range(200))


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
