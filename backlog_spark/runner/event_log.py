"""The event log of a query: one JSON line for each start, run, batch, switch, restart and end, beside the checkpoint.

The log is for people and tools, also after the query has ended and on another machine. The query itself reads only how
many rows earlier processes have read, to show it. It goes on if the log cannot be read or written. Lines contain
counts, names and reasons. They never contain an option's value or a value of a row.

The lines stand in files below ``<checkpoint>/backlog/events``. Object stores cannot append to a file, and some
filesystems cannot replace one. So each flush writes a new file: at once for rare events, at most every `_FLUSH_S`
seconds for batches. A part of its name belongs to the process: an older driver may write its end when a newer one has
begun. Small files are merged into larger ones, also those of earlier processes, and the oldest batches are dropped.

A merge writes a file with a name that no other file ever has, and removes the merged ones when it is whole. Neither
a crash nor another driver loses lines, but some may stand twice: readers drop equal lines. A reader that misses
a file that it has listed lists again. A killed driver loses the batches of the last seconds from the log, never from
the table.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from backlog_spark.common.failure_causes import first_line
from backlog_spark.spi.offset_flags import parse_offset

__all__ = ["DIRECTORY", "FREQUENT", "VERSION", "EventFiles", "EventLog", "counted_rows", "in_order"]

_log = logging.getLogger(__name__)

VERSION: Final = 1
"""The field ``v`` of each line. A reader refuses a higher one."""
DIRECTORY: Final = "backlog/events"
FREQUENT: Final = ("batch", "estimate")
"""The kinds of events that come all the time. They may wait before they are written, and are dropped first."""

_FLUSH_S = 5.0
# So many flushes become one file.
_MERGED = 32
# At a batch a second a merged file has 60 kB: ten hours are 14 MB. Then all but the newer half is reduced to its rare
# events, so many files at a time.
_FILES = 240
# Rare events beyond these bytes are dropped too, the oldest first.
_RARE_BYTES = 256 << 10
# Lines that wait while the filesystem cannot be written.
_WAITING = 1_000
_LONGEST_TEXT = 1_000
# Only merged files have an underscore in the second part. Older versions wrote "-rare".
_NAME = re.compile(r"(\d+)(-\w+)?\.jsonl")
_MERGED_NAME = re.compile(r"\d+-(\w*_\w*|rare)\.jsonl")


class EventFiles(Protocol):
    """Small files below a checkpoint, each written whole. `backlog_spark.spark.checkpoint.logs.Checkpoint` is one."""

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
        Seconds since 1970, for the lines.
    steady : callable
        Seconds that no one sets back, for the time between two flushes.
    """

    def __init__(
        self,
        files: EventFiles,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._clock = clock
        self._steady = steady
        self._lock = threading.Lock()
        self._process = uuid.uuid4().hex[:8]
        self._merges = itertools.count()
        self._waiting: list[str] = []
        self._small = 0  # files that are not merged yet, also those of earlier processes
        self._next: int | None = None  # number of the next file; None before the first write
        self._flushed = -math.inf
        self._has_warned = False

    def add(self, kind: str, **fields: Any) -> None:
        """Add an event.

        Parameters
        ----------
        kind : str
        **fields
            Values of JSON. Those that are None are left out; long texts are cut.
        """
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"v": VERSION, "at": at, "kind": kind, **_told(fields)})
        with self._lock:
            self._waiting = [*self._waiting[-_WAITING:], f"{line}\n"]
            if kind not in FREQUENT or self._is_due():
                self._flush()

    def flush_if_due(self) -> None:
        """Write what waits for longer than `_FLUSH_S` seconds. Called now and then."""
        with self._lock:
            if self._is_due():
                self._flush()

    def close(self) -> None:
        """Write what waits. Called once, at the end."""
        with self._lock:
            self._flush()

    def _is_due(self) -> bool:
        return self._steady() - self._flushed >= _FLUSH_S

    def _flush(self) -> None:
        if not self._waiting:
            return
        self._flushed = self._steady()
        try:
            if self._next is None:
                self._files.make_directory(DIRECTORY)
                names = self._names()
                self._small = sum(map(_is_small, names))
                self._next = max(map(_number, names), default=0) + 1
            name = f"{self._next:08d}-{self._process}.jsonl"
            self._next += 1  # also if it fails: a half-written file is not written again
            self._files.write_file(f"{DIRECTORY}/{name}", "".join(self._waiting))
            self._waiting = []
            self._small += 1
            if self._small >= _MERGED:
                self._small = 0  # also if it fails: not tried again at each flush
                self._tidy()
        except Exception as error:
            if not self._has_warned:
                _log.warning("The query goes on, but its event log cannot be written: %s", first_line(error))
            self._has_warned = True

    def _tidy(self) -> None:
        """Merge the oldest small files, and reduce the oldest of too many files to their rare events."""
        small = list(filter(_is_small, self._names()))
        merged, self._small = small[:_MERGED], len(small[_MERGED:])
        self._replace(merged, self._lines(merged))
        names = self._names()
        if len(names) <= _FILES:
            return
        older = names[: -(_FILES // 2)][:_FILES]
        rare = [line for line in self._lines(older) if _is_rare(line)]
        while rare and sum(map(len, rare)) > _RARE_BYTES:
            del rare[: len(rare) // 2 + 1]
        self._replace(older, rare)

    def _lines(self, names: Sequence[str]) -> list[str]:
        """The lines of some files, each once. A file that is gone was merged by another driver."""
        texts = (self._files.read_file(f"{DIRECTORY}/{name}") or "" for name in names)
        return list(dict.fromkeys(line for text in texts for line in text.splitlines()))

    def _replace(self, names: Sequence[str], lines: Iterable[str]) -> None:
        """Write a file in the place of some neighbours, then remove them. The order of the two makes it safe."""
        if not names:
            return
        name = f"{_number(names[-1]):08d}-{self._process}_{next(self._merges)}.jsonl"
        self._files.write_file(f"{DIRECTORY}/{name}", "".join(f"{line}\n" for line in lines))
        for old in names:
            self._files.delete(f"{DIRECTORY}/{old}")

    def _names(self) -> list[str]:
        return in_order(self._files.names_in(DIRECTORY))


def counted_rows(files: EventFiles, committed: int) -> tuple[int, int] | None:
    """The newest batch in the log, up to batch ``committed``, and the rows of the backlog that were read until its end.

    None if the log has no such batch, or cannot be read.
    """
    try:
        for name in reversed(in_order(files.names_in(DIRECTORY))):
            for line in reversed((files.read_file(f"{DIRECTORY}/{name}") or "").splitlines()):
                event = parse_offset(line) or {}
                batch, rows = event.get("batch"), event.get("backlog_rows")
                if event.get("kind") == "batch" and type(batch) is int and type(rows) is int and batch <= committed:
                    return batch, rows
    except Exception as error:  # it is for display only
        _log.debug("The event log cannot be read: %s", first_line(error))
    return None


def in_order(names: Iterable[str]) -> list[str]:
    """The names of the log's files among others, oldest first."""
    return sorted((name for name in names if _NAME.fullmatch(name)), key=lambda name: (_number(name), name))


def _number(name: str) -> int:
    found = _NAME.fullmatch(name)
    assert found is not None, name
    return int(found[1])


def _is_small(name: str) -> bool:
    return _MERGED_NAME.fullmatch(name) is None


def _is_rare(line: str) -> bool:
    event = parse_offset(line)  # None if a crash of the machine has torn the line
    return event is not None and event["kind"] not in FREQUENT


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value[:_LONGEST_TEXT] if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }
