"""A key that does not fit into a worker's memory is refused by its name; large keys that fit need little of it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.errors import BacklogError
from backlog_spark.operators import key_memory
from backlog_spark.operators.key_memory import check_largest_key, free_memory, naming_largest_key
from backlog_spark.operators.key_sort import sorted_by_hash
from backlog_spark.operators.windows.functions import LazyRows, Rows


def rows_of(counts: dict[int, int], width: int = 100) -> pa.RecordBatch:
    keys = [key for key, count in counts.items() for _ in range(count)]
    return pa.record_batch(
        {
            "hash": pa.array([key * 7 for key in keys], pa.int64()),
            "k": pa.array([f"key {key}" for key in keys]),
            "text": pa.array(["x" * width] * len(keys)),
        }
    )


def test_the_system_tells_what_is_free() -> None:
    found = free_memory()
    assert found is not None
    assert 1 << 20 < found < 1 << 45


@given(
    st.dictionaries(st.integers(0, 20), st.integers(1, 30), min_size=1, max_size=8),
    st.integers(1, 100_000),
    st.sampled_from([10, 1_000]),
    st.booleans(),
)
def test_the_key_with_most_rows_is_named_if_it_alone_does_not_fit(
    counts: dict[int, int], free: int, width: int, renamed: bool
) -> None:
    most = max(counts.values())
    names = {f"key {key}" for key, count in counts.items() if count == most}
    rows = rows_of(counts, width)
    if renamed:  # as rows that arrive may be
        rows = rows.rename_columns(["hash", "value", "text"])
    share = rows.nbytes * most / rows.num_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_memory, "free_memory", lambda: free)
        patch.setattr(key_memory, "_UNCHECKED_BYTES", 0)
        if share * 2 > free + 2:
            with pytest.raises(BacklogError, match=f"join: the key 'key .*' has {most} rows") as raised:
                check_largest_key("join", ["k"], [rows])
            assert any(repr(name) in str(raised.value) for name in names)
        elif share * 2 <= free:
            check_largest_key("join", ["k"], [rows])
        with (
            pytest.raises(BacklogError, match=rf"has {most} rows .* ran out of memory"),
            naming_largest_key("join", ["k"], [rows.slice(0, 0), rows]),
        ):
            raise MemoryError


@given(
    st.lists(st.dictionaries(st.integers(-3, 3), st.integers(1, 40), max_size=4), max_size=6), st.integers(1, 20_000)
)
def test_a_sort_asks_before_it_reads_a_hash_that_is_too_large(parts: list[dict[int, int]], held: int) -> None:
    asked = []

    def check(row: pa.RecordBatch, rows: int, nbytes: int) -> None:
        assert row.num_rows == 1
        assert nbytes > held
        asked.append((row.column(0)[0].as_py(), rows))

    total: dict[int, int] = {}
    for part in parts:
        for key, count in part.items():
            total[key * 7] = total.get(key * 7, 0) + count
    seen: dict[int, int] = {}
    for piece in sorted_by_hash((rows_of(part) for part in parts), held, 1, check):
        (hash_,) = set(piece.column(0).to_pylist())
        seen[hash_] = piece.num_rows
    assert seen == total
    assert all(total[hash_] == rows for hash_, rows in asked)
    if sum(total.values()) * 150 < held:
        assert not asked
    # A row has at least 100 bytes, and a range of one hash is asked about whenever files were needed.
    assert {hash_ for hash_, rows in total.items() if rows * 100 > held} <= {hash_ for hash_, _ in asked}


@given(st.integers(0, 60), st.integers(1, 9), st.data())
def test_rows_that_are_made_in_parts_are_the_same_rows(count: int, part: int, data: st.DataObject) -> None:
    batch = pa.record_batch({"a": list(range(count)), "b": [str(n) for n in range(count)]})
    start = data.draw(st.integers(0, count))
    end = data.draw(st.integers(start, count))
    made = LazyRows(batch)
    made.PART, made.is_large = part, True  # type: ignore[misc]
    rows, expected = Rows(made, start, end), [(n, str(n)) for n in range(start, end)]
    assert list(rows) == expected
    assert rows == expected
    assert list(reversed(rows)) == expected[::-1]
    for index in range(-len(rows), len(rows)):
        assert rows[index] == expected[index]
    with pytest.raises(IndexError):
        rows[len(rows)]
    cut = data.draw(st.slices(max(1, count)))
    assert rows[cut] == expected[cut]
    assert list(Rows(LazyRows(batch), start, end)[cut]) == expected[cut]
