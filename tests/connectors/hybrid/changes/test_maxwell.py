"""Maxwell's JSON, compared with a model."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backlog_spark.connectors.hybrid.decode import MalformedRecord

from .columns import COLUMNS, message
from .envelopes import Expected, Table, compared
from .test_debezium import of


def sent(row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else COLUMNS[name].maxwell(value) for name, value in row.items()}


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_random_records(seed: int, by_position: bool) -> None:
    chance = random.Random(f"{seed} {by_position}")
    table = Table.random(chance)
    records: list[bytes | None] = []
    expected = Expected()
    offset, pos = chance.choice([0, 1000]), 400
    for _ in range(chance.choice([1, 6, 60])):
        at, seconds = len(records), 1_600_000_000 + chance.randrange(10**6)
        pos += chance.randint(40, 2000)
        sequence = (6 << 38) + pos - 1 if by_position else offset + at << 20
        kind = chance.choice(["insert", "update", "update", "delete", "bootstrap-insert", "bootstrap-start",
                              "table-alter", ""])  # fmt: skip
        if not kind:
            records.append(None)
            continue
        head = {
            "database": "shop", "table": "orders", "type": kind, "ts": seconds, "xid": 940752, "commit": True,
            "position": f"mysql-bin.000006:{pos}", "server_id": 23042, "thread_id": 108,
        }  # fmt: skip
        new = table.row(chance, chance.randint(1, 9))
        if kind in ("bootstrap-start", "table-alter"):
            records.append(message({**head, "data": {}}, chance))
            continue
        more: dict[str, Any] = {"data": sent(new)}
        if kind == "update":
            changed = chance.sample(table.names[1:], chance.randint(0, len(table.names) - 1))
            other = table.row(chance, new["id"])
            changes = {name: other[name] for name in changed}
            more["old"] = sent(changes)
            expected.add(at, "update_preimage", {**new, **changes}, sequence, seconds * 10**6)
            expected.add(at, "update_postimage", new, sequence + 1, seconds * 10**6)
        else:
            expected.add(at, "delete" if kind == "delete" else "insert", new, sequence, seconds * 10**6)
        records.append(message({**head, **more}, chance))
    some = of(table.schema, valueFormat="maxwell", changeOrder="position" if by_position else "offset")
    offsets = offset + np.arange(len(records))
    found = some.decode_records(pa.array(records, pa.binary()), pa.nulls(len(records), pa.binary()), offsets)
    compared(found, expected, table.names)
    assert set(found.metadata["_database"].to_pylist()) <= {"shop"}


ID = pa.schema([("id", pa.int32()), ("tags", pa.string())])
START = {"type": "insert", "ts": 5, "position": "b.000006:1000"}


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"type": "upsert"}, "its type is 'upsert'"),
        ({"id": 1}, "its type is None"),
        ({"type": "insert", "ts": 1}, "no after-image"),
        ({"type": "delete", "ts": 1}, "no before-image"),
        ({"type": "insert", "data": {"id": "1"}, "ts": 1}, "id: a string"),
    ],
)
def test_malformed(record: dict[str, Any], why: str) -> None:
    with pytest.raises(MalformedRecord, match=why):
        of(ID, valueFormat="maxwell").decode(pa.array([message(record)]))


def test_positions() -> None:
    value = pa.array([message({**START, "data": {"id": 1}})])
    options = {"valueFormat": "maxwell", "changeOrder": "position"}
    assert len(of(ID, **options, startingPosition="b.000006:999").decode(value).kept) == 1
    # The event ends there, so the history has it.
    assert len(of(ID, **options, startingPosition="b.000006:1000").decode(value).kept) == 0
    with pytest.raises(MalformedRecord, match="no position"):
        of(ID, **options).decode(pa.array([message({"type": "insert", "data": {"id": 1}})]))


def test_other_tables_are_skipped_whatever_they_have() -> None:
    other = {"database": "shop", "table": "users", "ts": 5}
    values = [message({**other, **more}) for more in ({"type": "insert", "data": {"id": "x"}}, {"type": "new"})]
    mine = message({**other, "table": "orders", "type": "insert", "data": {"id": 1}})
    some = of(ID, valueFormat="maxwell", changeTables="shop.orders")
    found = some.decode(pa.array([values[0], mine, values[1]]))
    assert (found.kept.to_pylist(), found.columns[0].to_pylist()) == ([1], [1])


def test_structures_are_text() -> None:
    value = pa.array([message({**START, "data": {"id": 1, "tags": ["a", "b"]}})])
    assert of(ID, valueFormat="maxwell").decode(value).columns[1].to_pylist() == ['["a","b"]']
