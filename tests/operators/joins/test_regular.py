"""The regular join against models: from the present rows, in Spark SQL and in DuckDB."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import CHANGE_TYPE, DELETE, INSERT, POSTIMAGE, PREIMAGE
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.fold import Arrived, Clock
from backlog_spark.operators.joins.regular import JoinFold
from backlog_spark.operators.sides import LEFT, RIGHT, SIDE
from backlog_spark.state.state_codec import GROWS
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import combine
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTER = {"inner": (), "left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}


class Row(NamedTuple):
    """A row of either side, added or retracted. Rows with equal values are equal."""

    side: int
    key: str | None
    value: int
    sign: int = 1


def schema(*, changes: bool) -> StructType:
    out = StructType().add(SIDE, IntegerType())
    for prefix, value in (("l:", "v"), ("r:", "w")):
        out = out.add(prefix + "k", StringType()).add(prefix + value, LongType())
        if changes:
            out = out.add(prefix + CHANGE_TYPE, StringType())
    return out


def fold_of(how: str, *, changes: bool, ttl_ms: int | None = None, cuts: bool = False) -> JoinFold:
    return JoinFold(schema(changes=changes), ["k"], ["k"], 4, how=how, ttl_ms=(ttl_ms, ttl_ms), cuts=cuts)


def joined(rows: Iterable[Row], how: str) -> Counter[Any]:
    """The join of the present rows."""
    there: Counter[Row] = Counter()
    for row in rows:
        there[row._replace(sign=1)] += row.sign
    sides = [[row for row in there.elements() if row.side == side] for side in (LEFT, RIGHT)]
    pairs = [(a, b) for a in sides[LEFT] for b in sides[RIGHT] if a.key is not None and a.key == b.key]
    out: Counter[Any] = Counter((a.key, a.value, b.value) for a, b in pairs)
    for side in OUTER[how]:
        others = {row.key for row in sides[1 - side]}
        for row in sides[side]:
            if row.key is None or row.key not in others:
                out[(row.key, row.value, None) if side == LEFT else (row.key, None, row.value)] += 1
    return +out


class Group:
    """Drives one key group like a worker, batch by batch."""

    def __init__(self, fold: JoinFold) -> None:
        self.fold = fold
        self.state = combine([], fold.state.arrow())
        self.out: Counter[Any] = Counter()

    def take(
        self, rows: Sequence[Row], now: int | None = None, at: int | None = None, budget: int | None = None
    ) -> int:
        """Process a batch. Returns the number of emitted rows."""
        fold = self.fold
        made = [
            {
                "__hash": sum((row.key or "").encode()) % 2,  # keys share it
                "k0": row.key,
                "side": row.side,
                "t": at,
                **dict(zip(fold.values(row.side), (row.key, row.value), strict=True)),
                **({"row": hash((row.key, row.value)), "sign": row.sign} if fold.takes_back or fold.numbered else {}),
            }
            for row in rows
        ]
        live = pa.RecordBatch.from_pylist(made, fold.live_schema())
        clock = Clock(before=MIN_WATERMARK, watermark=MIN_WATERMARK, now=now, backlog=0, budget=budget)
        step = fold.step(self.state, Arrived((), live), clock)
        if step.state is not None:
            self.state = step.state
        for number, part in step.outputs:
            assert number == 0
            for found in part.to_pylist():
                change = found.get(CHANGE_TYPE, INSERT)
                assert change in (INSERT, DELETE)
                self.out[(found["k"], found["v"], found["w"])] += 1 if change == INSERT else -1
        assert min(self.out.values(), default=0) >= 0, "nothing is taken back that was not put out"
        return sum(part.num_rows for _, part in step.outputs)


plain_rows = st.lists(
    st.tuples(st.sampled_from([LEFT, RIGHT]), st.sampled_from(["a", "b", "c", None]), st.integers(0, 2)), max_size=24
)


@given(st.data(), plain_rows, st.sampled_from(list(OUTER)), st.booleans())
def test_any_cut_into_batches_gives_the_join(data: Any, plain: list[Any], how: str, changes: bool) -> None:
    rows = [Row(*row) for row in plain]
    if changes:
        # Some are taken back, at any time after they came; equal rows stand for each other.
        for row in list(rows):
            if data.draw(st.booleans()):
                rows.insert(data.draw(st.integers(rows.index(row) + 1, len(rows))), row._replace(sign=-1))
        rows = [row for at, row in enumerate(rows) if row.sign > 0 or is_there(rows[:at], row)]
    group = Group(fold_of(how, changes=changes))
    at = 0
    for end in sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5))):
        group.take(rows[at:end])
        at = end
        assert +group.out == joined(rows[:at], how)
    group.take(rows[at:])
    assert +group.out == joined(rows, how)
    assert group.state.num_rows == sum(row.sign for row in rows if row.key is not None)


@given(st.data(), plain_rows, st.sampled_from(list(OUTER)), st.booleans())
def test_cut_between_any_two_pairs_it_gives_the_join(data: Any, plain: list[Any], how: str, changes: bool) -> None:
    """With few keys and many pairs: no batch exceeds its budget, and interrupted rows continue first."""
    rows = [Row(*row) for row in plain]
    if changes:
        rows = [row._replace(sign=data.draw(st.sampled_from([1, 1, -1]))) for row in rows]
        rows = [row for at, row in enumerate(rows) if row.sign > 0 or is_there(rows[:at], row)]
    fold = fold_of(how, changes=changes, cuts=True)
    group = Group(fold)
    at = 0

    def waits() -> bool:
        event, _ = fold.due(group.state)
        assert set(event.tolist()) <= {MIN_WATERMARK, NEVER}
        return bool((event == MIN_WATERMARK).any())

    rounds = 0
    while at < len(rows) or waits():
        rounds += 1
        # Not for ever in small steps, which takes more choices than Hypothesis likes to make.
        end, budget = len(rows), None
        if rounds < 25:
            end = data.draw(st.integers(at, len(rows)))
            budget = data.draw(st.one_of(st.none(), st.integers(1, 5)))
        count = group.take(rows[at:end], budget=budget)
        # Of an outer side a pair is two rows.
        assert budget is None or count <= budget + (1 if fold.outer else 0)
        at = end
        if budget is None:
            assert not waits()
            assert +group.out == joined(rows[:at], how)
    assert +group.out == joined(rows, how)


def test_a_hot_key_is_cut_within_the_matches_of_one_row() -> None:
    group = Group(fold_of("inner", changes=False, cuts=True))
    group.take([Row(RIGHT, "a", n) for n in range(1_000)], budget=10)
    assert group.take([Row(LEFT, "a", 1), Row(LEFT, "b", 2), Row(RIGHT, "b", 3)], budget=300) == 300
    assert [group.take([], budget=300) for _ in range(5)] == [300, 300, 101, 0, 0]
    assert +group.out == joined([*(Row(RIGHT, "a", n) for n in range(1_000)), Row(LEFT, "a", 1), Row(LEFT, "b", 2),
                                 Row(RIGHT, "b", 3)], "inner")  # fmt: skip


def is_there(before: Sequence[Row], row: Row) -> bool:
    return sum(each.sign for each in before if each._replace(sign=1) == row._replace(sign=1)) > 0


def test_a_row_that_never_came_is_not_taken_back() -> None:
    group = Group(fold_of("inner", changes=True))
    group.take([Row(LEFT, "a", 1, -1), Row(RIGHT, "a", 2)])
    assert not +group.out
    group.take([Row(LEFT, "a", 1)])
    assert +group.out == Counter([("a", 1, 2)])


def test_a_ttl_may_be_another_but_neither_come_nor_go() -> None:
    """With one, Spark's plan has a source more."""
    meanings = [fold_of("left", changes=False, ttl_ms=ttl).describe()["meaning"] for ttl in (None, 100, 200)]
    assert meanings[0] != meanings[1] == meanings[2]


def test_time_to_live() -> None:
    group = Group(fold_of("left", changes=False, ttl_ms=100))
    group.take([Row(RIGHT, "a", 1)], at=1_000)
    group.take([Row(LEFT, "a", 2)], at=1_050)
    assert +group.out == Counter([("a", 2, 1)])
    event, processing = group.fold.due(group.state)
    assert sorted(processing) == [1_100, 1_150]
    assert (event == event.max()).all()
    group.take([], now=1_100)
    assert +group.out == Counter([("a", 2, 1)]), "what came of a row stays"
    group.take([Row(LEFT, "a", 3)], at=1_120)
    assert +group.out == Counter([("a", 2, 1), ("a", 3, None)]), "a row that is gone matches nothing"
    group.take([], now=2_000)
    assert not group.state.num_rows


def test_times_to_live_of_each_side() -> None:
    group = Group(JoinFold(schema(changes=False), ["k"], ["k"], 4, ttl_ms=(None, 100)))
    group.take([Row(RIGHT, "a", 1), Row(LEFT, "a", 2)], at=1_000)
    assert sorted(group.fold.due(group.state)[1]) == [1_100, NEVER]
    group.take([], now=1_100)
    group.take([Row(LEFT, "a", 3), Row(RIGHT, "a", 4)], at=1_200)
    assert +group.out == Counter([("a", 2, 1), ("a", 2, 4), ("a", 3, 4)])


def test_more_pairs_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backlog_spark.operators.joins.regular.PIECE_ROWS", 7)
    group = Group(fold_of("inner", changes=True))
    rows = [Row(side, "a", value) for side in (LEFT, RIGHT) for value in range(10)]
    group.take(rows)
    assert +group.out == joined(rows, "inner")
    group.take([Row(RIGHT, "a", 3, -1), Row(LEFT, "a", 11)])
    assert +group.out == joined([*rows, Row(RIGHT, "a", 3, -1), Row(LEFT, "a", 11)], "inner")


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (lambda a, b: a.key_by("k").join(b.key_by("k"), how="outer"), "how.*'outer'.*inner, left, right, full"),
        (lambda a, b: a.key_by("k").join(b.key_by("k"), ttl="soon"), "ttl.*'soon'"),
        (lambda a, b: a.key_by("k").join(b), "join was given a BacklogStream"),
        (lambda a, b: a.key_by("k").join(b.map("k", "v").key_by("k")), "both streams have a column 'v'"),
        (lambda a, b: a.key_by("k").join(b.key_by("k", "w")), "1 keys on the left .* and 2 on the right"),
        (lambda a, b: a.key_by("k").join(b.key_by("w")), "'k' is string on the left and 'w' is bigint"),
        (
            lambda a, b: a.key_by("k").count().transform(lambda f: f.drop(CHANGE_TYPE)).key_by("k").join(b.key_by("k")),
            "drops '_change_type'",
        ),
    ],
)
def test_refusals(spark: SparkSession, tmp_path: Path, stream: Any, message: str) -> None:
    append(tmp_path / "l", pa.table({"k": ["a"], "v": [1]}), backlog=False)
    append(tmp_path / "r", pa.table({"k": ["a"], "v": [1], "w": [1]}), backlog=False)
    left, right = (bs.source("scripted", name=n, path=tmp_path / n) for n in "lr")

    def start() -> None:
        writer = stream(left, right).write("q").option("checkpointLocation", str(tmp_path / "c"))
        writer.to(Collect()).start(spark)

    with pytest.raises((BacklogError, SettingError), match=message):
        start()


# -- real queries ---------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], value: str) -> pa.Table:
    kinds = {1: (INSERT, POSTIMAGE), -1: (DELETE, PREIMAGE)}
    return pa.table(
        {
            "k": pa.array([r.key for r in rows], pa.string()),
            value: pa.array([r.value for r in rows], pa.int64()),
            CHANGE_TYPE: [kinds[r.sign][i % 2] for i, r in enumerate(rows)],
            # Tells of the change, and differs between a row's insert and its before-image.
            "_commit_seq": list(range(len(rows))),
        }
    )


def life(chance: random.Random, side: int, count: int) -> list[Row]:
    """Rows that are added, and some of them retracted."""
    rows: list[Row] = []
    for number in range(count):
        there = list(Counter(r for r in rows if r.sign > 0) - Counter(r._replace(sign=1) for r in rows if r.sign < 0))
        if there and chance.random() < 0.4:
            rows.append(chance.choice(there)._replace(sign=-1))
        else:
            rows.append(Row(side, chance.choice([None, *"abcdefgh"]), number % 40))
    return rows


def of_databases(spark: SparkSession, left: Sequence[Row], right: Sequence[Row], how: str) -> Counter[Any]:
    """The join of the final rows, by Spark and by DuckDB."""
    there = {}
    for name, rows in (("l", left), ("r", right)):
        counts: Counter[Any] = Counter()
        for row in rows:
            counts[(row.key, row.value)] += row.sign
        value = "v" if name == "l" else "w"
        listed = list(counts.elements())
        there[name] = pa.table(
            {"k": pa.array([k for k, _ in listed], pa.string()), value: pa.array([v for _, v in listed], pa.int64())}
        )
        spark.createDataFrame(there[name]).createOrReplaceTempView(f"{name}_there")
    text = f"SELECT coalesce(l.k, r.k) AS k, v, w FROM {{}} l {how} JOIN {{}} r ON l.k = r.k"
    by_spark = Counter(tuple(row) for row in spark.sql(text.format("l_there", "r_there")).collect())
    l_there, r_there = there["l"], there["r"]  # noqa: F841  DuckDB finds them by name
    by_duckdb = Counter(duckdb.sql(text.format("l_there", "r_there")).fetchall())
    assert by_spark == by_duckdb
    return by_spark


def of_sink(sink: Collect) -> Counter[Any]:
    out: Counter[Any] = Counter()
    for _, batch in sorted(sink.batches.items()):
        for row in batch:
            out[(row.k, row.v, row.w)] += 1 if getattr(row, CHANGE_TYPE, INSERT) in (INSERT, POSTIMAGE) else -1
    assert min(out.values(), default=0) >= 0
    return +out


@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize(
    ("how", "backlog", "ttl"),
    [
        ("full", (2, 1), "1 hour"),
        pytest.param("inner", (1, 2), None, marks=pytest.mark.grid),
        pytest.param("left", (0, 0), None, marks=pytest.mark.grid),
        pytest.param("right", (2, 2), None, marks=pytest.mark.grid),
        pytest.param("full", (1, 2), None, marks=pytest.mark.grid),
    ],
)
def test_change_streams_wherever_the_switch_falls(
    spark: SparkSession, tmp_path: Path, how: str, backlog: tuple[int, int], ttl: str | None
) -> None:
    chance = random.Random(f"{how}{backlog}")
    lives = [life(chance, side, 150) for side in (LEFT, RIGHT)]
    for side, (name, value) in enumerate((("l", "v"), ("r", "w"))):
        for number in range(3):
            rows = lives[side][number * 50 : number * 50 + 50]
            append(tmp_path / name, table(rows, value), backlog=number < backlog[side])
    left, right = (bs.source("scripted", name=n, path=tmp_path / n) for n in "lr")
    stream = left.key_by("k").join(right.key_by("k"), how=how, ttl=ttl)
    sink = Collect()
    writer = stream.write("pairs").trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
    expected = of_databases(spark, *lives, how)
    try:
        wait(lambda: of_sink(sink) == expected, query)
        query.processAllAvailable()
        assert of_sink(sink) == expected
        state = query.state("k_join").collect()
        assert len(state) == sum(r.sign for rows in lives for r in rows if r.key is not None)
    finally:
        query.stop()
    assert sink.schema.names == ["k", "v", "w", CHANGE_TYPE]


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
def test_rows_that_are_only_added_make_rows_that_are_only_added(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(7)
    lives = [[row for row in life(chance, side, 120) if row.sign > 0] for side in (LEFT, RIGHT)]
    for side, (name, value) in enumerate((("l", "v"), ("r", "w"))):
        for number in range(4):
            rows = table(lives[side][number::4], value).select(["k", value])
            append(tmp_path / name, rows, backlog=not number)
    left, right = (bs.source("scripted", name=n, path=tmp_path / n) for n in "lr")
    sink = Collect()
    writer = left.key_by("k").join(right.key_by("k"), name="pairs").write("pairs")
    writer = writer.trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
    expected = of_databases(spark, *lives, "inner")
    try:
        wait(lambda: of_sink(sink).total() >= expected.total(), query)
        query.processAllAvailable()
        kept = query.state("pairs").collect()
    finally:
        query.stop()
    assert sink.schema.names == ["k", "v", "w"]
    assert of_sink(sink) == expected
    # Rows were added to keys that had some. All are read as state.
    heads = spark.read.format("statestore").option("stateVarName", "head").load(str(tmp_path / "c"))
    assert heads.where(f"startswith(value.recent, '{GROWS}')").count() > 0
    sides = [Counter((row.key, row.value) for row in live if row.key is not None) for live in lives]
    assert Counter((r["k"], r["left"]["v"]) for r in kept if r["left"]) == sides[LEFT]
    assert Counter((r["k"], r["right"]["w"]) for r in kept if r["right"]) == sides[RIGHT]
