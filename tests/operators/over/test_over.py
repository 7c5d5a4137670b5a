"""OVER aggregation equals SQL over all rows, for any batches and any switch."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from backlog_spark.api.streams import BacklogStream
from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import KeyedNode
from backlog_spark.model.watermarks import EVENT_TIME, MIN_WATERMARK
from backlog_spark.operators import frames
from backlog_spark.operators.fold import Clock
from backlog_spark.operators.over.fold import OverFold, OverFunction
from backlog_spark.operators.over.select_list import parse_over
from tests.operators.conftest import plain
from tests.operators.events import EPOCH, SCHEMA, events, flush, run, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = {
    "user": T.StringType(),
    "id": T.LongType(),
    "v": T.LongType(),
    "d": T.DoubleType(),
    "x": T.DecimalType(12, 2),
    "s": T.StringType(),
    "b": T.BooleanType(),
}
ROWS = T.StructType(
    [
        *(T.StructField(name, kind) for name, kind in FIELDS.items()),
        T.StructField("ts", T.TimestampType(), True, {EVENT_TIME: "ts"}),
    ]
)
FUNCTIONS = """
    sum(v) AS sv, avg(v) AS av, min(v) AS nv, max(v) AS xv, count(v) AS cv, count(*) AS c, row_number() AS n,
    sum(d) AS sd, avg(d) AS ad, min(d) AS nd, max(d) AS xd, sum(x) AS sx, avg(x) AS ax, min(x) AS nx, max(x) AS xx,
    min(s) AS ns, max(s) AS xs, first_value(s) AS fs, last_value(s) AS ls, first_value(v) AS fv, min(b) AS nb,
    lag(s) AS s1, lag(s, 3, 'none') AS s3, lag(x, 2, -1.5) AS x2, lag(v, 0) AS v0, count(b) AS cb, max(ts) AS xt
"""


# -- against plain Python ---------------------------------------------------------------------------------------


def model(rows: list[dict[str, Any]], functions: tuple[OverFunction, ...], preceding: int | None, unit: str) -> Any:
    """All rows with their results, worked out row by row."""
    out: Counter[Any] = Counter()
    for user in {row["user"] for row in rows}:
        mine = sorted((r for r in rows if r["user"] == user), key=lambda r: (r["ts"], r["id"]))
        for at, row in enumerate(mine):
            if unit == "rows":
                frame = mine[0 if preceding is None else max(0, at - preceding) : at + 1]
            else:
                begin = None if preceding is None else row["ts"] - dt.timedelta(milliseconds=preceding)
                frame = [r for r in mine if r["ts"] <= row["ts"] and (begin is None or r["ts"] >= begin)]
            results = [value(function, mine, at, frame) for function in functions]
            out[plain((*row.values(), *results))] += 1
    return out


def value(function: OverFunction, rows: list[dict[str, Any]], at: int, frame: list[dict[str, Any]]) -> Any:
    kind, column = function.kind, function.column
    if kind == "row_number":
        return at + 1
    if column is None:
        return len(frame)
    if kind == "lag":
        if at >= function.offset:
            return rows[at - function.offset][column]
        return function.default
    values = [row[column] for row in frame]
    if kind in ("first_value", "last_value"):
        return values[0 if kind == "first_value" else -1]
    values = [v for v in values if v is not None]
    if kind == "count":
        return len(values)
    if not values:
        return None
    if kind in ("min", "max"):
        key = (lambda v: v.encode()) if column == "s" else (lambda v: (v != v, v) if v == v else (True, 0))
        return (min if kind == "min" else max)(values, key=key)
    total = 0.0 if column == "d" else 0
    for each in values:
        total += each
    if kind == "sum":
        return total
    if column == "x":
        return (total / len(values)).quantize(Decimal("0.000001"), ROUND_HALF_UP)  # type: ignore[union-attr]
    added = 0.0
    for each in values:
        added += float(each)
    return added / len(values)


def batch(fold: OverFold, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as the stream vehicle is given them. All users but one have the same hash."""
    columns: dict[str, list[Any]] = {field.name: [] for field in fold.state.arrow()}
    for row in rows:
        columns["__hash"].append(7 if row["user"] != "cy" else -7)
        columns["k0"].append(row["user"])
        columns["side"].append(0)
        columns["t"].append(math.floor(row["ts"].timestamp() * 1000 + 0.0001))
        for number, each in enumerate(row.values()):
            columns[f"r{number}"].append(each)
    length = len(rows)
    arrays = [
        pa.array(columns[field.name] or [None] * length, field.type, from_pandas=False) for field in fold.state.arrow()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=fold.state.arrow())


def found(fold: OverFold, rows: list[dict[str, Any]], cuts: list[int], marks: list[int]) -> Counter[Any]:
    """The output for rows in batches, each with a watermark, and then of the rest."""
    state, out, before = batch(fold, []), Counter(), MIN_WATERMARK
    pieces = np.split(np.arange(len(rows)), sorted(cuts))
    for number, piece in enumerate([*pieces, np.array([], dtype=int)]):
        mine = [rows[i] for i in piece]
        later = [rows[i] for more in pieces[number + 1 :] for i in more]
        # No row is ever late here.
        limit = min((int(r["ts"].timestamp() * 1000) for r in later), default=2**45) - 1
        mark = max(before, min(limit, millis(marks[number % len(marks)]))) if later or mine else 2**45
        state, batches = fold.advance(state, batch(fold, mine), Clock(before, mark, None, False))
        before = mark
        event, processing = fold.due(state)
        assert (event > mark).all()
        assert (processing == 2**63 - 1).all()
        for each in batches:
            assert each.schema.names == fold.output_schema().names
            out.update(plain(tuple(row.values())) for row in each.to_pylist())
    assert fold.state.arrow().equals(state.schema)
    return out


def millis(second: int) -> int:
    return int(EPOCH.timestamp() * 1000) + second * 1000


LONGS = st.none() | st.integers(-(2**55), 2**55)
HALVES = st.integers(-(2**20), 2**20).map(lambda n: n / 4)
DOUBLES = st.none() | st.sampled_from([0.0, math.inf, math.nan, 1e300, 0.1]) | HALVES
DECIMALS = st.none() | st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2))
TEXTS = st.none() | st.sampled_from(["", "a", "b", "ä", "z", "\U0001f600", "\uffff"])


@st.composite
def some_rows(draw: st.DrawFn, exact: bool = False) -> list[dict[str, Any]]:
    """Rows of a few users in a few seconds, many at the same time, with microseconds."""
    doubles = st.none() | HALVES if exact else DOUBLES
    values = st.tuples(
        st.sampled_from(["ann", "bob", "cy", None]), LONGS, doubles, DECIMALS, TEXTS, st.none() | st.booleans(),
        st.integers(0, 12), st.sampled_from([0, 0, 0, 1, 999, 500_000]),
    )  # fmt: skip
    return [
        {"user": u, "id": i, "v": v, "d": d, "x": x, "s": s, "b": b, "ts": EPOCH + dt.timedelta(0, second, micros)}
        for i, (u, v, d, x, s, b, second, micros) in enumerate(draw(st.lists(values, max_size=40)))
    ]


FRAMES = st.sampled_from(
    [
        ("rows", None),
        ("rows", 0),
        ("rows", 1),
        ("rows", 3),
        ("range", None),
        ("range", 0),
        ("range", 2500),
        ("range", 4000),
    ]
)


def folded(functions: str, unit: str, preceding: int | None, order: str | None = "id", schema: Any = ROWS) -> OverFold:
    return OverFold(("user",), parse_over(functions), schema, 4, preceding=preceding, unit=unit, order=order)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    some_rows(), FRAMES, st.lists(st.integers(0, 40), max_size=5),
    st.lists(st.integers(-3, 15), min_size=1, max_size=4), st.booleans(),
)  # fmt: skip
def test_any_cut_gives_the_same(
    rows: list[dict[str, Any]], frame: tuple[str, int | None], cuts: list[int], marks: list[int], shuffled: bool
) -> None:
    unit, preceding = frame
    fold = folded(FUNCTIONS, unit, preceding)
    rows.sort(key=lambda r: r["id"] * 7 % 5 if shuffled else r["ts"].timestamp())
    expected = model(rows, parse_over(FUNCTIONS), preceding, unit)
    assert found(fold, rows, cuts, marks) == expected


ALONE = [
    "sum(d) AS r", "count(*) AS r", "max(s) AS r", "last_value(v) AS r", "lag(v, 2) AS r", "row_number() AS r",
    "avg(x) AS r, lag(x, 1) AS q",
]  # fmt: skip


@settings(max_examples=60)
@given(
    some_rows(), FRAMES, st.sampled_from(ALONE), st.lists(st.integers(0, 40), max_size=5),
    st.lists(st.integers(-3, 15), min_size=1, max_size=4),
)  # fmt: skip
def test_each_alone(
    rows: list[dict[str, Any]], frame: tuple[str, int | None], functions: str, cuts: list[int], marks: list[int]
) -> None:
    rows.sort(key=lambda r: r["ts"].timestamp())
    expected = model(rows, parse_over(functions), frame[1], frame[0])
    assert found(folded(functions, *frame), rows, cuts, marks) == expected


def test_state_is_what_later_rows_need() -> None:
    rows = [
        {"user": "ann", "id": i, "v": i, "d": None, "x": None, "s": "", "b": None, "ts": EPOCH + dt.timedelta(0, i)}
        for i in range(100)
    ]
    wanted = [
        ("sum(v), first_value(v), max(v)", "rows", None, 1),
        ("last_value(v)", "rows", None, 0),
        ("sum(v)", "rows", 5, 5),
        ("sum(v), lag(v, 7)", "rows", 5, 7),
        ("sum(v)", "range", 10_000, 10),
        ("sum(v), row_number()", "range", 0, 1),
        ("row_number(), lag(v)", "range", None, 1),
    ]
    for functions, unit, preceding, kept in wanted:
        fold = folded(functions, unit, preceding)
        state, out = fold.advance(batch(fold, []), batch(fold, rows), Clock(0, millis(89), None, False))
        assert sum(b.num_rows for b in out) == 90
        assert state.num_rows == kept + 10, (functions, unit, preceding)
        # The key is idle from here on: what only a range needed goes.
        state, out = fold.advance(state, batch(fold, []), Clock(millis(89), millis(200), None, False))
        state, _ = fold.advance(state, batch(fold, []), Clock(millis(200), millis(250), None, False))
        assert state.num_rows == fold._last
        assert sum(b.num_rows for b in out) == 10


def test_ties_without_an_order_column() -> None:
    """Rows of one time are in the order of their columns, NULL first; arrays do not take part."""
    pair = T.StructType([T.StructField("l", T.ArrayType(T.LongType())), T.StructField("d", T.DoubleType())])
    schema = T.StructType(
        [
            T.StructField("user", T.StringType()),
            T.StructField("ts", T.TimestampType(), True, {EVENT_TIME: "ts"}),
            T.StructField("list", T.ArrayType(T.LongType())),
            T.StructField("pair", pair),
            T.StructField("s", T.StringType()),
        ]
    )  # fmt: skip
    ranked = [(None, None), (None, "b"), (-math.inf, "a"), (-0.5, None), (0.25, "ab"), (0.25, "ä"), (math.nan, "")]
    for seed in range(5):
        fold = folded("row_number() AS n, lag(s) AS p, first_value(s) AS f", "rows", 2, None, schema)
        rows = [
            {"user": "u", "ts": EPOCH, "list": [seed * i], "pair": {"l": None, "d": d}, "s": s}
            for i, (d, s) in enumerate(ranked)
        ]
        np.random.default_rng(seed).shuffle(rows)  # type: ignore[arg-type]
        _, (out,) = fold.advance(batch(fold, []), batch(fold, rows), Clock(0, millis(1), None, False))
        texts = [s for _, s in ranked]
        by_number = {row["n"]: (row["s"], row["p"], row["f"]) for row in out.to_pylist()}
        assert by_number == {n + 1: (texts[n], ([None, *texts])[n], texts[max(0, n - 2)]) for n in range(len(texts))}


@pytest.mark.parametrize("unit", ["rows", "range"])
def test_overflow_and_wide_decimals(unit: str) -> None:
    schema = T.StructType([*ROWS.fields[:4], T.StructField("x", T.DecimalType(38, 2)), *ROWS.fields[5:]])
    row = {"user": "u", "id": 0, "v": 2**62, "d": None, "x": Decimal(10**35), "s": "", "b": None, "ts": EPOCH}
    rows = [row, row | {"id": 1, "ts": EPOCH + dt.timedelta(0, 1)}]
    clock = Clock(0, millis(9), None, False)
    for preceding in (None, 5000):
        fold = folded("sum(v)", unit, preceding, schema=schema)
        with pytest.raises(BacklogError, match=r"sum\(v\) overflows bigint"):
            fold.advance(batch(fold, []), batch(fold, rows), clock)
        fold = folded("sum(x) AS p", unit, preceding, schema=schema)
        _, (out,) = fold.advance(batch(fold, []), batch(fold, rows[:1]), Clock(0, millis(0), None, False))
        assert out.column("p").to_pylist() == [Decimal(10**35)]
        fold = folded("avg(x) AS p", unit, preceding, schema=schema)
        with pytest.raises(BacklogError, match=r"avg\(x\) overflows decimal128\(38, 6\)"):
            fold.advance(batch(fold, []), batch(fold, rows[:1]), clock)
        small = [r | {"x": Decimal(10**31 + i)} for i, r in enumerate(rows)]
        _, (out,) = fold.advance(batch(fold, []), batch(fold, small), clock)
        assert sorted(out.column("p").to_pylist()) == [Decimal(10**31), Decimal("1" + "0" * 31 + ".5")]
        fold = folded("sum(x) AS p", unit, preceding, schema=schema)
        with pytest.raises(BacklogError, match=r"sum\(x\) overflows decimal128\(38, 2\)"):
            fold.advance(batch(fold, []), batch(fold, [r | {"x": Decimal("9" * 36)} for r in rows]), clock)


@given(st.lists(st.tuples(st.integers(0, 3), HALVES), min_size=1, max_size=300), st.integers(0, 100))
def test_doubles_are_added_in_order(rows: list[tuple[int, float]], reach: int) -> None:
    numbers = np.array([x / 10 for _, x in rows])  # not exact, so that another order would show
    keys = np.sort([key for key, _ in rows])
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    ends = np.append(starts[1:], len(keys))
    begin = np.repeat(starts, ends - starts)
    at = np.arange(len(keys))

    def added(low: int, high: int) -> float:
        total = 0.0
        for x in numbers[low:high].tolist():
            total += x
        return total

    assert frames.running_doubles(numbers, starts, ends).tolist() == [added(b, i + 1) for i, b in enumerate(begin)]
    low = np.maximum(begin, at - reach)
    assert frames.sliding_doubles(numbers, low, at + 1).tolist() == [added(b, i + 1) for i, b in enumerate(low)]


def test_null_event_time() -> None:
    fold = folded("sum(v)", "rows", None)
    rows = batch(fold, [{"user": "u", "id": 0, "v": 1, "d": None, "x": None, "s": "", "b": None, "ts": EPOCH}])
    gone = rows.set_column(rows.schema.get_field_index("t"), rows.schema.field("t"), pa.nulls(1, pa.int64()))
    with pytest.raises(BacklogError, match="'ts' is NULL"):
        fold.advance(batch(fold, []), gone, Clock(0, 1, None, False))


def test_what_is_refused() -> None:
    for text, problem in (
        ("rank()", r"RANK\(\) is not a supported function"),
        ("sum(a + 1)", "argument of sum must be one column"),
        ("sum(DISTINCT a)", "DISTINCT would need to keep"),
        ("sum(a) OVER (ORDER BY b)", "has a window of its own"),
        ("sum(a) FILTER (WHERE b)", "FILTER and NULLS"),
        ("first_value(a) IGNORE NULLS", "FILTER and NULLS"),
        ("lag(a, -1)", "-1 is not a number of rows"),
        ("lag(a, 1, b)", "default b is not a constant"),
        ("a", "a is not a supported function"),
        ("sum(a), sum(a)", "several functions are named sum_a"),
        ("sum(a) FROM t", "is not just a list"),
        ("sum(", "is not a list of functions"),
        ("count(1)", "argument of count must be one column"),
    ):
        with pytest.raises(BacklogError, match=problem):
            parse_over(text)
    for functions, problem in (
        ("sum(s)", r"'s' is string; sum takes numbers"),
        ("avg(ts)", r"'ts' is timestamp; avg takes numbers"),
        ("sum(zz)", r"no column 'zz'; there are user"),
        ("sum(v) AS V", r"two columns 'V'"),
        ("lag(v, 1, 'x')", r"default 'x' is not bigint"),
        ("lag(x, 1, 0.001)", r"is not decimal\(12,2\)"),
        ("lag(ts, 1, 5)", r"is not timestamp"),
    ):
        with pytest.raises(BacklogError, match=problem):
            folded(functions, "rows", None)
    with pytest.raises(BacklogError, match="no column 'o' to order by"):
        folded("sum(v)", "rows", None, "o")
    with pytest.raises(BacklogError, match="neither 'rows' nor 'range'"):
        folded("sum(v)", "groups", None)
    with pytest.raises(BacklogError, match="-1 preceding"):
        folded("sum(v)", "rows", -1)
    with pytest.raises(BacklogError, match="stream has no event time"):
        folded("sum(v)", "rows", None, schema=T.StructType([T.StructField(f.name, f.dataType) for f in ROWS]))


# -- through Spark ----------------------------------------------------------------------------------------------

RESULTS = """
    sum(v) AS total, avg(price) AS mean, min(price) AS least, max(user) AS greatest, count(v) AS n, count(*) AS c,
    row_number() AS number, lag(seq, 2, -1) AS before, first_value(seq) AS first, last_value(price) AS last,
    sum(price) AS spent, avg(item) AS items
"""
NAMES = [function.name for function in parse_over(RESULTS)]


def over(stream: BacklogStream, preceding: int | None, unit: str, functions: str = RESULTS) -> BacklogStream:
    def bind(schema: Any, key_groups: int, is_first: bool) -> OverFold:
        return OverFold(
            ("user",), parse_over(functions), schema, key_groups,
            preceding=preceding, unit=unit, order="seq", control_first=is_first,
        )  # fmt: skip

    return BacklogStream(KeyedNode(stream._node, "over", bind, is_timed=True))


def windowed(functions: str, frame: str, ties: str, ordered: str) -> str:
    """The same functions in SQL, each with its window."""
    made = []
    for function in parse_over(functions):
        kind, column = function.kind, function.column
        argument = "*" if column is None and kind == "count" else f'"{column}"' if column else ""
        if kind == "lag":
            argument += f", {function.offset}, {function.default}"
        window = f"ORDER BY {ties}" if kind in ("lag", "row_number") else f"ORDER BY {ordered} {frame}"
        made.append(f'{kind}({argument}) OVER (PARTITION BY "user" {window}) AS {function.name}')
    return ", ".join(made)


CASES = {
    "rows unbounded": ("rows", None, "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"),
    "rows 3": ("rows", 3, "ROWS BETWEEN 3 PRECEDING AND CURRENT ROW"),
    "range unbounded": ("range", None, "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"),
    "range 9 s": ("range", 9_000, "RANGE BETWEEN INTERVAL '9' SECOND PRECEDING AND CURRENT ROW"),
}


def tables() -> list[pa.Table]:
    return [events(n, 80, n * 80) for n in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "backlog"),
    [("range 9 s", 2)]
    + [pytest.param(case, backlog, marks=pytest.mark.grid) for case in CASES for backlog in range(4)],
)
@pytest.mark.usefixtures("small_plans")
def test_wherever_the_switch_falls(spark: SparkSession, tmp_path: Path, case: str, backlog: int) -> None:
    unit, preceding, frame = CASES[case]
    given_ = tables()
    expected = by_spark(spark, given_, unit, frame)
    assert expected == by_duckdb(given_, unit, frame)
    last = flush(given_)
    sink = run(
        spark, tmp_path, over(source(tmp_path), preceding, unit), {"s": [*given_, last]}, backlog, expected,
    )  # fmt: skip
    assert rows_of(sink) == expected
    assert sink.schema.names == [*SCHEMA.names, *NAMES]


def rows_of(sink: Any) -> Counter[Any]:
    return Counter(plain(tuple(row)) for rows in sink.batches.values() for row in rows)


def by_spark(spark: SparkSession, given_: list[pa.Table], unit: str, frame: str) -> Counter[Any]:
    spark.createDataFrame(pa.concat_tables(given_).combine_chunks()).createOrReplaceTempView("events")
    ordered = "ts, seq" if unit == "rows" else "ts"
    sql = f"SELECT *, {windowed(RESULTS, frame, 'ts, seq', ordered)} FROM events".replace('"', "`")
    return Counter(plain(tuple(row)) for row in spark.sql(sql).collect())


def by_duckdb(given_: list[pa.Table], unit: str, frame: str) -> Counter[Any]:
    events_table = pa.concat_tables(given_)  # noqa: F841  # DuckDB finds it by its name
    ordered = "ts, seq" if unit == "rows" else "ts"
    duckdb.sql("SET TimeZone = 'UTC'")
    made = windowed(RESULTS, frame, "ts, seq", ordered)
    # DuckDB's average of decimals is a double; the exact one is worked out from sum and count.
    sql = f"SELECT *, {made} FROM events_table"
    rows = duckdb.sql(sql).to_arrow_table().to_pylist()
    out: Counter[Any] = Counter()
    for row in rows:
        row["mean"] = (row["spent"] / row["c"]).quantize(Decimal("0.000001"), ROUND_HALF_UP)
        row["ts"] = row["ts"].replace(tzinfo=None)
        out[plain(tuple(int(v) if k == "total" and v is not None else v for k, v in row.items()))] += 1
    return out


def test_ties_and_one_sort(spark: SparkSession) -> None:
    """In backlog Spark sorts once, by more than time, so the order of rows with equal times is fixed."""
    from pyspark.sql import functions as F

    from backlog_spark.operators.waiting_fold import StayEnd

    frame = spark.range(400).select(
        F.concat(F.lit("u"), F.col("id") % 3).alias("user"),
        ((F.col("id") * 7919) % 400).alias("v"),
        F.timestamp_millis(F.floor(F.col("id") / 40) * 1000).alias("ts"),
    )
    frame = frame.withColumn("ts", F.col("ts").alias("ts", metadata={EVENT_TIME: "ts"})).repartition(7)
    functions = "first_value(v) AS f, last_value(v) AS l, lag(v) AS p, row_number() AS n, sum(v) AS s"
    fold = folded(functions, "range", 2_000, None, frame.schema)
    end = StayEnd(10**9)
    out = fold.output_at_end(frame, end)
    plan = out._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Sort [") == 1 * (2 if "Final Plan" in plan else 1), plan
    assert out.schema["ts"].metadata == {EVENT_TIME: "ts"}
    ordered = sorted(map(tuple, frame.collect()), key=lambda row: (row[0], row[2], row[1]))
    expected: Counter[Any] = Counter()
    for user in {row[0] for row in ordered}:
        mine = [row for row in ordered if row[0] == user]
        for at, row in enumerate(mine):
            near = [r for r in mine if row[2] - dt.timedelta(0, 2) <= r[2] <= row[2]]
            before = mine[at - 1][1] if at else None
            expected[(*row, near[0][1], near[-1][1], before, at + 1, sum(r[1] for r in near))] += 1
    assert Counter(map(tuple, out.collect())) == expected
    assert fold.output_at_end(frame, StayEnd(None)).count() == 0
    empty = frame.withColumn("ts", F.lit(None).cast("timestamp").alias("ts", metadata={EVENT_TIME: "ts"}))
    with pytest.raises(Exception, match="'ts' is NULL"):
        fold.output_at_end(empty, end).collect()
