"""Canal's flat messages, compared with a model."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from backlog_spark.connectors.hybrid.decode import MalformedRecord
from backlog_spark.errors import SettingError

from .columns import COLUMNS, message
from .envelopes import Expected, Table, compared
from .test_debezium import of

KINDS = {"INSERT": "insert", "DELETE": "delete"}


def sent(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else COLUMNS[name].canal(value) for name, value in row.items()}


def envelope(kind: str, at_ms: int, **more: Any) -> dict[str, Any]:
    return {
        "data": None, "database": "shop", "es": at_ms, "gtid": "", "id": 5, "isDdl": False, "mysqlType": None,
        "old": None, "pkNames": ["id"], "sql": "", "sqlType": None, "table": "orders", "ts": at_ms + 7, "type": kind,
        **more,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(50))
def test_random_messages(seed: int) -> None:
    chance = random.Random(seed)
    table = Table.random(chance)
    records: list[bytes | None] = []
    expected = Expected()
    offset = chance.choice([0, 1000, 2**42])
    for _ in range(chance.choice([1, 6, 40])):
        at, at_ms = len(records), 1_600_000_000_000 + chance.randrange(10**9)
        base = offset + at << 20
        kind = chance.choice(["INSERT", "UPDATE", "UPDATE", "DELETE", "TRUNCATE", "ERASE", "ALTER", "QUERY", ""])
        if not kind:
            records.append(None)
            continue
        if kind in ("TRUNCATE", "ERASE", "ALTER", "QUERY"):
            records.append(message(envelope(kind, at_ms, isDdl=True), chance))
            if kind in ("TRUNCATE", "ERASE"):
                expected.add(at, {"ERASE": "drop"}.get(kind, "truncate"), None, base, at_ms * 1000)
            continue
        news = [table.row(chance, chance.randint(1, 9)) for _ in range(chance.choice([1, 1, 3]))]
        more: dict[str, Any] = {"data": [sent(table, row) for row in news]}
        if kind == "UPDATE":
            olds = []
            for number, new in enumerate(news):
                changed = chance.sample(table.names[1:], chance.randint(0, len(table.names) - 1))
                other = table.row(chance, new["id"])
                changes = {name: other[name] for name in changed}
                olds.append(sent(table, changes))
                seq = base + 2 * number
                expected.add(at, "update_preimage", {**new, **changes}, seq, at_ms * 1000)
                expected.add(at, "update_postimage", new, seq + 1, at_ms * 1000)
            more["old"] = olds
            more["pkNames"] = chance.choice([None, ["id"]])
        else:
            for number, new in enumerate(news):
                expected.add(at, KINDS[kind], new, base + 2 * number, at_ms * 1000)
        records.append(message(envelope(kind, at_ms, **more), chance))
    encodings = {n: COLUMNS[n].canal_encoding for n in table.names if COLUMNS[n].canal_encoding}
    some = of(table.schema, valueFormat="canal", columnEncodings=",".join(f"{n}:{e}" for n, e in encodings.items()))
    offsets = offset + np.arange(len(records))
    found = some.decode_records(pa.array(records, pa.binary()), pa.nulls(len(records), pa.binary()), offsets)
    compared(found, expected, table.names)
    assert set(found.metadata["_table"].to_pylist()) <= {"orders"}


ID = pa.schema([("id", pa.int32()), ("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"type": "UPSERT", "data": []}, "its type is 'UPSERT'"),
        ({"data": []}, "its type is None"),
        ({"type": "INSERT", "data": []}, "it has no data"),
        ({"type": "INSERT"}, "it has no data"),
        ({"type": "UPDATE", "data": [{"id": "1"}]}, "old and data differ in length"),
        ({"type": "INSERT", "data": [{"id": "1"}, {"id": "x"}]}, "id: a value that does not fit"),
    ],
)
def test_malformed(record: dict[str, Any], why: str) -> None:
    values = pa.array([message({"type": "QUERY"}), message(record)])
    with pytest.raises(MalformedRecord, match=f"record 1 .*{why}"):
        of(ID, valueFormat="canal").decode(values)
    found = of(ID, valueFormat="canal", mode="PERMISSIVE").decode(values)
    assert found.metadata["_change_type"].to_pylist() == [None]
    assert found.kept.to_pylist() == [1]


def test_other_tables_are_skipped_whatever_they_have() -> None:
    other = {"database": "shop", "table": "users"}
    mine = {"database": "shop", "table": "orders", "type": "INSERT", "data": [{"id": "1"}]}
    values = [message({**other, **more}) for more in (
        {"type": "INSERT", "data": [{"id": "x"}]}, {"type": "TRUNCATE"}, {"type": "new"}, {"type": "UPDATE", "data": []}
    )]  # fmt: skip
    some = of(ID, valueFormat="canal", changeTables="shop.orders, shop.more")
    found = some.decode(pa.array([values[0], message(mine), *values[1:]]))
    assert (found.kept.to_pylist(), found.columns[0].to_pylist()) == ([1], [1])


def test_zones_and_zero_dates() -> None:
    rows = [{"id": "1", "at": "2024-07-01 12:00:00"}, {"id": "2", "at": "0000-00-00 00:00:00"}]
    value = pa.array([message({"type": "INSERT", "data": rows})])
    column = of(ID, valueFormat="canal", timeZone="Europe/Berlin").decode(value).columns[1]
    assert column.cast(pa.int64()).to_pylist() == [1_719_828_000_000_000, None]


def test_its_order_is_the_offset() -> None:
    with pytest.raises(SettingError, match="no position"):
        of(ID, valueFormat="canal", changeOrder="position")
    with pytest.raises(SettingError, match="startingPosition"):
        of(ID, valueFormat="canal", startingPosition="b.1:4")
