"""Reducing without Spark: any cut of the sorted rows into batches gives each key once."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructType

from backlog_spark.operators.reduce import ReduceFold
from backlog_spark.state.sorted import MergeSorted
from backlog_spark.state.tables import HASH

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
