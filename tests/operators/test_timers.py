"""Interruptible timers and the end of input: single key groups, and real queries."""

from __future__ import annotations

import copy
import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.model.watermarks import END_OF_TIME, EVENT_TIME, MIN_WATERMARK
from backlog_spark.operators.process.fold import ProcessFold
from backlog_spark.runner.handle import JobStatus
from backlog_spark.state.seeds import Control
from backlog_spark.state.store import GroupStore
from backlog_spark.state.tables import StateSchema, bucket_bits, from_bytes
from backlog_spark.state.timer_reports import FiringBudget, GroupReport

from .conftest import Collect, wait
from .groups import Handle, run
from .scripted import append, finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
KEYS = "abcd"


class Chatty(bs.KeyedProcessFunction):
    """Emits each row and timer in the order in which a key sees them."""

    # Types as objects, as texts are read by a Spark session.
    output = (
        StructType()
        .add("key", StringType())
        .add("nth", LongType())
        .add("what", StringType())
        .add("at", LongType())
        .add("watermark", LongType())
    )
    interruptible_timers = True
    seen = bs.ValueState(LongType(), default=0)

    def _tell(self, ctx: Any, what: str, at: int) -> Any:
        self.seen.update(self.seen.value() + 1)
        return ctx.get_current_key(), self.seen.value(), what, at, ctx.timer_service().current_watermark()

    def process_element(self, row: Any, ctx: Any) -> Any:
        for ahead in range(row.timers):
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3 * ahead)
        ctx.timer_service().delete_event_time_timer(ctx.timestamp() + 1)
        yield self._tell(ctx, "row", ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        if timestamp % 5 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + 4)
            ctx.timer_service().delete_event_time_timer(timestamp + 3)
        yield self._tell(ctx, "timer", timestamp)


class Ending(Chatty):
    """Also emits the end of input."""

    def on_end(self, ctx: Any) -> Any:
        yield self._tell(ctx, "end", 0)


class Long(Ending):
    """A timer has pieces of work: as many as its time says. Asks after each whether to give way, or before."""

    done = bs.MapState(LongType(), LongType())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        first = self.done.get(timestamp) or 0
        for piece in range(first, timestamp % 7):
            if timestamp % 2 and ctx.is_interrupted():
                yield from self.give_way(timestamp, piece, ctx)
                return
            yield self._tell(ctx, f"piece {piece}", timestamp)
            if not timestamp % 2 and ctx.is_interrupted():
                yield from self.give_way(timestamp, piece + 1, ctx)
                return
        self.done.remove(timestamp)
        yield self._tell(ctx, "timer", timestamp)

    def give_way(self, timestamp: int, piece: int, ctx: Any) -> Any:
        self.done.put(timestamp, piece)
        ctx.timer_service().register_event_time_timer(timestamp)
        yield from ()


SCHEMA = (
    StructType()
    .add("key", StringType())
    .add("timers", LongType())
    .add("ts", TimestampType(), metadata={EVENT_TIME: "ts"})
)
Row = tuple[str, int, int]
Batch = tuple[list[Row], int | None]
"""Rows of key, number of timers and event time, and the watermark that comes with them."""


class Group:
    """One key group, across several lives of its process."""

    def __init__(self, function: bs.KeyedProcessFunction, *, control_first: bool) -> None:
        self.fold = ProcessFold(["key"], function, SCHEMA, 1, control_first=control_first)
        self.handle = Handle()
        self.reports: list[GroupReport] = []
        self.told: dict[str, list[Any]] = defaultdict(list)
        self.fired = 0

    def run(self, rows: list[Row], watermark: int | None, budget: int | None = None) -> list[Any]:
        """Run a batch in a new process. Returns its output."""
        made = [
            {"__hash": ord(k) % 3 << 32, "k0": k, "r0": k, "r1": n, "r2": EPOCH + dt.timedelta(milliseconds=t)}
            for k, n, t in rows
        ]
        live = pa.RecordBatch.from_pylist(made, self.fold.live_schema())
        control = Control(MIN_WATERMARK if watermark is None else watermark, None, None, budget)
        found = run(copy.deepcopy(self.fold), self.handle, live, control, self.reports)
        schema = self.fold._loop_schema.outputs[0][1]
        return [tuple(row.values()) for data in found for row in from_bytes(data, schema).to_pylist()]

    def take(self, rows: list[Row], watermark: int | None, budget: int | None = None, *, killed: bool = False) -> None:
        if killed:
            # What was written before the kill is what is written after it: the sink has it already.
            before = copy.deepcopy((self.handle.head, self.handle.buckets))
            first = self.run(rows, watermark, budget)
            self.handle.head, self.handle.buckets = before
            assert self.run(rows, watermark, budget) == first
            out = first
        else:
            out = self.run(rows, watermark, budget)
        for row in out:
            self.told[row[0]].append(row[1:])
        self.fired = sum(row[2] != "row" for row in out)

    @property
    def is_firing(self) -> bool:
        return self.reports[-1].is_firing


batches = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 6), st.integers(0, 60)), max_size=6),
        st.one_of(st.none(), st.integers(0, 80)),
    ),
    max_size=8,
)


@pytest.mark.slow
@pytest.mark.parametrize("function", [pytest.param(Chatty, marks=pytest.mark.grid), Ending, Long])
@given(st.data(), batches, st.booleans())
def test_an_interrupted_run_is_the_golden_run(
    function: type[Chatty], data: Any, script: list[Batch], first: bool
) -> None:
    """Interrupted, killed or ended anywhere: each key sees and emits the same, in the same order."""
    with pytest.MonkeyPatch.context() as patch:
        # Some of the keys in each bucket.
        patch.setattr("backlog_spark.state.tables.BUCKET_KEYS", 2)
        compare(function, data, script, first)


def compare(function: type[Chatty], data: Any, script: list[Batch], first: bool) -> None:
    script = [*script, ([], END_OF_TIME)]
    golden, other = (Group(function(), control_first=first) for _ in range(2))
    for rows, watermark in script:
        golden.take(rows, watermark)
        assert not golden.is_firing
    waiting = list(script)
    reached = MIN_WATERMARK
    while waiting or other.is_firing:
        rows: list[Row] = []
        watermark: int | None = None
        # While timers are left time stands still: rows that bring no watermark come in between.
        if waiting and (not other.reports or not other.is_firing or waiting[0][1] is None):
            rows, watermark = waiting.pop(0)
            reached = max(reached, MIN_WATERMARK if watermark is None else watermark)
        budget = data.draw(st.one_of(st.none(), st.integers(1, 4)))
        other.take(rows, watermark, budget, killed=data.draw(st.booleans()))
        if budget is not None and not rows:
            # `Long` asks before a piece, and may do one before the answer can be true.
            assert other.fired <= (2 * budget + 1 if function is Long else budget)
        assert other.reports[-1].watermark == reached
    assert other.told == golden.told
    assert sum(row[1] == "end" for told in other.told.values() for row in told) == (
        len(other.told) if issubclass(function, Ending) else 0
    )
    if issubclass(function, Ending):
        assert not other.handle.buckets, "nothing is kept of what has ended"


class Clearing(Ending):
    """Keeps nothing when its last timer has fired."""

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield self._tell(ctx, "timer", timestamp)
        self.seen.clear()


@pytest.mark.parametrize(("budget", "pieces"), [(None, [7]), (1, [2, 2, 2, 1]), (2, [2, 2, 2, 1]), (5, [5, 2])])
def test_a_long_timer_gives_way(budget: int | None, pieces: list[int]) -> None:
    """Six pieces and the end, in batches of as many as the budget allows; of two at least."""
    group = Group(Long(), control_first=True)
    group.take([("a", 1, 6)], None)
    group.take([], 10, budget)
    taken = [group.fired]
    while group.is_firing:
        group.take([], None, budget)
        taken.append(group.fired)
    assert taken == pieces
    assert [row[1] for row in group.told["a"]] == ["row", *(f"piece {n}" for n in range(6)), "timer"]


@pytest.mark.parametrize("budget", [None, 1])
def test_a_key_without_state_does_not_get_the_end(budget: int | None) -> None:
    group = Group(Clearing(), control_first=True)
    group.take([("a", 1, 10), ("b", 0, 10)], None)
    group.take([], END_OF_TIME, budget)
    while group.is_firing:
        group.take([], None, budget)
    assert [(report.fired > 0, report.seconds > 0) for report in group.reports[:2]] == [(False, False), (True, True)]
    assert [row[1] for row in group.told["a"]] == ["row", "timer"]
    assert [row[1] for row in group.told["b"]] == ["row", "end"]


def test_a_key_with_a_million_timers() -> None:
    """One key, one watermark; it took hours when each timer was looked for among all."""
    group = Group(Chatty(), control_first=True)
    group.take([("a", 300_000, 0)], None)
    rounds, budget = 0, 100_000
    group.take([], 10**9, budget)
    while group.is_firing:
        assert group.fired == budget
        group.take([], None, budget)
        rounds += 1
    # Each fifth of them registers another one and deletes one.
    assert rounds == 2 or rounds == 3
    times = [row[2] for row in group.told["a"] if row[1] == "timer"]
    assert times == sorted(set(times))
    assert len(times) >= 240_000


def test_no_more_due_timers_are_read_than_may_fire() -> None:
    schema = StateSchema((LongType(),), (LongType(),), ("at",))
    keys = 40_000

    def due(rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        return rows.column("at").to_numpy(), np.full(rows.num_rows, 2**63 - 1)

    handle = Handle()
    store = GroupStore(handle, schema, due)  # type: ignore[arg-type]
    hashes = np.random.default_rng(1).integers(-(2**63), 2**63, keys)
    store.open(MIN_WATERMARK)
    store.load(hashes, MIN_WATERMARK, MIN_WATERMARK)
    columns = [pa.array(hashes), pa.array(range(keys)), pa.array([7] * keys)]
    store.save(pa.RecordBatch.from_arrays(columns, schema=schema.arrow()))
    store.close()
    per_bucket = keys / 2 ** bucket_bits(keys)
    left, rounds = keys, 0
    while left:
        store.open(MIN_WATERMARK)
        handle.reads = 0
        rows = store.load(np.zeros(0, np.int64), 7, MIN_WATERMARK, 5_000)
        assert store.due_rows == rows.num_rows >= min(5_000, left)
        assert rows.num_rows < 5_000 + 2 * per_bucket
        assert handle.reads <= 5_000 / per_bucket + 2
        store.save(rows.slice(0, 0))
        store.close()
        left -= rows.num_rows
        rounds += 1
        assert (store.next_event_timer == 7) == bool(left)
    assert rounds >= 4


# -- real queries -----------------------------------------------------------------------------------------------------

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def events(first: int, count: int, *, first_key: int = 0) -> pa.Table:
    """Row n is of second n, of one of twenty keys."""
    numbers = range(first, first + count)
    times = pa.array([START + dt.timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC"))
    return pa.table({"k": [first_key + n % 20 for n in numbers], "n": list(numbers), "ts": times})


class Echo(bs.KeyedProcessFunction):
    """Each row comes back when the watermark is at its time."""

    output = "k long, ts timestamp"
    interruptible_timers = True

    def process_element(self, row: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), EPOCH + dt.timedelta(milliseconds=timestamp)


class Minutes(bs.KeyedProcessFunction):
    """Follows `Echo`: number of rows of a minute when the watermark closed it."""

    output = "minute timestamp, rows long"
    rows = bs.ValueState("long", default=0)

    def process_element(self, row: Any, ctx: Any) -> None:
        self.rows.update(self.rows.value() + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() // 60_000 * 60_000 + 59_999)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.rows.value()
        self.rows.clear()


@pytest.fixture
def interrupted(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two key groups that may fire thirty timers per batch each."""
    conf = {"spark.backlog.timers.interruptible.enabled": "true", "spark.backlog.keyGroups": "2"}
    monkeypatch.setattr(FiringBudget, "of", lambda self, reports: 30)
    for name, value in conf.items():
        spark.conf.set(name, value)
    yield
    for name in conf:
        spark.conf.unset(name)


def put_out(sink: Collect) -> Counter[Any]:
    return Counter(tuple(row) for batch in sink.batches.values() for row in batch)


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans", "interrupted")
@pytest.mark.parametrize("during", [0, pytest.param(None, marks=pytest.mark.grid)])
def test_fired_timers_and_commits_alternate(spark: SparkSession, tmp_path: Path, during: Any) -> None:
    """At the switch, when all timers of the backlog are due, and in stream mode, up to the end of input."""
    # Of other keys: one that has rows has what is due fired before them.
    tables = [events(0, 200), events(200, 100, first_key=50)]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < 1)
    finish(tmp_path / "s")
    sink = Collect()
    source = bs.source("scripted", name="s", path=tmp_path / "s").with_watermark("ts", "1 second")
    writer = (
        source.key_by("k").process(Echo()).write("q").trigger(processing_time="50 ms", interval_during_backlog=during)
    )
    query = writer.option("checkpointLocation", str(tmp_path / "check")).to(sink).start(spark)
    assert query.awaitTermination(300), "it ends by itself"
    assert query.jobStatus is JobStatus.FINISHED
    expected = Counter((row["k"], row["ts"].replace(tzinfo=None)) for table in tables for row in table.to_pylist())
    assert Counter((k, ts.replace(tzinfo=None)) for k, ts in put_out(sink)) == expected
    sizes = [len(rows) for rows in sink.batches.values() if rows]
    assert max(sizes) <= 60
    assert len(sizes) >= 5
    # Within a key in the order of time, over all batches.
    of_key: dict[int, list[Any]] = defaultdict(list)
    for _, rows in sorted(sink.batches.items()):
        for k, ts in rows:
            of_key[k].append(ts)
    assert all(times == sorted(times) for times in of_key.values())
    # Started again it has nothing to do, and says so.
    again = Collect()
    writer = (
        source.key_by("k").process(Echo()).write("q").trigger(processing_time="50 ms", interval_during_backlog=during)
    )
    query = writer.option("checkpointLocation", str(tmp_path / "check")).to(again).start(spark)
    assert query.awaitTermination(300)
    assert query.jobStatus is JobStatus.FINISHED
    assert not put_out(again)


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans", "interrupted")
def test_the_watermark_is_passed_on_when_the_last_timer_has_fired(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", events(0, 240), backlog=False)
    sink = Collect()
    source = bs.source("scripted", name="s", path=tmp_path / "s").with_watermark("ts", "0 seconds")
    stream = source.key_by("k").process(Echo())
    stream = stream.map("k", "ts", "date_trunc('minute', ts) AS minute").key_by("minute").process(Minutes())
    writer = stream.write("q").trigger(processing_time="50 ms").to(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "check")).start(spark)
    try:
        append(tmp_path / "s", events(240, 61), backlog=False)
        wait(lambda: put_out(sink).total() >= 5, query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.jobStatus is JobStatus.CANCELED
    # Each minute once, with all of its rows.
    assert Counter(rows for _, rows in put_out(sink)) == {60: 5}
    assert query.lateRows == 0


class NextDay(Echo):
    def process_element(self, row: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 86_400_000)


@pytest.mark.slow
@pytest.mark.usefixtures("interrupted")
def test_remaining_timers_do_not_wait_for_the_next_tick(spark: SparkSession, tmp_path: Path) -> None:
    """The first batch after a start gets the earlier watermark, and there is no second tick."""
    (tmp_path / "rows").mkdir()
    sink = Collect()
    rows = bs.stream(spark.readStream.schema("k long, n long, ts timestamp").parquet(str(tmp_path / "rows")))
    stream = rows.with_watermark("ts", "0 seconds").key_by("k").process(NextDay())

    def started(interval: str) -> bs.BacklogQuery:
        writer = stream.write("q").trigger(processing_time=interval).to(sink)
        return writer.option("checkpointLocation", str(tmp_path / "check")).start(spark)

    for table in (events(0, 240), events(3 * 86_400, 1, first_key=50)):
        spark.createDataFrame(table).write.mode("append").parquet(str(tmp_path / "rows"))
        begun = len(sink.batches)
        query = started("10 minutes")
        try:
            wait(lambda before=begun: len(sink.batches) > before, query)
            wait(lambda now=query: now.status["message"] == "Waiting for next trigger", query)
        finally:
            query.stop()
    assert not put_out(sink)
    query = started("10 minutes")
    try:
        wait(lambda: put_out(sink).total() == 240, query)
    finally:
        query.stop()
    assert query.exception() is None
    assert max(len(rows) for rows in sink.batches.values()) <= 60


class Later(bs.KeyedProcessFunction):
    """By event time, though rows have none."""

    output = "k long, early long"

    def process_element(self, row: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_event_time_timer(timers.current_processing_time() + 300)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        timers = ctx.timer_service()
        assert ctx.time_domain() == "event"
        yield ctx.get_current_key(), max(0, timestamp - timers.current_watermark())


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
def test_event_time_follows_the_clock_after_the_backlog(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", events(0, 20), backlog=True)
    append(tmp_path / "s", events(0, 0), backlog=True)
    sink = Collect()
    source = bs.source("scripted", name="s", path=tmp_path / "s", byClock=True)
    writer = source.key_by("k").process(Later()).write("q").trigger(processing_time="50 ms").to(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "check")).start(spark)
    try:
        wait(lambda: query.backlogProgress.rows == 20, query)
        query.processAllAvailable()
        assert query.isProcessingBacklog
        assert not put_out(sink), "time stands still in backlog, however long it takes"
        append(tmp_path / "s", events(20, 20, first_key=50), backlog=False)
        # No row follows; the clock alone makes them due.
        wait(lambda: put_out(sink).total() == 40, query)
    finally:
        query.stop()
    assert query.exception() is None
    assert put_out(sink) == Counter((k, 0) for k in [*range(20), *range(50, 70)])
