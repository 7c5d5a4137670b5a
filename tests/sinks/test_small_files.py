"""Which small files are merged, and what that costs, without a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.sinks.delta.maintenance.small_files import DataFile, TimeShare, merges, tiers

KB, MB = 1 << 10, 1 << 20


def files(*sizes: int, partition: object = ()) -> list[DataFile]:
    return [DataFile(f"{partition}-{number}", size, partition) for number, size in enumerate(sizes)]


def test_each_tier_is_sixteen_times_the_one_before_and_the_last_is_half_of_the_target() -> None:
    assert tiers(64 * MB) == (128 * KB, 2 * MB, 32 * MB)
    assert tiers(100_000_000) == (195_312, 3_125_000, 50_000_000)
    assert tiers(4 * MB) == (128 * KB, 2 * MB)
    assert tiers(200 * KB) == (100 * KB,)
    assert tiers(1) == (1,)


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([10 * KB] * 23, []),
        ([10 * KB] * 24, [24]),
        ([10 * KB] * 23 + [40 * MB], []),
        ([40 * MB] + [10 * KB] * 24, [24]),
        ([10 * KB] * 12 + [40 * MB] + [10 * KB] * 12, [24]),
        ([10 * KB] * 23 + [128 * KB] * 23, []),
        ([128 * KB] * 24 + [10 * KB] * 24, [24]),  # the smaller tier first, and the other too: it fits
        ([40 * MB] * 100, []),
        ([3 * MB] * 24, [21]),  # what fits into one file; the rest waits
        ([10 * MB] * 1000, [6]),
    ],
)
def test_what_is_merged(sizes: list[int], merged: list[int]) -> None:
    found = [len(group) for group in merges(files(*sizes))]
    assert found[: len(merged)] == merged
    assert bool(found) == bool(merged)


def test_partitions_are_merged_apart_and_those_with_more_files_first() -> None:
    few, many, none = (files(*[MB] * count, partition=(("day", count),)) for count in (24, 30, 23))
    assert merges([*few, *none, *many], most_bytes=60 * MB) == [many, few]
    assert merges([*few, *none, *many], most_bytes=40 * MB) == [many]
    assert merges([*few, *none, *many], most_bytes=1) == [many]  # never stuck


@given(
    st.lists(st.tuples(st.integers(0, 80 * MB), st.integers(0, 2)), max_size=200),
    st.integers(2, 30),
    st.sampled_from([64 * MB, 8 * MB, 100 * KB]),
)
def test_a_merge_takes_neighbours_of_one_partition_up_to_the_target(
    given_files: list[tuple[int, int]], enough: int, target: int
) -> None:
    table = [DataFile(str(number), size, partition) for number, (size, partition) in enumerate(given_files)]
    found = merges(table, target, enough=enough)
    chosen = [file for group in found for file in group]
    assert len(chosen) == len(set(chosen))
    for group in found:
        assert len(group) > 1
        assert len({file.partition for file in group}) == 1
        assert sum(file.size for file in group) <= target
        assert all(2 * file.size < target or file.size < 1 for file in group)
        assert group == sorted(group, key=lambda file: int(file.path))
    assert sum(file.size for file in chosen) <= target or len(found) == 1


@pytest.mark.parametrize(("size", "commits", "shrinks_to"), [(10 * KB, 40_000, 0.75), (300 * KB, 5000, 1.0)])
def test_a_row_is_rewritten_three_times_and_the_number_of_files_stays(
    size: int, commits: int, shrinks_to: float
) -> None:
    """One commit per second for half a day: few files stay small, the others have the target size."""
    table: list[DataFile] = []
    written = rewritten = most = 0
    for commit in range(commits):
        table.append(DataFile(str(commit), size))
        written += size
        if commit % 8 == 0:
            for group in merges(table):
                taken = set(group)
                place = table.index(group[0])
                merged = sum(file.size for file in group)
                # Only small files have much to lose by it.
                into = int(merged * shrinks_to) if group[0].size == size else merged
                table = [file for file in table if file not in taken]
                table.insert(place, DataFile(f"{commit} {group[0].path}", into))
                rewritten += merged
        small = [file for file in table if file.size < 32 * MB]
        most = max(most, len(small))
    assert most < 3 * 24 + 8
    assert rewritten < 3 * written


def test_a_share_of_a_tenth_waits_ten_times_as_long() -> None:
    share = TimeShare(0.1)
    assert share.allows(0.0)
    share.spent(100.0, 102.0)
    assert not share.allows(119.9)
    assert share.allows(120.0)
