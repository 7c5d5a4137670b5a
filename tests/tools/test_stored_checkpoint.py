"""Reading a checkpoint while its query writes: files that are merged meanwhile, and stores that remember listings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from backlog_spark.runner import event_log
from backlog_spark.runner.event_log import DIRECTORY, EventLog
from backlog_spark.tools.inspection import inspected, shown
from backlog_spark.tools.report import page
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint
from tests.sinks.s3 import lake

from .stories import checkpoint_of, line, story


class Folder:
    """The files of a checkpoint on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names_in(self, name: str) -> list[str]:
        return [path.name for path in (self.root / name).iterdir()]

    def make_directory(self, name: str) -> None:
        (self.root / name).mkdir(parents=True, exist_ok=True)

    def read_file(self, name: str) -> str | None:
        path = self.root / name
        return path.read_text() if path.exists() else None

    def write_file(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)


def test_files_that_are_merged_while_they_are_read_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkpoint_of(tmp_path, [])
    log = EventLog(Folder(root))
    for number in range(event_log._MERGED - 2):
        log.add("restart", query="orders", attempt=number)
    stored = StoredCheckpoint(str(root))
    read = stored._files.cat_file
    reads = 0

    def meanwhile(path: str) -> bytes:
        nonlocal reads
        reads += 1
        if reads % 5 == 0 and reads < 30:  # again while the merged files are read
            for number in range(event_log._MERGED):
                log.add("restart", query="orders", attempt=reads * 1_000 + number)
        content: bytes = read(path)
        return content

    monkeypatch.setattr(stored._files, "cat_file", meanwhile)
    found = [event["attempt"] for event in stored.events]
    assert reads > 10
    assert set(range(event_log._MERGED - 2)) <= set(found)
    assert len(found) == len(set(found))


def test_a_file_that_is_listed_and_never_there_ends_no_reader(tmp_path: Path) -> None:
    root = checkpoint_of(tmp_path, story())
    (root / DIRECTORY / "00000002-a.jsonl").symlink_to(tmp_path / "nothing")
    assert len(StoredCheckpoint(str(root)).events) == len(story())


def test_a_line_that_a_crash_has_torn_is_left_out(tmp_path: Path) -> None:
    root = checkpoint_of(tmp_path, story())
    (root / DIRECTORY / "00000002-a.jsonl").write_text(f'{{"v": 1, "at\n{json.dumps(line("end", 70))}\n')
    (root / DIRECTORY / "00000003-a.jsonl").write_text("")
    (root / DIRECTORY / "00000004-a.jsonl").write_bytes(bytes(100))
    assert len(StoredCheckpoint(str(root)).events) == len(story()) + 1


def test_what_an_event_leaves_out_may_also_be_null(tmp_path: Path) -> None:
    events = [{**event, "sources": None, "parts_ms": None, "state": None} for event in story()]
    assert shown(inspected(StoredCheckpoint(str(checkpoint_of(tmp_path, events)))))


@pytest.mark.parametrize(
    "damage",
    [
        {"at": 5},
        {"at": "yesterday"},
        {"kind": ["end"]},
        {"took_ms": "5"},
        {"batch": None},
        {"rows": 10**30},
        {"rows": True},
        {"sources": [5]},
        {"sources": [{"rows": "many"}]},
        {"state": [{"rows": []}]},
        {"why": "\ud800"},
        {"started": "0001-01-01"},
    ],
)
def test_a_damaged_line_hides_no_other(tmp_path: Path, damage: dict[str, object]) -> None:
    events = story()
    at = next(i for i, event in enumerate(events) if event["kind"] == "batch")
    root = checkpoint_of(tmp_path, [*events[:at], {**events[at], **damage}, *events[at + 1 :]])
    (root / DIRECTORY / "00000002-a.jsonl").write_bytes(b'{"v": 1, "kind": "\xff"}\n')
    checkpoint = StoredCheckpoint(str(root))
    assert checkpoint.events == [*events[:at], *events[at + 1 :]]
    page(checkpoint).encode()
    assert shown(inspected(checkpoint))


def test_no_text_of_a_file_that_is_gone_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is open for days reads each new file."""
    monkeypatch.setattr(event_log, "_MERGED", 4)
    monkeypatch.setattr(event_log, "_FILES", 6)
    root = checkpoint_of(tmp_path, [])
    log, texts = EventLog(Folder(root)), dict[str, str]()
    for number in range(300):
        log.add("restart", query="orders", attempt=number)
        assert StoredCheckpoint(str(root), texts).events[-1]["attempt"] == number
        assert texts.keys() <= set(Folder(root).names_in(DIRECTORY))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3fs.S3FileSystem]:
    """A bucket, and this process's settings for it."""
    with lake() as options:
        for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, options[name])
        s3fs.S3FileSystem.clear_instance_cache()  # an instance keeps the address of its first use
        yield s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_checkpoint_on_s3_is_listed_anew(store: s3fs.S3FileSystem, tmp_path: Path, scheme: str) -> None:
    events = story()
    root = checkpoint_of(tmp_path, events[:7])
    (root / "offsets" / "0").write_text("v1\n{}\n-")
    store.put(str(root), "lake/orders", recursive=True)
    location, texts = f"{scheme}://lake/orders", dict[str, str]()
    first = StoredCheckpoint(location, texts)
    assert (len(first.events), first.planned) == (7, 0)
    text = "".join(f"{json.dumps(event)}\n" for event in events[7:])
    store.pipe({"lake/orders/backlog/events/00000002-a.jsonl": text.encode(), "lake/orders/offsets/1": b"v1\n{}\n-"})
    second = StoredCheckpoint(location, texts)
    assert (len(second.events), second.planned) == (len(events), 1)
