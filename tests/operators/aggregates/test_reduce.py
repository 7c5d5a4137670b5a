"""Reducing without Spark: any cut of the sorted rows into batches gives each key once."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, MapType, StringType, StructType

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregates.reduce import ReduceFold
from backlog_spark.operators.aggregates.user_fold import FunctionAggregateFold
from backlog_spark.operators.aggregates.user_functions import only_function
from backlog_spark.state.merge_sorted import MergeSorted
from backlog_spark.state.tables import HASH, combine, merged

SCHEMA = StructType().add("k", LongType()).add("v", LongType())
COLUMNS = pa.schema([(HASH, pa.int64()), ("k0", pa.int64()), ("s0", pa.int64()), ("s1", pa.int64())]).append(
    pa.field("__backlog_changed", pa.bool_())
)


def fold() -> ReduceFold:
    return ReduceFold(["k"], lambda a, b: (a.k, a.v + b.v), SCHEMA, 8)


# key, its hash (two keys may share one), value, whether it is new
ROWS = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, None]), st.integers(-(10**6), 10**6), st.booleans()), min_size=1, max_size=60
)
HASHES = {1: 10, 2: 10, 3: -5, None: 42}


@settings(max_examples=500, deadline=None)
@given(ROWS, st.lists(st.integers(0, 60), max_size=8))
def test_any_cut_gives_each_key_once(rows: list[tuple[Any, int, bool]], cuts: list[int]) -> None:
    ordered = sorted(rows, key=lambda r: HASHES[r[0]])
    table = [(HASHES[k], k, k, v, new) for k, v, new in ordered]
    whole = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(zip(*table, strict=True), COLUMNS, strict=True)], schema=COLUMNS
    )
    places = sorted({0, len(rows), *(min(c, len(rows)) for c in cuts)})
    pieces = [whole.slice(a, b - a) for a, b in itertools.pairwise(places)]
    found = [tuple(r.values()) for b in MergeSorted(fold())(iter(pieces)) for r in b.to_pylist()]
    expected = {}
    for k, v, new in rows:
        total, changed = expected.get(k, (0, False))
        expected[k] = (total + v, changed or new)
    assert {r[1]: (r[3], r[4]) for r in found} == expected
    assert len(found) == len(expected)
    assert all((r[0], r[2]) == (HASHES[r[1]], r[1]) for r in found)


class Words(bs.AggregateFunction):
    """Counts and sum of the values: a map that is changed in place."""

    accumulator = MapType(StringType(), LongType())
    output = StructType().add("sum", LongType())

    def create_accumulator(self) -> dict[str, int]:
        return {}

    def add(self, row: Any, accumulator: dict[str, int]) -> dict[str, int]:
        accumulator[str(row.v)] = accumulator.get(str(row.v), 0) + 1
        return accumulator

    def merge(self, one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
        for value, count in other.items():
            one[value] = one.get(value, 0) + count
        return one

    def get_result(self, accumulator: dict[str, int]) -> int:
        return sum(int(value) * count for value, count in accumulator.items())


@settings(max_examples=200, deadline=None)
@given(ROWS, st.lists(st.integers(0, 60), max_size=8))
def test_accumulators_merge_however_rows_are_cut(rows: list[tuple[Any, int, bool]], cuts: list[int]) -> None:
    made = FunctionAggregateFold(["k"], Words(), SCHEMA, 8)
    lifted = pa.schema([(HASH, pa.int64()), ("k0", pa.int64()), ("l0", pa.int64()), ("l1", pa.int64())])
    columns = list(zip(*[(HASHES[k], k, k, v) for k, v, _ in rows], strict=True))
    arrays = [pa.array(c, f.type) for c, f in zip(columns, lifted, strict=True)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=lifted)
    places = sorted({0, len(rows), *(min(c, len(rows)) for c in cuts)})
    parts = [merged(whole.slice(a, b - a), made.state, made, lifted=True)[0] for a, b in itertools.pairwise(places)]
    state = merged(combine(parts, made.state.arrow()), made.state, made, lifted=False)[0]
    results = made.results_of(state.column(2)).column(0).to_pylist()
    expected: dict[Any, int] = {}
    for k, v, _ in rows:
        expected[k] = expected.get(k, 0) + v
    assert dict(zip(state.column(1).to_pylist(), results, strict=True)) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("accumulator", "nothing", r"type 'nothing' of .*\.accumulator is not a Spark type"),
        ("output", "", r"\.output is ''"),
        ("output", StructType().add("K", LongType()), r"two columns 'K'"),
    ],
)
def test_refused_functions(name: str, value: Any, message: str) -> None:
    kind = type("Wrong", (Words,), {name: value})
    with pytest.raises(BacklogError, match=message):
        FunctionAggregateFold(["k"], kind(), SCHEMA, 8)


def test_functions_are_given_alone_and_as_instances() -> None:
    with pytest.raises(BacklogError, match=r"the class Words\. Pass an instance: Words\(\)"):
        only_function([Words])
    with pytest.raises(BacklogError, match="Words next to other aggregates"):
        only_function(["count(*) AS n", Words()])


def test_a_key_of_a_million_rows_is_held_as_one() -> None:
    batches = []
    for start in range(0, 10**6, 10_000):
        values = range(start, start + 10_000)
        columns = [[10], [1], [1]]
        arrays = [pa.array(c * 10_000, f.type) for c, f in zip(columns, COLUMNS, strict=False)]
        arrays += [pa.array(values, pa.int64()), pa.array([True] * 10_000)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=COLUMNS))
    out = list(MergeSorted(fold())(iter(batches)))
    assert [b.to_pylist() for b in out] == [
        [{HASH: 10, "k0": 1, "s0": 1, "s1": sum(range(10**6)), "__backlog_changed": True}]
    ]
