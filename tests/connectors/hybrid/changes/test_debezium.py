"""Debezium's JSON, compared with a model of the connector."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backlog_spark.connectors.hybrid.changes.base import ChangeDecoder
from backlog_spark.connectors.hybrid.decode import MalformedRecord, decoder, parse
from backlog_spark.errors import BacklogError

from .columns import dumped
from .envelopes import Change, Expected, Table, changes_of, compared, expected_of

BYTES_AS_TEXT = ("base64", "base64url", "hex")
OTHERS = (
    b'{"ts_ms":1700000000000}',
    b'{"status":"BEGIN","id":"571:53195829","ts_ms":1,"event_count":null,"data_collections":null}',
    b'{"source":{"file":"b.000001"},"databaseName":"shop","schemaName":null,"ddl":"CREATE TABLE t (a INT)"}',
)


def of(schema: pa.Schema, **options: str) -> ChangeDecoder:
    made = decoder(parse({"valueFormat": "debezium", "tableEvents": "emit", **options}), schema)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def encodings(table: Table, *, has_schema: bool) -> str:
    found = {name: how.encoding for name, how in table.written.items() if how.encoding}
    if has_schema:
        found = {n: e for n, e in found.items() if e in BYTES_AS_TEXT and table.written[n].type == "string"}
    return ", ".join(f"{name}:{encoding}" for name, encoding in found.items())


def envelope(table: Table, change: Change) -> dict[str, Any]:
    source = {
        "version": "3.6.1.Final", "connector": "mysql", "name": "s", "ts_ms": change.at_ms,
        "snapshot": "true" if change.op == "r" else "false", "db": "shop", "sequence": None, "table": "orders",
        "server_id": 1, "gtid": None, "file": "mysql-bin.000012", "pos": change.pos, "row": change.row, "thread": 7,
    }  # fmt: skip
    return {
        "before": table.image(change.before), "after": table.image(change.after), "source": source,
        "transaction": None, "op": change.op, "ts_ms": change.at_ms + 99,
    }  # fmt: skip


def connect_schema(table: Table) -> dict[str, Any]:
    fields = []
    for name, how in table.written.items():
        part: dict[str, Any] = {"type": how.type, "optional": name != "id", "field": name}
        if how.name:
            part |= {"name": how.name, "version": 1}
        if how.scale is not None:
            part["parameters"] = {"scale": str(how.scale), "connect.decimal.precision": "38"}
        fields.append(part)
    image = {"type": "struct", "fields": fields, "optional": True, "name": "s.shop.orders.Value"}
    images = [{**image, "field": "before"}, {**image, "field": "after"}]
    rest = [{"type": "string", "optional": False, "field": "op"}]
    return {"type": "struct", "fields": [*images, *rest], "optional": False, "name": "s.shop.orders.Envelope"}


def record(table: Table, change: Change, form: str) -> bytes:
    payload = envelope(table, change)
    if form == "plain":
        return dumped(payload).encode()
    if form == "wrapped":
        return f'{{"schema":{dumped(connect_schema(table))},"payload":{dumped(payload)}}}'.encode()
    return f' {{ "payload" : {dumped(payload)},\n"schema":{dumped(connect_schema(table))}}} '.encode()


@pytest.mark.parametrize("form", ["plain", "wrapped", "spaced"])
@pytest.mark.parametrize("seed", range(25))
def test_random_changes(seed: int, form: str) -> None:
    chance = random.Random(f"{seed} {form}")
    table = Table.random(chance)
    records: list[bytes | None] = []
    changes: list[tuple[int, Change]] = []
    for change in changes_of(table, chance, chance.choice([1, 7, 60])):
        while chance.random() < 0.2:
            other = chance.choice([None, *OTHERS])
            if other is not None and form != "plain" and chance.random() < 0.5:
                other = b'{"schema":{"type":"struct","fields":[]},"payload":' + other + b"}"
            records.append(other)
        changes.append((len(records), change))
        records.append(record(table, change, form))
    some = of(table.schema, columnEncodings=encodings(table, has_schema=form != "plain"))
    values, keys = pa.array(records, pa.binary()), pa.nulls(len(records), pa.binary())
    expected = expected_of(changes, 12)
    found = some.decode_records(values, keys, np.arange(len(records)))
    compared(found, expected, table.names)
    assert set(found.metadata["_table"].to_pylist()) == {"orders"}
    assert set(found.metadata["_database"].to_pylist()) == {"shop"}
    for index, one in enumerate(records):  # the same alone, which takes other paths
        alone = some.decode_records(pa.array([one], pa.binary()), keys[:1], np.arange(1))
        wanted = Expected()
        for at, number in enumerate(expected.of):
            if number == index:
                wanted.add(0, expected.kinds[at], expected.rows[at], expected.sequence[at], expected.at_us[at])
        compared(alone, wanted, table.names)


@pytest.mark.parametrize("seed", range(15))
def test_malformed_records_in_each_mode(seed: int) -> None:
    chance = random.Random(seed)
    table = Table.random(chance)
    bad = [
        b"{", b"[]", b'{"before":null,"after":null,"op":"x","source":{"file":"b.1","pos":4,"row":0}}',
        b'{"id":1}', b'{"before":null,"after":null,"op":"c","source":{"file":"b.1","pos":4,"row":0},"ts_ms":1}',
        b'{"before":null,"after":{"id":"x"},"op":"c","source":{"file":"b.1","pos":4,"row":0},"ts_ms":1}',
        b'{"before":{"id":1},"after":null,"op":"d","source":{},"ts_ms":1}', b"\xff\x00",
    ]  # fmt: skip
    changes = changes_of(table, chance, 20)
    records = [(record(table, change, chance.choice(["plain", "plain"])), change) for change in changes]
    mixed: list[tuple[bytes, Change | None]] = [*records]
    for one in chance.sample(bad, chance.randint(1, len(bad))):
        mixed.insert(chance.randint(0, len(mixed)), (one, None))
    values = pa.array([value for value, _ in mixed], pa.binary())
    schema = table.schema.append(pa.field("_corrupt_record", pa.string()))
    encoding = encodings(table, has_schema=False)
    good, permissive = Expected(), Expected()
    for at, (_, change) in enumerate(mixed):
        if change is None:
            permissive.add(at, None, None, None, None)
            continue
        for into in (good, permissive):
            into.change(at, change, (12 << 38) + change.pos + 2 * change.row)
    found = of(schema, columnEncodings=encoding, mode="DROPMALFORMED").decode(values)
    assert set(found.columns.pop().to_pylist()) == {None}
    compared(found, good, table.names)
    found = of(schema, columnEncodings=encoding, mode="PERMISSIVE").decode(values)
    texts = found.columns.pop().to_pylist()
    compared(found, permissive, table.names)
    assert [text is not None for text in texts] == [kind is None for kind in permissive.kinds]
    first = next(at for at, (_, change) in enumerate(mixed) if change is None)
    with pytest.raises(MalformedRecord, match=f"record {first} of"):
        of(schema, columnEncodings=encoding).decode(values)


ID = pa.schema([("id", pa.int32()), ("name", pa.string())])
SOURCE = '"source":{"file":"b.000003","pos":1000,"row":0,"ts_ms":5}'


@pytest.mark.parametrize("before", ["", '{"schema":', '{"payload":{},"schema":'])
def test_a_record_of_a_thousand_levels_is_malformed(before: str) -> None:
    deep = (before + "[" * 5_000 + "]" * 5_000 + ("}" if before else "")).encode()
    found = of(pa.schema([("id", pa.int32()), ("_corrupt_record", pa.string())]), mode="PERMISSIVE").decode(
        pa.array([deep])
    )
    assert found.columns[1].to_pylist() == [deep.decode()]


def one(text: str, schema: pa.Schema = ID, key: bytes | None = None, **options: str) -> list[tuple[Any, ...]]:
    some = of(schema, **options)
    found = some.decode_records(pa.array([text.encode()]), pa.array([key], pa.binary()), np.array([7]))
    return list(
        zip(found.metadata["_change_type"].to_pylist(), *(c.to_pylist() for c in found.columns), strict=True)
    )  # fmt: skip


def test_images_that_the_connector_does_not_send() -> None:
    update = f'{{"before":null,"after":{{"id":1,"name":"b"}},"op":"u",{SOURCE}}}'
    assert one(update) == [("update_postimage", 1, "b")]
    with pytest.raises(MalformedRecord, match="no before-image"):
        one(update, beforeImages="required")
    delete = f'{{"before":null,"after":null,"op":"d",{SOURCE}}}'
    for key in (b'{"id":4}', b'{"schema":{"type":"struct"},"payload":{"id":4}}'):
        assert one(delete, key=key) == [("delete", 4, None)]
    for key in (None, b"4", b"[", b'{"id":"x"}'):
        with pytest.raises(MalformedRecord, match="no before-image"):
            one(delete, key=key)
    with pytest.raises(MalformedRecord, match="no before-image"):
        one(delete, key=b'{"id":4}', beforeImages="required")
    toast = f'{{"before":null,"after":{{"id":1,"name":"__debezium_unavailable_value"}},"op":"u",{SOURCE}}}'
    with pytest.raises(MalformedRecord, match="REPLICA IDENTITY FULL"):
        one(toast)


def test_orders() -> None:
    def sequence(source: str, **options: str) -> int:
        text = f'{{"before":{{"id":1}},"after":{{"id":1}},"op":"u","source":{source}}}'
        found = of(ID, **options).decode_records(pa.array([text.encode()]), pa.nulls(1, pa.binary()), np.array([7]))
        first, second = found.metadata["_commit_seq"].to_pylist()
        assert second == first + 1
        return int(first)

    assert sequence('{"file":"b.000003","pos":1000,"row":2}') == (3 << 38) + 1004
    assert sequence('{"lsn":24023128}') == 2 * 24023128
    assert sequence('{"scn":"5"}', changeOrder="offset") == 7 << 20
    with pytest.raises(MalformedRecord, match="changeOrder=offset"):
        sequence('{"scn":"5"}')
    text = f'{{"before":null,"after":{{"id":1}},"op":"c",{SOURCE}}}'
    assert one(text, startingPosition="other.000003:1000") == [("insert", 1, None)]
    assert one(text, startingPosition="other.000003:1001") == []
    assert one(text, startingPosition="b.4:4") == []


def test_table_events() -> None:
    text = f'{{"before":null,"after":null,"op":"t",{SOURCE}}}'
    assert one(text) == [("truncate", None, None)]
    assert one(text, tableEvents="skip") == []
    with pytest.raises(BacklogError, match="tableEvents=skip"):
        one(text, tableEvents="fail")
    assert one('{"op":"m","source":{"lsn":5},"ts_ms":1}') == []


def test_other_tables_are_skipped_whatever_they_have() -> None:
    other = '"source":{"db":"shop","table":"users"}'
    for text in (f'{{"op":"c","after":{{"id":"x"}},{other}}}', f'{{"op":"x",{other}}}', f'{{"op":"t",{other}}}'):
        assert one(text, changeTables="shop.orders") == []
        assert one(text.replace("users", "orders"), mode="PERMISSIVE", changeTables="shop.orders")


def test_columns_of_other_names() -> None:
    text = f'{{"before":null,"after":{{"ID":1,"more":5}},"op":"c",{SOURCE}}}'
    with pytest.raises(BacklogError, match="the column id is ID in the records"):
        one(text)
    text = f'{{"before":null,"after":{{"id":1,"more":5}},"op":"c",{SOURCE}}}'
    assert one(text) == [("insert", 1, None)]
    with pytest.raises(BacklogError, match="a column more, which the schema lacks"):
        one(text, unknownColumns="fail")
    assert one(text.replace(',"more":5', ""), unknownColumns="fail") == [("insert", 1, None)]


@pytest.mark.parametrize(
    ("declared", "value", "options"),
    [
        ("timestamp", "1700000000000", {}),
        ("timestamp", "18262", {"columnEncodings": "a:text"}),
        ("date", "18262", {"columnEncodings": "a:text"}),
        ("decimal", "12.50", {}),
        ("decimal", '"12.50"', {}),
        ("date", '"2020-01-01"', {}),
        ("int8", "128.5", {}),
        ("bool", "1", {}),
    ],
)
def test_another_encoding_than_the_one_said(declared: str, value: str, options: dict[str, str]) -> None:
    types = {
        "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32(), "decimal": pa.decimal128(10, 2),
        "int8": pa.int8(), "bool": pa.bool_(),
    }  # fmt: skip
    text = f'{{"before":null,"after":{{"a":{value}}},"op":"c",{SOURCE}}}'
    with pytest.raises(MalformedRecord, match="a: "):
        one(text, pa.schema([("a", types[declared])]), **options)


def test_a_schema_that_says_another_type() -> None:
    field = '{"type":"int64","name":"io.debezium.time.MicroTimestamp","field":"a"}'
    schema = f'{{"type":"struct","fields":[{{"type":"struct","fields":[{field}],"field":"after"}}]}}'
    text = f'{{"schema":{schema},"payload":{{"before":null,"after":{{"a":5}},"op":"c",{SOURCE}}}}}'
    with pytest.raises(BacklogError, match=r"the column a is io\.debezium\.time\.MicroTimestamp"):
        one(text, pa.schema([("a", pa.date32())]))
    assert one(text, pa.schema([("a", pa.int64())])) == [("insert", 5)]
    assert json.loads(text)
