"""The progress line of a query: phase, rows, rate, rows left, time left."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from dataclasses import dataclass
from typing import TextIO

from backlog_spark.runner.handle import QueryHandle

__all__ = ["ProgressLine", "Snapshot", "render"]

_EVERY_S = 0.5
_WIDTH = 24


@dataclass(frozen=True)
class Snapshot:
    """The values that a line shows.

    Parameters
    ----------
    in_backlog : bool
    rows : float
        In backlog: rows read, including the finished share of the running batch. Afterwards: rows since then.
    total : int
        Estimate of all rows of the backlog; 0 if unknown.
    rate : float
        Rows per second.
    commits : int
        Commits of this phase.
    before : int
        After the backlog: the rows that it had.
    """

    in_backlog: bool
    rows: float
    total: int
    rate: float
    commits: int
    before: int = 0


def render(shown: Snapshot) -> str:
    """The line, without control characters.

    Examples
    --------
    >>> render(Snapshot(True, 250_000, 1_000_000, 50_000.0, 2))
    'backlog [######                  ]  25%  250,000 rows  50,000 rows/s  750,000 left  15 s left  2 commits'
    >>> render(Snapshot(False, 1_200, 0, 300.0, 4, before=1_000_000))
    'stream  backlog of 1,000,000 rows done, 1,200 live rows  300 rows/s  4 commits'
    """
    rate = f"{shown.rate:,.0f} rows/s"
    commits = f"{shown.commits} commit{'' if shown.commits == 1 else 's'}"
    if not shown.in_backlog:
        before = f"backlog of {shown.before:,} rows done, " if shown.before else ""
        return f"stream  {before}{shown.rows:,.0f} live rows  {rate}  {commits}"
    rows = f"{shown.rows:,.0f} rows"
    if not shown.total:
        return f"backlog  {rows}  {rate}  {commits}"
    share = min(1.0, shown.rows / shown.total)
    left = max(0.0, shown.total - shown.rows)
    bar = ("#" * int(share * _WIDTH)).ljust(_WIDTH)
    eta = f"{_duration(left / shown.rate)} left" if shown.rate > 0 else "time left unknown"
    return f"backlog [{bar}] {share:4.0%}  {rows}  {rate}  {left:,.0f} left  {eta}  {commits}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class ProgressLine:
    """Shows a query's progress on a terminal, drawn over twice a second; writes nothing elsewhere.

    Parameters
    ----------
    query : QueryHandle
    out : file object, optional
        Default: standard error.
    force : bool
        Write also if ``out`` is no terminal: one line per commit. Default false.
    """

    def __init__(self, query: QueryHandle, out: TextIO | None = None, *, force: bool = False) -> None:
        self._query = query
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._shown = self._terminal or force
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._drawn = 0
        self._rate = 0.0
        self._last: tuple[float, float] | None = None
        self._done = 0.0
        self._commits = -1

    def __enter__(self) -> ProgressLine:
        if self._shown:
            self._thread = threading.Thread(target=self._loop, name="backlog-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._clear()

    def say(self, text: str) -> None:
        """Print a line of its own above the progress line."""
        with self._lock:
            self._clear()
            print(text, file=self._out, flush=True)

    def _loop(self) -> None:
        while not self._stop.wait(_EVERY_S):
            if not self._query.isActive:
                return
            shown = self._snapshot()
            if self._terminal:
                self._draw(render(shown))
            elif shown.commits != self._commits:
                self._commits = shown.commits
                self.say(render(shown))

    def _snapshot(self) -> Snapshot:
        progress = self._query.backlogProgress
        if not self._query.isProcessingBacklog:
            after = progress.rows - progress.backlog_rows
            self._done, self._last = 0.0, None  # for the next backlog
            rate = progress.rows_per_second if after else 0.0
            return Snapshot(False, after, 0, rate, progress.commits_after, self._query.backlogRowsCommitted)
        done, total = self._query.backlogRows()
        # Later stages of a batch start at 0 again, but the rows shown must not shrink.
        done = self._done = max(self._done, done)
        now = time.monotonic()
        if self._last is None:
            self._last = (now, done)
        elif now - self._last[0] > 2:
            fresh = max(0.0, done - self._last[1]) / (now - self._last[0])
            self._rate = fresh if not self._rate else 0.7 * self._rate + 0.3 * fresh
            self._last = (now, done)
        return Snapshot(True, done, total, self._rate, progress.commits_in_backlog)

    def _draw(self, text: str) -> None:
        with self._lock:
            width = shutil.get_terminal_size((100, 24)).columns - 1
            text = text[:width]
            self._out.write("\r" + text.ljust(self._drawn))
            self._out.flush()
            self._drawn = len(text)

    def _clear(self) -> None:
        if self._drawn:
            self._out.write("\r" + " " * self._drawn + "\r")
            self._drawn = 0
