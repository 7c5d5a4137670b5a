"""Debezium's Avro with a registry over real HTTP. fastavro writes the model's records."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backlog_spark.connectors.hybrid.changes.base import ChangeDecoder
from backlog_spark.connectors.hybrid.decode import MalformedRecord, decoder, parse
from backlog_spark.errors import BacklogError, SettingError

from ..decode.avro_cases import written
from ..decode.registry_server import RegistryServer
from .columns import COLUMNS
from .envelopes import Change, Table, changes_of, compared, expected_of

AVRO_TYPES = {"int16": "int", "int32": "int", "int64": "long"}
HEARTBEAT = {
    "type": "record",
    "name": "Heartbeat",
    "namespace": "io.debezium.connector.common",
    "fields": [{"name": "ts_ms", "type": "long"}],
}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        yield running


def of(server: RegistryServer, schema: pa.Schema, **options: str) -> ChangeDecoder:
    given = {
        "valueFormat": "debezium-avro-confluent",
        "schema.registry.url": server.url,
        "tableEvents": "emit",
        **options,
    }
    return pickle.loads(pickle.dumps(decoder(parse(given), schema)))  # type: ignore[no-any-return]


def avro_schema(table: Table) -> dict[str, Any]:
    fields = []
    for name, how in table.written.items():
        kind: Any = {"type": AVRO_TYPES.get(how.type, how.type)}
        if how.name:
            kind |= {"connect.version": 1, "connect.name": how.name}
        if how.name.endswith(".Decimal"):
            declared = COLUMNS[name].declared
            kind |= {"logicalType": "decimal", "precision": declared.precision, "scale": declared.scale}
        elif how.name == "org.apache.kafka.connect.data.Date":
            kind |= {"logicalType": "date"}
        elif how.name == "org.apache.kafka.connect.data.Timestamp":
            kind |= {"logicalType": "timestamp-millis"}
        fields.append({"name": name, "type": kind if name == "id" else ["null", kind]})
    value = {"type": "record", "name": "Value", "fields": fields, "connect.name": "s.shop.orders.Value"}
    source = [("ts_ms", "long"), ("db", "string"), ("table", ["null", "string"]), ("file", "string"), ("pos", "long"),
              ("row", "int"), ("snapshot", ["null", "string"])]  # fmt: skip
    return {
        "type": "record", "name": "Envelope", "namespace": "s.shop.orders",
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": {"type": "record", "name": "Source", "namespace": "io.debezium.connector.mysql",
                                        "fields": [{"name": n, "type": t} for n, t in source]}},
            {"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
    }  # fmt: skip


def record(table: Table, id: int, change: Change) -> bytes:
    source = {
        "ts_ms": change.at_ms, "db": "shop", "table": "orders", "file": "b.000012", "pos": change.pos,
        "row": change.row, "snapshot": None,
    }  # fmt: skip
    value = {
        "before": table.image(change.before, avro=True), "after": table.image(change.after, avro=True),
        "source": source, "op": change.op, "ts_ms": change.at_ms + 99,
    }  # fmt: skip
    return framed(id, avro_schema(table), value)


def framed(id: int, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + written(schema, [value])[0]


@pytest.mark.parametrize("seed", range(30))
def test_random_changes(server: RegistryServer, seed: int) -> None:
    """Also with a schema that is changed on the way, heartbeats and tombstones."""
    chance = random.Random(seed)
    table = Table.random(chance, for_avro=True)
    fewer = Table(table.names[: chance.randint(1, len(table.names))], table.written)
    older = Table(fewer.names, {name: table.written[name] for name in fewer.names})
    server.add(1, avro_schema(older))
    server.add(2, avro_schema(table))
    server.add(3, HEARTBEAT)
    records: list[bytes | None] = []
    changes: list[tuple[int, Change]] = []
    for now, id in ((older, 1), (table, 2)):
        for change in changes_of(now, chance, chance.choice([1, 30])):
            if chance.random() < 0.2:
                records.append(chance.choice([None, framed(3, HEARTBEAT, {"ts_ms": 5})]))
            change.pos += id * 10**6
            changes.append((len(records), change))
            records.append(record(now, id, change))
    texts = {n: h.encoding for n, h in table.written.items() if h.encoding in ("base64", "base64url", "hex")}
    names = {n: e for n, e in texts.items() if table.written[n].type == "string"}
    some = of(server, table.schema, columnEncodings=",".join(f"{n}:{e}" for n, e in names.items()))
    found = some.decode_records(
        pa.array(records, pa.binary()), pa.nulls(len(records), pa.binary()), np.arange(len(records))
    )
    compared(found, expected_of(changes, 12), table.names)


ID = pa.schema([("id", pa.int32())])


def test_records_of_no_envelope(server: RegistryServer) -> None:
    other = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    server.add(4, other)
    for value, why in (
        (framed(4, other, {"id": 5}), "schema 4 of the registry, Order, is not that of an envelope"),
        (b"{}", "0 byte"),
        (b"\0\0\0\0\x09", "has no schema 9"),
    ):
        with pytest.raises(MalformedRecord, match=why):
            of(server, ID).decode(pa.array([value]))
        found = of(server, ID, mode="PERMISSIVE").decode(pa.array([value]))
        assert found.metadata["_change_type"].to_pylist() == [None]


def test_a_declared_type_that_does_not_fit(server: RegistryServer) -> None:
    table = Table(["id"], {"id": COLUMNS["id"].debezium[0]})
    server.add(1, avro_schema(table))
    value = pa.array([record(table, 1, Change("c", None, {"id": 5}, 4, 0, 5))])
    with pytest.raises(BacklogError, match="schema 1 of the registry: the column ID is id in the records"):
        of(server, pa.schema([("ID", pa.int32())])).decode(value)
    with pytest.raises(BacklogError, match="schema 1 of the registry: the column id is int32"):
        of(server, pa.schema([("id", pa.date32())])).decode(value)


def test_the_registry_is_needed() -> None:
    with pytest.raises(SettingError, match=r"schema\.registry\.url"):
        parse({"valueFormat": "debezium-avro-confluent"})
