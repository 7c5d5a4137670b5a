"""The operators of the grid: how a query has each, and what it must put out, worked out in Python from the rows."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import backlog_spark as bs

__all__ = ["FAR", "OPERATORS", "Operator", "Row"]

Expected = Counter[tuple[Any, ...]]
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
WINDOW_S = 10
FAR = 10**6
"""By how many seconds a row is ahead of all others that ends their windows and timers."""
FLUSH = -1
"""The key of such rows."""


class Row(NamedTuple):
    """A row of an input. ``seconds``: its event time, from `EPOCH`."""

    seq: int
    k: int
    v: int
    seconds: float

    @property
    def ts(self) -> dt.datetime:
        return EPOCH + dt.timedelta(seconds=self.seconds)


class Windows(bs.KeyedProcessFunction):
    """Sums by ten seconds of event time, once the watermark has passed."""

    output = "k long, window long, n long, total long"
    sums = bs.MapState("long", "struct<n: long, total: long>")

    def process_element(self, row: Any, ctx: Any) -> None:
        window = ctx.timestamp() // (WINDOW_S * 1_000)
        before = self.sums.get(window) or {"n": 0, "total": 0}
        self.sums.put(window, {"n": before["n"] + 1, "total": before["total"] + row.v})
        ctx.timer_service().register_event_time_timer((window + 1) * WINDOW_S * 1_000 - 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        window = timestamp // (WINDOW_S * 1_000)
        found = self.sums.get(window)
        self.sums.remove(window)
        yield ctx.get_current_key(), window, found["n"], found["total"]


class Groups(bs.CoGroupFunction):
    """How many rows each side has in a window, and what they add up to."""

    output = "k long, lefts long, rights long, total long"

    def co_group(self, left: Any, right: Any) -> Any:
        lefts, rights = list(left), list(right)
        yield (lefts or rights)[0].k, len(lefts), len(rights), sum(r.v for r in [*lefts, *rights])


@dataclass(frozen=True)
class Operator:
    """One column of the grid.

    Parameters
    ----------
    build : callable
        Receives the session and the inputs; returns the output.
    columns : str
        Those of the output that are compared.
    expected : callable
        Receives all rows of the inputs. With changes these are the rows that are there now.
    keys : sequence of str
        By which the output is upserted; empty: it is appended.
    inputs : int
    takes_changes : bool
        Whether updated and deleted rows of an input are taken back.
    is_timed : bool
        Whether results come when the watermark passes.
    """

    build: Callable[..., Any]
    columns: str
    expected: Callable[..., Expected]
    keys: Sequence[str] = ()
    inputs: int = 1
    takes_changes: bool = False
    is_timed: bool = False
    is_keyed: bool = True


def _rows(rows: Iterable[Row]) -> Expected:
    return Counter((row.k, row.v, row.seq) for row in rows)


def _sums(rows: Iterable[Row]) -> Expected:
    totals: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        totals[row.k].append(row.v)
    return Counter((k, sum(values), len(values)) for k, values in totals.items())


def _windows_of(*sides: Iterable[Row]) -> dict[tuple[int, int], list[list[int]]]:
    """The values of each side in each window of a key. The window of the newest row that ends others is still open."""
    found: dict[tuple[int, int], list[list[int]]] = defaultdict(lambda: [[] for _ in sides])
    for number, side in enumerate(sides):
        rows = list(side)
        end = max((row.seconds for row in rows if row.k == FLUSH), default=math.inf)
        for row in rows:
            if row.seconds < end:
                found[row.k, int(row.seconds // WINDOW_S)][number].append(row.v)
    return found


def _windows(rows: Iterable[Row]) -> Expected:
    first = int(EPOCH.timestamp()) // WINDOW_S
    return Counter((k, first + window, len(v), sum(v)) for (k, window), [v] in _windows_of(rows).items())


def _groups(lefts: Iterable[Row], rights: Iterable[Row]) -> Expected:
    found = _windows_of(lefts, rights).items()
    return Counter((k, len(left), len(right), sum(left) + sum(right)) for (k, _), (left, right) in found)


def _joined(lefts: Iterable[Row], rights: Iterable[Row]) -> Expected:
    """Each left row with the newest right row of its key that the test had given before it: by their numbers."""
    found: Expected = Counter()
    for row in lefts:
        newest = max((r for r in rights if r.k == row.k and r.seq <= row.seq), key=lambda r: r.seq, default=None)
        found[row.k, row.seq, newest.v if newest else None] += 1
    return found


def _top(rows: Iterable[Row]) -> Expected:
    of: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        of[row.k].append(row)
    return Counter(
        (k, row.v, row.seq, place)
        for k, found in of.items()
        for place, row in enumerate(sorted(found, key=lambda row: (-row.v, row.seq))[:2], 1)
    )


_TOP = """
    SELECT k, v, seq, n FROM (
      SELECT k, v, seq, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, seq) AS n FROM l
    ) WHERE n <= 2"""


def _co_group(_: Any, left: Any, right: Any) -> Any:
    left, right = (side.with_watermark("ts", "2 seconds") for side in (left, right))
    windows = bs.TumblingEventTimeWindows.of(f"{WINDOW_S} seconds")
    return left.co_group(right).where("k").equal_to("k").window(windows).apply(Groups())


def _temporal(_: Any, left: Any, right: Any) -> Any:
    joined = left.map("k", "seq").temporal_join(right.map("k", "v AS w", "seq AS at"), on="k", order="at")
    return joined.map("k", "seq", "w")


OPERATORS = {
    "stateless": Operator(
        lambda _, left: left, "k v seq", _rows, keys=["seq"], takes_changes=True, is_keyed=False
    ),
    "keyed sum": Operator(
        lambda _, left: left.key_by("k").aggregate("sum(v) AS total, count(*) AS n"),
        "k total n", _sums, keys=["k"], takes_changes=True,
    ),
    "process with timers": Operator(
        lambda _, left: left.with_watermark("ts", "2 seconds").key_by("k", order="seq").process(Windows()),
        "k window n total", _windows, is_timed=True,
    ),
    "co_group": Operator(_co_group, "k lefts rights total", _groups, inputs=2, is_timed=True),
    "temporal join": Operator(_temporal, "k seq w", _joined, inputs=2),
    "Top-N": Operator(
        lambda spark, left: bs.sql(spark, _TOP, l=left), "k v seq n", _top, keys=["k", "n"], takes_changes=True
    ),
}  # fmt: skip
