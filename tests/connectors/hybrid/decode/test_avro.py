"""Avro records. fastavro writes them, and its input is the expected result. Malformed bytes are written by hand."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode import decoder, parse, schemaOf
from backlog_spark.errors import BacklogError, SettingError

from .avro_cases import Case, records, written
from .plain import both_roads, plain, rows

SLOW = settings(max_examples=80, suppress_health_check=list(HealthCheck))


def of(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def decoded(schema: Any, declared: pa.Schema, values: list[bytes | None], **more: str) -> list[tuple[Any, ...]]:
    return rows("avro", declared, values, avroSchema=json.dumps(schema), **more)


@SLOW
@given(records.flatmap(lambda case: st.tuples(st.just(case), st.lists(case.values, min_size=1, max_size=8))))
def test_what_fastavro_writes(pair: tuple[Case, list[Any]]) -> None:
    case, values = pair
    declared = schemaOf(case.schema)
    assert pa.struct(list(declared)) == case.arrow
    binary = written(case.schema, values)
    expected = pa.array([case.shown(value) for value in values], case.arrow)
    assert decoded(case.schema, declared, [*binary]) == plain(expected)
    both_roads("avro", declared, binary, avroSchema=json.dumps(case.schema))


@SLOW
@given(
    records.flatmap(lambda case: st.tuples(st.just(case), st.lists(case.values, min_size=1, max_size=4))),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500), st.integers(0, 255), st.integers(0, 3)), max_size=4),
    st.lists(st.binary(max_size=20), max_size=3),
)
def test_both_paths_on_damaged_records(
    pair: tuple[Case, list[Any]], damages: list[tuple[int, int, int, int]], more: list[bytes]
) -> None:
    case, values = pair
    binary = written(case.schema, values)
    for which, place, byte, how in damages:
        data = binary[which % len(binary)]
        at = place % (len(data) + 1)
        binary.append([data[:at], data[:at] + bytes([byte]) + data[at + how :], data + bytes([byte]), data * 2][how])
    both_roads("avro", schemaOf(case.schema), [*binary, *more], avroSchema=json.dumps(case.schema))


def test_some_columns_of_a_schema() -> None:
    """Undeclared fields are skipped, missing ones are NULL, and the order is the declared one."""
    inner = {"type": "record", "name": "S", "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "string"}]}
    schema = of(
        ("flag", "boolean"), ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}), ("a", "int"),
        ("f", {"type": "fixed", "name": "F", "size": 3}), ("n", "null"), ("s", ["null", inner]), ("t", "string"),
        ("l", {"type": "array", "items": "int"}), ("d", "double"), ("m", {"type": "map", "values": ["null", "int"]}),
        ("u", ["int", "string", "null"]), ("g", "float"), ("b", "bytes"), ("z", "long"),
    )  # fmt: skip
    value = {
        "flag": True, "e": "B", "a": 7, "f": b"abc", "n": None, "s": {"x": 1, "y": "in"}, "t": "out", "l": [1, 2],
        "d": 1.5, "m": {"k": 1, "l": None}, "u": "text", "g": 2.5, "b": b"\xff", "z": 9,
    }  # fmt: skip
    other = {**value, "s": None, "u": None, "l": [], "m": {}}
    declared = pa.schema(
        [("z", pa.int64()), ("new", pa.date32()), ("s", pa.struct([("y", pa.string()), ("q", pa.int8())]))]
    )
    binary = written(schema, [value, other, {**value, "u": 3}])
    expected = [(9, None, ("in", None)), (9, None, None), (9, None, ("in", None))]
    assert decoded(schema, declared, [*binary]) == expected
    flat = {**schema, "fields": [f for f in schema["fields"] if f["name"] not in "lmu"]}
    assert decoded(flat, declared, [*written(flat, [value, other])]) == expected[:2]
    both_roads("avro", declared, written(flat, [value, other]), avroSchema=json.dumps(flat))


PROMOTED = [
    ("int", 7, pa.int64(), 7), ("int", 16777217, pa.float32(), "16777216.0"), ("int", 7, pa.float64(), "7.0"),
    ("long", 7, pa.float64(), "7.0"),
    # 2**54 + 2**31, the nearest; by way of 64 bits it would be 2**54.
    ("long", 2**54 + 2**30 + 1, pa.float32(), "1.801440065696563e+16"),
    ("long", -(2**63), pa.float32(), "-9.223372036854776e+18"),
    ("long", 9007199254740993, pa.float64(), "9007199254740992.0"),
    ("float", 1.5, pa.float64(), "1.5"), ("string", "é", pa.binary(), "é".encode()), ("bytes", b"x", pa.string(), "x"),
    ({"type": "int", "logicalType": "date"}, 3, pa.int32(), 3),
    ({"type": "int", "logicalType": "date"}, 3, pa.int64(), 3),
    ({"type": "long", "logicalType": "timestamp-millis"}, 3, pa.int64(), 3),
    (["int", "long"], 5, pa.int64(), 5), (["null", "float", "double"], 0.5, pa.float64(), "0.5"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "declared", "expected"), PROMOTED, ids=str)
def test_types_that_are_promoted(kind: Any, value: Any, declared: pa.DataType, expected: Any) -> None:
    plain_kind = kind["type"] if isinstance(kind, dict) else kind
    binary = written(of(("a", plain_kind)), [{"a": value}])
    schema = of(("a", kind))
    assert decoded(schema, pa.schema([("a", declared)]), [*binary]) == [(expected,)]
    both_roads("avro", pa.schema([("a", declared)]), binary, avroSchema=json.dumps(schema))


def test_decimals_become_wider_ones() -> None:
    schema = of(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}))
    binary = written(schema, [{"a": Decimal("-12.34")}, {"a": Decimal("99.99")}, {"a": Decimal(0)}])
    declared = pa.schema([("a", pa.decimal128(10, 5))])
    assert decoded(schema, declared, [*binary]) == [(Decimal("-12.34"),), (Decimal("99.99"),), (Decimal(0),)]


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        ("long", pa.int32()),
        ("int", pa.string()),
        ("string", pa.int32()),
        ("double", pa.float32()),
        ("long", pa.timestamp("us", "UTC")),
        ("int", pa.date32()),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us")),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.float64()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, pa.decimal128(4, 1)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, pa.decimal128(4, 3)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, pa.binary()),
        ({"type": "array", "items": "int"}, pa.list_(pa.string())),
        ({"type": "array", "items": "int"}, pa.int32()),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.string())),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.int32()),
        ({"type": "fixed", "name": "F", "size": 2}, pa.string()),
        (["int", "string"], pa.string()),
        ("null", pa.int32()),
    ],
    ids=str,
)
def test_types_that_are_not_promoted(kind: Any, declared: pa.DataType) -> None:
    with pytest.raises(BacklogError, match=r"the column a(\[\])? is .* in the Avro schema, but declared"):
        decoded(of(("a", kind)), pa.schema([("a", declared)]), [])


def test_a_name_in_another_case() -> None:
    with pytest.raises(BacklogError, match="the column userid is userId in the Avro schema"):
        decoded(of(("userId", "int")), pa.schema([("userid", pa.int32())]), [])


def test_unions_of_several_types() -> None:
    """As Spark: a field for each type but null."""
    schema = of(("u", ["null", "int", "string", {"type": "array", "items": "long"}]))
    declared = schemaOf(schema)
    assert declared.field("u").type == pa.struct(
        [("member0", pa.int32()), ("member1", pa.string()), ("member2", pa.list_(pa.field("element", pa.int64())))]
    )
    binary = written(schema, [{"u": None}, {"u": 5}, {"u": "x"}, {"u": [1, 2]}])
    expected = [(None,), ((5, None, None),), ((None, "x", None),), ((None, None, [1, 2]),)]
    assert decoded(schema, declared, [*binary]) == expected


def test_unions_of_types_that_differ_by_name_alone() -> None:
    fixed = [{"type": "fixed", "name": name, "size": 1} for name in ("F", "G")]
    schema = of(("u", [fixed[0], "null", fixed[1]]))
    expected = [((b"x", None),), (None,), ((None, b"y"),)]
    assert decoded(schema, schemaOf(schema), [b"\x00x", b"\x02", b"\x04y"]) == expected


def test_blocks_of_arrays() -> None:
    """A negative count is followed by the block's bytes."""
    schema = of(("a", {"type": "array", "items": "int"}))
    binary = [b"\x04\x02\x04\x00", b"\x03\x04\x02\x04\x00", b"\x02\x02\x02\x04\x00", b"\x00"]
    assert decoded(schema, schemaOf(schema), [*binary]) == [([1, 2],), ([1, 2],), ([1, 2],), ([],)]


DATE, TIME = {"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 1}
NO_BYTES = {"type": "record", "name": "Empty", "fields": []}


@pytest.mark.parametrize(
    ("kind", "record", "reason"),
    [
        ("int", b"", "ends before"),
        ("int", b"\x80", "ends before"),
        ("int", b"\x80\x80\x80\x80\x10", "more than 32 bits"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("long", b"\xff" * 12, "more than 64 bits"),
        ("long", b"\x80" * 10 + b"\x00", "more than 64 bits"),
        ("int", b"\x02\x00", "1 bytes are left over"),
        ("boolean", b"\x02", "neither 0 nor 1"),
        ("float", b"\0\0\0", "ends before"),
        ("double", b"\0" * 7, "ends before"),
        ("string", b"\x06ab", "beyond the record's end"),
        ("string", b"\x01ab", "beyond the record's end"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01ab", "beyond the record's end"),
        ("string", b"\x02\xff", "not UTF-8"),
        (["null", "int"], b"\x04\x00", "no such branch"),
        (["null", "int"], b"\x01\x00", "no such branch"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x04", "no such symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01", "no such symbol"),
        ({"type": "fixed", "name": "F", "size": 100}, b"ab", "ends before"),
        (MONEY, b"\x02\x64", "more digits"),
        (MONEY, b"\x24" + b"\x01" + b"\x00" * 17, "more digits"),
        (TIME, b"\x01", "out of range"),
        (TIME, b"\x80\xf0\xb2\x52", "out of range"),
        (MILLIS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "out of range"),
        ({"type": "array", "items": "int"}, b"\x02\x02", "ends before"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x02", "more items than its bytes allow"),
        ({"type": "array", "items": NO_BYTES}, b"\xfe\xff\xff\xff\x0f\x00", "more items than its bytes allow"),
        ({"type": "map", "values": "int"}, b"\x02\x02a\x02", "ends before"),
        ({"type": "map", "values": "int"}, b"\xfe\xff\xff\xff\x0f\x02", "more items than its bytes allow"),
    ],
)
def test_malformed(kind: Any, record: bytes, reason: str) -> None:
    schema = of(("a", kind), ("b", "int"))
    for text in (json.dumps(schema), json.dumps(of(("a", kind)))):
        declared = schemaOf(text)
        some: Any = decoder(parse({"valueFormat": "avro", "avroSchema": text}), declared)
        if len(declared) == 1:
            assert reason in some.exact([record]).bad[0]
        good = written(json.loads(text), [{"a": _good(kind), "b": 1}])
        both_roads("avro", declared, [*good, record, *good], avroSchema=text)
        # Also where nobody asks for the field.
        if len(declared) == 2:
            both_roads("avro", pa.schema([("b", pa.int32())]), [*good, record, *good], avroSchema=text)


def _good(kind: Any) -> Any:
    if isinstance(kind, list):
        return None
    name = kind if isinstance(kind, str) else kind["type"]
    if kind == MONEY:
        return Decimal(0)
    found: dict[str, Any] = {"boolean": True, "string": "x", "bytes": b"x", "enum": "A", "fixed": b"x" * 100}
    return {"array": [], "map": {}, **found}.get(name, 0)


def test_decimals_with_more_bytes_than_they_need() -> None:
    schema = of(("a", MONEY))
    binary = [b"\x02\x05", b"\x28" + b"\0" * 19 + b"\x05", b"\x28" + b"\xff" * 20, b"\x00"]
    assert decoded(schema, schemaOf(schema), [*binary]) == [
        (Decimal("0.5"),),
        (Decimal("0.5"),),
        (Decimal("-0.1"),),
        (0,),
    ]


def test_invalid_logical_types() -> None:
    """Logical types of another type, or incomplete ones, are ignored: the plain type is used."""
    for kind, arrow in (
        ({"type": "string", "logicalType": "date"}, pa.string()),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64()),
        ({"type": "bytes", "logicalType": "decimal"}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, pa.binary()),
        ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, pa.binary()),
    ):
        assert schemaOf(of(("a", kind))) == pa.schema([("a", arrow)])


def test_names_of_types() -> None:
    schema = {
        "type": "record", "name": "R", "namespace": "a.b",
        "fields": [
            {"name": "x", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
            {"name": "y", "type": "E"},
            {"name": "z", "type": ["null", "a.b.E"]},
            {"name": "w", "type": {"type": "record", "name": "c.D", "fields": [
                {"name": "v", "type": {"type": "fixed", "name": "F", "size": 1}}]}},
            {"name": "u", "type": "c.F"},
        ],
    }  # fmt: skip
    found = schemaOf(json.dumps(schema))
    assert found.names == ["x", "y", "z", "w", "u"]
    assert found.types == [pa.string()] * 3 + [pa.struct([("v", pa.binary())]), pa.binary()]


RECURSIVE = of(("v", "int"), ("next", ["null", "R"]))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (RECURSIVE, "contains itself"),
        ("int", "not a record"),
        ({"type": "array", "items": "int"}, "not a record"),
        (of(("a", "unknown")), "'unknown' is not a type"),
        (of(("a", {"type": "array"})), "a 'items' is missing"),
        ({"type": "record", "fields": []}, "a 'name' is missing"),
        ({"type": "record", "name": "R"}, "a 'fields' is missing"),
        (of(("a", "int"), ("a", "int")), "two fields with the same name"),
        (of(("a", ["null"])), "only the branch null"),
        (of(("a", {"type": "bytes", "logicalType": "decimal", "precision": 39})), "wider than Spark's limit of 38"),
        (5, "a 'type' is missing"),
    ],
    ids=str,
)
def test_schemas_that_are_refused(schema: Any, why: str) -> None:
    with pytest.raises(BacklogError, match=why):
        schemaOf(schema)
    with pytest.raises(BacklogError, match=why):
        decoded(schema, pa.schema([("a", pa.int32())]), [])


def test_a_field_of_null_alone_has_no_column() -> None:
    with pytest.raises(BacklogError, match="the type null has no values"):
        schemaOf(of(("n", "null")))


def test_schema_in_a_file(tmp_path: Path) -> None:
    schema = of(("a", "int"))
    path = tmp_path / "r.avsc"
    path.write_text(json.dumps(schema))
    declared = pa.schema([("a", pa.int32())])
    assert rows("avro", declared, [b"\x0e"], avroSchemaFile=str(path)) == [(7,)]
    path.write_text("{")
    with pytest.raises(SettingError, match=r"avroSchemaFile = .* is not JSON"):
        rows("avro", declared, [], avroSchemaFile=str(path))
    with pytest.raises(SettingError, match=r"avroSchemaFile = .* cannot be read"):
        rows("avro", declared, [], avroSchemaFile=str(tmp_path / "none"))
    with pytest.raises(SettingError, match=r"avroSchema = .* is not JSON"):
        rows("avro", declared, [], avroSchema="{")
