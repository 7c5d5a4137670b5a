"""A join that stops between any two pairs: through the state store, in any order of arrival, killed anywhere."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DoubleType, IntegerType, LongType, StructType

from backlog_spark.model.changes import CHANGE_TYPE, DELETE
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.joins.interval import IntervalJoinFold
from backlog_spark.operators.joins.regular import JoinFold
from backlog_spark.operators.sides import LEFT, RIGHT, SIDE
from backlog_spark.state.seeds import Control
from backlog_spark.state.tables import from_bytes
from backlog_spark.state.timer_reports import GroupReport
from tests.operators.groups import Handle, run

from . import test_interval as intervals
from .test_regular import OUTER, Row, fold_of, joined

BOUNDS = intervals.Bounds(0, 100)


class Group:
    """One key group with small buckets. A batch reads only some of them."""

    def __init__(self, fold: JoinFold) -> None:
        self.fold = fold
        self.handle = Handle()
        self.reports: list[GroupReport] = []
        self.out: Counter[Any] = Counter()

    def run(self, rows: list[Row], budget: int | None) -> Counter[Any]:
        made = [
            {
                "__hash": sum((row.key or "").encode()) % 8 << 32,  # the bits that choose the bucket
                "k0": row.key,
                "side": row.side,
                **dict(zip(self.fold.values(row.side), (row.key, row.value), strict=True)),
                **{"row": hash((row.key, row.value)), "sign": row.sign},
            }
            for row in rows
        ]
        live = pa.RecordBatch.from_pylist(made, self.fold.live_schema())
        out: Counter[Any] = Counter()
        for data in run(copy.deepcopy(self.fold), self.handle, live, Control(budget=budget), self.reports):
            for found in from_bytes(data, self.fold._arrow).to_pylist():
                change = -1 if found.get(CHANGE_TYPE) == DELETE else 1
                out[(found["k"], found["v"], found["w"])] += change
        return out

    def take(self, rows: list[Row], budget: int | None, shuffled: list[Row]) -> None:
        """Run a batch, then repeat it with its rows in another order, as after a kill."""
        before = copy.deepcopy((self.handle.head, self.handle.buckets))
        first = self.run(rows, budget)
        self.handle.head, self.handle.buckets = before
        assert self.run(shuffled, budget) == first
        self.out.update(first)
        assert min(self.out.values(), default=0) >= 0, "nothing is taken back that was not put out"


batches = st.lists(
    st.lists(
        st.tuples(st.sampled_from([LEFT, RIGHT]), st.sampled_from([*"abcdefgh", None]), st.integers(0, 2)), max_size=12
    ),
    max_size=5,
)


@pytest.mark.slow
@given(st.data(), batches, st.sampled_from(list(OUTER)), st.booleans())
def test_any_cut_gives_the_join(data: Any, script: list[Any], how: str, changes: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backlog_spark.state.tables.BUCKET_KEYS", 2)
        group = Group(fold_of(how, changes=changes, cuts=True))
        rows: list[Row] = []
        for plain in [*script, []]:
            batch = [Row(*row) for row in plain]
            if changes:
                there = Counter(row._replace(sign=1) for row in rows for _ in range(row.sign > 0))
                there.subtract(row._replace(sign=1) for row in rows if row.sign < 0)
                there.update(batch)
                back = data.draw(st.lists(st.sampled_from(sorted(+there, key=str)), max_size=4)) if +there else []
                # No more than there are, in any order with those that are added.
                batch += [row._replace(sign=-1) for row, n in Counter(back).items() for _ in range(min(n, there[row]))]
            rows += batch
            budget = data.draw(st.one_of(st.none(), st.integers(1, 5)))
            shuffled = data.draw(st.permutations(batch))
            group.take(batch, budget, shuffled)
        while group.reports[-1].is_firing:
            group.take([], data.draw(st.integers(1, 5)), [])
        assert +group.out == joined(rows, how)


def test_nan_is_a_key_like_any_other() -> None:
    schema = StructType().add(SIDE, IntegerType())
    for prefix, value in (("l:", "v"), ("r:", "w")):
        schema = schema.add(prefix + "k", DoubleType()).add(prefix + value, LongType())
    fold = JoinFold(schema, ["k"], ["k"], 4, cuts=True)
    handle, reports, pairs = Handle(), [], 0  # type: ignore[var-annotated]
    nan = float("nan")
    rows = [(RIGHT, n) for n in range(20)] + [(LEFT, 1)]
    made = [
        {
            "__hash": 1,
            "k0": nan,
            "side": side,
            **dict(zip(fold.values(side), (nan, n), strict=True)),
            "row": n,
            "sign": 1,
        }
        for side, n in rows
    ]
    live = pa.RecordBatch.from_pylist(made, fold.live_schema())
    for batch in [live, *[live.slice(0, 0)] * 10]:
        found = run(copy.deepcopy(fold), handle, batch, Control(budget=5), reports)
        pairs += sum(from_bytes(data, fold._arrow).num_rows for data in found)
    assert pairs == 20
    assert not reports[-1].is_firing


class IntervalGroup:
    """The same for an interval join. Emits numbers of left and right rows."""

    def __init__(self, fold: IntervalJoinFold) -> None:
        self.fold = fold
        self.handle = Handle()
        self.reports: list[GroupReport] = []
        self.out: Counter[Any] = Counter()

    def run(self, rows: list[intervals.Row], watermark: int, budget: int | None) -> Counter[Any]:
        made = [
            {
                "__hash": sum((row.key or "").encode()) % 8 << 32,
                "k0": row.key,
                "side": row.side,
                "t": row.time // 1000,
                **dict(
                    zip(self.fold.values(row.side), (row.key, intervals.instant(row.time), row.number), strict=True)
                ),
                "row": row.number,
            }
            for row in rows
        ]
        live = pa.RecordBatch.from_pylist(made, self.fold.live_schema())
        control = Control(watermark=watermark, budget=budget)
        found = run(copy.deepcopy(self.fold), self.handle, live, control, self.reports)
        return Counter((row["v"], row["w"]) for data in found for row in from_bytes(data, self.fold._arrow).to_pylist())

    def take(self, rows: list[intervals.Row], watermark: int, budget: int | None, shuffled: list[Any]) -> None:
        """Run a batch, then repeat it with its rows in another order, as after a kill."""
        before = copy.deepcopy((self.handle.head, self.handle.buckets))
        first = self.run(rows, watermark, budget)
        self.handle.head, self.handle.buckets = before
        assert self.run(shuffled, watermark, budget) == first
        pairs = sum(count for pair, count in first.items() if None not in pair)
        assert budget is None or pairs <= budget, "rows of an outer side come out beside them"
        self.out.update(first)


@pytest.mark.slow
@given(st.data(), intervals.rows_of_any_key, intervals.bounds_of_any_kind, intervals.ways, st.booleans(), st.booleans())
def test_any_cut_gives_the_interval_join(
    data: Any, plain: list[Any], bounds: intervals.Bounds, how: str, control_first: bool, early: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backlog_spark.state.tables.BUCKET_KEYS", 2)
        rows = intervals.made(plain)
        group = IntervalGroup(intervals.fold_of(bounds, how, control_first=control_first, cuts=True))
        for piece, watermark in intervals.in_pieces(data.draw, rows, control_first=control_first):
            budget = data.draw(st.one_of(st.none(), st.integers(1, 5)))
            group.take(piece, watermark, budget, data.draw(st.permutations(piece)))
        if early:
            # The watermark may go past all rows while some wait.
            group.take([], intervals.FOREVER, 1, [])
        while group.reports and group.reports[-1].is_firing:
            group.take([], MIN_WATERMARK, data.draw(st.integers(1, 5)), [])
        group.take([], intervals.FOREVER, None, [])
        assert group.out == intervals.joined(rows, bounds, how)
        assert not group.handle.buckets, "nothing is kept for ever"


def test_a_hot_key_of_an_interval_join_comes_in_batches() -> None:
    fold = intervals.fold_of(intervals.Bounds(0, 100), cuts=True)
    group = IntervalGroup(fold)
    rows = [intervals.Row(side, "a", 10_000 + 50_000 * side, number) for side in (LEFT, RIGHT) for number in range(40)]
    group.take(rows, 0, 100, rows)
    sizes = [sum(group.out.values())]
    while group.reports[-1].is_firing:
        group.take([], 0, 100, [])
        sizes.append(sum(group.out.values()) - sum(sizes))
    assert sizes == [100] * 16
    assert group.out == intervals.joined(rows, intervals.Bounds(0, 100), "inner")


@pytest.mark.parametrize("kind", ["join", "interval join"])
def test_what_was_handed_over_may_come_in_any_order(kind: str) -> None:
    """Six right rows in two pieces, which a repeated batch gets in reverse order, and an interrupted left row."""
    fold = fold_of("inner", changes=False, cuts=True) if kind == "join" else intervals.fold_of(BOUNDS, cuts=True)

    def rows(schema: pa.Schema, *given: tuple[int, int]) -> pa.RecordBatch:
        made = []
        for side, number in given:
            time = [] if kind == "join" else [intervals.instant(10_000)]
            values = dict(zip(fold.values(side), ("a", *time, number), strict=True))
            made.append({"__hash": 1, "k0": "a", "side": side, "t": 10, "row": number, "sign": 1, **values})
        return pa.RecordBatch.from_pylist(made, schema)

    state, live = fold.state.arrow(), rows(fold.live_schema(), (LEFT, 9))
    pieces = [rows(state, *((RIGHT, n) for n in numbers)) for numbers in ((1, 5, 3), (4, 2, 6))]
    found = []
    for seeds in (pieces, pieces[::-1]):
        handle, reports, out = Handle(), [], []  # type: ignore[var-annotated]
        for batch, more in ((live, seeds), (live.slice(0, 0), []), (live.slice(0, 0), [])):
            packed = run(copy.deepcopy(fold), handle, batch, Control(watermark=0, budget=2), reports, more)
            out.append([row["w"] for data in packed for row in from_bytes(data, fold._arrow).to_pylist()])
        found.append(out)
    assert found[0] == found[1]
    assert sorted(itertools.chain(*found[0])) == [1, 2, 3, 4, 5, 6]
    assert [len(batch) for batch in found[0]] == [2, 2, 2]
