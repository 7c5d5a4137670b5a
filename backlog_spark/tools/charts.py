"""The geometry of the report's charts: from batches to points of an SVG of 1000 by 200, and to rows of a table (pure).

The charts are inline SVG of our own and not of a plot library. A library's script that draws in the browser has 1 to 4
MB in each page, needs JavaScript, and a screen reader finds nothing in its canvas. The shapes stretch to the page's
width. Texts stand beside them in HTML, so they keep their size on a phone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from backlog_spark.common.durations import in_words
from backlog_spark.tools.history import NOT_RUNNING, Batch, History, Span, percentile, rate

__all__ = [
    "Bucket",
    "Chart",
    "Line",
    "Scale",
    "TimeAxis",
    "buckets",
    "charts",
    "clock",
    "mode_bars",
    "size",
    "thousands",
]

_WIDTH, _HEIGHT = 1000, 200
_BUCKETS = 200
"""More points are narrower than a pixel of a phone."""
_PIXEL = 0.25
"""Percent of the width: the narrowest bar, with its edge, has two pixels."""
_GAP, _GAPS = 0.05, 0.2
"""Longest gap in which the query did not run, and all gaps together, as parts of the time that it ran."""


@dataclass(frozen=True)
class Bucket:
    """Batches that are drawn as one point: sums of rows, the greatest of everything else."""

    batches: tuple[Batch, ...]

    @property
    def at(self) -> int:
        """The end of its last batch, milliseconds since 1970."""
        return self.batches[-1].ended

    @property
    def name(self) -> str:
        """Its batches' numbers."""
        first, last = self.batches[0].number, self.batches[-1].number
        return f"{first}" if first == last else f"{first} to {last}"

    @property
    def rate(self) -> float:
        """Rows per second of the time that its batches worked."""
        return rate(self.batches)

    def most(self, value: Callable[[Batch], float | None]) -> float | None:
        """The greatest known value."""
        return max((found for b in self.batches if (found := value(b)) is not None), default=None)


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Parameters
    ----------
    name : str
    style : str
        The class in the page's style: "one", "two" or "limit".
    paths : tuple of str
        SVG paths; there is a gap where the value is unknown.
    dots : tuple of (float, float, str)
        Points and their texts.
    """

    name: str
    style: str
    paths: tuple[str, ...]
    dots: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Chart:
    """A chart, its summary in words, and its table.

    Parameters
    ----------
    key, title, summary : str
    lines : tuple of Line
    marks : tuple of (float, str)
        Height and text of the scale's marks, 0 at the top to 100.
    columns, rows : tuple
        The table: the same values.
    """

    key: str
    title: str
    summary: str
    lines: tuple[Line, ...]
    marks: tuple[tuple[float, str], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class TimeAxis:
    """Maps times to x. A time in which the query did not run is drawn short, else a night of it takes the whole width.

    Parameters
    ----------
    history : History
    """

    def __init__(self, history: History) -> None:
        gaps = [span for span in history.spans if span.mode == NOT_RUNNING]
        ran = max(history.ended - history.began, 1) - sum(gap.ended - gap.began for gap in gaps)
        widest = max(ran, 1) * min(_GAP, _GAPS / max(len(gaps), 1))
        self._began = history.began
        # Where each gap begins and ends, how long it is drawn, and how much longer it is
        self._gaps = [
            (gap.began, gap.ended, min(float(gap.ended - gap.began), widest)) for gap in gaps if gap.ended > gap.began
        ]
        self._length = max(self._drawn(history.ended), 1.0)
        self.shortened = sum(end - begin for begin, end, drawn in self._gaps if drawn < end - begin)
        """Milliseconds of the gaps that are drawn shorter than they are."""

    def _drawn(self, at: int) -> float:
        drawn = float(at - self._began)
        for begin, end, length in self._gaps:
            if at > begin:
                within = min(at, end) - begin
                drawn -= within - length * within / (end - begin)
        return drawn

    def x(self, at: int) -> float:
        """0 at the first event to 1000 at the last one."""
        return self._drawn(at) * _WIDTH / self._length


class Scale:
    """Maps times to x, and values to y.

    Parameters
    ----------
    times : TimeAxis
    values : sequence of float
        All values of the chart.
    text : callable
        Text of a value.
    logarithmic : bool
        For durations: those of the backlog are a hundred times those afterwards.
    """

    def __init__(
        self, times: TimeAxis, values: Sequence[float], text: Callable[[float], str], *, logarithmic: bool
    ) -> None:
        self._times = times
        known = [value for value in values if math.isfinite(value)]
        self._log = logarithmic
        self._low: float
        self._high: float
        self._text = text
        if logarithmic:
            positive = [value for value in known if value > 0] or [1.0]
            self._low = math.floor(math.log10(min(positive)))
            self._high = max(math.ceil(math.log10(max(positive))), self._low + 1)
        else:
            self._low, self._high = 0, _round_up(max(known, default=1.0))

    def x(self, at: int) -> float:
        """0 to 1000."""
        return round(self._times.x(at), 1)

    def y(self, value: float) -> float:
        """200 at the bottom to 0 at the top."""
        level = math.log10(max(value, 10.0**self._low)) if self._log else value
        return round(_HEIGHT - (level - self._low) * _HEIGHT / (self._high - self._low), 1)

    @property
    def marks(self) -> tuple[tuple[float, str], ...]:
        """Height in percent, 0 at the top, and text of each mark."""
        if self._log:
            step = max(1, math.ceil((self._high - self._low) / 4))
            values = [10.0**power for power in range(int(self._low), int(self._high) + 1, step)]
        else:
            values = [0, self._high / 2, self._high]
        return tuple((round(self.y(value) * 100 / _HEIGHT, 1), self._text(value)) for value in values)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, …"""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value) if value > 0 else 1.0


def buckets(batches: Sequence[Batch]) -> list[Bucket]:
    """Batches with rows in at most twice `_BUCKETS` groups of neighbours. A group never crosses a change of phase."""
    rows = [batch for batch in batches if batch.rows]
    size = max(1, math.ceil(len(rows) / _BUCKETS))
    found = []
    for _, group in itertools.groupby(rows, key=lambda batch: (batch.backlog, batch.interval_ms)):
        phase = tuple(group)
        found += [Bucket(phase[at : at + size]) for at in range(0, len(phase), size)]
    return found


def charts(history: History) -> list[Chart]:
    """The charts of a history. A chart without any value is left out."""
    points = buckets(history.batches)
    made = [_rates(history, points), _behind(history, points), _durations(history, points)]
    return [chart for chart in (*made, _freshness(history, points), _state(history, points)) if chart is not None]


def _rates(history: History, points: Sequence[Bucket]) -> Chart | None:
    if not points:
        return None
    backlog = [b.rate for b in points if b.batches[0].backlog]
    live = [b.rate for b in points if not b.batches[0].backlog]
    told = [
        f"{name}: {thousands(percentile(rates, 50))} rows/s in the median, {thousands(max(rates))} at most"
        for name, rates in (("In backlog", backlog), ("Live", live))
        if rates
    ]
    return _chart(
        history, points, "rates", "Rows per second", f"{'. '.join(told)}. Each point is the rate while a batch ran.",
        [("rows/s", "one", lambda b: b.rate)], thousands,
    )  # fmt: skip


def _behind(history: History, points: Sequence[Bucket]) -> Chart | None:
    def behind(bucket: Bucket) -> float | None:
        return bucket.batches[-1].behind

    points = sorted([*points, *_estimated(history)], key=lambda b: b.at)
    if not any(behind(b) for b in points):
        return None
    left = history.seconds_left
    if history.behind == 0:
        now = "The backlog is done."
    elif left is None:
        now = "The time left is not known yet."
    else:
        now = f"{thousands(history.behind or 0)} rows left, about {in_words(left)} at the present rate."
    return _chart(
        history, points, "behind", "Rows behind",
        f"Rows of the backlog that are not read, as the sources estimate them. {now}",
        [("rows behind", "one", behind)], thousands,
    )  # fmt: skip


def _estimated(history: History) -> list[Bucket]:
    """Points for the batches that run for long."""
    step = max(1, len(history.estimates) // _BUCKETS)
    return [
        Bucket((Batch(e.batch, 0, True, e.at, e.at, 0, None, e.behind, None, None, 0, 0, ""),))
        for e in history.estimates[::step]
    ]


def _durations(history: History, points: Sequence[Bucket]) -> Chart | None:
    if not points:
        return None

    def interval(bucket: Bucket) -> float | None:
        found = bucket.batches[0].interval_ms
        return found / 1000 if found else None

    normal, during = history.intervals_ms
    told = "none" if during is None else in_words(during / 1000) if during else "no commit until the backlog ends"
    return _chart(
        history, points, "durations", "Duration of batches and the interval in force",
        f"Normal interval: {in_words((normal or 0) / 1000)}. During backlog: {told}. The scale is logarithmic.",
        [("duration", "one", lambda b: b.most(lambda x: x.seconds)), ("interval in force", "limit", interval)],
        in_words, logarithmic=True,
    )  # fmt: skip


def _freshness(history: History, points: Sequence[Bucket]) -> Chart | None:
    waits = history.freshness()
    if not waits:
        return None
    live = [b for b in points if not b.batches[0].backlog]
    told = ", ".join(f"{in_words(percentile(waits, p))} for {p} %" for p in (50, 95, 99))
    return _chart(
        history, live, "freshness", "Freshness after the switch",
        "Time from the commit at the source to the commit in the target. The oldest row of each live batch waited "
        f"{told} of {len(waits):,} batches. The scale is logarithmic.",
        [("oldest row", "one", lambda b: b.most(lambda x: x.oldest_s)),
         ("newest row", "two", lambda b: b.most(lambda x: x.newest_s))],
        in_words, logarithmic=True,
    )  # fmt: skip


def _state(history: History, points: Sequence[Bucket]) -> Chart | None:
    if not any(batch.state_bytes for batch in history.batches):
        return None
    last = history.batches[-1]
    return _chart(
        history, points, "state", "State",
        f"Memory or disk of Spark's state stores. At the end: {size(last.state_bytes)} in {last.state_rows:,} entries.",
        [("bytes", "one", lambda b: b.batches[-1].state_bytes)], size,
    )  # fmt: skip


def _chart(
    history: History,
    points: Sequence[Bucket],
    key: str,
    title: str,
    summary: str,
    values: Sequence[tuple[str, str, Callable[[Bucket], float | None]]],
    text: Callable[[float], str],
    *,
    logarithmic: bool = False,
) -> Chart:
    every = [found for _, _, value in values for b in points if (found := value(b)) is not None]
    scale = Scale(TimeAxis(history), every, text, logarithmic=logarithmic)
    lines = []
    for name, style, value in values:
        known = [(scale.x(b.at), None if (found := value(b)) is None else (scale.y(found), found), b) for b in points]
        dots = tuple(
            (x, y[0], f"{clock(b.at)}: {name} {text(y[1])}, batch {b.name}") for x, y, b in known if y is not None
        )
        places = [(x, None if y is None else y[0]) for x, y, _ in known]
        lines.append(Line(name, style, tuple(_paths(_steps(places) if style == "limit" else places)), dots))
    columns = ("time (UTC)", "batch", "rows", *(name for name, _, _ in values))
    rows = tuple(
        (
            clock(b.at), b.name, f"{sum(batch.rows for batch in b.batches):,}",
            *("" if (found := value(b)) is None else text(found) for _, _, value in values),
        )
        for b in points
    )  # fmt: skip
    return Chart(key, title, summary, tuple(lines), scale.marks, columns, rows)


def _steps(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """A limit holds for the whole batch that ends at a point."""
    found: list[tuple[float, float | None]] = []
    before = 0.0
    for x, y in points:
        if found and found[-1][1] != y:
            found.append((before, None))
        found += [(before, y), (x, y)]
        before = x
    return found


def _paths(points: Sequence[tuple[float, float | None]]) -> list[str]:
    """A path for each stretch of known values."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            found.append([])
        else:
            found[-1].append((x, y))
    return ["M" + "L".join(f"{x:g} {y:g}" for x, y in part) for part in found if len(part) > 1]


def mode_bars(history: History) -> list[tuple[float, float, Span]]:
    """Left edge and width in percent of each time in a mode. Of several within a pixel the first is shown."""
    times = TimeAxis(history)
    bars: list[tuple[float, float, Span]] = []
    for span in history.spans:
        left = times.x(span.began) / 10
        width = times.x(span.ended) / 10 - left
        if not bars or width >= _PIXEL or round(left / _PIXEL) != round(bars[-1][0] / _PIXEL):
            bars.append((round(left, 3), round(width, 3), span))
    return bars


def clock(at: int) -> str:
    """A time in UTC, to the second."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def thousands(value: float) -> str:
    """A number of things, such as 1.2 million or 35,000."""
    if value >= 10_000_000:
        return f"{value / 1_000_000:,.0f} million"
    if value >= 1_000_000:
        return f"{value / 1_000_000:,.1f} million".replace(".0 ", " ")
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:,.1f}"


def size(value: float) -> str:
    """A number of bytes, such as 1.5 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
