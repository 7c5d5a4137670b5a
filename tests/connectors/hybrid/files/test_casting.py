"""Conversion of a file's values to the stream's types: the same values, or an error."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.files.casting import Uncastable, caster, find_field

UTC_US = pa.timestamp("us", "UTC")
AB = pa.struct([("a", pa.int32()), ("B", pa.string())])


@pytest.mark.parametrize(
    ("array", "target", "values"),
    [
        (pa.array([1, None, -(2**31)]), pa.int32(), [1, None, -(2**31)]),
        (pa.array([1, 2], pa.uint64()), pa.decimal128(20, 0), [Decimal(1), Decimal(2)]),
        (pa.array([5, -5]), pa.decimal128(10, 2), [Decimal("5.00"), Decimal("-5.00")]),
        (pa.array([2**24, 3]), pa.float32(), [2.0**24, 3.0]),
        (pa.array([0.5, None]), pa.float32(), [0.5, None]),
        (pa.array([1.5], pa.float16()), pa.float64(), [1.5]),
        (pa.array([3.0, None]), pa.int16(), [3, None]),
        (pa.array([Decimal("1.20")]), pa.decimal128(38, 1), [Decimal("1.2")]),
        (pa.array([Decimal("7.00")]), pa.int64(), [7]),
        (pa.array([1_000], pa.timestamp("ns")), pa.timestamp("us"), [datetime(1970, 1, 1, 0, 0, 0, 1)]),
        (pa.array([1], pa.timestamp("s")), UTC_US, [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]),
        (pa.array([1], pa.timestamp("s", "Europe/Berlin")), UTC_US, [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
        (pa.array(["ü"], pa.large_string()), pa.string(), ["ü"]),
        (pa.array(["ü".encode()]), pa.string(), ["ü"]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.nulls(2), pa.date32(), [None, None]),
        (pa.array([[1], None, []], pa.large_list(pa.int8())), pa.list_(pa.int64()), [[1], None, []]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.list_(pa.int64()), [[1, 2], None]),
        (
            pa.array([{"b": "x", "A": 1}, None], pa.struct([("b", pa.string()), ("A", pa.int64())])),
            pa.struct([("a", pa.int32()), ("B", pa.string()), ("c", pa.date32())]),
            [{"a": 1, "B": "x", "c": None}, None],
        ),
        (
            pa.array([[("k", [1])], None], pa.map_(pa.string(), pa.list_(pa.int8()))),
            pa.map_(pa.string(), pa.list_(pa.int64())),
            [[("k", [1])], None],
        ),
    ],
)
def test_no_value_is_lost(array: pa.Array, target: pa.DataType, values: list[Any]) -> None:
    cast = caster(array.type, target)
    assert cast(array).type == target
    assert cast(array).to_pylist() == values
    assert cast(array.slice(1)).to_pylist() == values[1:]


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array([2**31]), pa.int32()),
        (pa.array([-1]), pa.decimal128(1, 1)),
        (pa.array([2**24 + 1]), pa.float32()),
        (pa.array([0.1]), pa.float32()),
        (pa.array([1e300]), pa.float32()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([float("nan")]), pa.int64()),
        (pa.array([Decimal("1.25")]), pa.decimal128(38, 1)),
        (pa.array([Decimal("123.0")]), pa.decimal128(3, 1)),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([[2**40]]), pa.list_(pa.int32())),
    ],
)
def test_a_value_that_would_change_is_an_error(array: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(pa.ArrowInvalid):
        caster(array.type, target)(array)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.bool_(), pa.int32()),
        (pa.float64(), pa.decimal128(10, 2)),
        (pa.decimal128(10, 2), pa.float64()),
        (UTC_US, pa.timestamp("us")),
        (pa.int64(), UTC_US),
        (pa.date32(), UTC_US),
        (pa.list_(pa.int64()), pa.int64()),
        (pa.int64(), pa.list_(pa.int64())),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.struct([("x", pa.int64())]), AB),
        (pa.struct([("b", pa.string()), ("Á", pa.string()), ("á", pa.string())]), pa.struct([("Á ", pa.string())])),
        (pa.struct([("bB", pa.string()), ("Bb", pa.string())]), pa.struct([("bb", pa.string())])),
    ],
)
def test_types_that_do_not_fit(source: pa.DataType, target: pa.DataType) -> None:
    with pytest.raises(Uncastable):
        caster(source, target)


def test_a_column_is_found_by_its_name_then_in_any_case() -> None:
    assert find_field(["ID", "id"], "id") == 1
    assert find_field(["x", "ID"], "id") == 1
    assert find_field(["x"], "id") is None
    with pytest.raises(Uncastable, match="ID, Id differ in case only"):
        find_field(["ID", "Id"], "id")


@given(st.lists(st.one_of(st.none(), st.floats(), st.floats(width=32))))
def test_a_double_becomes_a_float_or_an_error(values: list[float | None]) -> None:
    array = pa.array(values, pa.float64())
    fits = all(v is None or v != v or pa.scalar(v, pa.float32()).as_py() == v for v in values)
    try:
        made = caster(array.type, pa.float32())(array)
    except pa.ArrowInvalid:
        assert not fits
    else:
        assert fits
        assert repr(made.to_pylist()) == repr(values)
