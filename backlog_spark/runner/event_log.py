"""The event log of a query: one JSON line for each start, run, batch, switch, restart and end, beside the checkpoint.

The log is for people and tools, also after the query has ended and on another machine. The query itself never reads
it, and goes on if it cannot be written. Lines contain counts, names and reasons. They never contain an option's value
or a value of a row.

The lines stand in files below ``<checkpoint>/backlog/events``. Object stores cannot append to a file, and some
filesystems cannot replace one. So each flush writes a new file: at once for rare events, at most every `_FLUSH_S`
seconds for batches. A part of its name belongs to the process: an older driver may write its end when a newer one has
begun. Small files are merged into larger ones, and the oldest batches are dropped. A crash during a merge leaves some
lines twice: readers drop lines that are equal. A killed driver loses the batches of the last seconds from the log,
never from the table.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from backlog_spark.common.failure_causes import first_line

__all__ = ["DIRECTORY", "FREQUENT", "VERSION", "EventFiles", "EventLog", "in_order"]

_log = logging.getLogger(__name__)

VERSION: Final = 1
"""The field ``v`` of each line. A reader refuses a higher one."""
DIRECTORY: Final = "backlog/events"
FREQUENT: Final = ("batch", "estimate")
"""The kinds of events that come all the time. They may wait before they are written, and are dropped first."""

_FLUSH_S = 5.0
# So many flushes become one file.
_MERGED = 32
# At a batch a second a merged file has 60 kB: ten hours are 14 MB. Then the older half is reduced to its rare events.
_FILES = 240
# Rare events beyond these bytes are dropped too, the oldest first.
_RARE_BYTES = 256 << 10
# Lines that wait while the filesystem cannot be written.
_WAITING = 1_000
_LONGEST_TEXT = 1_000
_NAME = re.compile(r"(\d+)(-\w+)?\.jsonl")


class EventFiles(Protocol):
    """Small files below a checkpoint, each written whole. `backlog_spark.spark.checkpoint.Checkpoint` is one."""

    def names_in(self, name: str) -> list[str]: ...
    def make_directory(self, name: str) -> None: ...
    def read_file(self, name: str) -> str | None: ...
    def write_file(self, name: str, text: str) -> None: ...
    def delete(self, name: str) -> None: ...


class EventLog:
    """Writes the events of one query. Any thread may call it. No call raises an error of the filesystem.

    Parameters
    ----------
    files : EventFiles
    clock : callable
        Seconds since 1970.
    """

    def __init__(self, files: EventFiles, clock: Callable[[], float] = time.time) -> None:
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._process = uuid.uuid4().hex[:8]
        self._waiting: list[str] = []
        self._unmerged: list[tuple[str, str]] = []  # path and text of the newest small files
        self._next: int | None = None  # number of the next file; None before the first write
        self._flushed = 0.0
        self._has_warned = False

    def add(self, kind: str, **fields: Any) -> None:
        """Add an event.

        Parameters
        ----------
        kind : str
        **fields
            Values of JSON. Those that are None are left out; long texts are cut.
        """
        now = self._clock()
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"v": VERSION, "at": at, "kind": kind, **_told(fields)})
        with self._lock:
            self._waiting = [*self._waiting[-_WAITING:], f"{line}\n"]
            if kind not in FREQUENT or now - self._flushed >= _FLUSH_S:
                self._flush(now)

    def flush_if_due(self) -> None:
        """Write what waits for longer than `_FLUSH_S` seconds. Called now and then."""
        with self._lock:
            now = self._clock()
            if now - self._flushed >= _FLUSH_S:
                self._flush(now)

    def close(self) -> None:
        """Write what waits. Called once, at the end."""
        with self._lock:
            self._flush(self._clock())

    def _flush(self, now: float) -> None:
        if not self._waiting:
            return
        self._flushed = now
        try:
            if self._next is None:
                self._files.make_directory(DIRECTORY)
                self._next = max((_number(name) for name in self._names()), default=0) + 1
            self._unmerged.append(self._written("".join(self._waiting)))
            self._waiting = []
            if len(self._unmerged) >= _MERGED:
                small, self._unmerged = self._unmerged, []
                self._written("".join(text for _, text in small))
                for path, _ in small:
                    self._files.delete(path)
                self._reduce()
        except Exception as error:
            if not self._has_warned:
                _log.warning("The query goes on, but its event log cannot be written: %s", first_line(error))
            self._has_warned = True

    def _written(self, text: str) -> tuple[str, str]:
        assert self._next is not None
        path = f"{DIRECTORY}/{self._next:08d}-{self._process}.jsonl"
        self._next += 1  # also if it fails: a half-written file is not written again
        self._files.write_file(path, text)
        return path, text

    def _reduce(self) -> None:
        """Reduce the older half of too many files to its rare events."""
        names = self._names()
        if len(names) <= _FILES:
            return
        older = names[: _FILES // 2]
        texts = [self._files.read_file(f"{DIRECTORY}/{name}") or "" for name in older]
        rare = [line for text in texts for line in text.splitlines(keepends=True) if _is_rare(line)]
        while rare and sum(map(len, rare)) > _RARE_BYTES:
            del rare[: len(rare) // 2 + 1]
        self._files.write_file(f"{DIRECTORY}/{_number(older[-1]):08d}-rare.jsonl", "".join(rare))
        for name in older:
            self._files.delete(f"{DIRECTORY}/{name}")

    def _names(self) -> list[str]:
        return in_order(self._files.names_in(DIRECTORY))


def in_order(names: Iterable[str]) -> list[str]:
    """The names of the log's files among others, oldest first."""
    return sorted((name for name in names if _NAME.fullmatch(name)), key=lambda name: (_number(name), name))


def _number(name: str) -> int:
    found = _NAME.fullmatch(name)
    assert found is not None, name
    return int(found[1])


def _is_rare(line: str) -> bool:
    return bool(json.loads(line)["kind"] not in FREQUENT)


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value[:_LONGEST_TEXT] if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }
