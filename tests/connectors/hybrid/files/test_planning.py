"""Where batches end and which rows each task reads, for files of known layout."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.files.entries import DataFile, FilePartition, Piece
from backlog_spark.connectors.hybrid.files.layouts import Layout, TextLayout, UnitLayout
from backlog_spark.connectors.hybrid.files.planning import FileOffset, Planner

UNITS = st.lists(st.integers(0, 50), max_size=6)


def planner(
    units: list[list[int]],
    *,
    looks: int = 256,
    max_files: int | None = None,
    most: int | None = 2_000,
    row_bytes: int = 100,
) -> tuple[Planner, list[str]]:
    """A planner over files with these row groups, and the files that it looked into."""
    files = [DataFile(str(i), max(1, sum(rows)) * row_bytes) for i, rows in enumerate(units)]
    looked: list[str] = []

    def look(file: DataFile) -> Layout:
        looked.append(file.path)
        return UnitLayout(file.size, units[int(file.path)])

    return Planner(files, look, looks, False, max_files, most), looked


def drained(plan: Planner, wanted: list[int | None]) -> list[FileOffset]:
    positions = [(0, 0)]
    while positions[-1] != plan.end:
        positions.append(plan.next(positions[-1], wanted[min(len(positions), len(wanted)) - 1])[0])
        assert positions[-1] > positions[-2]
    return positions


def pieces_of(partitions: list[FilePartition]) -> list[Piece]:
    return [piece for partition in partitions for piece in partition.pieces]


def rows_in(units: list[list[int]], pieces: list[Piece]) -> list[tuple[int, int]]:
    """Row groups that are not empty."""
    return [
        (int(piece.file.path), group)
        for piece in pieces
        for group in range(len(units[int(piece.file.path)]))[piece.first : piece.end]
        if units[int(piece.file.path)][group]
    ]


@given(st.lists(UNITS, max_size=6), st.lists(st.integers(1, 120) | st.none(), min_size=1), st.integers(1_024, 9_000))
def test_every_row_group_is_in_one_task_of_one_batch(
    units: list[list[int]], wanted: list[int | None], most: int
) -> None:
    plan, _ = planner(units, most=most)
    positions = drained(plan, wanted)
    found = [piece for start, end in pairwise(positions) for piece in pieces_of(plan.partitions(start, end))]
    assert rows_in(units, found) == [(f, g) for f, rows in enumerate(units) for g, n in enumerate(rows) if n]
    again, _ = planner(units, most=most)
    for start, end in reversed(list(pairwise(positions))):
        assert again.partitions(start, end) == plan.partitions(start, end)


@pytest.mark.parametrize(
    ("files", "tasks"),
    [
        (10, 5),  # 120 MB: two files are less than 32 MB
        (100, 17),  # 1,200 MB: a 16th is 75 MB, which is six files
        (1_000, 100),  # 12 GB: at most 128 MB, which is ten files
    ],
)
def test_tasks_are_as_large_as_the_batch_allows(files: int, tasks: int) -> None:
    plan, _ = planner([[6, 6]] * files, most=None, row_bytes=1 << 20)
    found = plan.partitions((0, 0), plan.end)
    assert len(found) == tasks
    assert [piece.file.path for piece in pieces_of(found)] == [str(i) for i in range(files)]
    begin, end = plan.partitions((0, 0), (1, 0)), plan.partitions((files - 1, 0), plan.end)
    assert (len(begin), len(end)) == (1, 1)


@given(st.lists(UNITS, min_size=1, max_size=6), st.integers(1, 120))
def test_a_batch_has_as_many_rows_as_wanted_and_no_row_group_more(units: list[list[int]], wanted: int) -> None:
    plan, _ = planner(units)
    position = (0, 0)
    while position != plan.end:
        end, rows = plan.next(position, wanted)
        groups = rows_in(units, pieces_of(plan.partitions(position, end)))
        counts = [units[f][g] for f, g in groups]
        assert rows == sum(counts)
        assert end == plan.end or rows >= wanted
        assert sum(counts[:-1]) < wanted
        position = end


def test_nothing_wanted_is_nothing_read() -> None:
    plan, _ = planner([[5, 5], [5]])
    assert plan.next((0, 1), 0) == ((0, 1), 0)


def test_a_batch_has_no_more_files_than_it_may() -> None:
    plan, _ = planner([[5, 5], [5], [5], [5]], max_files=2)
    assert drained(plan, [None]) == [(0, 0), (2, 0), (4, 0)]
    assert plan.next((0, 0), 100) == ((2, 0), 15)
    assert plan.next((0, 1), 100) == ((2, 0), 10)


def test_only_files_near_the_position_are_opened() -> None:
    plan, looked = planner([[10]] * 1_000)
    assert plan.next((500, 0), 35) == ((504, 0), 40)
    assert looked == ["500", "501", "502", "503"]
    plan.next((500, 0), 35)
    assert len(looked) == 4
    plan.partitions((500, 0), (900, 0))
    assert len(looked) == 4


def test_rows_of_very_many_files_are_estimated_by_their_size() -> None:
    plan, looked = planner([[10]] * 1_000, looks=16)
    assert plan.next((0, 0), 5_000) == ((500, 0), 5_000)
    assert len(looked) == 16
    assert plan.next((500, 0), None) == ((1_000, 0), 5_000)
    assert plan.total == 10_000


def test_files_with_known_rows_are_not_opened() -> None:
    def look(file: DataFile) -> Layout:
        raise AssertionError(file)

    plan = Planner([DataFile(str(i), 100, rows=10) for i in range(100)], look, 256, False, None, 1_000)
    assert plan.next((0, 0), 30) == ((3, 0), 30)
    assert plan.next((0, 0), None) == ((100, 0), 1_000)
    assert plan.total == 1_000


def test_files_that_are_left_out_have_no_rows() -> None:
    files = [DataFile(str(i), 1_000) for i in range(4)]
    plan = Planner(files, lambda f: None if f.path in "02" else UnitLayout(1_000, [10]), 256, True, None, 2_000)
    assert plan.next((0, 0), 15) == ((4, 0), 20)


def test_one_large_file_is_read_by_several_tasks_and_small_ones_by_one() -> None:
    plan, _ = planner([[10] * 40], most=10_000)
    found = plan.partitions((0, 0), plan.end)
    assert [(p.first, p.end) for p in pieces_of(found)] == [(0, 10), (10, 20), (20, 30), (30, None)]
    assert len(found) == 4
    small, _ = planner([[10]] * 100, most=10 << 20)
    # 20 files of 1,000 bytes and what opening each costs.
    assert [len(p.pieces) for p in small.partitions((0, 0), small.end)] == [20] * 5


@given(st.integers(1, 10_000), st.floats(0.001, 1), st.integers(1, 3_000), st.integers(1_024, 5_000))
def test_text_is_cut_anywhere_without_a_gap(size: int, rate: float, wanted: int, most: int) -> None:
    layout = TextLayout(size, rate, True)
    positions: list[int | None] = [0]
    while (last := positions[-1]) is not None:
        positions.append(layout.advance(last, wanted)[0])
    found = [cut for a, b in pairwise(positions) if a is not None for cut in layout.cuts(a, b, most)]
    assert found[0][0] == 0
    assert found[-1][1] is None
    assert all(left[1] == right[0] for left, right in pairwise(found))
    assert sum(taken for _, _, taken in found) == size
    assert all(0 < taken <= 1.5 * most for _, _, taken in found)


@pytest.mark.parametrize("wanted", [1, 10_000])
def test_text_that_cannot_be_split_is_one_piece(wanted: int) -> None:
    layout = TextLayout(10_000, 0.01, False)
    assert layout.advance(0, wanted) == (None, 100)
    assert layout.cuts(0, None, 1_024) == [(0, None, 10_000)]
