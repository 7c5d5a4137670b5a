"""Topics that mix Avro records of several names, with a registry over real HTTP."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from backlog_spark.connectors.hybrid.decode import Decoder, MalformedRecord, decoder, parse
from backlog_spark.errors import BacklogError, SettingError

from .avro_cases import written
from .plain import plain
from .registry_server import RegistryServer


def record(name: str, *fields: str) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "namespace": "shop",
        "fields": [{"name": f, "type": ["null", "long"]} for f in fields],
    }


ORDER, NEWER, CLICK, USER = record("Order", "id", "amount"), record("Order", "id"), record("Click", "page"), record(
    "User", "id", "age"
)  # fmt: skip
TYPES = {1: ORDER, 2: NEWER, 3: CLICK, 4: USER}
DECLARED = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("_corrupt_record", pa.string())])


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        for id, schema in TYPES.items():
            running.add(id, schema)
        yield running


def of(server: RegistryServer, **options: str) -> Decoder:
    found = decoder(parse({"valueFormat": "avro", "schema.registry.url": server.url, **options}), DECLARED)
    return pickle.loads(pickle.dumps(found))  # type: ignore[no-any-return]


def sent(schema: int, **values: int | None) -> bytes:
    return b"\0" + schema.to_bytes(4, "big") + written(TYPES[schema], [values])[0]


def test_a_record_of_another_type_is_malformed(server: RegistryServer) -> None:
    values = pa.array([sent(1, id=1, amount=5), sent(3, page=7), sent(2, id=2)], pa.binary())
    with pytest.raises(MalformedRecord, match=r"record 1 .*schema 3 is of shop\.Click.*avroRecordName"):
        of(server, mode="FAILFAST").decode(values)
    found = of(server).decode(values)
    assert found.kept is None
    assert [plain(column)[0::2] for column in found.columns] == [[1, 2], [5, None], [None, None]]
    assert [plain(column)[1] for column in found.columns[:2]] == [None, None]
    assert plain(found.columns[2])[1]
    assert plain(of(server, mode="DROPMALFORMED").decode(values).columns[0]) == [1, 2]


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_records_of_chosen_names(server: RegistryServer, seed: int, mode: str) -> None:
    chance = random.Random(seed)
    names = chance.sample(["shop.Order", "shop.User", "shop.Other"], chance.randint(1, 3))
    some = of(server, avroRecordName=" , ".join(names), mode=mode)
    records: list[bytes | None] = []
    expected: list[tuple[int, int | None, int | None]] = []
    for at in range(chance.choice([1, 5, 300])):
        id = chance.choice([0, 1, 1, 2, 3, 4, 5])
        if not id:
            records.append(None)
            expected.append((at, None, None))
            continue
        if id == 5:
            records.append(b"\0\0")
            if mode == "PERMISSIVE":
                expected.append((at, None, None))
            continue
        values = {f["name"]: chance.choice([None, chance.randint(-(2**40), 2**40)]) for f in TYPES[id]["fields"]}
        records.append(sent(id, **values))
        if f"shop.{TYPES[id]['name']}" in names:
            expected.append((at, values.get("id"), values.get("amount")))
    found = some.decode(pa.array(records, pa.binary()))
    kept = list(range(len(records))) if found.kept is None else found.kept.to_pylist()
    assert list(zip(kept, plain(found.columns[0]), plain(found.columns[1]), strict=True)) == expected


def test_one_schema_for_all_records() -> None:
    with pytest.raises(SettingError, match=r"avroRecordName.*shop\.Order"):
        decoder(parse({"valueFormat": "avro", "avroSchema": json.dumps(ORDER), "avroRecordName": "a.B"}), DECLARED)
    with pytest.raises(BacklogError, match=r"shop\.Click has none of the columns id, amount"):
        decoder(parse({"valueFormat": "avro", "avroSchema": json.dumps(CLICK)}), DECLARED)
    decoder(parse({"valueFormat": "avro", "avroSchema": json.dumps(ORDER), "avroRecordName": "shop.Order"}), DECLARED)
