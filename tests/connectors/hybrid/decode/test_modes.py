"""The modes for malformed records in all formats: NULL, the column for such records, errors, and pickling."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from backlog_spark.connectors.hybrid.decode import MalformedRecord, decoder, parse
from backlog_spark.errors import BacklogError, SettingError

from .plain import plain

AVRO = json.dumps(
    {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": "int"},
        {"name": "s", "type": {"type": "record", "name": "S", "fields": [{"name": "b", "type": ["null", "string"]}]}}]}
)  # fmt: skip
NESTED = pa.struct([("b", pa.string())])
# Format, type of the second column, a good record, what it gives, a malformed one, what of it is kept and shown.
CASES: dict[str, tuple[pa.DataType, bytes, tuple[Any, ...], bytes, tuple[Any, ...], str]] = {
    "json": (NESTED, b'{"a":7,"s":{"b":"x"}}', (7, ("x",)), b'{"a":"secret","s":{"b":"y"}}', (None, ("y",)), ""),
    "csv": (pa.string(), b"7,x", (7, "x"), b"secret,y", (None, "y"), ""),
    "avro": (NESTED, b"\x0e\x02\x02x", (7, ("x",)), b"\x0e\x02\x0csecre", (None, None), "DgIMc2VjcmU="),
}
FORMATS = list(CASES)


def options(format: str, **more: str) -> dict[str, str]:
    return {"valueFormat": format, **({"avroSchema": AVRO} if format == "avro" else {}), **more}


def records(format: str) -> list[bytes | None]:
    """The good one, NULL, the malformed one, the good one."""
    _, good, _, bad, _, _ = CASES[format]
    return [good, None, bad, good]


def decoded(format: str, schema: pa.Schema, values: list[bytes | None], **more: str) -> tuple[list[Any], Any]:
    some = decoder(parse(options(format, **more)), schema)
    result = pickle.loads(pickle.dumps(some)).decode(pa.array(values, pa.binary()))
    assert [column.type for column in result.columns] == [field.type for field in schema]
    rows = list(zip(*(plain(column) for column in result.columns), strict=True))
    return rows, None if result.kept is None else result.kept.to_pylist()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_permissive(format: str, place: int) -> None:
    kind, _, good, bad, kept, shown = CASES[format]
    schema = pa.schema([("a", pa.int32()), ("s", kind)]).insert(place, pa.field("bad", pa.string()))

    def row(values: tuple[Any, ...], corrupt: str | None) -> tuple[Any, ...]:
        return (*values[:place], corrupt, *values[place:])

    found, which = decoded(format, schema, records(format), columnNameOfCorruptRecord="bad")
    expected = [row(good, None), row((None, None), None), row(kept, shown or bad.decode()), row(good, None)]
    assert found == expected
    assert which is None


@pytest.mark.parametrize("format", FORMATS)
def test_permissive_without_the_column(format: str) -> None:
    kind, _, good, _, kept, _ = CASES[format]
    found, which = decoded(format, pa.schema([("a", pa.int32()), ("s", kind)]), records(format))
    assert found == [good, (None, None), kept, good]
    assert which is None


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("corrupt", [False, True])
def test_dropmalformed(format: str, corrupt: bool) -> None:
    kind, _, good, bad, _, _ = CASES[format]
    schema = pa.schema([("a", pa.int32()), ("s", kind)])
    if corrupt:
        schema = schema.append(pa.field("_corrupt_record", pa.string()))
    more = (None,) if corrupt else ()
    found, which = decoded(format, schema, records(format), mode="dropMalformed")
    assert found == [(*good, *more), (None, None, *more), (*good, *more)]
    assert which == [0, 1, 3]
    found, which = decoded(format, schema, [CASES[format][1]] * 3, mode="dropMalformed")
    assert found == [(*good, *more)] * 3
    assert which is None
    assert decoded(format, schema, [bad, bad], mode="dropMalformed") == ([], [])


@pytest.mark.parametrize("format", FORMATS)
def test_failfast(format: str) -> None:
    kind, good, value, bad, _, _ = CASES[format]
    schema = pa.schema([("a", pa.int32()), ("s", kind)])
    assert decoded(format, schema, [good, None, good], mode="FAILFAST") == ([value, (None, None), value], None)
    for before in (2, 300):
        with pytest.raises(MalformedRecord) as caught:
            decoded(format, schema, [None, *[good] * before, bad, good, bad], mode="FAILFAST")
        error = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(error, BacklogError)
        assert error.index == before + 1
        assert error.reason == caught.value.reason
        assert str(error) == str(caught.value)
        assert f"record {before + 1} of its block is malformed" in str(error)
        assert "PERMISSIVE" in str(error)
        assert "DROPMALFORMED" in str(error)
        # A record's content may be what nobody should see.
        assert "secre" not in str(error)
        assert base64.b64encode(bad).decode() not in str(error)


@pytest.mark.parametrize(
    ("format", "kind", "record", "reason"),
    [
        ("json", pa.int32(), b'{"a":"x"}', "a: a string instead of an integer"),
        ("json", pa.int8(), b'{"a":300}', "a: a number that does not fit into int8"),
        ("json", pa.date32(), b'{"a":"x"}', "a: a string that is not a date"),
        ("json", pa.struct([("b", pa.bool_())]), b'{"a":{"b":1}}', "a: b: a number instead of a boolean"),
        ("json", pa.int32(), b"[]", "it is not a JSON object"),
        ("json", pa.int32(), b'{"a":1', "it is not JSON: a comma is missing after 6 of 6 characters"),
        ("csv", pa.int32(), b"x", "a: a field that is no int32"),
        ("csv", pa.int32(), b"1,2", "it has 2 fields instead of 1"),
    ],
)
def test_reasons(format: str, kind: pa.DataType, record: bytes, reason: str) -> None:
    with pytest.raises(MalformedRecord) as caught:
        decoded(format, pa.schema([("a", kind)]), [record], mode="FAILFAST")
    assert caught.value.reason == reason


@pytest.mark.parametrize("format", FORMATS)
def test_the_column_for_corrupt_records_is_a_string(format: str) -> None:
    schema = pa.schema([("a", pa.int32()), ("_corrupt_record", pa.int32())])
    with pytest.raises(BacklogError, match="columnNameOfCorruptRecord"):
        decoder(parse(options(format)), schema)


@pytest.mark.parametrize("format", FORMATS)
def test_a_schema_without_data(format: str) -> None:
    with pytest.raises(BacklogError, match="no column to decode"):
        decoder(parse(options(format)), pa.schema([("_corrupt_record", pa.string())]))


def test_raw_needs_no_decoder() -> None:
    with pytest.raises(SettingError, match="needs no decoder"):
        decoder(parse({"valueFormat": "raw"}), pa.schema([("a", pa.int32())]))


@pytest.mark.parametrize("format", FORMATS)
def test_many_bytes_are_cut_into_blocks(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, good, value, bad, kept, _ = CASES[format]
    monkeypatch.setattr("backlog_spark.connectors.hybrid.decode.base._MOST_BYTES", 1000)
    schema = pa.schema([("a", pa.int32()), ("s", kind)])
    found, _ = decoded(format, schema, [good, bad] * 500)
    assert found == [value, kept] * 500
