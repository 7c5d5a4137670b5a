"""Windows equal Spark's batch SQL and DuckDB over all rows, for any switch."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.errors import SettingError
from backlog_spark.model.watermarks import EVENT_TIME, MIN_WATERMARK
from backlog_spark.operators.aggregates.retracting import window_aggregate_fold
from backlog_spark.operators.declare import parse_aggregates
from backlog_spark.operators.windows.assigners import WindowAssigner
from backlog_spark.operators.windows.columns import END, START
from backlog_spark.operators.windows.fold import WindowFold, WindowOptions
from backlog_spark.operators.windows.sessions import session_runs
from tests.operators.conftest import Collect
from tests.operators.events import EPOCH, events, flush, multiset, run, source
from tests.operators.scripted import append
from tests.operators.windows.test_lateness import Flink, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "user, window_start, window_end, total, n, greatest"
RESULTS = "sum(v) AS total, count(*) AS n, max(price) AS greatest"
NOT_FLUSH = "user IS NULL OR user <> '~flush'"


def by_spark(spark: SparkSession, tables: list[pa.Table], windows: str) -> Counter[Any]:
    spark.createDataFrame(pa.concat_tables(tables).combine_chunks()).createOrReplaceTempView("events")
    query = f"""
        SELECT user, w.start, w.end, {RESULTS} FROM (SELECT *, {windows} AS w FROM events)
        WHERE {NOT_FLUSH} GROUP BY user, w"""
    if windows.startswith("session"):
        query = f"SELECT user, w.start, w.end, {RESULTS} FROM events WHERE {NOT_FLUSH} GROUP BY user, {windows} AS w"
        query = query.replace(f"{windows} AS w", windows).replace(
            "w.start, w.end", "session_window.start, session_window.end"
        )
    return multiset(spark.sql(query).collect())


def by_duckdb(tables: list[pa.Table], spans: str) -> Counter[Any]:
    """``spans`` gives a list of structs of start and end in milliseconds."""
    events_table = pa.concat_tables(tables)  # noqa: F841  # DuckDB finds it by its name
    found = duckdb.sql(
        f"""
        WITH spanned AS (SELECT *, unnest({spans}) AS w FROM (SELECT *, epoch_ms(ts) AS ms FROM events_table))
        SELECT "user", w.s, w.e, sum(v)::BIGINT, count(*), max(price)
        FROM spanned WHERE {NOT_FLUSH.replace("user", '"user"')} GROUP BY "user", w"""
    ).fetchall()
    return multiset((u, at(s), at(e), *rest) for u, s, e, *rest in found)


def at(millis: int) -> dt.datetime:
    return at_micros(millis * 1000)


def at_micros(micros: int) -> dt.datetime:
    return (dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=micros)).replace(tzinfo=None)


CASES = {
    "tumbling": (
        bs.TumblingEventTimeWindows.of("10 seconds", "3 seconds"),
        "window(ts, '10 seconds', '10 seconds', '3 seconds')",
        "[{'s': (ms - 3000) // 10000 * 10000 + 3000, 'e': (ms - 3000) // 10000 * 10000 + 13000}]",
    ),
    "sliding": (
        bs.SlidingEventTimeWindows.of("10 seconds", "4 seconds"),
        "window(ts, '10 seconds', '4 seconds')",
        "list_filter([{'s': ms // 4000 * 4000 - k * 4000, 'e': ms // 4000 * 4000 - k * 4000 + 10000} "
        "FOR k IN [0, 1, 2]], lambda w: w.e > ms)",
    ),
    "cumulative": (
        bs.CumulativeEventTimeWindows.of("30 seconds", "10 seconds"),
        None,
        "list_filter([{'s': ms // 30000 * 30000, 'e': ms // 30000 * 30000 + k * 10000} FOR k IN [1, 2, 3]], "
        "lambda w: w.e > ms)",
    ),
    "session": (bs.EventTimeSessionWindows.with_gap("6 seconds"), "session_window(ts, '6 seconds')", None),
}


@pytest.mark.grid
@pytest.mark.parametrize(
    ("kind", "backlog"),
    [
        ("session", 2),
        *(pytest.param(k, b, marks=pytest.mark.grid) for k in CASES for b in range(5)),
    ],
)
def test_as_batch(spark: SparkSession, tmp_path: Path, kind: str, backlog: int) -> None:
    windows, in_spark, in_duckdb = CASES[kind]
    tables = [events(backlog * 10 + n, 90, n * 90) for n in range(4)]
    tables.append(flush(tables))
    found = [by_spark(spark, tables, in_spark)] if in_spark else []
    found += [by_duckdb(tables, in_duckdb)] if in_duckdb else []
    expected = found[0]
    assert all(each == expected for each in found)
    stream = source(tmp_path).key_by("user").window(windows).aggregate(RESULTS).map(*COLUMNS.split(", "))
    sink = run(spark, tmp_path, stream, {"s": tables}, backlog, expected)
    assert multiset(r for b in sink.batches.values() for r in b) == expected


@pytest.mark.parametrize(
    "assigner",
    [
        bs.SlidingEventTimeWindows.of("20 seconds", "7 seconds"),
        bs.SlidingEventTimeWindows.of("30 days", "1 hour"),
        bs.CumulativeEventTimeWindows.of("30 days", "1 hour"),
    ],
    ids=["few", "many", "cumulative"],
)
def test_windows_of_a_row_are_those_of_a_worker(spark: SparkSession, assigner: WindowAssigner) -> None:
    chance = np.random.default_rng(5)
    times = np.concatenate([chance.integers(-(10**12), 2 * 10**12, 40), np.arange(0, 4) * 3_600_000])
    schema = StructType().add("n", LongType()).add(StructField("ts", TimestampType(), True, {EVENT_TIME: "ts"}))
    given = pa.table({"n": range(len(times)), "ts": pa.array(times, pa.timestamp("ms", "UTC"))})
    fold = WindowFold(
        ["n"],
        lambda keys, rows, hidden: window_aggregate_fold(keys, parse_aggregates("count(*) AS c"), rows, 4, hidden),
        schema,
        WindowOptions(assigner),
    )
    found = fold._windowed(spark.createDataFrame(given, schema)).toArrow()
    expected = Counter(zip(*(each.tolist() for each in assigner.assign(times)), strict=True))
    assert Counter(zip(*(found[name].to_pylist() for name in ("n", START, END)), strict=True)) == expected
    last = found.group_by("n").aggregate([("__backlog_rows", "sum")])
    assert last["__backlog_rows_sum"].to_pylist() == [1] * len(times), "one window of each row counts it"


@pytest.mark.slow
@pytest.mark.parametrize("backlog", [1, pytest.param(0, marks=pytest.mark.grid)])
def test_late_rows_of_sessions(spark: SparkSession, tmp_path: Path, backlog: int) -> None:
    """As in Flink with the watermarks of these batches, whether the control source brings batches between them."""
    tables = [events(n + 70, 80, n * 80, disorder_s=30).filter(pc.field("v").is_valid()) for n in range(3)]
    tables.append(flush(tables))
    windows = bs.EventTimeSessionWindows.with_gap("2 seconds")
    model, greatest = Flink(windows, 0), None
    for table in tables:
        rows = zip(
            table["user"].to_pylist(), table["ts"].cast(pa.int64()).to_pylist(), table["v"].to_pylist(), strict=True
        )
        given = [Row(*row) for row in rows]
        model.take(given, MIN_WATERMARK if greatest is None else greatest // 1000 - 5_000 - 1)
        greatest = max([row.time for row in given] + ([] if greatest is None else [greatest]))
    model.take([], greatest // 1000 - 5_000 - 1)
    expected = Counter({(u, at_micros(s), at_micros(e), v): n for (u, s, e, v), n in (+model.table).items()})
    late = []
    stream = source(tmp_path).key_by("user").window(windows).sum("v").map("user", "window_start", "window_end", "v")
    sink = run(
        spark, tmp_path, stream, {"s": tables}, backlog, expected, check=lambda query, _: late.append(query.lateRows)
    )
    assert multiset(r for b in sink.batches.values() for r in b) == expected
    assert late == [model.late]
    assert model.late > 3


@pytest.mark.grid
def test_late_rows_are_taken_in_for_the_allowed_lateness(spark: SparkSession, tmp_path: Path) -> None:
    """A window is emitted at its end and again with late rows. After its removal late rows go to the side output."""

    def row(second: float, v: int) -> tuple[Any, ...]:
        return ("ann", 0, v, None, v, EPOCH + dt.timedelta(seconds=second))

    def table(*rows: tuple[Any, ...]) -> pa.Table:
        return pa.table(list(zip(*rows, strict=True)), schema=events(0, 1, 0).schema)

    # Watermarks 14.999 after the backlog, then 24.999, then 64.999.
    tables = [
        table(row(1, 1), row(12, 2), row(20, 3)),  # backlog: [0, 10) is over at the switch
        table(row(2, 4), row(30, 5)),  # late and allowed: [0, 10) again; and [10, 20) is over
        table(row(3, 6), row(70, 7)),  # later than 10 s: gone; [20, 30) and [30, 40) are over
    ]
    late = Collect()
    windows = source(tmp_path).key_by("user").window(bs.TumblingEventTimeWindows.of("10 seconds"))
    stream = windows.allowed_lateness("10 seconds").side_output_late_data("late").sum("v").map("window_start", "v")
    expected = Counter({(0, 1): 1, (0, 5): 1, (10, 2): 1, (20, 3): 1, (30, 5): 1})
    sink = run(spark, tmp_path, stream, {"s": tables}, 1, expected, sides={"late": late})
    found = Counter(
        (int((r[0].replace(tzinfo=dt.UTC) - EPOCH).total_seconds()), r[1]) for b in sink.batches.values() for r in b
    )
    assert found == expected
    assert [r["v"] for b in late.batches.values() for r in b] == [6]


class Total(bs.AggregateFunction):
    """The sum of v, and how many rows there are."""

    accumulator = "struct<v: decimal(38,0), rows: long>"
    output = "v decimal(38,0), sessions long"

    def open(self, ctx: bs.RuntimeContext) -> None:
        self.start = Decimal(0), 0

    def create_accumulator(self) -> Any:
        return self.start

    def add(self, row: Any, accumulator: Any) -> Any:
        return accumulator.v + row.v, accumulator.rows + 1

    def merge(self, one: Any, other: Any) -> Any:
        return one.v + other.v, one.rows + other.rows

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


@pytest.mark.grid
def test_functions_and_rows_of_windows(spark: SparkSession, tmp_path: Path) -> None:
    """reduce over sessions, and an aggregate function over windows that follow windows."""
    tables = [events(n + 50, 80, n * 80) for n in range(2)]
    tables.append(flush(tables))
    reduced = (
        source(tmp_path)
        .filter("v IS NOT NULL")
        .key_by("user")
        .window(bs.EventTimeSessionWindows.with_gap("5 seconds"))
        .reduce(lambda a, b: a._replace(v=a.v + b.v, item=max(a.item, b.item)), name="sessions")
        .map("user", "v", "window_time")
        .key_by("user")
        .window(bs.TumblingEventTimeWindows.of("1 minute"))
        .aggregate(Total(), name="minutes")
        .map("user", "window_start", "v", "sessions")
    )
    spark.createDataFrame(pa.concat_tables(tables).combine_chunks()).createOrReplaceTempView("events")
    expected = multiset(
        spark.sql(
            f"""
            SELECT user, window.start, sum(v), count(*) FROM (
                SELECT user, sum(v) AS v, session_window.end - INTERVAL '0.000001' SECOND AS last
                FROM events WHERE v IS NOT NULL AND ({NOT_FLUSH}) GROUP BY user, session_window(ts, '5 seconds')
            ) GROUP BY user, window(last, '1 minute')"""
        ).collect()
    )
    sink = run(spark, tmp_path, reduced, {"s": tables}, 1, expected)
    assert multiset(r for b in sink.batches.values() for r in b) == expected


@pytest.mark.grid
def test_rows_picked_of_windows(spark: SparkSession, tmp_path: Path) -> None:
    """max_by: the row itself, with the window from which it was chosen."""
    tables = [events(n + 90, 60, n * 60).filter(pc.field("v").is_valid()) for n in range(2)]
    tables.append(flush(tables))
    spark.createDataFrame(pa.concat_tables(tables).combine_chunks()).createOrReplaceTempView("events")
    expected = multiset(
        spark.sql(
            f"""SELECT user, window.start, max_by(seq, v), max(v), max_by(ts, v) FROM events
                WHERE {NOT_FLUSH} GROUP BY user, window(ts, '30 seconds')"""
        ).collect()
    )
    windows = source(tmp_path).key_by("user").window(bs.TumblingEventTimeWindows.of("30 seconds"))
    seen: list[str] = []

    def look(frame: DataFrame) -> DataFrame:
        seen[:] = frame.columns
        return frame

    stream = windows.max_by("v").transform(look).map("user", "window_start", "seq", "v", "ts")
    sink = run(spark, tmp_path, stream, {"s": tables}, 1, expected)
    assert multiset(r for b in sink.batches.values() for r in b) == expected
    assert "seq" in seen
    assert not [name for name in seen if name.startswith("__")]


@pytest.mark.slow
def test_processing_time(spark: SparkSession, tmp_path: Path) -> None:
    """Every row is in exactly one window, which is emitted without another row."""
    tables = [events(n, 50, n * 50) for n in range(3)]
    for number, table in enumerate(tables):
        append(tmp_path / "s", table, backlog=number < 1)
    plain = bs.source("scripted", name="s", path=tmp_path / "s")
    stream = plain.key_by("user").window(bs.TumblingProcessingTimeWindows.of("1 second")).aggregate(RESULTS)

    counted = Counter(pa.concat_tables(tables)["user"].to_pylist())

    def check(query: bs.BacklogQuery, sink: Collect) -> None:
        rows = [r for b in sink.batches.values() for r in b]
        assert all(r["window_end"] - r["window_start"] == dt.timedelta(seconds=1) for r in rows)

    sink = Collect()
    query = (
        stream.write("clock")
        .trigger(processing_time="50 ms", interval_during_backlog=0)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .to(sink)
        .start(spark)
    )
    try:
        from tests.operators.conftest import wait

        wait(lambda: sum(r["n"] for b in sink.batches.values() for r in b) == 150, query)
        check(query, sink)
    finally:
        query.stop()
    found: Counter[Any] = Counter()
    for batch in sink.batches.values():
        for r in batch:
            found[r["user"]] += r["n"]
    assert found == counted


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 12)), max_size=40))
def test_sessions_of_spans(spans: list[tuple[int, int, int]]) -> None:
    keys, starts, lengths = (np.array(c, dtype=np.int64) for c in (zip(*spans, strict=True) if spans else ([], [], [])))
    order, begins = session_runs(keys, starts, starts + lengths)
    ends = [*begins[1:], len(order)][: len(begins)]
    found = Counter(
        (int(keys[order[a]]), int(starts[order[a:b]].min()), int((starts + lengths)[order[a:b]].max()), int(b - a))
        for a, b in zip(begins, ends, strict=True)
    )
    expected: Counter[Any] = Counter()
    for key in {k for k, _, _ in spans}:
        merged: list[list[int]] = []
        for start, length in sorted((s, n) for k, s, n in spans if k == key):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], start + length)
                merged[-1][2] += 1
            else:
                merged.append([start, start + length, 1])
        expected.update((key, *m) for m in merged)
    assert found == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bs.TumblingEventTimeWindows.of("0 seconds"), "window size.*longer than 0"),
        (lambda: bs.TumblingEventTimeWindows.of("ten"), "window size"),
        (lambda: bs.SlidingEventTimeWindows.of("5 seconds", "6 seconds"), "rows between windows would be lost"),
        (lambda: bs.CumulativeEventTimeWindows.of("5 seconds", "2 seconds"), "does not divide the size 5 seconds"),
        (lambda: bs.EventTimeSessionWindows.with_gap("0 seconds"), "session gap.*longer than 0"),
    ],
)
def test_refused_windows(make: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


@pytest.mark.slow
def test_a_row_without_event_time_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    table = events(1, 5, 0).slice(0, 2)
    append(tmp_path / "s", table.set_column(5, table.schema.field("ts"), pa.nulls(2, table["ts"].type)), backlog=True)
    stream = source(tmp_path).key_by("user").window(bs.TumblingEventTimeWindows.of("1 minute")).count()
    spark.conf.set("spark.backlog.restart.maxAttempts", "0")
    try:
        writer = stream.write("nulls").trigger(interval_during_backlog=0).to(Collect())
        query = writer.option("checkpointLocation", str(tmp_path / "c")).start(spark)
        with pytest.raises(bs.BacklogError, match="event time ts is NULL in a row"):
            query.awaitTermination(300)
    finally:
        spark.conf.unset("spark.backlog.restart.maxAttempts")


def test_refused_streams(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "s", events(1, 5, 0), backlog=False)
    plain = bs.source("scripted", name="s", path=tmp_path / "s").key_by("user")
    with pytest.raises(bs.BacklogError, match=r"given '1 minute'.*TumblingEventTimeWindows"):
        plain.window("1 minute")  # type: ignore[arg-type]
    with pytest.raises(bs.BacklogError, match="no row is late for windows of processing time"):
        plain.window(bs.TumblingProcessingTimeWindows.of("1 s")).allowed_lateness("1 s")
    unmarked = plain.window(bs.TumblingEventTimeWindows.of("1 minute")).count()
    writer = unmarked.write("x").option("checkpointLocation", str(tmp_path / "c")).to(Collect())
    with pytest.raises(bs.BacklogError, match=r"no event time.*with_watermark"):
        writer.start(spark)
    with pytest.raises(bs.BacklogError, match=r"aggregate 'window_end' has the name of a column of the result"):
        plain.window(bs.TumblingEventTimeWindows.of("1 minute")).aggregate("max(ts) AS window_end")
    renamed = source(tmp_path).map("*", "user AS window_start").key_by("window_start")
    counted = renamed.window(bs.TumblingEventTimeWindows.of("1 minute")).count()
    writer = counted.write("y").option("checkpointLocation", str(tmp_path / "d")).to(Collect())
    with pytest.raises(bs.BacklogError, match=r"key 'window_start' has the name of a column.*Rename it before key_by"):
        writer.start(spark)
