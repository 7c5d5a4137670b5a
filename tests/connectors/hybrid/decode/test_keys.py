"""Columns of keys and values together: against each part decoded alone, with random records."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid import inspect
from backlog_spark.connectors.hybrid.decode import Decoder, MalformedRecord, decoder, parse
from backlog_spark.connectors.hybrid.decode.keys import KeyedDecoder
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.errors import BacklogError, SettingError

from .avro_cases import written
from .registry_server import RegistryServer

SCHEMA = pa.schema([("v", pa.int32()), ("k_id", pa.int64()), ("_corrupt_record", pa.string()), ("k_v", pa.string())])
KEY = {"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}, {"name": "v", "type": "string"}]}
JSON = {"valueFormat": "json", "keyFormat": "json", "keyFieldsPrefix": "k_"}
# Bytes, and the row: values, and whether the record is malformed.
numbers = st.integers(-5, 5)
keys: st.SearchStrategy[tuple[int, str] | bytes | None] = st.one_of(
    st.none(), st.tuples(numbers, st.text("aä", max_size=2)), st.just(b"\xff")
)
values: st.SearchStrategy[int | bytes | None] = st.one_of(st.none(), numbers, st.just(b"{"))


def key_bytes(key: Any, form: str) -> bytes | None:
    if not isinstance(key, tuple):
        return key  # type: ignore[no-any-return]
    named = dict(zip(("id", "v"), key, strict=True))
    return json.dumps(named).encode() if form == "json" else written(KEY, [named])[0]


def made(**options: str) -> Decoder:
    return pickle.loads(pickle.dumps(decoder(parse({**JSON, **options}), SCHEMA)))  # type: ignore[no-any-return]


@given(st.lists(st.tuples(keys, values)), st.sampled_from(["json", "avro"]))
def test_a_row_has_the_columns_of_both(records: list[tuple[Any, Any]], form: str) -> None:
    options = {} if form == "json" else {"keyFormat": "avro", "keyAvroSchema": json.dumps(KEY)}
    of_values = pa.array([v if not isinstance(v, int) else b'{"v":%d}' % v for _, v in records], pa.binary())
    of_keys = pa.array([key_bytes(k, form) for k, _ in records], pa.binary())
    bad_key = "\ufffd" if form == "json" else "/w=="

    def row(key: Any, value: Any) -> tuple[Any, ...]:
        id, text = key if isinstance(key, tuple) else (None, None)
        corrupt = "{" if value == b"{" else bad_key if key == b"\xff" else None
        return (value if isinstance(value, int) else None, id, corrupt, text)

    def decoded(mode: str) -> tuple[list[tuple[Any, ...]], Any]:
        some = made(**options, mode=mode)
        assert isinstance(some, KeyedDecoder)
        found = some.decode_records(of_values, of_keys)
        assert [c.type for c in found.columns] == [f.type for f in SCHEMA]
        rows = list(zip(*(c.to_pylist() for c in found.columns), strict=True))
        return rows, None if found.kept is None else found.kept.to_pylist()

    assert decoded("PERMISSIVE") == ([row(k, v) for k, v in records], None)
    good = [i for i, (k, v) in enumerate(records) if k != b"\xff" and v != b"{"]
    rows, kept = decoded("DROPMALFORMED")
    assert rows == [row(*records[i]) for i in good]
    assert (list(range(len(records))) if kept is None else kept) == good
    bad_value = next((i for i, (_, v) in enumerate(records) if v == b"{"), None)
    bad = next((i for i, (k, _) in enumerate(records) if k == b"\xff"), None)
    if bad_value is None and bad is None:
        assert decoded("FAILFAST")[0] == rows
    else:
        with pytest.raises(MalformedRecord, match="its key: " if bad_value is None else ".") as caught:
            decoded("FAILFAST")
        assert caught.value.index == (bad if bad_value is None else bad_value)


def test_text_keys() -> None:
    schema = pa.schema([("name", pa.string()), ("v", pa.int32())])
    some = decoder(parse({"valueFormat": "json", "keyFormat": "string", "keyFields": "name"}), schema)
    assert isinstance(some, KeyedDecoder)
    of_values = pa.array([b'{"v":1,"name":"of the value"}'] * 3)
    for raw, expected in ((b"\xc3\xa4", "ä"), (b"\xff", "\ufffd")):
        found = some.decode_records(of_values, pa.array([raw, None, b""]))
        assert [c.to_pylist() for c in found.columns] == [[expected, None, ""], [1, 1, 1]]
    assert some.decode(of_values).columns[0].to_pylist() == [None] * 3
    for wrong in (pa.int64(), pa.binary()):
        with pytest.raises(BacklogError, match="keyFormat=string gives one column of text, not name "):
            decoder(
                parse({"valueFormat": "json", "keyFormat": "string", "keyFields": "name"}),
                pa.schema([("name", wrong), ("v", pa.int32())]),
            )


def test_keys_whose_schemas_are_in_the_registry() -> None:
    """The value's schema may be given, or be in the registry too."""
    value = {"type": "record", "name": "V", "fields": [{"name": "v", "type": "int"}]}
    with RegistryServer() as server:
        server.add(1, KEY)
        server.add(2, value)
        common = {**JSON, "keyFormat": "avro", "valueFormat": "avro", "schema.registry.url": server.url}
        key, bare = b"\0\0\0\0\1" + written(KEY, [{"id": 3, "v": "x"}])[0], written(value, [{"v": 5}])[0]
        for record, more in ((b"\0\0\0\0\2" + bare, {}), (bare, {"avroSchema": json.dumps(value)})):
            some = decoder(parse({**common, **more}), SCHEMA)
            assert isinstance(some, KeyedDecoder)
            found = some.decode_records(pa.array([record]), pa.array([key]))
            assert [c.to_pylist() for c in found.columns] == [[5], [3], [None], ["x"]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"keyFormat": "xml"}, "keyFormat = 'xml': is none of raw, string, json, avro"),
        ({"keyFieldsPrefix": ""}, "keyFields = None: keyFormat needs this, or keyFieldsPrefix"),
        ({"keyFields": "k_id, id"}, "keyFields = 'id': does not begin with keyFieldsPrefix=k_"),
        ({"keyFormat": "raw"}, "keyFieldsPrefix = '...': has no meaning without keyFormat"),
        ({"keyFormat": "avro"}, "keyFormat=avro needs the writer schema of the keys.*keyAvroSchemaFile"),
        ({"keyFormat": "avro", "keyAvroSchema": "x", "keyAvroSchemaFile": "y"}, "is not needed with keyAvroSchema"),
        ({"keyAvroSchema": "x"}, "keyAvroSchema = '...': has no meaning with keyFormat=json"),
        ({"valueFormat": "raw"}, "keyFormat = 'json': is not possible with valueFormat=raw.*_key has the key"),
        ({"valueFormat": "debezium"}, "keyFormat = 'json': is not possible with valueFormat=debezium"),
    ],
)
def test_what_is_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        inspect({"phases": "kafka", "kafka.bootstrap.servers": "a:1", "subscribe": "t", **JSON, **options})


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"keyFieldsPrefix": "key_"}, "keyFieldsPrefix = 'key_'"), ({"keyFields": "k_ID"}, "keyFields = 'k_ID'")],
)
def test_columns_that_are_not_there(options: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingError, match=f"{problem}: the schema has no such column.*Columns: v, k_id"):
        made(**options)


def test_json_files_have_no_keys() -> None:
    kafka = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
    found = HybridOptions.parse({**JSON, **kafka, "path": "/a", "metadataLocation": "/m", "fileFormat": "json"})
    assert [sorted(of) for of in found.decoded] == [["valueFormat"], sorted(JSON)]
