"""A key group's store against a dictionary, batch after batch. Its state is in one map and one value of Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType

from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.state import state_codec as texts
from backlog_spark.state import store as store_module
from backlog_spark.state import tables
from backlog_spark.state.store import NEVER, GroupStore, Recent
from backlog_spark.state.tables import StateSchema, combine
from tests.operators.groups import Handle

STATE = StateSchema((StringType(),), (LongType(),))
# Key "a7" has the hash of "b7": different keys with one hash stay apart.
KEYS = st.integers(0, 40).flatmap(lambda n: st.sampled_from([f"a{n}", f"b{n}"]))
BATCHES = st.lists(
    st.dictionaries(KEYS, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=12), min_size=1, max_size=12
)


def hash_of(key: str) -> int:
    """Spread over all buckets, the same for two keys each."""
    return (int(key[1:].rstrip("x")) + 1) * 0x9E3779B97F4A7C15 % 2**64 - 2**63


def table(rows: dict[str, Any], schema: StateSchema = STATE) -> pa.RecordBatch:
    columns = [
        pa.array([hash_of(key) for key in rows], pa.int64()),
        pa.array(list(rows), pa.string()),
        pa.array(list(rows.values()), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow())


def due_at_seven(rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    return np.full(rows.num_rows, 7), np.full(rows.num_rows, NEVER)


class Group:
    """Drives a store like a batch: new values of keys, None for deleted keys."""

    def __init__(self, schema: StateSchema = STATE, due: Any = None) -> None:
        self.handle = Handle()
        self.schema, self.due = schema, due
        self.known: dict[str, Any] = {}

    def batch(self, changes: dict[str, Any]) -> None:
        store = GroupStore(self.handle, self.schema, self.due)  # type: ignore[arg-type]
        store.open(MIN_WATERMARK)
        asked = np.array([hash_of(key) for key in changes], dtype=np.int64)
        rows = store.load(asked, MIN_WATERMARK, MIN_WATERMARK).to_pydict()
        old = dict(zip(rows["k0"], rows["s0"], strict=True))
        assert len(old) == len(rows["k0"]), "no key twice"
        assert old.items() <= self.known.items()
        assert {key for key in self.known if hash_of(key) in asked} <= set(old)
        if self.due is None:
            assert {hash_of(key) for key in old} <= set(asked.tolist()), "no other ones have to be looked at"
        now = {key: value for key, value in {**old, **changes}.items() if value is not None}
        store.save(table(now, self.schema))
        store.close()
        self.known = {key: value for key, value in {**self.known, **changes}.items() if value is not None}

    def check(self) -> None:
        """Read and check everything."""
        store = GroupStore(self.handle, self.schema, self.due)  # type: ignore[arg-type]
        store.open(MIN_WATERMARK)
        every = np.array([hash_of(f"a{n}") for n in range(41)], dtype=np.int64)
        rows = store.load(every, MIN_WATERMARK, MIN_WATERMARK).to_pydict()
        assert sorted(zip(rows["k0"], rows["s0"], strict=True)) == sorted(self.known.items())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of three keys."""
    monkeypatch.setattr(tables, "BUCKET_KEYS", 3)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES)
def test_state_is_what_the_batches_made_it(batches: list[dict[str, Any]]) -> None:
    group = Group()
    for changes in batches:
        group.batch(changes)
        group.check()


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES)
def test_of_an_operator_with_timers_whole_buckets_are_written(batches: list[dict[str, Any]]) -> None:
    group = Group(due=due_at_seven)
    for changes in batches:
        group.batch(changes)
        assert group.handle.head[5] is None
        group.check()


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES, BATCHES)
def test_accumulators_that_were_added_are_null(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    group = Group()
    for changes in before:
        group.batch(changes)
    wider = StateSchema(STATE.keys, (*STATE.slots, LongType()))
    store = GroupStore(group.handle, wider, None)  # type: ignore[arg-type]
    store.open(MIN_WATERMARK)
    every = np.array([hash_of(f"a{n}") for n in range(41)], dtype=np.int64)
    rows = store.load(every, MIN_WATERMARK, MIN_WATERMARK)
    assert rows.schema.equals(wider.arrow())
    assert rows.column("s1").null_count == rows.num_rows
    assert sorted(zip(*(rows.column(n).to_pylist() for n in ("k0", "s0")), strict=True)) == sorted(group.known.items())


ADDED = st.tuples(KEYS, st.sampled_from(["add", "add", "add", "change", "remove"]), st.integers(0, 9))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(ADDED, max_size=8), min_size=1, max_size=25))
def test_rows_of_a_key_stay_in_order_however_they_come_and_go(batches: list[list[tuple[str, str, int]]]) -> None:
    """As a join does: rows are added behind all others. Rows that change or go may be any of a key."""
    handle, known = Handle(), dict[str, list[int]]()
    for step, batch in enumerate([*batches, []]):
        store = GroupStore(handle, STATE, None)  # type: ignore[arg-type]
        store.open(MIN_WATERMARK)
        keys = [key for key, *_ in batch] if step < len(batches) else list(known)
        asked = np.array([hash_of(key) for key in keys], dtype=np.int64)
        old = store.load(asked, MIN_WATERMARK, MIN_WATERMARK)
        loaded: dict[str, list[int]] = {}
        rows = list(zip(*(old.column(name).to_pylist() for name in ("k0", "s0")), strict=True))
        for key, value in rows:
            loaded.setdefault(key, []).append(value)
        assert loaded == {key: known[key] for key in known if known[key] and hash_of(key) in asked.tolist()}
        for key, what, value in batch:
            mine = [at for at, (other, _) in enumerate(rows) if other == key]
            if what == "add" or not mine:
                rows.append((key, value))
            elif what == "change":
                rows[mine[value % len(mine)]] = (key, value)
            else:
                del rows[mine[value % len(mine)]]
        store.save(combine([table({key: value}) for key, value in rows], STATE.arrow()))
        store.close()
        known.update({key: [] for key in loaded})
        for key in dict.fromkeys(key for key, _ in rows):
            known[key] = [value for other, value in rows if other == key]


def test_a_batch_of_few_keys_writes_no_bucket_until_that_has_paid() -> None:
    group = Group()
    group.batch({f"{side}{n}": n for side in "ab" for n in range(40)})
    count = len(group.handle.buckets)
    assert count >= 16
    written = []
    for n in range(60):
        before = dict(group.handle.buckets)
        group.batch({f"a{n % 40}": n + 100, f"b{(n + 20) % 40}": n})
        written.append(sum(group.handle.buckets.get(key) is not before.get(key) for key in before))
        group.check()
    rewritten = [n for n in written if n]
    # With two keys that are new each time, about the square root of 2 * 80 / 2 batches lie between.
    assert 3 <= len(rewritten) <= 20
    assert max(rewritten) <= count
    assert sum(written) < 60 * 2 * 2, "less than the buckets of what each batch changes"


def test_a_single_bucket_is_not_written_by_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BUCKET_KEYS", 4096)
    group = Group()
    group.batch({f"a{n}": n for n in range(40)})
    written = []
    for n in range(60):
        before = dict(group.handle.buckets)
        group.batch({f"a{n % 40}": n + 100})
        written.append(group.handle.buckets != before)
        group.check()
    assert len(group.handle.buckets) == 1
    # With one key that is new each time, about the square root of 2 * 40 batches lie between.
    assert 3 <= sum(written) <= 10


def test_large_values_are_not_kept_in_the_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    group.batch({f"{side}{n}": n for side in "ab" for n in range(40)})
    group.batch({"a1": -1, "a2": -2})
    assert group.handle.head[5] is not None
    monkeypatch.setattr(store_module, "_APART_BYTES", 10)
    group.batch({"a3": 1})
    assert group.handle.head[5] is None
    group.check()


def test_rows_that_are_added_to_a_key_do_not_rewrite_its_others() -> None:
    group = Group()
    rows = {f"a{n}": n for n in range(41)}

    def add(keys: list[str], copies: int) -> int:
        """The values that were written, in characters."""
        before = dict(group.handle.buckets)
        store = GroupStore(group.handle, STATE, None)  # type: ignore[arg-type]
        store.open(MIN_WATERMARK)
        asked = np.array([hash_of(key) for key in keys], dtype=np.int64)
        old = store.load(asked, MIN_WATERMARK, MIN_WATERMARK)
        new = [table({key: rows[key]}) for key in keys for _ in range(copies)]
        store.save(combine([old, *new], STATE.arrow()))
        store.close()
        changed = [v for k, v in group.handle.buckets.items() if before.get(k) is not v]
        return sum(len(text) for text, _ in changed) + len(group.handle.head[5] or "")

    whole = add(list(rows), 200)
    written = [add([f"a{n % 41}", f"a{(n * 7) % 41}"], 1) for n in range(60)]
    # Of 8,200 rows each batch adds 2 to keys that have 200.
    assert sum(written) < 2 * whole


def test_more_than_a_value_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_MOST_BYTES", 1_000)
    group = Group()
    group.batch({"a1": 1})
    with pytest.raises(BacklogError, match=r"rows of state in one bucket have .* Raise spark\.backlog\.keyGroups"):
        group.batch({f"a{n}" + "x" * 500: n for n in range(40)})


def test_hashes_without_rows_are_known() -> None:
    nothing = Recent.nothing(STATE.arrow())
    some = nothing.changed(np.array(sorted(map(hash_of, ["a1", "a2"]))), table({"a1": 1}))
    assert some.listed.tolist() == [hash_of("a2")]
    assert some.changed(np.array([hash_of("a1")]), table({})).listed.tolist() == sorted(map(hash_of, ["a1", "a2"]))
