"""How records are divided between batches and tasks: examples worked out by hand, and properties."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.kafka.ranges import Range, limited, split

A, B, C = ("a", 0), ("a", 1), ("b", 0)


@pytest.mark.parametrize(
    ("start", "latest", "rows", "expected"),
    [
        ({A: 0, B: 5}, {A: 10, B: 5}, None, {A: 10, B: 5}),
        ({A: 0, B: 5}, {A: 10, B: 15}, 100, {A: 10, B: 15}),
        ({A: 0, B: 5}, {A: 10, B: 15}, 20, {A: 10, B: 15}),
        ({A: 0, B: 5}, {A: 10, B: 35}, 20, {A: 5, B: 20}),
        # 10 of 1001: 9.99 and 0.0099.
        ({A: 0, B: 0}, {A: 1000, B: 1}, 10, {A: 10, B: 1}),
        ({A: 0, B: 0, C: 0}, {A: 100, B: 100, C: 100}, 1, {A: 1, B: 1, C: 1}),
        # A log that is shorter than what was read of it.
        ({A: 7, B: 0}, {A: 3, B: 4}, 2, {A: 7, B: 2}),
        ({}, {A: 3}, 2, {}),
    ],
)
def test_limited(
    start: dict[tuple[str, int], int],
    latest: dict[tuple[str, int], int],
    rows: int | None,
    expected: dict[tuple[str, int], int],
) -> None:
    assert limited(start, latest, rows) == expected


sizes = st.lists(st.integers(0, 10**6), min_size=1, max_size=20)


@given(sizes, st.integers(1, 10**6))
def test_a_batch_is_no_smaller_than_asked_and_little_larger(found: list[int], rows: int) -> None:
    start = {("t", i): i * 3 for i in range(len(found))}
    ends = limited(start, {p: at + found[p[1]] for p, at in start.items()}, rows)
    taken = [ends[p] - start[p] for p in start]
    assert min(rows, sum(found)) <= sum(taken) < rows + len(found)
    assert all(0 <= n <= size and (n > 0) == (size > 0) for n, size in zip(taken, found, strict=True))


@pytest.mark.parametrize(
    ("parts", "least", "expected"),
    [
        # As in the tests of Spark's KafkaOffsetRangeCalculator.
        ([(A, 1, 5)], None, [(A, 1, 5)]),
        ([(A, 1, 5), (B, 1, 1)], None, [(A, 1, 5)]),
        ([(A, 1, 2), (B, 1, 2), (C, 1, 2)], 3, [(A, 1, 2), (B, 1, 2), (C, 1, 2)]),
        ([(A, 1, 5)], 2, [(A, 1, 3), (A, 3, 5)]),
        ([(A, 1, 10)], 4, [(A, 1, 3), (A, 3, 5), (A, 5, 7), (A, 7, 10)]),
        ([(A, 1, 5), (B, 1, 5)], 4, [(A, 1, 3), (A, 3, 5), (B, 1, 3), (B, 3, 5)]),
        (
            [(A, 1, 40), (B, 1, 20)],
            6,
            [(A, 1, 10), (A, 10, 20), (A, 20, 30), (A, 30, 40), (B, 1, 10), (B, 10, 20)],
        ),
        # A tiny partition stays whole.
        ([(A, 0, 100), (B, 0, 1)], 3, [(A, 0, 50), (A, 50, 100), (B, 0, 1)]),
        # No more pieces than offsets.
        ([(A, 0, 2)], 10, [(A, 0, 1), (A, 1, 2)]),
        ([], 3, []),
        ([(A, 4, 4)], 3, []),
    ],
)
def test_split(
    parts: list[tuple[tuple[str, int], int, int]],
    least: int | None,
    expected: list[tuple[tuple[str, int], int, int]],
) -> None:
    found = split([Range(*part) for part in parts], least)
    assert [(r.partition, r.start, r.until) for r in found] == expected


@given(sizes, st.integers(1, 100))
def test_pieces_are_the_whole_in_order(found: list[int], least: int) -> None:
    ranges = [Range(("t", i), 10, 10 + size) for i, size in enumerate(found)]
    pieces = split(ranges, least)
    assert [(r.partition, offset) for r in pieces for offset in (r.start, r.until)] == sorted(
        (r.partition, offset) for r in pieces for offset in (r.start, r.until)
    )
    for whole in ranges:
        own = [r for r in pieces if r.partition == whole.partition]
        assert sum(r.size for r in own) == whole.size
        assert all(a.until == b.start for a, b in itertools.pairwise(own))
