"""Rows in the order of their hashes, in memory and by way of files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.operators.key_sort import sorted_by_hash

LONGS = st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1, 2**62, -(2**62), 0]))


def batches_of(hashes: list[list[int]]) -> list[pa.RecordBatch]:
    """A second column tells the order in which rows came."""
    found, count = [], 0
    for values in hashes:
        numbers = pa.array(range(count, count + len(values)), pa.int64())
        text = pa.array([f"row {n}" for n in numbers.to_pylist()])
        found.append(pa.record_batch({"hash": pa.array(values, pa.int64()), "n": numbers, "text": text}))
        count += len(values)
    return found


@given(st.lists(st.lists(LONGS, max_size=30), max_size=12), st.integers(1, 40), st.sampled_from([1, 200, 10**9]))
def test_every_row_once_in_order_and_no_hash_is_cut(hashes: list[list[int]], whole_keys: int, held_bytes: int) -> None:
    batches = batches_of(hashes)
    pieces = list(sorted_by_hash(iter(batches), held_bytes, whole_keys))
    rows = [row for piece in pieces for row in zip(*(c.to_pylist() for c in piece.columns), strict=True)]
    came = [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
    assert rows == sorted(came)
    ends = [(piece.column(0)[0].as_py(), piece.column(0)[-1].as_py()) for piece in pieces]
    assert all(last < first for (_, last), (first, _) in pairwise(ends))
    if held_bytes == 10**9:
        assert all(piece.num_rows >= whole_keys for piece in pieces[:-1])


def test_what_is_held_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    chance = np.random.default_rng(1)
    before = pa.total_allocated_bytes()
    most = count = 0

    def given_out() -> object:
        for _ in range(200):
            values = chance.integers(-(2**63), 2**63 - 1, 20_000)
            yield pa.record_batch({"hash": pa.array(values), "n": pa.array(values)})

    pieces = sorted_by_hash(given_out(), 1 << 20, 10_000)  # type: ignore[arg-type]
    for piece in pieces:
        most = max(most, pa.total_allocated_bytes() - before)
        count += piece.num_rows
    assert count == 4_000_000
    # 64 MB of rows in all; a range has one.
    assert most < 12 << 20
    assert list(tmp_path.iterdir()) == [], "files without a name"
