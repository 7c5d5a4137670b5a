"""State that is handed over in pieces of buckets: the same rows, and the same state as if they had come as rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.aggregates import Sum
from backlog_spark.operators.merge import AggregateFold
from backlog_spark.state import bucket_pieces as pieces_module
from backlog_spark.state import seeds as seeds_module
from backlog_spark.state import state_codec as texts
from backlog_spark.state import tables
from backlog_spark.state.bucket_pieces import Piece, buckets_from, packed_pieces, unpacked_pieces
from backlog_spark.state.keys import groups_of
from backlog_spark.state.seeds import SEED_PIECES, SEED_SILENT, ChosenRows, Control, PackFiles, Whole
from backlog_spark.state.state_codec import unpacked_rows
from backlog_spark.state.store import GroupStore
from backlog_spark.state.tables import StateSchema, buckets_of, combine, from_bytes
from tests.operators.groups import Handle, run

if TYPE_CHECKING:
    from backlog_spark.state.timer_reports import GroupReport

STATE = StateSchema((StringType(),), (LongType(),))
GROUPS = 4
HASHES = st.integers(-(2**63), 2**63 - 1)


def table(hashes: list[int], sums: list[int] | None = None) -> pa.RecordBatch:
    keys = pa.array([f"k{h}" for h in hashes], pa.string())
    columns = [pa.array(hashes, pa.int64()), keys, pa.array(hashes if sums is None else sums, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=STATE.arrow())


def packed(rows: pa.RecordBatch, bits: int) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for group, data in packed_pieces(rows, STATE, GROUPS, bits):
        found.setdefault(group, []).extend(unpacked_pieces(data))
    return found


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.lists(HASHES, max_size=30), st.integers(0, 5)), max_size=4),
    st.integers(0, 5),
    st.sampled_from([1, 1 << 23]),
)
def test_every_row_is_in_its_bucket(
    monkeypatch: pytest.MonkeyPatch, files: list[tuple[list[int], int]], bits: int, most: int
) -> None:
    """Whoever packs them need not agree on how many buckets there are."""
    monkeypatch.setattr(pieces_module, "_ROW_BYTES", most)
    groups: dict[int, list[Piece]] = {}
    for hashes, seen in files:
        for group, pieces in packed(table(hashes), seen).items():
            assert all(piece.bits == seen and piece.rows for piece in pieces)
            groups.setdefault(group, []).extend(pieces)
    found: Counter[int] = Counter()
    for group, pieces in groups.items():
        rows = 0
        for bucket, text in buckets_from(pieces, bits, STATE).items():
            batch = unpacked_rows(text, 1, STATE)
            own = batch.column(0).to_numpy()
            assert (groups_of(own, GROUPS) == group).all()
            assert (buckets_of(own, bits) == bucket).all()
            assert batch.column(1).to_pylist() == [f"k{h}" for h in own.tolist()]
            assert batch.column(2).to_pylist() == own.tolist()
            found.update(own.tolist())
            rows += batch.num_rows
        assert rows == sum(piece.rows for piece in pieces)
    assert found == Counter(h for hashes, _ in files for h in hashes)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sets(HASHES, min_size=1, max_size=60),
    st.integers(0, 4),
    st.lists(st.dictionaries(st.integers(0, 70), st.one_of(st.none(), st.integers(0, 9)), max_size=9), max_size=5),
)
def test_a_store_that_took_pieces_in_goes_on_as_any(
    monkeypatch: pytest.MonkeyPatch, hashes: set[int], bits: int, batches: list[dict[int, int | None]]
) -> None:
    monkeypatch.setattr(tables, "BUCKET_KEYS", 3)
    order = sorted(hashes)
    parts = [order[::2], order[1::2]]
    pieces = [piece for part in parts for number in packed(table(part), bits).values() for piece in number]
    handle = Handle()
    store = GroupStore(handle, STATE, None)  # type: ignore[arg-type]
    store.open(MIN_WATERMARK)
    assert store.is_new
    store.take_in(pieces)
    known = {h: h for h in order}
    # The first batch comes with the pieces, the others later.
    for number, places in enumerate(batches):
        changes = {order[place % len(order)] if place < 60 else place: value for place, value in places.items()}
        if number:
            store = GroupStore(handle, STATE, None)  # type: ignore[arg-type]
            store.open(MIN_WATERMARK)
            assert not (known and store.is_new)
        asked = np.array(list(changes), dtype=np.int64)
        rows = store.load(asked, MIN_WATERMARK, MIN_WATERMARK).to_pydict()
        assert dict(zip(rows["__hash"], rows["s0"], strict=True)) == {h: known[h] for h in changes if h in known}
        after = {h: value for h, value in changes.items() if value is not None}
        store.save(table(list(after), list(after.values())))
        store.close()
        known = {h: value for h, value in {**known, **changes}.items() if value is not None}
    if not batches:
        store.close()
    store = GroupStore(handle, STATE, None)  # type: ignore[arg-type]
    store.open(MIN_WATERMARK)
    every = np.array([*order, *range(60, 71)], dtype=np.int64)
    rows = store.load(every, MIN_WATERMARK, MIN_WATERMARK).to_pydict()
    assert sorted(zip(rows["__hash"], rows["s0"], strict=True)) == sorted(known.items())


def test_pieces_of_one_bucket_are_more_than_a_value_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = packed(table([GROUPS * n for n in range(1_000)]), 0)[0]
    monkeypatch.setattr(texts, "_MOST_BYTES", 10_000)
    with pytest.raises(BacklogError, match=r"of one bucket have .* Raise spark\.backlog\.keyGroups"):
        buckets_from(pieces * 3, 0, STATE)


def files_of(folder: Path, parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """What Spark's source of whole files gives."""
    found = []
    for number, rows in enumerate(parts):
        path = folder / f"e0-{number}.parquet"
        pq.write_table(pa.Table.from_batches([rows]), path)
        columns = [pa.array([str(path)]), pa.array([path.read_bytes()], pa.binary())]
        found.append(pa.RecordBatch.from_arrays(columns, ["path", "content"]))
    return found


@pytest.mark.parametrize("bucket_keys", [10_000, 400])
@pytest.mark.parametrize("parts", [2, 9])
@pytest.mark.parametrize("last", [4_000, 10])
def test_files_become_pieces_where_these_are_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_keys: int, parts: int, last: int
) -> None:
    """That is told for all of them alike, also if little is left for the last task or the last time."""
    monkeypatch.setattr(tables, "BUCKET_KEYS", bucket_keys)
    monkeypatch.setattr(seeds_module, "_BUCKETS_BYTES", 100_000)
    chance = np.random.default_rng(3)
    hashes = [chance.integers(-(2**63), 2**63 - 1, count).tolist() for count in (4_000, 4_000, last)]
    files = files_of(tmp_path, [table(each) for each in hashes])
    whole = Whole(sum(len(batch.column(1)[0].as_py()) for batch in files), parts)
    found: Counter[int] = Counter()
    origins, bits = set(), set()
    pack = PackFiles(STATE, GROUPS, False, ChosenRows(), whole)
    for batch in (*pack(iter(files[:2])), *pack(iter(files[2:]))):
        for group, origin, slots, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            assert slots == 1
            origins.add(origin)
            if origin == SEED_PIECES:
                pieces = unpacked_pieces(data)
                bits |= {piece.bits for piece in pieces}
                rows = combine([piece.unpacked(STATE) for piece in pieces], STATE.arrow())
            else:
                rows = from_bytes(data, STATE.arrow())
            own = rows.column(0).to_numpy()
            assert (groups_of(own, GROUPS) == group).all()
            found.update(own.tolist())
    assert found == Counter(h for each in hashes for h in each)
    # Two or three thousand keys a group; a file of few rows says less of that.
    if bucket_keys == 400 and parts == 9:
        assert origins - {SEED_PIECES} == {SEED_SILENT}
        assert max(bits, default=0) == 0
    else:
        assert origins == {SEED_PIECES}
        assert max(bits) == {10_000: 0, 400: 4 if last == 4_000 else 3}[bucket_keys]


def fold() -> AggregateFold:
    return AggregateFold(["k"], [Sum("v", name="total")], StructType.fromDDL("k string, v long"), GROUPS)


def states(handle: Handle) -> list[dict[str, Any]]:
    """All rows that a group has."""
    store = GroupStore(handle, STATE, None)  # type: ignore[arg-type]
    store.open(MIN_WATERMARK)
    hashes = np.array([GROUPS * n for n in range(200)])
    return sorted(store.load(hashes, MIN_WATERMARK, MIN_WATERMARK).to_pylist(), key=str)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("live", [[], [0, 8, 8, 600]])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_key_group_takes_pieces_in_as_it_takes_rows(there: bool, live: list[int], mixed: bool) -> None:
    """Whether it has rows already, whatever comes with them, and if some of the files were packed as rows."""
    reports: list[GroupReport] = []
    rows = [table([GROUPS * n for n in range(start, 100, 2)]) for start in (0, 1)]
    incoming = table(live)
    results = []
    for as_pieces in (False, True):
        handle = Handle()
        if there:
            run(fold(), handle, table([GROUPS * n for n in range(50, 150)]), Control(), reports)
        pieces = [data for _, data in packed_pieces(rows[0], STATE, GROUPS, 3)]
        pieces += [] if mixed else [data for _, data in packed_pieces(rows[1], STATE, GROUPS, 2)]
        given_rows = rows if not as_pieces else rows[1:] if mixed else []
        out = run(fold(), handle, incoming, Control(), reports, given_rows, pieces=pieces if as_pieces else [])
        results.append(([sorted(from_bytes(d, STATE.arrow()).to_pylist(), key=str) for d in out], states(handle)))
    assert results[0] == results[1]
    assert len(results[0][1]) == (150 if there else 100) + (600 in live)
