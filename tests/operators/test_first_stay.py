"""The first stay in backlog in several batches: no output before all sources have left, then each key once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs

from .conftest import Collect, wait
from .scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
# Pieces of backlog: of one source, and of another one before and after the first has left. Then a live row of each.
PIECES = (((1, 10), (2, 20)), ((4, 5),), ((3, 30), (2, 1), (1, 5)))
LIVE = ((2, 100), (9, 8))


class Sums(bs.KeyedProcessFunction):
    """Emits a row for each row, and one to the side output for each but the key's first."""

    output = "k long, v long, total long"
    again = bs.OutputTag("k long, v long")
    total = bs.ValueState("long", default=0)

    def process_element(self, row: Any, ctx: Any) -> Any:
        if self.total.value():
            yield self.again, (row.k, row.v)
        self.total.update(self.total.value() + row.v)
        yield row.k, row.v, self.total.value()


def table(*made: tuple[int, int]) -> pa.Table:
    return pa.table(list(zip(*made, strict=True)), schema=SCHEMA)


def totals(stream: bs.BacklogStream) -> bs.BacklogStream:
    return stream.key_by("k").aggregate("sum(v) AS total", name="totals")


def parities(stream: bs.BacklogStream) -> bs.BacklogStream:
    """Number of keys with even and odd totals. Changed results are retracted."""
    by = totals(stream).map("total % 2 AS odd", "total").key_by("odd")
    return by.aggregate("count(*) AS keys, max(total) AS greatest", name="parities")


def functions(stream: bs.BacklogStream) -> bs.BacklogStream:
    return stream.key_by("k").process(Sums(), name="sums")


def counted(stream: bs.BacklogStream) -> bs.BacklogStream:
    """A count of a function's output."""
    return functions(stream).key_by("k").aggregate("count(*) AS n, sum(v) AS total", name="counted")


# What comes at the end of the stay, then with the live rows, and if these are there as well, all at once.
ROWS = [(1, 5, 15), (1, 10, 10), (2, 1, 21), (2, 20, 20), (3, 30, 30), (4, 5, 5)]
SHAPES: dict[str, tuple[Callable[[bs.BacklogStream], bs.BacklogStream], list[Any], list[Any], list[Any]]] = {
    "aggregate": (totals, [(1, 15), (2, 21), (3, 30), (4, 5)], [(2, 121)], [(1, 15), (2, 121), (3, 30), (4, 5)]),
    "chain": (parities, [(0, 1, 30), (1, 3, 21)], [(1, 3, 121), (0, 2, 30)], [(0, 1, 30), (1, 3, 121)]),
    "function": (functions, ROWS, [(2, 100, 121)], sorted([*ROWS, (2, 100, 121)])),
    "function and aggregate": (
        counted,
        [(1, 2, 15), (2, 2, 21), (3, 1, 30), (4, 1, 5)],
        [(2, 3, 121)],
        [(1, 2, 15), (2, 3, 121), (3, 1, 30), (4, 1, 5)],
    ),
}  # fmt: skip


def plain(rows: list[Any], width: int) -> list[Any]:
    """Without the type of a change."""
    return sorted(tuple(row)[:width] for row in rows)


# A chain and a function, and each kind of end; `make faults` goes through all.
SOME = {("chain", False), ("function", True)}


@pytest.mark.grid
@pytest.mark.parametrize(
    ("shape", "ends"),
    [
        pytest.param(shape, ends, marks=[pytest.mark.grid] * ((shape, ends) not in SOME))
        for shape in SHAPES
        for ends in (True, False)
    ],
)
def test_nothing_is_emitted_before_the_end(spark: SparkSession, tmp_path: Path, shape: str, ends: bool) -> None:
    """The end may be known within the last batch or only afterwards. Then the stream vehicle emits the results."""
    operators, whole, after, together = SHAPES[shape]
    width = len(whole[0])
    sink, aside = Collect(), Collect()

    def start(**trigger: Any) -> bs.BacklogQuery:
        sources = [bs.source("scripted", name=n, path=tmp_path / n) for n in "ab"]
        given = {"processing_time": "100 ms", "interval_during_backlog": 0, **trigger}
        writer = operators(sources[0].union(sources[1])).write("first").trigger(**given).to(sink)
        if shape == "function":
            writer = writer.to(aside, side_output="again")
        return writer.option("checkpointLocation", str(tmp_path / "c")).start(spark)

    append(tmp_path / "a", table(*PIECES[0]), backlog=True)
    append(tmp_path / "a", table(LIVE[0]), backlog=False)
    append(tmp_path / "b", table(*PIECES[1]), backlog=True)
    query = start()
    try:
        wait(lambda: query.backlogProgress.rows == 3, query)
        append(tmp_path / "b", table(*PIECES[2]), backlog=True)
        if ends:
            wait(lambda: query.backlogProgress.rows == 6, query)
            assert not any(sink.batches.values())
            assert not any(aside.batches.values())
            append(tmp_path / "b", table(LIVE[1]), backlog=False)
            wait(lambda: query.backlogProgress.rows == 8, query)
            query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    if not ends:
        assert start(available_now=True).awaitTermination(300)
    first, *later = [plain(sink.batches[n], width) for n in sorted(sink.batches) if sink.batches[n]]
    assert first == (whole if ends else together)
    found = [row for rows in later for row in rows]
    assert all(found.count(row) == (1 if ends else 0) for row in after)
    if shape == "function":
        assert plain([row for rows in aside.batches.values() for row in rows], 2) == [(1, 5), (2, 1), (2, 100)]


class Waiting(bs.KeyedProcessFunction):
    """A row for each row, and one when its key has been quiet for a moment."""

    output = "k long, v long, fired boolean"
    fired = bs.ValueState("boolean", default=False)

    def process_element(self, row: Any, ctx: Any) -> Any:
        yield row.k, row.v, self.fired.value()
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 2_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.fired.update(True)
        yield ctx.get_current_key(), None, True


@pytest.mark.grid
def test_timers_fire_by_the_clock_while_a_source_in_backlog_is_quiet(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", table((1, 1)), backlog=True)
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    writer = source.key_by("k").process(Waiting(), name="waiting").write("quiet")
    sink = Collect()
    writer = writer.trigger(processing_time="100 ms", interval_during_backlog=0).to(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(spark)
    try:
        wait(lambda: query.backlogProgress.commits_without_rows >= 1, query)
        assert query.state("waiting").first()["processing_timers"] is None
        append(tmp_path / "s", table((1, 2)), backlog=True)
        wait(lambda: query.backlogProgress.rows == 2, query)
        append(tmp_path / "s", table((1, 3)), backlog=False)
        wait(lambda: query.backlogProgress.rows == 3, query)
    finally:
        query.stop()
    assert query.exception() is None
    first = next(sink.batches[n] for n in sorted(sink.batches) if sink.batches[n])
    found = Counter(tuple(row) for row in first)
    assert found[1, 1, False] == found[1, 2, True] == 1
    assert found[1, None, True] in (1, 2), "the second one may be left to the stream"
