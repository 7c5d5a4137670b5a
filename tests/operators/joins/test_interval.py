"""The interval join against models: pair by pair, in Spark SQL and in DuckDB."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import SparkRuntimeException
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.api.streams import BacklogStream
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.nodes import KeyedNode, PairNode
from backlog_spark.model.watermarks import EVENT_TIME, MIN_WATERMARK, event_time_of
from backlog_spark.operators.fold import Arrived, Clock, Fold
from backlog_spark.operators.joins.interval import MATCHED, IntervalJoinFold
from backlog_spark.operators.joins.process import ProcessedIntervalJoinFold
from backlog_spark.operators.sides import LEFT, RIGHT, SIDE
from backlog_spark.operators.waiting_fold import StayEnd
from backlog_spark.state.tables import arrow_schema, combine
from tests.operators import events
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UTC = dt.UTC
EPOCH = dt.datetime(2026, 1, 1, tzinfo=UTC)
FOREVER = 10**13
OUTER = {"inner": (), "left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}
MARK = {EVENT_TIME: "ts"}


class Row(NamedTuple):
    """A row of either side, with its time in microseconds; ``number`` is its value and tells it from others."""

    side: int
    key: str | None
    time: int
    number: int


def schema(right: Sequence[str] = ("user", "rts", "w")) -> StructType:
    """The rows of both sides: key, event time, value."""
    out = StructType().add(SIDE, IntegerType())
    for prefix, (key, time, value) in (("l:", ("user", "ts", "v")), ("r:", right)):
        out = out.add(prefix + key, StringType()).add(StructField(prefix + time, TimestampType(), True, MARK))
        out = out.add(prefix + value, LongType())
    return out


class Bounds(NamedTuple):
    """An interval as it is given, in milliseconds."""

    lower: int
    upper: int
    lower_exclusive: bool = False
    upper_exclusive: bool = False

    @property
    def first(self) -> int:
        return self.lower * 1000 + self.lower_exclusive

    @property
    def last(self) -> int:
        return self.upper * 1000 - self.upper_exclusive

    def holds(self, left: Row, right: Row) -> bool:
        lower, upper, after = self.lower * 1000, self.upper * 1000, right.time - left.time
        above = after > lower if self.lower_exclusive else after >= lower
        below = after < upper if self.upper_exclusive else after <= upper
        return left.key is not None and left.key == right.key and above and below

    def until(self, row: Row) -> int:
        """The last millisecond of the other side that can match: at this watermark the row can be dropped."""
        return (row.time + self.last if row.side == LEFT else row.time - self.first) // 1000


def fold_of(bounds: Bounds, how: str = "inner", **more: Any) -> IntervalJoinFold:
    exclusive = {"lower_exclusive": bounds.lower_exclusive, "upper_exclusive": bounds.upper_exclusive}
    return IntervalJoinFold(schema(), ["user"], ["user"], bounds.lower, bounds.upper, 4, how=how, **exclusive, **more)


def joined(rows: Iterable[Row], bounds: Bounds, how: str, watermark: int = FOREVER) -> Counter[Any]:
    """The expected output at a watermark: numbers of the left and the right row."""
    lefts = [row for row in rows if row.side == LEFT]
    rights = [row for row in rows if row.side == RIGHT]
    pairs = [(a, b) for a in lefts for b in rights if bounds.holds(a, b)]
    out = Counter((a.number, b.number) for a, b in pairs)
    met = {id(row) for pair in pairs for row in pair}
    for row in (*lefts, *rights):
        done = row.key is None or bounds.until(row) <= watermark
        if row.side in OUTER[how] and id(row) not in met and done:
            out[(row.number, None) if row.side == LEFT else (None, row.number)] += 1
    return out


def instant(micros: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, UTC) + dt.timedelta(microseconds=micros)


def batch(
    rows: Iterable[Row],
    fold: IntervalJoinFold,
    hash_of: Callable[[str | None], int],
    matched: Sequence[Any] | None = None,
) -> pa.RecordBatch:
    """Live rows, or with ``matched`` rows of state."""
    kept = [
        {
            "__hash": hash_of(row.key),
            "k0": row.key,
            "side": row.side,
            "t": row.time // 1000,
            **dict(zip(fold.values(row.side), (row.key, instant(row.time), row.number), strict=True)),
        }
        for row in rows
    ]
    live, state = arrow_of(fold)
    if matched is None:
        return pa.RecordBatch.from_pylist(kept, live)
    return pa.RecordBatch.from_pylist([{**r, MATCHED: m} for r, m in zip(kept, matched, strict=True)], state)


@functools.cache
def arrow_of(fold: IntervalJoinFold) -> tuple[pa.Schema, pa.Schema]:
    """The schemas of the fold's live rows and of its state."""
    return fold.live_schema(), fold.state.arrow()


def shared(hashes: int) -> Callable[[str | None], int]:
    """A hash function of so few values that keys share them."""
    return lambda key: sum((key or "").encode()) % hashes


class Group:
    """Drives one key group like a worker, batch by batch."""

    def __init__(self, fold: IntervalJoinFold, hash_of: Callable[[str | None], int]) -> None:
        self.fold = fold
        self.hash_of = hash_of
        self.state = combine([], fold.state.arrow())
        self.watermark = MIN_WATERMARK
        self.late = 0
        self.out: Counter[Any] = Counter()

    def take(self, rows: Iterable[Row], watermark: int, seeds: Sequence[tuple[pa.RecordBatch, bool]] = ()) -> None:
        clock = Clock(before=self.watermark, watermark=max(self.watermark, watermark), now=None, backlog=0)
        step = self.fold.step(self.state, Arrived(tuple(seeds), batch(rows, self.fold, self.hash_of)), clock)
        if step.state is not None:
            self.state = step.state
        self.watermark = clock.watermark
        self.late += step.late
        assert not any(number for number, _ in step.outputs)
        self.out += Counter((r["v"], r["w"]) for _, part in step.outputs for r in part.to_pylist())

    def numbers(self) -> Counter[Any]:
        """The rows of the state."""
        return Counter((r["side"], r[self.fold.value(r["side"], "vw"[r["side"]])]) for r in self.state.to_pylist())


# Whole and half milliseconds, and others.
times = st.integers(0, 80).map(lambda half: half * 500) | st.integers(0, 40_000)
rows_of_any_key = st.lists(
    st.tuples(st.sampled_from([LEFT, RIGHT]), st.sampled_from(["a", "b", "c", None]), times), max_size=24
)
bounds_of_any_kind = (
    st.tuples(st.integers(-12, 12), st.integers(-12, 12), st.booleans(), st.booleans())
    .map(lambda given: Bounds(min(given[:2]), max(given[:2]), *given[2:]))
    .filter(lambda bounds: bounds.first <= bounds.last)
)
ways = st.sampled_from(list(OUTER))


def made(plain: list[tuple[int, str | None, int]]) -> list[Row]:
    return [Row(*row, number) for number, row in enumerate(plain)]


def in_pieces(draw: Any, rows: list[Row], *, control_first: bool) -> Iterator[tuple[list[Row], int]]:
    """Batches, some of them empty, and watermarks behind which no row comes."""
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    watermark = -100
    for at, end in itertools.pairwise([0, *cuts, len(rows)]):
        behind = [row.time // 1000 for row in rows[at if control_first else end :]]
        watermark = draw(st.integers(watermark, max(watermark, min(behind, default=100) - 1)))
        yield rows[at:end], watermark


@given(st.data(), rows_of_any_key, bounds_of_any_kind, ways, st.booleans(), st.sampled_from([1, 2, 1_000]))
def test_any_cut_into_batches_gives_the_same(
    data: Any, plain: list[Any], bounds: Bounds, how: str, control_first: bool, hashes: int
) -> None:
    rows = made(plain)
    group = Group(fold_of(bounds, how, control_first=control_first), shared(hashes))
    seen: list[Row] = []
    for piece, watermark in in_pieces(data.draw, rows, control_first=control_first):
        group.take(piece, watermark)
        seen += piece
        assert group.out == joined(seen, bounds, how, watermark), "neither early nor behind time"
        assert group.numbers() == Counter((r.side, r.number) for r in seen if is_needed(r, bounds, watermark))
    group.take([], FOREVER)
    assert group.out == joined(rows, bounds, how)
    assert not group.state.num_rows
    assert not group.late


def is_needed(row: Row, bounds: Bounds, watermark: int) -> bool:
    return row.key is not None and bounds.until(row) > watermark


@given(st.data(), rows_of_any_key, rows_of_any_key, bounds_of_any_kind, ways, st.booleans())
def test_rows_of_a_stay_in_backlog(
    data: Any, before: list[Any], after: list[Any], bounds: Bounds, how: str, was_put_out: bool
) -> None:
    """Handed-over rows: emitted results do not come again, and earlier matches are found."""
    rows = made(before + after)
    backlog, live = rows[: len(before)], rows[len(before) :]
    end = data.draw(st.integers(-100, min((row.time // 1000 for row in live), default=100) - 1))
    needed = [row for row in backlog if is_needed(row, bounds, end)]
    others = [row for row in backlog if row.key is not None and row not in needed]
    fold = fold_of(bounds, how)
    if not was_put_out:
        done: Counter[Any] = Counter()
        seeds = batch(backlog, fold, shared(2), [None] * len(backlog))
    elif how == "inner":
        done = joined(backlog, bounds, how, end)
        seeds = batch(needed, fold, shared(2), [None] * len(needed))
    else:
        done = joined(backlog, bounds, how, end)
        seeds = batch(needed + others, fold, shared(2), [None] * len(needed) + [True] * len(others))
    group = Group(fold, shared(2))
    # With the first rows, or before them.
    first = data.draw(st.integers(0, len(live)))
    group.take(live[:first], end, [(seeds, not was_put_out)])
    assert done + group.out == joined(backlog + live[:first], bounds, how, end)
    group.take(live[first:], end)
    group.take([], FOREVER)
    assert done + group.out == joined(rows, bounds, how)


def test_late_rows_are_counted_and_match_nothing() -> None:
    group = Group(fold_of(Bounds(-5, 5), "full"), shared(9))
    group.take([Row(LEFT, "a", 100_000, 1)], 99)
    group.take([Row(RIGHT, "a", 99_999, 2), Row(RIGHT, "a", 100_000, 3), Row(LEFT, None, 98_000, 4)], 99)
    assert (group.late, group.out) == (2, Counter([(1, 3)]))
    group.take([], FOREVER)
    assert group.out == Counter([(1, 3)]), "a late row of an outer side does not come out either"


def test_a_row_that_nothing_can_match_is_not_kept() -> None:
    group = Group(fold_of(Bounds(-10, -5), "left"), shared(9))
    # Matches 90 to 95, and all rows up to 96 are here.
    group.take([Row(LEFT, "a", 100_000, 1), Row(RIGHT, "a", 97_000, 2)], 96)
    assert group.numbers() == Counter([(RIGHT, 2)])
    assert group.out == Counter([(1, None)])


def test_a_key_with_many_pairs_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backlog_spark.operators.joins.interval.PIECE_ROWS", 1_000)
    fold = fold_of(Bounds(0, 100))
    rows = [Row(side, "a", 50_000 * side, number) for side in (LEFT, RIGHT) for number in range(150)]
    live = combine([batch(rows, fold, shared(9), [None] * len(rows))], fold.state.arrow())
    _, out = fold.advance(combine([], fold.state.arrow()), live, Clock(0, 0, None, 0))
    assert sum(part.num_rows for part in out) == 150 * 150
    assert max(part.num_rows for part in out) == 1_000


def test_times_at_the_ends_of_the_calendar() -> None:
    group = Group(fold_of(Bounds(-(10**15), 10**15)), shared(9))
    # From the year 1 to the year 9999.
    first, last = -62_135_596_800_000_000, 253_402_300_799_999_999
    group.take([Row(LEFT, "a", first, 1), Row(RIGHT, "a", last, 2)], MIN_WATERMARK)
    assert group.out == Counter([(1, 2)])


def test_times_far_apart_do_not_overflow() -> None:
    group = Group(fold_of(Bounds(-(10**15), 10**15)), shared(9))
    rows = [(LEFT, 2**63 - 1), (RIGHT, 2**63 - 10**17), (LEFT, -(2**63)), (RIGHT, 0)]
    live = batch(
        [Row(side, "a", 0, number) for number, (side, _) in enumerate(rows)], group.fold, shared(9), [None] * 4
    )
    columns = dict(zip(live.schema.names, live.columns, strict=True))
    times = pa.array([time for _, time in rows]).cast(pa.timestamp("us", "UTC"))
    for side in (LEFT, RIGHT):
        name = group.fold.value(side, ("ts", "rts")[side])
        mine = pa.array([number if each == side else None for number, (each, _) in enumerate(rows)], pa.int32())
        columns[name] = times.take(mine).cast(columns[name].type)
    live = pa.RecordBatch.from_arrays(list(columns.values()), schema=live.schema)
    _, out = group.fold.advance(combine([], live.schema), live, Clock(MIN_WATERMARK, MIN_WATERMARK, None, 0))
    assert [tuple(pa.Table.from_batches(out)[name].to_pylist()) for name in ("v", "w")] == [(0,), (1,)]


def test_mistakes_are_refused() -> None:
    for bounds, problem in (
        (Bounds(2, 1), r"interval = '\[2 ms, 1 ms\]': is empty"),
        (Bounds(1, 1, upper_exclusive=True), r"interval = '\[1 ms, 1 ms\)': is empty"),
        (Bounds(2, 2, True, True), r"interval = '\(2 ms, 2 ms\)': is empty"),
        (Bounds(0, 10**16), r"has a bound beyond"),
    ):
        with pytest.raises(SettingError, match=problem):
            fold_of(bounds)
    with pytest.raises(SettingError, match=r"how = 'outer': .* inner, left, right, full"):
        fold_of(Bounds(0, 1), "outer")
    with pytest.raises(
        BacklogError, match=r"both streams have a column 'TS', which is not a key of both\. Rename it.*map"
    ):
        IntervalJoinFold(schema(("user", "TS", "w")), ["user"], ["user"], 0, 1, 4)
    with pytest.raises(BacklogError, match=r"both streams have a column 'user'"):
        IntervalJoinFold(schema(), ["v"], ["w"], 0, 1, 4)
    unmarked = StructType([StructField(f.name, f.dataType) for f in schema()])
    with pytest.raises(BacklogError, match=r"interval_join: the left stream has no event time.*with_watermark"):
        IntervalJoinFold(unmarked, ["user"], ["user"], 0, 1, 4)
    fold = fold_of(Bounds(0, 1))
    nothing = batch([Row(RIGHT, "a", 1, 1)], fold, shared(9), [None]).to_pylist()
    rows = pa.RecordBatch.from_pylist([{**nothing[0], "t": None}], fold.state.arrow())
    with pytest.raises(
        BacklogError, match=r"column 'rts' of a row of the right stream is NULL.*each row needs an event time"
    ):
        fold.advance(rows.slice(1), rows, Clock(0, 0, None, 0))


def test_columns_of_the_output() -> None:
    fold = fold_of(Bounds(0, 1))
    assert fold.output_schema().names == ["user", "ts", "v", "rts", "w"], "a key of both comes once"
    assert not any(field.metadata for field in fold.output_schema()), "none is the event time"
    other = IntervalJoinFold(schema(("name", "rts", "w")), ["user"], ["name"], 0, 1, 4)
    assert other.output_schema().names == ["user", "ts", "v", "name", "rts", "w"]


# -- through Spark ------------------------------------------------------------------------------------------


def version_of(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """Rows of a stay in the form of the sorted vehicle."""
    plain = []
    for row in rows:
        own = (row.key, instant(row.time), row.number)
        plain.append((row.side, *own, None, None, None) if row.side == LEFT else (row.side, None, None, None, *own))
    columns = list(zip(*plain, strict=True))
    arrow = arrow_schema(schema())
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, arrow, strict=True)], arrow)
    frame = spark.createDataFrame(table)
    return frame.select(*(frame[f"`{f.name}`"].alias(f.name, metadata=f.metadata) for f in schema()))


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize(
    ("how", "bounds", "late_end"),
    [
        ("inner", Bounds(-700, 300), False),
        ("left", Bounds(200, 900, True, True), False),
        ("right", Bounds(-6_000, 0), False),
        ("full", Bounds(-300, 400), False),
        ("full", Bounds(-300, 400), True),
    ],
)
def test_a_stay_and_what_follows(spark: SparkSession, how: str, bounds: Bounds, late_end: bool) -> None:
    """The results of Spark at the end of a stay, and of the stream vehicle after the hand-over."""
    chance = random.Random(f"{how}{bounds}")
    rows = [
        Row(chance.randrange(2), chance.choice(["a", "b", None]), chance.randrange(-9_000_000, 9_000_000), number)
        for number in range(600)
    ]
    rows += [Row(LEFT, "c", 0, 600 + n) for n in range(5)] + [Row(RIGHT, "c", 250_000, 700 + n) for n in range(5)]
    watermark = 2_000
    # Of these some are as old as can be, others not yet due.
    backlog = [row for row in rows if row.time // 1000 <= watermark or chance.random() < 0.5]
    live = [row for row in rows if row not in backlog]
    fold = fold_of(bounds, how)
    end = StayEnd(None if late_end else watermark)
    version = version_of(spark, backlog)
    assert fold.output_at_end(version, end).schema == fold.output_schema()
    done = Counter((r.v, r.w) for r in fold.output_at_end(version, end).collect())
    assert done == joined(backlog, bounds, how, MIN_WATERMARK if late_end else watermark)
    handed = fold.handed_over(version, end).toArrow()
    seeds = combine(handed.to_batches(), fold.state.arrow())
    if not late_end:
        assert seeds.num_rows < len(backlog) / 2, "what is over stays behind"
    of_key = {r["k0"]: r["__hash"] for r in seeds.to_pylist()}
    group = Group(fold, lambda key: of_key.get(key, 0))
    group.take(live, watermark, [(seeds, False)])
    assert done + group.out == joined(rows, bounds, how, watermark)
    group.take([], FOREVER)
    assert done + group.out == joined(rows, bounds, how)


TABLES = {
    LEFT: pa.schema([("user", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())]),
    RIGHT: pa.schema([("user", pa.string()), ("rts", pa.timestamp("us", "UTC")), ("w", pa.int64())]),
}


def table(chance: random.Random, side: int, count: int, first: int) -> pa.Table:
    """Random rows, the n-th of about second n, at most 4 s behind time."""
    made = [
        (
            chance.choice(["ann", "bob", "", None, "ä"]),
            EPOCH + dt.timedelta(seconds=first + n) - dt.timedelta(microseconds=chance.randrange(4_000_000)),
            first + n,
        )
        for n in range(count)
    ]
    return pa.table(list(zip(*made, strict=True)), schema=TABLES[side])


def flush(side: int) -> pa.Table:
    """A row without a key and later than all others: it completes them."""
    return pa.table([[None], [EPOCH + dt.timedelta(days=1)], [-1]], schema=TABLES[side])


def micros(time: dt.datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1_000_000)


def of_sink(sink: Collect) -> Counter[Any]:
    return Counter((r.user, micros(r.ts), r.v, micros(r.rts), r.w) for b in sink.batches.values() for r in b)


def of_spark(spark: SparkSession, tables: dict[int, pa.Table], how: str) -> Counter[Any]:
    spark.createDataFrame(tables[LEFT]).createOrReplaceTempView("l")
    spark.createDataFrame(tables[RIGHT]).createOrReplaceTempView("r")
    found = spark.sql(
        f"""SELECT coalesce(l.user, r.user) AS user, ts, v, rts, w FROM l {how} JOIN r ON l.user = r.user
        AND r.rts >= l.ts - INTERVAL '3' SECOND AND r.rts < l.ts + INTERVAL '2' SECOND"""
    )
    return Counter((r.user, micros(r.ts), r.v, micros(r.rts), r.w) for r in found.collect())


def of_duckdb(tables: dict[int, pa.Table], how: str) -> Counter[Any]:
    with duckdb.connect() as database:
        for side, name in enumerate("lr"):
            times = tables[side].column(1).cast(pa.int64())
            database.register(name, tables[side].set_column(1, tables[side].schema.names[1], times))
        found = database.execute(
            f"""SELECT coalesce(l.user, r.user), ts, v, rts, w FROM l {how} JOIN r
            ON l.user = r.user AND rts >= ts - 3000000 AND rts < ts + 2000000"""
        )
        return Counter(found.fetchall())


@pytest.fixture
def few_groups(spark: SparkSession) -> Iterator[None]:
    """Each key group costs a batch a call."""
    spark.conf.set("spark.backlog.keyGroups", "4")
    yield
    spark.conf.unset("spark.backlog.keyGroups")


def query_of(root: Path, how: str) -> BacklogStream:
    left = bs.source("scripted", name="l", path=root / "l").with_watermark("ts", "5 seconds")
    right = bs.source("scripted", name="r", path=root / "r", partitions=3).with_watermark("rts", "5 seconds")

    def bind(schema: StructType, key_groups: int, is_first: bool) -> Fold:
        return IntervalJoinFold(
            schema, ["user"], ["user"], -3_000, 2_000, key_groups, how=how, upper_exclusive=True, control_first=is_first
        )

    pair = PairNode(left._node, right._node)
    return BacklogStream(KeyedNode(pair, "pairs", bind, is_timed=True))


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans", "few_groups")
@pytest.mark.parametrize(
    ("how", "backlog", "sizes"),
    [
        # Batches of each side that are backlog, and rows of each batch.
        ("full", (2, 1), (80, 80, 80)),
        pytest.param("inner", (1, 1), (1, 120, 120), marks=pytest.mark.grid),
        pytest.param("full", (0, 0), (80, 80, 80), marks=pytest.mark.grid),
        pytest.param("right", (3, 3), (80, 80, 80), marks=pytest.mark.grid),
        pytest.param("left", (1, 2), (80, 80, 80), marks=pytest.mark.grid),
        pytest.param("full", (1, 1), (1, 120, 120), marks=pytest.mark.grid),
        pytest.param("full", (3, 3), (80, 80, 80), marks=pytest.mark.grid),
    ],
)
def test_wherever_the_switch_falls(
    spark: SparkSession, tmp_path: Path, how: str, backlog: tuple[int, int], sizes: tuple[int, ...]
) -> None:
    chance = random.Random(f"{how}{backlog}")
    whole: dict[int, pa.Table] = {}
    for side, name in enumerate("lr"):
        firsts = [sum(sizes[:number]) for number in range(len(sizes))]
        tables = [table(chance, side, size, first) for size, first in zip(sizes, firsts, strict=True)]
        tables.append(flush(side))
        for number, each in enumerate(tables):
            append(tmp_path / name, each, backlog=number < backlog[side])
        whole[side] = pa.concat_tables(tables)
    expected = of_spark(spark, whole, how)
    assert expected == of_duckdb(whole, how)
    sink = Collect()
    writer = query_of(tmp_path, how).write("pairs").trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
    try:
        wait(lambda: of_sink(sink).total() >= expected.total(), query)
        query.processAllAvailable()
        left = query.state("pairs").count()
    finally:
        query.stop()
    assert query.exception() is None
    assert of_sink(sink) == expected
    assert (left, query.lateRows) == (0, 0)


@pytest.mark.usefixtures("small_plans")
def test_a_row_without_event_time_fails_both_vehicles(spark: SparkSession) -> None:
    fold = fold_of(Bounds(0, 1))
    version = version_of(spark, [Row(LEFT, "a", 1, 1), Row(RIGHT, "a", 1, 2)])
    name = {LEFT: "l:ts", RIGHT: "r:rts"}
    for side, problem in ((LEFT, "column 'ts' of a row of the left"), (RIGHT, "column 'rts' of a row of the right")):
        marked = version.schema[name[side]].metadata
        without = version.withColumn(name[side], F.lit(None).cast("timestamp").alias(name[side], metadata=marked))
        for frame in (fold.fold(without, None), fold.lift(without)):
            with pytest.raises(SparkRuntimeException, match=f"{problem} stream is NULL.*each row needs an event time"):
                frame.collect()


class Apart(bs.ProcessJoinFunction):
    """The time between two rows, emitted twice for every other pair."""

    output = "user string, apart long, at long"
    is_open = False

    def open(self, ctx: bs.RuntimeContext) -> None:
        self.is_open = True

    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        assert self.is_open
        assert left._fields == right._fields == ("user", "item", "v", "price", "seq", "ts")
        assert instant(ctx.get_right_timestamp() * 1000) == right.ts.replace(
            microsecond=right.ts.microsecond // 1000 * 1000
        )
        for _ in range(1 + (left.seq + right.seq) % 2):
            yield left.user, ctx.get_right_timestamp() - ctx.get_left_timestamp(), ctx.get_timestamp()


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize("backlog", [0, 1, 2])
def test_pairs_are_processed_and_have_the_later_time(spark: SparkSession, tmp_path: Path, backlog: int) -> None:
    """Windows after the function use that time."""
    given = {name: [events.events(ord(name) + n, 60, n * 60) for n in range(2)] for name in "ab"}
    given = {name: [*tables, events.flush(tables)] for name, tables in given.items()}
    one, other = (events.source(tmp_path, name).key_by("user") for name in "ab")
    pairs = one.interval_join(other).between("-3 seconds", "4 seconds").process(Apart())
    stream = pairs.key_by("user").window(bs.TumblingEventTimeWindows.of("10 seconds"))
    stream = stream.aggregate("count(*) AS n, sum(apart) AS apart, max(at) AS at").map(
        "user", "window_start", "n", "apart", "at"
    )
    for name, tables in given.items():
        spark.createDataFrame(pa.concat_tables(tables).combine_chunks()).createOrReplaceTempView(name)
    expected = events.multiset(
        spark.sql(
            """
            SELECT user, window.start, sum(weight), sum(weight * apart), max(unix_millis(later)) FROM (
                SELECT l.user, greatest(l.ts, r.ts) AS later, unix_millis(r.ts) - unix_millis(l.ts) AS apart,
                    1 + (l.seq + r.seq) % 2 AS weight
                FROM a AS l JOIN b AS r ON l.user = r.user
                AND r.ts BETWEEN l.ts - INTERVAL '3' SECOND AND l.ts + INTERVAL '4' SECOND WHERE l.user <> '~flush'
            ) GROUP BY user, window(later, '10 seconds')"""
        ).collect()
    )
    assert expected.total() > 20
    sink = events.run(spark, tmp_path, stream, given, backlog, expected)
    assert events.multiset(r for b in sink.batches.values() for r in b) == expected


@pytest.mark.usefixtures("spark")
def test_refused_functions_of_pairs() -> None:
    class Wrong(Apart):
        output = StructType().add("Join_Time", LongType())

    given = (schema(), ["user"], ["user"], -5, 5, 4)
    assert event_time_of(ProcessedIntervalJoinFold(Apart(), *given)._output) == "join_time"
    with pytest.raises(SettingError, match="rows without a match after their time is over"):
        ProcessedIntervalJoinFold(Apart(), *given, how="left")
    with pytest.raises(BacklogError, match=r"Wrong\.output has a column 'join_time', which is added automatically"):
        ProcessedIntervalJoinFold(Wrong(), *given)
