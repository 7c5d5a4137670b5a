"""Declared aggregates: folds against a second implementation, and all four execution paths against Spark's own."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cmp_to_key
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from datasketches import hll_sketch
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregates import (
    ApproxCountDistinct,
    Avg,
    BoolAnd,
    BoolOr,
    CollectList,
    CollectSet,
    Count,
    First,
    Last,
    Max,
    MaxBy,
    Min,
    MinBy,
    StdDev,
    StdDevPop,
    Sum,
    Variance,
    VariancePop,
)
from backlog_spark.operators.aggregates.base import column as column_of
from backlog_spark.operators.aggregates.base import type_of
from backlog_spark.operators.aggregates.groups import sum_decimals

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from backlog_spark.operators.aggregates.aggregate import Aggregate

LONG = 2**63 - 1

# --- Folds without Spark ---------------------------------------------------------------------------------------------


def starts_of(keys: Sequence[int]) -> np.ndarray:
    """Index of the first row of each run of equal keys."""
    return np.flatnonzero(np.diff(np.array(keys), prepend=-1))


def fold(merge: Callable[..., list[pa.Array]], keys: Sequence[int], slots: Sequence[pa.Array]) -> list[pa.Array]:
    """Sort rows by key, older ones first, and fold them."""
    order = np.argsort(np.array(keys), kind="stable")
    # Sliced on purpose: an offset into a buffer is easily forgotten.
    taken = pa.array([order[-1], *order])
    return merge([slot.take(taken).slice(1) for slot in slots], starts_of(np.array(keys)[order]))


def merge_groups(aggregate: Aggregate, rows: list[tuple[int, Any]], kind: pa.DataType, cuts: list[int]) -> list[Any]:
    """Result slots per key, ascending by key, of rows that were cut into parts and merged part by part.

    `rows` are (key, value of the only slot, or a tuple of all). A part that follows a cut is folded by itself first.
    """
    kinds = list(kind) if isinstance(kind, list) else [kind]
    width = len(kinds)
    bounds = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    keys: list[int] = []
    parts: list[list[pa.Array]] = [[] for _ in kinds]
    for start, end in pairwise(bounds):
        part = rows[start:end]
        columns = [[each[1] if width == 1 else each[1][index] for each in part] for index in range(width)]
        arrays = [pa.array(column, type=kind) for column, kind in zip(columns, kinds, strict=True)]
        folded = fold(aggregate.merge_groups, [key for key, _ in part], arrays)
        keys += sorted({key for key, _ in part})
        for collected, slot, kind in zip(parts, folded, kinds, strict=True):
            assert slot.type == kind
            slot.validate(full=True)
            collected.append(slot)
    merged = fold(aggregate.merge_groups, keys, [pa.concat_arrays(each) for each in parts])
    return [slot.to_pylist() for slot in merged] if width > 1 else merged[0].to_pylist()


def by_key(rows: list[tuple[int, Any]]) -> list[list[Any]]:
    return [[value for key, value in rows if key == each] for each in sorted({key for key, _ in rows})]


def keyed(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[int, Any]]]:
    return st.lists(st.tuples(st.integers(0, 3), st.none() | values), min_size=1, max_size=24)


CUTS = st.lists(st.integers(0, 50), max_size=3)
LONGS = st.integers(-(2**63), LONG)
DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf])


@given(keyed(LONGS | st.integers(-5, 5)), CUTS)
def test_sum_of_longs_is_exact_or_raises(rows: list[tuple[int, Any]], cuts: list[int]) -> None:
    expected = [sum(each for each in group if each is not None) for group in by_key(rows)]
    empty = [all(each is None for each in group) for group in by_key(rows)]
    if all(-(2**63) <= each <= LONG for each in expected):
        found = merge_groups(Sum("a"), rows, pa.int64(), [])
        assert found == [None if nothing else each for each, nothing in zip(expected, empty, strict=True)]
    else:
        with pytest.raises(BacklogError, match=r"sum\(a\) AS sum_a overflows bigint"):
            merge_groups(Sum("a"), rows, pa.int64(), cuts)


@given(keyed(st.integers(-(2**58), 2**58)), CUTS)
def test_sum_does_not_depend_on_the_cuts(rows: list[tuple[int, Any]], cuts: list[int]) -> None:
    assert merge_groups(Count("a"), rows, pa.int64(), cuts) == merge_groups(Sum("a"), rows, pa.int64(), [])


@given(keyed(DECIMALS | st.integers(-5, 5)), CUTS)
def test_sum_of_decimals_is_exact_or_raises(digits: list[tuple[int, Any]], cuts: list[int]) -> None:
    rows = [(key, None if each is None else decimal(each, 6)) for key, each in digits]
    expected = [
        None if all(each is None for each in group) else sum(each for each in group if each is not None)
        for group in by_key(digits)
    ]
    if all(each is None or abs(each) < 10**38 for each in expected):
        found = merge_groups(Avg("a"), [(key, (each, 1)) for key, each in rows], [pa.decimal128(38, 6), pa.int64()], [])
        assert found[0] == [None if each is None else decimal(each, 6) for each in expected]
        assert found[1] == [len(group) for group in by_key(rows)]
    else:
        with pytest.raises(BacklogError, match=r"overflows decimal128\(38, 6\)"):
            merge_groups(Sum("a"), rows, pa.decimal128(38, 6), cuts)


def test_a_sum_of_decimals_fits_the_type_and_not_just_its_bytes() -> None:
    nine = pa.array([Decimal("99.9"), Decimal("0.1")], type=pa.decimal128(3, 1))
    with pytest.raises(BacklogError, match=r"overflows decimal128\(3, 1\)"):
        Sum("a").merge_groups([nine], np.array([0]))
    with pytest.raises(BacklogError, match="overflows"):
        Sum("a").merge_groups([pa.array([Decimal("-99.9"), Decimal("-0.1")], type=pa.decimal128(3, 1))], np.array([0]))
    assert Sum("a").merge_groups([nine], np.array([0, 1]))[0].to_pylist() == [Decimal("99.9"), Decimal("0.1")]


def test_values_below_a_null_do_not_count() -> None:
    known = pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("4.0")], type=pa.decimal128(9, 1))
    hiding = pa.Array.from_buffers(known.type, 3, [pa.py_buffer(b"\x05"), known.buffers()[1]])
    assert hiding.to_pylist() == [Decimal("1.5"), None, Decimal("4.0")]
    assert Sum("a").merge_groups([hiding], np.array([0]))[0].to_pylist() == [Decimal("5.5")]
    assert Min("a").merge_groups([hiding], np.array([0]))[0].to_pylist() == [Decimal("1.5")]
    assert Max("a").merge_groups([hiding], np.array([0, 1]))[0].to_pylist() == [Decimal("1.5"), Decimal("4.0")]


def test_a_temporary_overflow_is_no_error() -> None:
    rows = pa.array([LONG, LONG, -LONG, None, -LONG, 7])
    assert Sum("a").merge_groups([rows], np.array([0]))[0].to_pylist() == [7]


@given(keyed(st.floats(-1e6, 1e6)), CUTS)
def test_sum_of_doubles(rows: list[tuple[int, Any]], cuts: list[int]) -> None:
    found = merge_groups(Sum("a"), rows, pa.float64(), cuts)
    for group, total in zip(by_key(rows), found, strict=True):
        values = [each for each in group if each is not None]
        assert (total is None) == (not values)
        assert total is None or total == pytest.approx(math.fsum(values), rel=1e-12, abs=1e-6)


def test_sum_of_doubles_keeps_nan_and_infinity_and_starts_from_zero() -> None:
    values = pa.array([math.inf, 1.0, math.inf, -math.inf, -0.0, math.nan, 1.0])
    found = Sum("a").merge_groups([values], np.array([0, 2, 4, 5]))[0].to_pylist()
    assert found[0] == math.inf
    assert math.isnan(found[1])
    assert math.copysign(1, found[2]) == 1.0
    assert math.isnan(found[3])


def sparks_order(left: Any, right: Any) -> int:
    """Spark's order as documented: NULL first, NaN last, -0.0 equal to 0.0."""
    if left is None or right is None:
        return (left is not None) - (right is not None)
    if isinstance(left, dict):  # the structs of these tests have their fields in alphabetical order, dicts may not
        return next((each for name in sorted(left) if (each := sparks_order(left[name], right[name]))), 0)
    if isinstance(left, float) and (math.isnan(left) or math.isnan(right)):
        return math.isnan(left) - math.isnan(right)
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    return (left > right) - (left < right)


def least(values: list[Any], greatest: bool) -> Any:
    values = [each for each in values if each is not None]
    return (max if greatest else min)(values, key=cmp_to_key(sparks_order)) if values else None


def same(left: Any, right: Any) -> bool:
    return (left is None) == (right is None) and sparks_order(left, right) == 0


MOMENTS = st.integers(-(2**50), 2**50).map(lambda each: datetime(1970, 1, 1) + timedelta(microseconds=each))
ORDERED = [
    (LONGS, pa.int64()),
    (st.integers(-128, 127), pa.int8()),
    (FLOATS, pa.float64()),
    (st.floats(width=32), pa.float32()),
    (DECIMALS.map(lambda each: decimal(each, 9)), pa.decimal128(38, 9)),
    (st.text(max_size=3) | st.sampled_from(["", "a", "ab", "b\x00", "é", "\U0001f600", "\uffff"]), pa.string()),
    (st.binary(max_size=3), pa.binary()),
    (st.booleans(), pa.bool_()),
    (st.dates(), pa.date32()),
    (MOMENTS, pa.timestamp("us")),
    (st.integers(-(2**50), 2**50).map(lambda each: timedelta(microseconds=each)), pa.duration("us")),
    (
        st.fixed_dictionaries({"a": st.none() | st.booleans(), "b": st.none() | FLOATS, "c": st.none() | st.text()}),
        pa.struct([("a", pa.bool_()), ("b", pa.float64()), ("c", pa.string())]),
    ),
]


def decimal(digits: int, scale: int) -> Decimal:
    """Without the rounding of the context, whose 28 digits are too few."""
    return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))


@pytest.mark.slow
@pytest.mark.parametrize(("values", "kind"), ORDERED, ids=[str(kind) for _, kind in ORDERED])
@given(data=st.data(), aggregate=st.sampled_from([Min("a"), Max("a")]), cuts=CUTS)
def test_min_and_max(
    values: st.SearchStrategy[Any], kind: pa.DataType, data: st.DataObject, aggregate: Aggregate, cuts: list[int]
) -> None:
    rows = data.draw(keyed(values))
    expected = [least(group, isinstance(aggregate, Max)) for group in by_key(rows)]
    found = merge_groups(aggregate, rows, kind, cuts)
    assert all(map(same, found, expected)), (found, expected)
    again = merge_groups(aggregate, data.draw(st.permutations(rows)), kind, cuts)
    assert all(map(same, again, expected)), (again, expected)


@pytest.mark.parametrize("aggregate", [Min("a"), Max("a")], ids=str)
def test_min_and_max_of_texts_in_many_groups(aggregate: Aggregate) -> None:
    rng = random.Random(5)
    rows = [(rng.randrange(5000), "".join(rng.choices("abc", k=rng.randrange(6)))) for _ in range(30000)]
    expected = [(max if isinstance(aggregate, Max) else min)(group) for group in by_sorted_key(rows)]
    assert merge_groups(aggregate, rows, pa.string(), [10000, 20000]) == expected


def by_sorted_key(rows: list[tuple[int, Any]]) -> list[list[Any]]:
    return [[value for _, value in group] for _, group in groupby(sorted(rows), key=lambda row: row[0])]


@given(keyed(st.booleans()), CUTS)
def test_bool_and_or(rows: list[tuple[int, Any]], cuts: list[int]) -> None:
    groups = [[each for each in group if each is not None] for group in by_key(rows)]
    assert merge_groups(BoolAnd("a"), rows, pa.bool_(), cuts) == [all(each) if each else None for each in groups]
    assert merge_groups(BoolOr("a"), rows, pa.bool_(), cuts) == [any(each) if each else None for each in groups]


@pytest.mark.slow
@pytest.mark.parametrize("aggregate", [First("v"), Last("v"), MinBy("v", "k"), MaxBy("v", "k")], ids=str)
@given(data=st.data(), cuts=CUTS)
def test_picked_rows_do_not_depend_on_cuts_nor_partitions(
    aggregate: Aggregate, data: st.DataObject, cuts: list[int]
) -> None:
    kind = pa.struct([("key", pa.int32()), ("order", pa.string()), ("value", pa.struct([("x", pa.float64())]))])
    value = st.none() | st.fixed_dictionaries({"x": st.none() | FLOATS})
    slot = {"key": st.integers(0, 1), "order": st.sampled_from([None, "", "a", "b"]), "value": value}
    rows = data.draw(keyed(st.fixed_dictionaries(slot)))
    expected = [least(group, isinstance(aggregate, Last | MaxBy)) for group in by_key(rows)]
    for each in (rows, data.draw(st.permutations(rows))):
        found = merge_groups(aggregate, each, kind, cuts)
        assert all(map(same, found, expected)), (found, expected)


def test_a_value_without_order_takes_no_part_in_the_choice() -> None:
    kind = pa.struct([("order", pa.int64()), ("value", pa.struct([("a", pa.int64()), ("l", pa.list_(pa.int64()))]))])
    rows = [(0, {"order": 1, "value": {"a": 9, "l": [9]}}), (0, {"order": 1, "value": {"a": 1, "l": []}})]
    assert merge_groups(First("v"), rows, kind, []) == [rows[0][1]]


@given(keyed(st.floats(-1e3, 1e3).map(lambda each: 1e9 + each)), CUTS)
def test_variance_of_values_far_from_zero(rows: list[tuple[int, Any]], cuts: list[int]) -> None:
    lifted = [(key, (None, None, None) if each is None else (1.0, each, 0.0)) for key, each in rows]
    n, mean, m2 = merge_groups(Variance("a"), lifted, [pa.float64()] * 3, cuts)
    for index, group in enumerate(by_key(rows)):
        exact = [Fraction(each) for each in group if each is not None]
        if not exact:
            assert (n[index], mean[index], m2[index]) == (None, None, None)
            continue
        center = sum(exact) / len(exact)
        assert n[index] == len(exact)
        assert mean[index] == pytest.approx(float(center), rel=1e-15)
        # Doubles near 10^9 are 1.2e-7 apart, so each part's mean is off by as much, and a merge of two parts by that
        # times their distance and their rows: below 0.1 here. A plain sum of squares would be off by 100.
        distance = float(max(exact) - min(exact))
        bound = 1e-9 + 4 * 1.2e-7 * distance * len(exact)
        assert m2[index] == pytest.approx(float(sum((each - center) ** 2 for each in exact)), rel=1e-9, abs=bound)


def test_variance_of_infinity_is_not_a_number() -> None:
    slots = [pa.array([1.0, 1.0]), pa.array([math.inf, 1.0]), pa.array([math.nan, 0.0])]
    assert math.isnan(Variance("a").merge_groups(slots, np.array([0]))[2][0].as_py())


def test_variance_of_huge_values_does_not_overflow() -> None:
    slots = [pa.array([1.0, 1.0]), pa.array([1.5e308, 1.5e308]), pa.array([0.0, 0.0])]
    found = [each.to_pylist() for each in Variance("a").merge_groups(slots, np.array([0]))]
    assert found == [[2.0], [1.5e308], [0.0]]


@given(keyed(st.lists(st.none() | st.integers(0, 3), max_size=3)), CUTS)
def test_collect_list_keeps_what_each_row_brought(rows: list[tuple[int, Any]], cuts: list[int]) -> None:
    kind = pa.list_(pa.field("element", pa.int64()))
    found = merge_groups(CollectList("a"), rows, kind, [])
    for group, collected in zip(by_key(rows), found, strict=True):
        lists = [each for each in group if each is not None]
        assert collected == ([*chain(*lists)] if lists else None)
    cut = merge_groups(CollectList("a"), rows, kind, cuts)
    assert [each and sorted(each, key=str) for each in cut] == [each and sorted(each, key=str) for each in found]


def test_a_null_list_may_hide_values() -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3, 5], pa.int32()), pa.array([1, 2, 3, 4, 5]), mask=None)
    hiding = pa.Array.from_buffers(lists.type, 3, [pa.py_buffer(b"\x05"), lists.buffers()[1]], children=[lists.values])
    assert hiding.to_pylist() == [[1, 2], None, [4, 5]]
    for aggregate in (CollectList("a"), CollectSet("a")):
        assert aggregate.merge_groups([hiding], np.array([0]))[0].to_pylist() == [[1, 2, 4, 5]]


@pytest.mark.slow
@pytest.mark.parametrize(("values", "kind"), ORDERED, ids=[str(kind) for _, kind in ORDERED])
@given(data=st.data(), cuts=CUTS)
def test_collect_set(values: st.SearchStrategy[Any], kind: pa.DataType, data: st.DataObject, cuts: list[int]) -> None:
    pool = data.draw(st.lists(values, min_size=1, max_size=3))
    rows = data.draw(keyed(st.lists(st.sampled_from(pool), max_size=4)))
    found = merge_groups(CollectSet("a"), rows, pa.list_(kind), cuts)
    for group, collected in zip(by_key(rows), found, strict=True):
        lists = [each for each in group if each is not None]
        assert (collected is None) == (not lists)
        distinct: list[Any] = []
        for value in chain(*lists):
            if not any(same(value, other) for other in distinct):
                distinct.append(value)
        order = cmp_to_key(sparks_order)
        assert len(collected or []) == len(distinct)
        assert all(map(same, sorted(collected or [], key=order), sorted(distinct, key=order)))


def test_sketches_merge_to_the_same_sketch_however_they_are_cut() -> None:
    aggregate = ApproxCountDistinct("a")
    hashes = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 6000)
    whole = aggregate.pack_groups([pa.array(hashes)], np.array([0, 5, 50]))
    parts: list[pa.Array] = []
    for start in (0, 1, 2):
        masks = [np.arange(len(hashes)) % 3 == start]
        kept = pa.array(hashes, mask=~masks[0])
        parts += aggregate.pack_groups([kept], np.array([0, 5, 50]))
    merged = fold(aggregate.merge_groups, [0, 1, 2] * 3, [pa.concat_arrays(parts)])[0]
    for one, other, count in zip(whole[0], merged, (5, 45, 5950), strict=True):
        assert registers(one.as_py()) == registers(other.as_py())
        assert hll_sketch.deserialize(other.as_py()).get_estimate() == pytest.approx(count, rel=5 * 0.0163)


def test_a_group_without_values_has_no_sketch() -> None:
    aggregate = ApproxCountDistinct("a")
    (packed,) = aggregate.pack_groups([pa.array([None, None, 1], pa.int64())], np.array([0, 2]))
    assert packed[0].as_py() is None
    (merged,) = aggregate.merge_groups([pa.concat_arrays([packed, packed])], np.array([0, 1, 3]))
    assert [each is None for each in merged.to_pylist()] == [True, False, False]


def registers(sketch: bytes) -> list[int]:
    """The registers of a sketch in any of its three modes (Apache DataSketches, HllSketch's preamble)."""
    compact = hll_sketch.deserialize(sketch).serialize_compact()
    mode = compact[7] & 3
    if mode == 2:
        return list(compact[40:])
    start = 8 if mode == 0 else 12
    return sorted(np.frombuffer(compact[start:], dtype=np.uint32).tolist())


@pytest.mark.parametrize(
    "aggregate",
    [Sum("a", where="b > 1"), Count(), MinBy("*", "k", order="o", last=True, name="x"), ApproxCountDistinct("a")],
    ids=str,
)
def test_aggregates_travel_by_pickle(aggregate: Aggregate) -> None:
    assert pickle.loads(pickle.dumps(aggregate)) == aggregate


def test_natural_names() -> None:
    assert [each.name for each in (Sum("a"), Count(), Count("a"), MinBy("v", "k"), Sum("a", name="total"))] == [
        "sum_a",
        "count",
        "count_a",
        "min_by_v_k",
        "total",
    ]
    with pytest.raises(BacklogError, match=r"sum\(a \* 2\) has no name for its result. Give it a name"):
        Sum("a * 2")


def test_an_order_is_passed_only_to_those_that_have_none() -> None:
    assert First("v").with_order("o") == First("v", order="o")
    assert First("v", order="mine").with_order("o") == First("v", order="mine")
    assert CollectList("v").with_order("o") == CollectList("v", order="o")
    assert MinBy("v", "k").with_order(None) == MinBy("v", "k")
    assert Sum("v").with_order("o") == Sum("v")


# --- Through Spark ---------------------------------------------------------------------------------------------------

SCHEMA = """k int, seq bigint, i8 tinyint, i16 smallint, i32 int, i64 bigint, big bigint, f32 float,
    f64 double, odd double, d9 decimal(9,2), d18 decimal(18,4), d38 decimal(38,18), s string, b binary, t boolean,
    d date, ts timestamp, ntz timestamp_ntz, iv interval day to second, st struct<a:int,s:string>, m map<string,int>,
    l array<int>, `a b``c` int, digits string, few double"""


def random_rows(count: int, seed: int) -> list[tuple[Any, ...]]:
    """Rows of 12 keys, of which key 0 has only NULLs; a sixth of the other values is NULL."""
    rng = random.Random(seed)
    texts = ["", "a", "ab", "b", "Zürich", "\U0001f600", "\uffff", "a\x00"]
    odd = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.5, 5e-324]
    rows: list[tuple[Any, ...]] = []
    for seq in range(count):
        key = rng.choice([*range(11), 11 if seq == 0 else 1])
        moment = datetime(1900 + rng.randrange(150), 1 + rng.randrange(12), 1 + rng.randrange(28), rng.randrange(24))
        moment += timedelta(microseconds=rng.randrange(10**9))
        values = [
            rng.randrange(-128, 128),
            rng.randrange(-(2**15), 2**15),
            rng.randrange(-(2**31), 2**31),
            rng.randrange(-(2**50), 2**50),
            rng.choice([2**63 - 1, -(2**63), 0, rng.randrange(-(2**63), 2**63)]),
            rng.choice([0.5, -0.0, 3.25, -1e30, rng.randrange(-1000, 1000) / 8]),
            1e6 + rng.gauss(0, 1),
            rng.choice(odd),
            decimal(rng.randrange(-(10**9) + 1, 10**9), 2),
            decimal(rng.randrange(-(10**18) + 1, 10**18), 4),
            decimal(rng.randrange(-(10**33), 10**33), 18),
            rng.choice(texts),
            rng.choice(texts).encode(),
            rng.random() < 0.7,
            moment.date(),
            moment,
            moment,
            timedelta(microseconds=rng.randrange(-(2**50), 2**50)),
            (rng.choice([None, 1, 2]), rng.choice([None, *texts])),
            {rng.choice(texts): rng.randrange(9)},
            [rng.randrange(3)],
            rng.randrange(100),
            str(rng.randrange(1000) / 4),
            float(rng.randrange(4)),
        ]
        kept = [None if key == 0 or rng.random() < 1 / 6 else each for each in values]
        rows.append((key, seq, *kept))
    return rows


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    # Half the rows of key 10 and above are in one half alone, so that a merge meets a side without the key.
    data = [each for each in random_rows(400, seed=7) if each[0] < 10 or each[1] < 200]
    frame = spark.createDataFrame(data, SCHEMA).repartition(2).cache()
    assert frame.count() == len(data)
    return frame


def slot_columns(aggregates: list[Aggregate], schema: Any, side: str = "") -> list[list[Column]]:
    from pyspark.sql import functions as F

    return [
        [F.col(f"{side}{index}_{slot}") for slot in range(len(each.slots(schema)))]
        for index, each in enumerate(aggregates)
    ]


def reduced(frame: DataFrame, aggregates: list[Aggregate], schema: Any, side: str = "") -> DataFrame:
    columns = [
        column.alias(f"{side}{index}_{slot}")
        for index, each in enumerate(aggregates)
        for slot, column in enumerate(each.reduce(schema))
    ]
    return frame.groupBy("k").agg(*columns)


def finished(frame: DataFrame, aggregates: list[Aggregate], schema: Any, slots: list[list[Column]]) -> DataFrame:
    results = [each.finish(schema, of_it).alias(each.name) for each, of_it in zip(aggregates, slots, strict=True)]
    return frame.select("k", *results)


def reduced_in_halves(frame: DataFrame, aggregates: list[Aggregate], schema: Any) -> DataFrame:
    left = reduced(frame.where("seq < 200"), aggregates, schema, "left")
    right = reduced(frame.where("seq >= 200"), aggregates, schema, "right")
    pairs = zip(
        aggregates, slot_columns(aggregates, schema, "left"), slot_columns(aggregates, schema, "right"), strict=True
    )
    merged = [
        column.alias(f"{index}_{slot}")
        for index, (each, older, newer) in enumerate(pairs)
        for slot, column in enumerate(each.merge(schema, older, newer))
    ]
    return left.join(right, "k", "full").select("k", *merged)


def folded_in_python(frame: DataFrame, aggregates: list[Aggregate], schema: Any) -> DataFrame:
    """Lifted by Spark, packed in four parts by Python, merged two and two, and handed back to Spark."""
    from pyspark.sql.types import IntegerType, StructField, StructType

    lifts = [each.lift(schema) for each in aggregates]
    names = [f"{index}_{slot}" for index, lift in enumerate(lifts) for slot in range(len(lift))]
    lifted = frame.select("k", "seq", *(lift.alias(name) for name, lift in zip(names, chain(*lifts), strict=True)))
    table = lifted.toArrow().combine_chunks().sort_by("seq")
    length = (table.num_rows + 3) // 4

    def fold_all(part: pa.Table, method: str) -> pa.Table:
        keys = part["k"].to_pylist()
        columns: dict[str, pa.Array] = {"k": pa.array(sorted(set(keys)), type=pa.int32())}
        for index, each in enumerate(aggregates):
            of_it = [name for name in names if name.startswith(f"{index}_")]
            arrays = [part[name].combine_chunks() for name in of_it]
            columns |= zip(of_it, fold(getattr(each, method), keys, arrays), strict=True)
        return pa.table(columns)

    packed = [fold_all(table.slice(start, length), "pack_groups") for start in range(0, table.num_rows, length)]
    pairs = [fold_all(pa.concat_tables(packed[start : start + 2]), "merge_groups") for start in (0, 2)]
    merged = fold_all(pa.concat_tables(pairs), "merge_groups")
    kinds = [kind for each in aggregates for kind in each.slots(schema)]
    fields = [StructField(name, kind) for name, kind in zip(names, kinds, strict=True)]
    return frame.sparkSession.createDataFrame(merged, StructType([StructField("k", IntegerType()), *fields]))


def plain(value: Any) -> Any:
    """A value that `==` compares as Spark would: NaN equal to itself."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def close(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return bool(left == pytest.approx(right, rel=1e-9, abs=1e-12, nan_ok=True))
    return bool(plain(left) == plain(right))


Case = tuple["Aggregate", str]
"""An aggregate, and Spark SQL for the same."""

NUMBERS: list[Case] = [
    *((Sum(each), f"sum({each})") for each in ("i8", "i16", "i32", "i64", "f32", "f64", "odd", "d9")),
    *((Avg(each), f"avg({each})") for each in ("i32", "big", "f32", "f64", "odd", "d18")),
    (Sum("digits"), "sum(digits)"),
    (Avg("digits"), "avg(digits)"),
    (Sum("i16 * 2 + i8", name="expression", where="t"), "sum(i16 * 2 + i8) filter (where t)"),
    (Sum("a b`c", name="quoted"), "sum(`a b``c`)"),
    (Avg("d18 / d9", name="ratio", where="d9 <> 0"), "avg(d18 / d9) filter (where d9 <> 0)"),
    (Count(), "count(*)"),
    (Count("s"), "count(s)"),
    (Count(name="filtered", where="i32 > 0"), "count(*) filter (where i32 > 0)"),
    *((Variance(each), f"var_samp({each})") for each in ("i32", "f64", "odd", "digits")),
    *((VariancePop(each), f"var_pop({each})") for each in ("f64", "odd")),
    *((StdDev(each), f"stddev({each})") for each in ("f64", "odd")),
    *((StdDevPop(each), f"stddev_pop({each})") for each in ("f32", "d18")),
    (StdDev("f64", name="stddev_t", where="t"), "stddev(f64) filter (where t)"),
]
ORDERABLE = ("i8", "i16", "i32", "big", "f32", "odd", "d9", "d38", "s", "b", "t", "d", "ts", "ntz", "iv", "st")
EXTREMES: list[Case] = [
    *((Min(each), f"min({each})") for each in ORDERABLE),
    *((Max(each), f"max({each})") for each in ORDERABLE),
    (Max("upper(s)", name="expression", where="t"), "max(upper(s)) filter (where t)"),
    (BoolAnd("t"), "bool_and(t)"),
    (BoolOr("i32 > 1000000", name="bool_or"), "bool_or(i32 > 1000000)"),
]
PICKED: list[Case] = [
    *((First(each, order="seq"), f"min_by({each}, seq)") for each in ("i32", "s", "st", "m", "l")),
    *((Last(each, order="seq"), f"max_by({each}, seq)") for each in ("i32", "s", "st", "m", "l")),
    (Last("s", order="seq", ignore_nulls=True, name="n"), "max_by(s, seq) filter (where s is not null)"),
    (First("m", order="seq", where="t", name="f"), "min_by(m, seq) filter (where t)"),
    (First("*", order="seq", name="row"), "min_by(struct(*), seq)"),
    # A key on its own decides where it is unique.
    (MinBy("i32", "seq"), "min_by(i32, seq)"),
    (MaxBy("m", "seq", order="i32"), "max_by(m, seq)"),
    (MaxBy("s", "seq", where="t", name="w"), "max_by(s, seq) filter (where t)"),
    (MaxBy("ts", "if(t, seq, null)", name="e"), "max_by(ts, if(t, seq, null))"),
    # Equal keys: the first row, or the last.
    (MinBy("s", "few", order="seq"), "min_by(s, (few, seq)) filter (where few is not null)"),
    (MinBy("s", "few", order="seq", last=True, name="l1"), "min_by(s, (few, -seq)) filter (where few is not null)"),
    (MaxBy("m", "few", order="seq"), "max_by(m, (few, -seq)) filter (where few is not null)"),
    (MaxBy("m", "few", order="seq", last=True, name="l2"), "max_by(m, (few, seq)) filter (where few is not null)"),
    # Equal keys and no order: the least value, or the greatest.
    (MinBy("st", "few"), "(min((few, st)) filter (where few is not null)).st"),
    (MaxBy("i32", "few"), "(max((few, i32)) filter (where few is not null)).i32"),
]
COLLECTED: list[Case] = [
    *(
        (
            CollectList(each, order="seq"),
            f"array_compact(transform(array_sort(collect_list((seq, {each}))), x -> x.{each}))",
        )
        for each in ("i32", "s", "f64", "st")
    ),
    (CollectSet("i8"), "array_sort(collect_set(i8))"),
    (CollectSet("s"), "array_sort(collect_set(s))"),
    (CollectSet("b"), "array_sort(collect_set(b))"),
    (CollectSet("d9"), "array_sort(collect_set(d9))"),
    (CollectSet("ntz"), "array_sort(collect_set(ntz))"),
    (CollectSet("st"), "array_sort(collect_set(st))"),
    (CollectSet("few", where="t", name="w"), "array_sort(collect_set(few) filter (where t))"),
]
FAMILIES = {"numbers": NUMBERS, "extremes": EXTREMES, "picked": PICKED, "collected": COLLECTED}


@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize("family", FAMILIES)
def test_all_ways_give_what_spark_gives(rows: DataFrame, family: str) -> None:
    aggregates = [each for each, _ in FAMILIES[family]]
    compare_all_ways(rows, aggregates, [sql for _, sql in FAMILIES[family]])


def compare_all_ways(frame: DataFrame, aggregates: list[Aggregate], own: list[str]) -> None:
    from pyspark.sql import functions as F

    schema = frame.schema
    expected = frame.groupBy("k").agg(
        *(F.expr(sql).alias(each.name) for each, sql in zip(aggregates, own, strict=True))
    )
    slots = slot_columns(aggregates, schema)
    ways = {
        "reduce": reduced(frame, aggregates, schema),
        "merge": reduced_in_halves(frame, aggregates, schema),
        "python": folded_in_python(frame, aggregates, schema),
    }
    wanted = by_k(expected)
    for way, accumulators in ways.items():
        for index, each in enumerate(aggregates):
            for slot, kind in enumerate(each.slots(schema)):
                assert accumulators.schema[f"{index}_{slot}"].dataType.simpleString() == kind.simpleString(), str(each)
        result = finished(accumulators, aggregates, schema, slots)
        found = by_k(result)
        assert found.keys() == wanted.keys()
        for each in aggregates:
            assert result.schema[each.name].dataType == expected.schema[each.name].dataType, (way, str(each))
            for key, row in wanted.items():
                assert close(found[key][each.name], row[each.name]), (way, str(each), each.name, key)


def by_k(frame: DataFrame) -> dict[int, Row]:
    return {row["k"]: row for row in frame.collect()}


@pytest.mark.usefixtures("small_plans")
def test_the_last_row_of_equal_keys_by_an_order_of_any_type(rows: DataFrame) -> None:
    orders = ("i8", "big", "f32", "odd", "d9", "d38", "s", "b", "t", "d", "ts", "ntz")
    aggregates: list[Aggregate] = [
        *(MinBy("seq", "few", order=each, last=True, name=f"min_{each}") for each in orders),
        *(MaxBy("seq", "few", order=each, name=f"max_{each}") for each in orders),
    ]
    slots = slot_columns(aggregates, rows.schema)
    ways = [
        by_k(finished(reduced(rows, aggregates, rows.schema), aggregates, rows.schema, slots)),
        by_k(finished(folded_in_python(rows, aggregates, rows.schema), aggregates, rows.schema, slots)),
    ]
    data = rows.collect()
    for key in {row["k"] for row in data}:
        having = [row for row in data if row["k"] == key and row["few"] is not None]
        for each in orders:
            expected = {"min": None, "max": None}
            if having:
                cheap = [row for row in having if row["few"] == min(row["few"] for row in having)]
                latest = max((row[each] for row in cheap), key=cmp_to_key(sparks_order))
                expected["min"] = min(row["seq"] for row in cheap if same(row[each], latest))
                dear = [row for row in having if row["few"] == max(row["few"] for row in having)]
                earliest = min((row[each] for row in dear), key=cmp_to_key(sparks_order))
                expected["max"] = max(row["seq"] for row in dear if same(row[each], earliest))
            for way in ways:
                assert way[key][f"min_{each}"] == expected["min"], (key, each)
                assert way[key][f"max_{each}"] == expected["max"], (key, each)


DECIMAL_TYPES = [(5, 0), (11, 11), (12, 2), (22, 10), (23, 10), (28, 18), (38, 0), (38, 10), (38, 18), (38, 36)]


@pytest.mark.slow
def test_sum_and_average_of_decimals_of_any_type(spark: SparkSession) -> None:
    rng = random.Random(3)

    def value(precision: int, scale: int) -> Decimal:
        # Three such values and the four digits that an average adds still fit into 38.
        digits = rng.choice([1, precision // 2, min(precision, 33)])
        return decimal(rng.randrange(-(10**digits) + 1, 10**digits) // rng.choice([1, 2, 3, 7]), scale)

    names = [f"d{precision}_{scale}" for precision, scale in DECIMAL_TYPES]
    kinds = ", ".join(f"{name} decimal({p},{s})" for name, (p, s) in zip(names, DECIMAL_TYPES, strict=True))
    data = [(index % 100, index, *(value(*each) for each in DECIMAL_TYPES)) for index in range(300)]
    frame = spark.createDataFrame(data, f"k int, seq bigint, {kinds}")
    aggregates: list[Aggregate] = [make(name) for name in names for make in (Sum, Avg)]
    compare_all_ways(frame, aggregates, [str(each) for each in aggregates])


def test_distinct_counts_are_near_and_do_not_show_their_way(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    # Key 0: 20000 distinct values, beyond the sketch's exact modes; key 1: 300; key 2: three, of which one is empty.
    frame = spark.range(0, 60000, numPartitions=3).selectExpr(
        "cast(if(id % 100 = 99, 2, if(id % 100 = 98, 1, 0)) as int) k",
        "id seq",
        "cast(if(id % 100 = 99, id % 3, if(id % 100 = 98, (id div 100) % 300, id % 20000)) as bigint) n",
    )
    frame = frame.selectExpr(
        "k",
        "cast((seq * 7919) % 400 as bigint) seq",
        "n",
        "if(k = 2 and n = 0, '', concat('value ', n)) s",
        "if(n % 2 = 0, cast(null as double), if(n = 1, -0.0D, n / 2)) h",
        "(n, array(n % 5)) st",
    )
    aggregates: list[Aggregate] = [ApproxCountDistinct(each) for each in ("n", "s", "h", "st")]
    aggregates.append(ApproxCountDistinct("n", lg_k=14, name="finer"))
    aggregates.append(ApproxCountDistinct("n", where="n < 0", name="nothing"))
    schema = frame.schema
    exact = by_k(frame.groupBy("k").agg(*(F.count_distinct(each).alias(each) for each in ("n", "s", "h", "st"))))
    slots = slot_columns(aggregates, schema)
    ways = [
        by_k(finished(way(frame, aggregates, schema), aggregates, schema, slots))
        for way in (reduced, reduced_in_halves, folded_in_python)
    ]
    assert ways[0] == ways[1] == ways[2]
    assert exact[2]["s"] == 3
    for key, row in ways[0].items():
        assert row["nothing"] == 0
        assert row["finer"] == pytest.approx(exact[key]["n"], rel=5 * 1.04 / 2**7)
        for each in ("n", "s", "h", "st"):
            error = 5 * 1.04 / 2**6 if exact[key][each] > 10 else 0
            assert row[f"approx_count_distinct_{each}"] == pytest.approx(exact[key][each], rel=error)
    own = frame.select(F.approx_count_distinct("n").alias("n")).schema["n"].dataType
    result = finished(reduced(frame, aggregates, schema), aggregates, schema, slots)
    assert result.schema["approx_count_distinct_n"].dataType == own


@pytest.mark.parametrize("distinct", [5, 100, 5000])
def test_python_and_spark_make_the_same_sketch(spark: SparkSession, distinct: int) -> None:
    from pyspark.sql import functions as F

    aggregate = ApproxCountDistinct("s")
    frame = spark.range(distinct).selectExpr("concat('Zürich ', id) s")
    (sketch,) = frame.agg(*aggregate.reduce(frame.schema)).first()
    lifted = frame.select(*(each.alias("hash") for each in aggregate.lift(frame.schema))).toArrow()["hash"]
    (packed,) = aggregate.pack_groups([lifted.combine_chunks()], np.array([0]))
    assert registers(bytes(sketch)) == registers(packed[0].as_py())

    halves = [frame.where(f"hash(s) % 2 {test} 0").agg(*aggregate.reduce(frame.schema)) for test in ("=", "<>")]
    made_by_spark = pa.array([bytes(half.first()[0]) for half in halves])
    (merged,) = aggregate.merge_groups([made_by_spark], np.array([0]))
    assert registers(merged[0].as_py()) == registers(bytes(sketch))
    # The packed one was never merged, so it alone has DataSketches' order-dependent estimator at hand.
    table = pa.table({"merged": merged, "whole": pa.array([bytes(sketch)]), "packed": packed})
    columns = [aggregate.finish(frame.schema, [F.col(name)]) for name in table.column_names]
    estimates = spark.createDataFrame(table).select(*columns).first()
    assert (
        estimates[0]
        == estimates[1]
        == estimates[2]
        == pytest.approx(distinct, rel=5 * 1.04 / 2**6 if distinct > 200 else 0)
    )


def test_whole_rows_with_columns_that_cannot_be_null(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    frame = spark.range(12).select(
        (F.col("id") % 2).cast("int").alias("k"),
        F.col("id").alias("seq"),
        F.struct(F.col("id").alias("id"), F.array("id").alias("ids")).alias("st"),
    )
    assert not frame.schema["seq"].nullable
    aggregates: list[Aggregate] = [
        First("*", order="seq", name="first"),
        MaxBy("*", "seq", order="seq", where="seq < 3 and k = 0", name="some"),
        CollectList("st", order="seq", where="seq > 8"),
        Max("(seq, k)", where="k = 1", name="greatest"),
        CollectSet("(k, seq)", where="seq < 4 and k = 1", name="set"),
    ]
    slots = slot_columns(aggregates, frame.schema)
    for way in (reduced, reduced_in_halves, folded_in_python):
        found = by_k(finished(way(frame, aggregates, frame.schema), aggregates, frame.schema, slots))
        assert found[0] == (0, (0, 0, (0, [0])), (0, 2, (2, [2])), [(10, [10])], None, [])
        assert found[1] == (1, (1, 1, (1, [1])), None, [(9, [9]), (11, [11])], (11, 1), [(1, 1), (1, 3)])


@pytest.mark.parametrize("aggregate", [Sum("n"), Sum("d")], ids=str)
def test_overflow_is_an_error_in_every_way(spark: SparkSession, aggregate: Aggregate) -> None:
    from pyspark.errors import ArithmeticException

    sql = f"select 1 k, id seq, {LONG} n, cast('{'9' * 38}' as decimal(38,0)) d from range(2, 402, 398, 1)"
    frame = spark.sql(sql)  # one row in each half
    slots = slot_columns([aggregate], frame.schema)
    for way in (reduced, reduced_in_halves):
        with pytest.raises(ArithmeticException, match=r"OVERFLOW|OUT_OF_RANGE"):
            finished(way(frame, [aggregate], frame.schema), [aggregate], frame.schema, slots).collect()
    with pytest.raises(BacklogError, match="overflows"):
        folded_in_python(frame, [aggregate], frame.schema)


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (Sum("t"), r"sum\(t\) AS sum_t: t is of type boolean. sum takes numbers"),
        (Avg("ts"), "avg_ts: ts is of type timestamp"),
        (StdDev("d"), "stddev_d: d is of type date"),
        (BoolAnd("i32"), "i32 is of type int. bool_and takes booleans"),
        (Max("m"), "m is of type map<string,int>. max takes"),
        (Min("s collate UNICODE_CI", name="x"), "is of type string collate UNICODE_CI. min takes"),
        (CollectSet("m"), "m is of type map<string,int>"),
        (ApproxCountDistinct("m"), "takes all but maps"),
        (First("s"), r"first\(s\) AS first_s: the rows have no order.* Name the column that orders rows"),
        (Last("s", order="nowhere"), "there is no order column 'nowhere'. Columns: .*'seq'"),
        (Last("s", order="st"), "the order column st is of type struct"),
        (MinBy("s", "m"), "min_by_s_m: m is of type map"),
        (MinBy("s", "i32", last=True), "rows with equal i32 need an order"),
        (MaxBy("m", "i32"), "rows with equal i32 need an order"),
        (Sum("nowhere"), "Spark refuses 'nowhere': .*UNRESOLVED_COLUMN.*Columns: .*'seq'"),
        (Count("i32 +", name="x"), "Spark refuses 'i32 \\+': .*PARSE_SYNTAX_ERROR"),
        (Sum("st.*", name="x"), "is 2 columns"),
    ],
    ids=lambda each: str(each) if isinstance(each, Sum | Count) else None,
)
def test_what_does_not_fit_is_refused_with_the_reason(rows: DataFrame, aggregate: Aggregate, message: str) -> None:
    with pytest.raises(BacklogError, match=message):
        aggregate.slots(rows.schema)


def test_decimals_in_memory_that_cannot_be_written() -> None:
    kind = pa.decimal128(12, 2)
    sent = pa.RecordBatch.from_arrays([pa.array([Decimal("1.25"), Decimal("2.00"), Decimal("-9.50")], kind)], ["x"])
    data = pa.BufferReader(sent.serialize().to_pybytes())
    (column,) = pa.ipc.read_record_batch(data, sent.schema).columns
    assert sum_decimals(column, np.array([0, 2]), "sum").to_pylist() == [Decimal("3.25"), Decimal("-9.50")]


def test_columns_of_our_own_are_not_the_users(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType, StructType

    users = StructType().add("a", LongType())
    schema = StructType(list(users.fields)).add("__backlog_sign", LongType())
    assert type_of(schema, "*", "x") == users
    assert spark.createDataFrame([], schema).select(column_of(schema, "*")).schema[0].dataType.names == ["a"]
    for text in ("A.b + c", "__backlog_sgn"):
        with pytest.raises(BacklogError) as told:
            type_of(schema, text, "sum")
        assert "__backlog_sign" not in str(told.value)
