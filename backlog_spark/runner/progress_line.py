"""The progress of a query for people: a line for each source in backlog, and one for each switch.

On a terminal rich draws it, if it is installed. In Jupyter one HTML display is updated in place. Elsewhere nothing is
shown, unless it is asked for: then a line for each commit, and one a minute in a long batch.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from backlog_spark.common.durations import format_duration, in_words
from backlog_spark.common.figures import recent_rate, rows_left, seconds_left
from backlog_spark.runner.handle import QueryHandle
from backlog_spark.runner.progress_outputs import Output, bar, output_for

__all__ = ["ProgressLine", "Snapshot", "render"]

_EVERY_S = 0.5
_SAMPLES = 128  # a minute of them


@dataclass(frozen=True)
class Snapshot:
    """The values that a line shows.

    Parameters
    ----------
    name : str
        In backlog: the source's. Afterwards: the query's.
    in_backlog : bool
    rows : float
        In backlog: rows read, including the finished share of the running batch. Afterwards: rows since then.
    total : int
        Estimate of all rows of the backlog; 0 if unknown.
    rate : float
        Rows per second.
    commits : int
        Commits of this phase, of all sources together.
    interval_ms : int or None
        In force; None: no commit until the backlog ends.
    before : int
        After the backlog: the rows that it had.
    """

    name: str
    in_backlog: bool
    rows: float
    total: int
    rate: float
    commits: int
    interval_ms: int | None
    before: int = 0


def render(shown: Snapshot) -> str:
    """The line, without control characters.

    Examples
    --------
    >>> render(Snapshot("orders", True, 250_000, 1_000_000, 50_000.0, 2, 10_000))
    'orders: backlog [######                  ]  25%  250,000 of 1,000,000 rows  50,000 rows/s  15 s left  2 commits, interval 10 s'
    >>> render(Snapshot("orders", False, 1_200, 0, 300.0, 4, 1_000, before=1_000_000))
    'orders: stream  backlog of 1,000,000 rows done, 1,200 live rows  300 rows/s  4 commits, interval 1 s'
    """  # noqa: E501
    rate = f"{shown.rate:,.0f} rows/s"
    commits = f"{shown.commits} commit{'' if shown.commits == 1 else 's'}"
    interval = "none until the end" if shown.interval_ms is None else f"interval {format_duration(shown.interval_ms)}"
    paced = f"{commits}, {interval}"
    if not shown.in_backlog:
        before = f"backlog of {shown.before:,} rows done, " if shown.before else ""
        return f"{shown.name}: stream  {before}{shown.rows:,.0f} live rows  {rate}  {paced}"
    if not shown.total:
        return f"{shown.name}: backlog  {shown.rows:,.0f} rows  {rate}  {paced}"
    share = min(1.0, shown.rows / shown.total)
    left = seconds_left(rows_left(shown.rows, shown.total), shown.rate)
    eta = "time left unknown" if left is None else f"{in_words(round(left))} left"
    rows = f"{shown.rows:,.0f} of {max(shown.total, round(shown.rows)):,} rows"
    return f"{shown.name}: backlog {bar(share)}  {rows}  {rate}  {eta}  {paced}"


class ProgressLine:
    """Shows a query's progress while the block runs.

    Parameters
    ----------
    query : QueryHandle
    out : file object, optional
        Default: standard error, or the notebook's cell.
    force : bool
        Write also if ``out`` is no terminal: one line per commit, and one a minute in a long batch. Default false.
    """

    def __init__(self, query: QueryHandle, out: TextIO | None = None, *, force: bool = False) -> None:
        self._query = query
        self._out = out or sys.stderr
        self._output: Output | None = output_for(self._out, is_default=out is None, force=force)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: dict[str, deque[tuple[float, float]]] = {}  # time and rows of each source in backlog
        self._switches = 1  # the mode at the start is none

    def __enter__(self) -> ProgressLine:
        if self._output is not None:
            self._thread = threading.Thread(target=self._loop, name="backlog-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._output is not None:
            self._tell_switches(self._output)
            self._output.close()

    def say(self, text: str) -> None:
        """Print a line of its own above the progress."""
        if self._output is not None:
            self._output.say(text)
        else:
            print(text, file=self._out, flush=True)

    def _loop(self) -> None:
        assert self._output is not None
        while not self._stop.wait(_EVERY_S):
            if not self._query.isActive:
                return
            self._tell_switches(self._output)
            shown = self._snapshots()
            self._output.show([render(each) for each in shown], shown[0].commits if shown else 0)

    def _tell_switches(self, output: Output) -> None:
        history = self._query.history
        for switch in history[self._switches :]:
            output.say(f"{self._query.name}: {switch.mode} mode from batch {switch.batch_id} on, because {switch.why}")
        self._switches = max(self._switches, len(history))

    def _snapshots(self) -> Sequence[Snapshot]:
        progress, history = self._query.backlogProgress, self._query.history
        interval = history[-1].commit_interval_ms if history else None
        if not self._query.isProcessingBacklog:
            after = progress.rows - progress.backlog_rows
            self._samples = {}  # for the next backlog
            rate = progress.rows_per_second if after else 0.0
            before = self._query.backlogRowsCommitted
            return [Snapshot(self._query.name, False, after, 0, rate, progress.commits_after, interval, before)]
        now = time.monotonic()
        shown = []
        for source in self._query.backlogSources():
            samples = self._samples.setdefault(source.name, deque(maxlen=_SAMPLES))
            samples.append((now, source.rows))
            rate = recent_rate(samples)
            shown.append(
                Snapshot(source.name, True, source.rows, source.total, rate, progress.commits_in_backlog, interval)
            )
        return shown
