"""The progress of a query for people: a line for its start, for each source in backlog, each switch, and its end.

On a terminal rich draws it, if it is installed. In Jupyter one HTML display is updated in place. A log, such as the
file of ``nohup`` or systemd's journal, gets the lines that stay, and the progress once a minute or for each commit too.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from backlog_spark.common.durations import format_duration, in_words
from backlog_spark.common.failure_causes import first_line
from backlog_spark.common.figures import recent_rate, rows_left, seconds_left, whole_rate
from backlog_spark.runner.handle import QueryHandle
from backlog_spark.runner.progress_outputs import bar, output_for
from backlog_spark.runner.query_progress import BacklogProgress, Switch

__all__ = ["ProgressLine", "Snapshot", "ended_line", "render", "started_line"]

_log = logging.getLogger(__name__)

_EVERY_S = 0.5
# To look costs a listing of the checkpoint, which in an object store is a request.
_LOG_EVERY_S = 2.0
_SAMPLES = 128  # a minute of them
# Widths of the bar, tried in this order where the line is too long.
_BARS = (24, 10, 0)


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

    @property
    def is_known(self) -> bool:
        """Whether there are rows to tell of. Before the first task of a backlog has ended there are none."""
        return not self.in_backlog or self.rows > 0 or self.commits > 0

    @property
    def has_estimate(self) -> bool:
        """Whether it says how long the backlog takes."""
        return self.is_known and seconds_left(rows_left(self.rows, self.total or None), self.rate) is not None


def render(shown: Snapshot, width: int | None = None) -> str:
    """The line, without control characters.

    Parameters
    ----------
    shown : Snapshot
    width : int, optional
        Most characters. What matters least is left out of a longer line. Default: no limit.

    Examples
    --------
    >>> render(Snapshot("orders", True, 250_000, 1_000_000, 50_000.0, 2, 10_000))
    'orders: backlog [######                  ]  25%  250,000 of about 1,000,000 rows  50,000 rows/s  15 s left  2 commits, interval 10 s'
    >>> render(Snapshot("orders", True, 250_000, 1_000_000, 50_000.0, 2, 10_000), width=80)
    'orders: backlog   25%  250,000 of about 1,000,000 rows  50,000 rows/s  15 s left'
    >>> render(Snapshot("orders", False, 1_200, 0, 300.0, 4, 1_000, before=1_000_000))
    'orders: stream  backlog of 1,000,000 rows done, 1,200 live rows  300 rows/s  4 commits, interval 1 s'
    """  # noqa: E501
    line = ""
    for line in _versions(shown):
        if width is None or len(line) <= width:
            break
    return line


def _versions(shown: Snapshot) -> Iterator[str]:
    """The line, then shorter ones."""
    rate = f"{shown.rate:,.0f} rows/s"
    commits = f"{shown.commits} commit{'' if shown.commits == 1 else 's'}"
    paced = ", ".join([commits, *_interval(shown.interval_ms)])
    if not shown.in_backlog:
        before = f"backlog of {shown.before:,} rows done, " if shown.before else ""
        live = f"{shown.rows:,.0f} live rows  {rate}"
        yield f"{shown.name}: stream  {before}{live}  {paced}"
        yield f"{shown.name}: stream  {live}  {paced}"
        yield f"{shown.name}: stream  {live}"
        return
    if not shown.is_known:
        rows = f"first of about {shown.total:,} rows" if shown.total else "first rows"
        yield f"{shown.name}: backlog  reading the {rows}  {paced}"
        yield f"{shown.name}: backlog  reading the {rows}"
        return
    if not shown.total:
        yield f"{shown.name}: backlog  {shown.rows:,.0f} rows  {rate}  {paced}"
        yield f"{shown.name}: backlog  {shown.rows:,.0f} rows  {rate}"
        return
    share = min(1.0, shown.rows / shown.total)
    left = seconds_left(rows_left(shown.rows, shown.total), shown.rate)
    eta = "time left unknown" if left is None else f"{in_words(round(left))} left"
    rows = f"{shown.rows:,.0f} of about {max(shown.total, round(shown.rows)):,} rows  {rate}  {eta}"
    bars = [bar(share, each) if each else f"{share:5.0%}" for each in _BARS]
    yield from (f"{shown.name}: backlog {each}  {rows}  {paced}" for each in bars)
    yield from (f"{shown.name}: backlog {each}  {rows}" for each in bars[1:])


def _interval(interval_ms: int | None) -> list[str]:
    if interval_ms is None:
        return ["none until the end"]
    return [f"interval {format_duration(interval_ms)}"] if interval_ms else []


def started_line(name: str, start: Switch | None, checkpoint: str) -> str:
    """The line for the start of a query.

    Examples
    --------
    >>> from backlog_spark.decide.steps import Mode
    >>> started_line("orders", Switch(-1, Mode.BACKLOG, None, 0.0), "/lake/c")
    'Query orders has started in backlog mode, without a commit until the backlog ends. Its checkpoint is /lake/c.'
    >>> started_line("orders", Switch(-1, Mode.STREAM, 2_000, 0.0), "/lake/c")
    'Query orders has started in stream mode, with a commit interval of 2 s. Its checkpoint is /lake/c.'
    """
    how = ""
    if start is not None and start.commit_interval_ms is None:
        how = f" in {start.mode} mode, without a commit until the backlog ends"
    elif start is not None:
        interval = start.commit_interval_ms
        paced = f", with a commit interval of {format_duration(interval)}" if interval else ""
        how = f" in {start.mode} mode{paced}"
    return f"Query {name} has started{how}. Its checkpoint is {checkpoint}."


def ended_line(
    name: str,
    status: str,
    progress: BacklogProgress,
    seconds: float,
    targets: Sequence[str] = (),
    *,
    failure: str = "",
    is_whole: bool = True,
) -> str:
    """The line for the end of a query.

    Parameters
    ----------
    name : str
    status : "FINISHED", "CANCELED" or "FAILED"
    progress : BacklogProgress
    seconds : float
        How long it ran.
    targets : sequence of str
        Where it wrote.
    failure : str
        The first line of the error.
    is_whole : bool
        Every batch that was begun has committed.

    Examples
    --------
    >>> ended_line("orders", "FINISHED", BacklogProgress(rows=9_000, commits_in_backlog=2), 12.4, ["/lake/orders"])
    'Query orders has come to the end of its input: 9,000 rows in 2 commits, 12 s, to /lake/orders.'
    >>> ended_line("orders", "CANCELED", BacklogProgress(), 61.0)
    'Query orders has ended after a whole batch: 0 rows in 0 commits, 1 min 1 s.'
    """
    commits = f"{progress.rows:,} rows in {progress.commits:,} commit{'' if progress.commits == 1 else 's'}"
    did = f"{commits}, {in_words(seconds)}{', to ' if targets else ''}{', '.join(targets)}"
    failed = status == "FAILED"
    replayed = "" if is_whole else f" Its next start replays the batch that {'failed' if failed else 'was running'}."
    if failed:
        return f"Query {name} has failed after {did}: {failure}{replayed}"
    if status == "FINISHED":
        return f"Query {name} has come to the end of its input: {did}."
    how = "has ended after a whole batch" if is_whole else "was stopped"
    return f"Query {name} {how}: {did}.{replayed}"


class ProgressLine:
    """Shows a query's progress while the block runs.

    Parameters
    ----------
    query : QueryHandle
    out : file object, optional
        Default: standard error, or the notebook's cell.
    every_commit : bool
        A log gets a line for each commit, not only once a minute. Default false.
    """

    def __init__(self, query: QueryHandle, out: TextIO | None = None, *, every_commit: bool = False) -> None:
        self._query = query
        self._output = output_for(out or sys.stderr, is_default=out is None)
        self._every_commit = every_commit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="backlog-progress", daemon=True)
        self._samples: dict[str, deque[tuple[float, float]]] = {}  # time and rows of each source in backlog
        self._firsts: dict[str, tuple[float, float]] = {}  # the first of them
        self._switches = 1  # the mode at the start is none

    def __enter__(self) -> ProgressLine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self._output.close()

    def finish(self, text: str = "") -> None:
        """End the progress, and print a last line if there is one. The block may end then."""
        self._stop.set()
        self._thread.join()
        self._tell_switches()
        if text:
            self.say(text)

    def say(self, text: str) -> None:
        """Print a line of its own above the progress."""
        self._output.say(text)

    def _loop(self) -> None:
        output, wait_s = self._output, 0.0
        while not self._stop.wait(wait_s) and self._query.isActive:
            wait_s = _EVERY_S if output.is_drawn else _LOG_EVERY_S
            self._tell_switches()
            try:
                shown = self._snapshots()
            except Exception as error:  # it is for display only: the session may just be ending
                _log.debug("No progress of query %s: %s", self._query.name, first_line(error))
                continue
            if output.is_drawn or all(each.is_known for each in shown):
                output.show([render(each, output.width) for each in shown], self._news(shown))

    def _news(self, shown: Sequence[Snapshot]) -> object:
        """What a log prints at once if it changes."""
        commits = shown[0].commits if self._every_commit and shown else 0
        return commits, [(each.name, each.in_backlog, each.has_estimate) for each in shown]

    def _tell_switches(self) -> None:
        history = self._query.history
        for switch in history[self._switches :]:
            self.say(f"{self._query.name}: {switch.mode} mode from batch {switch.batch_id} on, because {switch.why}")
        self._switches = max(self._switches, len(history))

    def _snapshots(self) -> Sequence[Snapshot]:
        progress, history = self._query.backlogProgress, self._query.history
        interval = history[-1].commit_interval_ms if history else None
        if not self._query.isProcessingBacklog:
            after = progress.rows - progress.backlog_rows
            self._samples, self._firsts = {}, {}  # for the next backlog
            rate = progress.rows_per_second if after else 0.0
            before = self._query.backlogRowsCommitted
            return [Snapshot(self._query.name, False, after, 0, rate, progress.commits_after, interval, before)]
        now = time.monotonic()
        shown = []
        sources = self._query.backlogSources()
        for source in sources:
            samples = self._samples.setdefault(source.name, deque(maxlen=_SAMPLES))
            samples.append((now, source.rows))
            first = self._firsts.setdefault(source.name, samples[0])
            rate = recent_rate(samples) or whole_rate([first, samples[-1]])
            if not rate and len(sources) == 1:
                rate = progress.rows_per_second  # of the batches before the first look
            shown.append(
                Snapshot(source.name, True, source.rows, source.total, rate, progress.commits_in_backlog, interval)
            )
        return shown
