"""State in Arrow: equal keys are found with any hashes, and buckets partition a group."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DoubleType, LongType, StringType

from backlog_spark.errors import BacklogError
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.tables import (
    BUCKET_KEYS,
    StateSchema,
    bucket_bits,
    buckets_of,
    combine,
    cut,
    from_bytes,
    merged,
    split_by,
    to_bytes,
)

STATE = StateSchema((StringType(), DoubleType()), (LongType(),))


class Sums:
    """A fold of one slot, in plain Python."""

    def merge_groups(self, slots: Any, starts: np.ndarray) -> list[pa.Array]:
        (values,) = slots
        pieces = np.split(values.to_numpy(), starts[1:])
        return [pa.array([int(piece.sum()) for piece in pieces], pa.int64())]

    pack_groups = merge_groups


NAN = float("nan")
# Few hashes, so that different keys share them and even alternate.
ROWS = st.lists(
    st.tuples(
        st.integers(-2, 2),
        st.sampled_from(["", "a", "b", None]),
        st.sampled_from([0.0, 1.5, NAN, None]),
        st.integers(-(10**6), 10**6),
    ),
    min_size=1,
    max_size=60,
)


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = STATE.arrow()
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def rows_of(made: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [key(tuple(row.values())) for row in made.to_pylist()]


def key(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple("NaN" if v != v else v for v in values)


@settings(max_examples=500, deadline=None)
@given(ROWS)
def test_rows_of_one_key_are_merged_and_no_others(rows: list[tuple[Any, ...]]) -> None:
    state, order, starts = merged(batch(rows), STATE, Sums(), lifted=False)  # type: ignore[arg-type]
    expected: dict[Any, int] = defaultdict(int)
    for *named, value in rows:
        expected[key(tuple(named))] += value
    found = [tuple(r.values()) for r in state.to_pylist()]
    assert {key(r[:-1]): r[-1] for r in found} == expected
    assert len(found) == len(expected) == len(starts)
    assert sorted(order.tolist()) == list(range(len(rows)))
    assert [r[0] for r in found] == sorted(r[0] for r in found), "sorted by hash"


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_older_rows_of_a_key_come_first(rows: list[tuple[Any, ...]]) -> None:
    made = batch(rows)
    order, starts = equal_runs(made.column(0).to_numpy(), made.columns[1:3])
    for run in np.split(order, starts[1:]):
        assert run.tolist() == sorted(run.tolist())
        assert len({key(rows[i][:3]) for i in run}) == 1


def test_buckets_grow_with_the_group() -> None:
    assert [bucket_bits(n) for n in (0, 1, BUCKET_KEYS, BUCKET_KEYS + 1, 2 * BUCKET_KEYS + 1)] == [0, 0, 0, 1, 2]
    for keys in (1, 10, 1_000, 10**6):
        assert keys / (1 << bucket_bits(keys)) <= BUCKET_KEYS


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=200), st.integers(0, 6))
def test_doubling_splits_a_bucket_into_two(hashes: list[int], bits: int) -> None:
    made = np.array(hashes, dtype=np.int64)
    coarse, fine = buckets_of(made, bits), buckets_of(made, bits + 1)
    assert (fine & ((1 << bits) - 1) == coarse).all()
    assert coarse.min() >= 0
    assert coarse.max() < 1 << bits


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 7))
def test_no_row_is_lost(rows: list[tuple[Any, ...]], size: int) -> None:
    made = batch(rows)
    assert rows_of(combine(cut(made, size), made.schema)) == rows_of(made)
    assert rows_of(from_bytes(to_bytes(made), made.schema)) == rows_of(made)
    numbers = made.column(0).to_numpy()
    pieces = dict(split_by(numbers, made))
    assert sorted(pieces) == sorted(set(numbers.tolist()))
    for number, piece in pieces.items():
        assert rows_of(piece) == rows_of(made.filter(pa.array(numbers == number)))


@pytest.mark.grid
def test_more_than_arrow_holds_is_refused_not_cut() -> None:
    schema = pa.schema([("text", pa.string())])
    piece = pa.RecordBatch.from_arrays([pa.array(["x" * (1 << 20)] * 1_025)], schema=schema)
    with pytest.raises(BacklogError, match="2050 rows of state have more than 2 GiB"):
        combine([piece, piece], schema)


def test_an_integer_keeps_all_its_digits() -> None:
    large = 2**63 - 1
    made = batch([(1, None, None, large), (2, "a", NAN, None)])
    back = from_bytes(to_bytes(made), made.schema)
    assert back.column(3).to_pylist() == [large, None]
