"""The story of a query, from its event log: times of each mode, batches, switches, restarts, freshness (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backlog_spark.common import figures

__all__ = [
    "LIFE",
    "NOT_RUNNING",
    "Batch",
    "Estimate",
    "Event",
    "History",
    "Span",
    "newest",
    "percentile",
    "rate",
    "read_history",
    "status_of",
]

_RATE_OVER_MS = 60_000
"""The present rate is that of the batches of so many milliseconds: one batch alone varies too much."""
NOT_RUNNING = "not running"
"""The mode of a `Span` between two processes of the query."""
LIFE = ("start", "end", "refused")
"""The kinds of events that say whether the query runs."""


@dataclass(frozen=True)
class Batch:
    """A committed batch. Times are milliseconds since 1970.

    Parameters
    ----------
    number, rows : int
    backlog : bool
        Its rows are backlog.
    began, ended : int
    work_ms : int
        How long it took, without the time that its sources waited for rows.
    interval_ms : int or None
        The commit interval in force; None: no commit until the backlog ends.
    behind : int or None
        Rows of the backlog after it, as the sources estimate; None if unknown.
    oldest_s, newest_s : float or None
        Seconds from the commit of its oldest and newest row at the source to the commit in the target; None if unknown.
    state_rows, state_bytes : int
        Spark's state after it.
    writer : str
        How the sink wrote it.
    """

    number: int
    rows: int
    backlog: bool
    began: int
    ended: int
    work_ms: int
    interval_ms: int | None
    behind: int | None
    oldest_s: float | None
    newest_s: float | None
    state_rows: int
    state_bytes: int
    writer: str

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended - self.began) / 1000

    @property
    def phase(self) -> figures.Phase:
        """What it counts as."""
        return figures.phase(self.rows, self.backlog)


@dataclass(frozen=True)
class Estimate:
    """How far the backlog is while a batch runs.

    Parameters
    ----------
    at : int
        Milliseconds since 1970.
    batch : int
        The running batch.
    rows, total : int
        Rows read so far, and an estimate of all.
    """

    at: int
    batch: int
    rows: int
    total: int

    @property
    def behind(self) -> int | None:
        """Rows that are not read yet."""
        return figures.rows_left(self.rows, self.total)


@dataclass(frozen=True)
class Span:
    """A time in one mode: "backlog", "stream" or `NOT_RUNNING`. Times are milliseconds since 1970."""

    mode: str
    began: int
    ended: int
    why: str


@dataclass(frozen=True)
class Event:
    """Something rare: a switch, a restart, a start, a refused start, an end. ``text``: in words."""

    at: int
    kind: str
    text: str
    batch: int | None = None
    interval_ms: int | None = None
    mode: str = ""


@dataclass(frozen=True)
class History:
    """All that the event log says. Without events ``query`` is empty.

    Parameters
    ----------
    query : str
    status : str
        "running", "killed", "running or killed" if its machine is another one, "finished", "stopped", "failed" or
        "start refused".
    error : str
        Of the last end or refused start.
    mode : str
        At the end; "unknown" if it never ran.
    began, ended : int
        Times of the first and the last event.
    intervals_ms : (int or None, int or None)
        Normal and during backlog, of the last start.
    sources : tuple of str
        Their names.
    batches : tuple of Batch
        Oldest first. The log drops the oldest ones of a long run.
    spans : tuple of Span
    events : tuple of Event
    estimates : tuple of Estimate
        Those with a known total, oldest first.
    backlog_total : int or None
        Estimate of all rows of the backlog.
    backlog_rows : int
        Committed so far.
    """

    query: str
    status: str
    error: str
    mode: str
    began: int
    ended: int
    intervals_ms: tuple[int | None, int | None]
    sources: tuple[str, ...]
    batches: tuple[Batch, ...]
    spans: tuple[Span, ...]
    events: tuple[Event, ...]
    estimates: tuple[Estimate, ...]
    backlog_total: int | None
    backlog_rows: int

    def of_kind(self, *kinds: str) -> list[Event]:
        """The events of some kinds, oldest first."""
        return [event for event in self.events if event.kind in kinds]

    @property
    def _running(self) -> list[Estimate]:
        """The estimates of the batch that runs."""
        ended = self.batches[-1].ended if self.batches else 0
        return [estimate for estimate in self.estimates if estimate.at > ended]

    @property
    def done(self) -> tuple[int, int] | None:
        """Rows of the backlog that are read, and an estimate of all its rows; None if that is unknown, or after it."""
        if self.mode != "backlog":
            return None
        running = self._running[-1:]
        rows, total = (running[0].rows, running[0].total) if running else (self.backlog_rows, self.backlog_total or 0)
        return (rows, max(rows, total)) if total else None

    @property
    def behind(self) -> int | None:
        """Rows of the backlog that are not read yet; 0 after it, None if unknown."""
        if self.mode != "backlog" and not (self.batches and self.batches[-1].behind):
            return 0
        if running := self._running:
            return running[-1].behind
        return self.batches[-1].behind if self.batches else self.backlog_total

    @property
    def rate(self) -> float:
        """Rows per second of the newest batches with rows of the same phase; 0.0 without one."""
        running = [(estimate.at / 1000, estimate.rows) for estimate in self._running]
        if found := figures.recent_rate(running) or figures.whole_rate(running):
            return found
        newest = next((batch for batch in reversed(self.batches) if batch.rows), None)
        if newest is None:
            return 0.0
        return rate([b for b in self.batches if b.phase == newest.phase and b.ended > newest.ended - _RATE_OVER_MS])

    @property
    def seconds_left(self) -> float | None:
        """Time until the backlog ends, at the present rate; None if unknown."""
        return figures.seconds_left(self.behind, self.rate)

    def freshness(self, *, newest: bool = False) -> list[float]:
        """Seconds from source to target of the oldest (or newest) row of each live batch."""
        waits = (b.newest_s if newest else b.oldest_s for b in self.batches if not b.backlog)
        return [wait for wait in waits if wait is not None]


def rate(batches: Sequence[Batch]) -> float:
    """Rows per second of the time that some batches worked."""
    return sum(b.rows for b in batches) * 1000 / max(sum(b.work_ms for b in batches), 1)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least this percentage of the values does not exceed (nearest rank).

    Examples
    --------
    >>> [percentile([4.0, 1.0, 3.0, 2.0], p) for p in (50, 75, 95)]
    [2.0, 3.0, 4.0]
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def newest(events: Sequence[dict[str, Any]], *kinds: str) -> dict[str, Any]:
    """The newest event of some kinds; empty without one."""
    return next((event for event in reversed(events) if event["kind"] in kinds), {})


def status_of(last: dict[str, Any], *, runs: bool | None = None) -> str:
    """What the newest event of `LIFE` says about the query; empty without one.

    ``runs``: whether its process runs; None if that is unknown.
    """
    match last.get("kind"):
        case "start":
            return "running or killed" if runs is None else "running" if runs else "killed"
        case "refused":
            return "start refused"
        case _:
            return str(last.get("status", ""))


def read_history(events: Sequence[dict[str, Any]], *, runs: bool | None = None) -> History:
    """The story that an event log tells.

    Parameters
    ----------
    events : sequence of dict
        As `StoredCheckpoint.events` has them: oldest first.
    runs : bool, optional
        Whether the process of the query runs. Default: that is unknown.
    """
    started = newest(events, "start")
    lines = {event["batch"]: event for event in events if event["kind"] == "batch"}
    last_line = newest(events, "batch")
    # Two drivers may have written; a batch that both reported counts once.
    batches = sorted((_batch(line) for line in lines.values()), key=lambda batch: batch.number)
    last = newest(events, *LIFE)
    spans = _spans(events)
    modes = [span.mode for span in spans if span.mode != NOT_RUNNING]
    return History(
        query=str(events[-1].get("query", "")) if events else "",
        status=status_of(last, runs=runs),
        error=str(last.get("error", "")),
        mode=modes[-1] if modes else "unknown",
        began=_ms(events[0]["at"]) if events else 0,
        ended=max([_ms(event["at"]) for event in events], default=0),
        intervals_ms=(started.get("interval_ms"), started.get("interval_during_backlog_ms")),
        sources=tuple(str(source["name"]) for source in (started.get("sources") or [])),
        batches=tuple(batches),
        spans=tuple(spans),
        events=tuple(found for event in events if (found := _event(event)) is not None),
        estimates=tuple(_estimates(events)),
        backlog_total=last_line.get("backlog_total"),
        backlog_rows=last_line.get("backlog_rows") or 0,
    )


def _ms(at: str) -> int:
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def _batch(line: dict[str, Any]) -> Batch:
    took = line.get("took_ms") or 0
    began = _ms(line["started"]) if line.get("started") else _ms(line["at"]) - took
    is_backlog = bool(line.get("backlog"))
    state, sources = line.get("state") or [], line.get("sources") or []
    behind = [source["rows_behind"] for source in sources if source.get("rows_behind") is not None]
    committed = [source["committed_ms"] for source in sources if source.get("committed_ms")]
    waits: tuple[float | None, float | None] = (None, None)
    if committed and (written := line.get("written_ms")) is not None:
        oldest, newest = min(each[0] for each in committed), max(each[1] for each in committed)
        waits = figures.freshness_s(oldest, written), figures.freshness_s(newest, written)
    return Batch(
        number=int(line["batch"]),
        rows=int(line.get("rows") or 0),
        backlog=is_backlog,
        began=began,
        ended=began + took,
        work_ms=figures.work_ms({**(line.get("parts_ms") or {}), "triggerExecution": took}, is_backlog),
        interval_ms=line.get("interval_ms"),
        behind=sum(behind) if behind else figures.rows_left(line.get("backlog_rows") or 0, line.get("backlog_total")),
        oldest_s=waits[0],
        newest_s=waits[1],
        state_rows=sum(each["rows"] for each in state),
        state_bytes=sum(each["bytes"] for each in state),
        writer=str(line.get("writer") or ""),
    )


def _estimates(events: Iterable[dict[str, Any]]) -> list[Estimate]:
    found = []
    for event in events:
        sources = event["sources"] if event["kind"] == "estimate" else []
        total = sum(source["total"] for source in sources)
        if total:
            rows = sum(source["rows"] for source in sources)
            found.append(Estimate(_ms(event["at"]), event["after_batch"] + 1, rows, total))
    return found


def _spans(events: Iterable[dict[str, Any]]) -> list[Span]:
    """The modes, one after the other, up to the last event."""
    spans: list[Span] = []
    mode, began, why = "", 0, ""

    def close(at: int) -> None:
        if mode and at > began:
            spans.append(Span(mode, began, at, why))

    last = 0
    for event in events:
        before, last = last, max(last, _ms(event["at"]))
        if event["kind"] in ("start", "refused") and mode not in ("", NOT_RUNNING):
            close(before)
            mode, began, why = NOT_RUNNING, before, "killed: it wrote no end"
        elif event["kind"] == "switch":
            close(last)
            mode, began, why = str(event["mode"]), last, str(event.get("why", ""))
        elif event["kind"] == "end":
            close(last)
            mode, began, why = NOT_RUNNING, last, str(event.get("status", ""))
    close(last)
    if mode and not any(span.began == began for span in spans) and mode != NOT_RUNNING:
        spans.append(Span(mode, began, began, why))
    return spans


def _event(event: dict[str, Any]) -> Event | None:
    at, kind, error = _ms(event["at"]), event["kind"], str(event.get("error", ""))
    match kind:
        case "switch":
            mode = str(event["mode"])
            return Event(at, kind, str(event.get("why", "")), event.get("batch"), event.get("interval_ms"), mode)
        case "restart":
            return Event(at, kind, f"attempt {event.get('attempt')}: {error}")
        case "refused":
            return Event(at, kind, error)
        case "start":
            return Event(at, kind, f"Spark {event.get('spark')}, Python {event.get('python')}")
        case "end":
            return Event(at, kind, f"{event.get('status')}{f': {error}' if error else ''}")
        case _:
            return None
