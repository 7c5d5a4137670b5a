"""Global windows with a user's trigger: results by hand, sorted first and then as stream."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import EVENT_TIME, MIN_WATERMARK
from backlog_spark.operators.fold import Arrived, Clock
from backlog_spark.operators.process.fold import ProcessFold
from backlog_spark.operators.windows.triggered import TriggeredWindows
from backlog_spark.state.tables import arrow_schema, combine
from tests.operators.events import events, flush, multiset, run, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    StructType()
    .add("user", StringType())
    .add("v", LongType())
    .add("ts", TimestampType(), metadata={EVENT_TIME: "ts"})
    .add("seq", LongType())
)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Third(bs.Trigger):
    """Fires and purges at every third row; fires 100 ms after a row's time; purges at a 0."""

    n = bs.ValueState(LongType(), default=0)

    def open(self, ctx: bs.RuntimeContext) -> None:
        self.most = 3

    def on_element(self, row: Any, timestamp: int | None, window: Any, ctx: Any) -> bs.TriggerResult:
        if row.v == 0:
            return bs.TriggerResult.PURGE
        assert timestamp is not None
        ctx.register_event_time_timer(timestamp + 100)
        self.n.update(self.n.value() + 1)
        if self.n.value() < self.most:
            return bs.TriggerResult.CONTINUE
        self.n.clear()
        return bs.TriggerResult.FIRE_AND_PURGE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> bs.TriggerResult:
        assert ctx.get_current_watermark() >= time
        return bs.TriggerResult.FIRE


class Values(bs.WindowFunction):
    output = StructType().add("user", StringType()).add("values", ArrayType(LongType()))

    def apply(self, key: Any, window: bs.TimeWindow, rows: Any) -> Any:
        assert all(row.user == key and row.ts.tzinfo is not None for row in rows)
        yield key, [row.v for row in rows]


class Told(bs.ProcessWindowFunction):
    output = Values.output

    def process(self, key: Any, context: Any, rows: Any) -> Any:
        assert context.window() == bs.TimeWindow(-(2**63 - 1), 2**63 - 1)
        yield key, [row.v for row in rows]


class Sum(bs.AggregateFunction):
    accumulator = LongType()
    output = StructType().add("total", LongType())

    def open(self, ctx: bs.RuntimeContext) -> None:
        self.nothing = 0

    def create_accumulator(self) -> int:
        return self.nothing

    def add(self, row: Any, accumulator: int) -> int:
        return accumulator + row.v

    def get_result(self, accumulator: int) -> int:
        return accumulator


def placed(fold: ProcessFold, rows: list[tuple[str, int, int, int]]) -> pa.RecordBatch:
    made = [(ord(u), u, u, v, EPOCH + dt.timedelta(milliseconds=at), seq) for u, v, at, seq in rows]
    schema = fold.live_schema()
    columns = list(zip(*made, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


# Rows of user, value, time and number, and the watermark that comes before them; what the windows have, by hand.
BACKLOG = [("a", 1, 0, 0), ("a", 2, 10, 2), ("b", 7, 5, 1)]
LIVE: list[tuple[list[tuple[str, int, int, int]], int, list[tuple[str, list[int]]]]] = [
    ([], 50, []),
    ([("a", 3, 60, 3)], 50, [("a", [1, 2, 3])]),
    # Ann's window is empty when her first timer fires.
    ([], 105, [("b", [7])]),
    # No row is late for a window that never ends; its timer has passed, and fires at once.
    ([("b", 8, 20, 4)], 130, [("b", [7, 8])]),
    ([("b", 0, 140, 5), ("b", 4, 150, 6)], 130, [("b", [4])]),
    ([("a", 5, 135, 7)], 130, []),
    # Her third row's timer, and the fourth one's.
    ([], 1_000, [("a", [5]), ("a", [5])]),
]


@pytest.mark.parametrize("function", [Values(), Told(), Sum()], ids=lambda f: type(f).__name__)
def test_by_hand(function: Any) -> None:
    fold = ProcessFold(("user",), TriggeredWindows(("user",), Third(), function, SCHEMA), SCHEMA, 4, order="seq")
    out_schema = arrow_schema(fold.version_schema())
    rows = placed(fold, BACKLOG)
    versions = list(fold.sorted_loop(rows.schema, out_schema, has_base=False)(iter([rows])))
    assert not any(batch.column("__tag").drop_null() for batch in versions), "nothing is full yet"
    width = len(fold.state.arrow())
    seeds = combine([batch.select(list(range(width))) for batch in versions], fold.state.arrow())
    state, watermark = combine([], fold.state.arrow()), MIN_WATERMARK
    for number, (given, mark, expected) in enumerate(LIVE):
        arrived = Arrived(((seeds, False),) if number == 0 else (), placed(fold, given))
        step = fold.step(state, arrived, Clock(watermark, mark, None, 0))
        state, watermark = state if step.state is None else step.state, mark
        assert step.late == 0
        found = [tuple(row.values()) for _, batch in step.outputs for row in batch.to_pylist()]
        wanted: list[Any] = [(user, values) for user, values in expected]
        if isinstance(function, Sum):
            wanted = [(user, sum(values), None, None, None) for user, values in expected]
        assert Counter(map(str, found)) == Counter(map(str, wanted)), (number, found)


class Wrong(Third):
    def on_element(self, *_: Any) -> Any:
        return "FIRE"


def test_refused(spark: SparkSession, tmp_path: Path) -> None:
    fold = ProcessFold(("user",), TriggeredWindows(("user",), Wrong(), Values(), SCHEMA), SCHEMA, 4)
    state = combine([], fold.state.arrow())
    with pytest.raises(BacklogError, match=r"Wrong returned 'FIRE'\. Return a bs\.TriggerResult"):
        fold.step(state, Arrived((), placed(fold, BACKLOG)), Clock(MIN_WATERMARK, MIN_WATERMARK, None, 0))
    keyed = source(tmp_path).key_by("user")
    windows = keyed.window(bs.TumblingEventTimeWindows.of("1 hour"))
    with pytest.raises(BacklogError, match=r"trigger\(Third\(\)\): TumblingEventTimeWindows are merged in backlog"):
        windows.trigger(Third())
    with pytest.raises(BacklogError, match="these windows have a trigger already"):
        keyed.count_window(3).trigger(Third())
    triggered = keyed.window(bs.GlobalWindows.create()).trigger(Third())
    for refused in (lambda: triggered.sum("v"), lambda: triggered.reduce(lambda a, b: a)):
        with pytest.raises(BacklogError, match=r"after trigger\(Third\(\)\): they merge rows without looking"):
            refused()


class Every(bs.Trigger):
    """At every third row of a key."""

    n = bs.ValueState("long", default=0)

    def on_element(self, row: Any, timestamp: int | None, window: Any, ctx: Any) -> bs.TriggerResult:
        self.n.update(self.n.value() + 1)
        return bs.TriggerResult.CONTINUE if self.n.value() % 3 else bs.TriggerResult.FIRE_AND_PURGE


class Numbers(bs.WindowFunction):
    output = "user string, numbers string"

    def apply(self, key: Any, window: bs.TimeWindow, rows: Any) -> Any:
        yield key, ",".join(str(row.seq) for row in rows)


@pytest.mark.grid
@pytest.mark.parametrize("backlog", [0, 1, 3])
def test_wherever_the_switch_falls(spark: SparkSession, tmp_path: Path, backlog: int) -> None:
    tables = [events(n + 30, 70, n * 70) for n in range(3)]
    seen: dict[Any, list[int]] = {}
    expected: Counter[Any] = Counter()
    for row in pa.concat_tables(tables).to_pylist():
        mine = seen.setdefault(row["user"], [])
        mine.append(row["seq"])
        if len(mine) % 3 == 0:
            expected[row["user"], ",".join(map(str, mine[-3:]))] += 1
    stream = source(tmp_path).key_by("user", order="seq").window(bs.GlobalWindows.create())
    given = {"s": [*tables, flush(tables)]}
    sink = run(spark, tmp_path, stream.trigger(Every()).apply(Numbers()), given, backlog, expected)
    assert multiset(r for b in sink.batches.values() for r in b) == expected
