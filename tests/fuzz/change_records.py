"""Envelopes of change topics: Debezium, Canal and Maxwell."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from backlog_spark.connectors.hybrid.decode import decoder, parse
from backlog_spark.errors import BacklogError
from tests.connectors.hybrid.changes import test_canal, test_debezium, test_maxwell
from tests.connectors.hybrid.changes.columns import COLUMNS, message, rows_of
from tests.connectors.hybrid.changes.envelopes import Table, changes_of, compared, expected_of
from tests.connectors.hybrid.decode.plain import plain
from tests.connectors.hybrid.decode.records import BROKEN, NUMBERS, TEXTS
from tests.fuzz.kinds import ANY, Kind, Refusal, Wrong
from tests.fuzz.records import mutated_records

__all__ = ["KINDS"]

_CORRUPT = pa.field("_corrupt_record", pa.string())
_FORMS = ("plain", "wrapped", "spaced")


@functools.lru_cache(200)
def _decoder(schema: pa.Schema, format: str, encodings: str, mode: str) -> Any:
    options = {"valueFormat": format, "columnEncodings": encodings, "mode": mode, "tableEvents": "emit"}
    return decoder(parse({name: value for name, value in options.items() if value}), schema.append(_CORRUPT))


def _decoded(some: Any, records: list[bytes]) -> Any:
    values = pa.array(records, pa.binary())
    found = some.decode_records(values, pa.nulls(len(records), pa.binary()), np.arange(len(records)))
    for array in (*found.columns, *found.metadata.values()):
        array.validate(full=True)
        if len(array) != len(found.kept):
            raise Wrong("columns of other lengths")
    return found


def _rows(found: Any) -> list[tuple[Any, ...]]:
    columns = [*found.columns, *(found.metadata[name] for name in ("_change_type", "_commit_timestamp"))]
    return list(zip(*map(plain, columns), strict=True))


def _judge(found: Any, told: Any) -> None:
    schema, format, encodings, records = found
    some = _decoder(schema, format, encodings, "PERMISSIVE")
    whole = _decoded(some, records)
    # Each alone takes other paths. The order of the rows of a block is that of the log.
    alone: list[tuple[Any, ...]] = []
    for record in records:
        alone += _rows(_decoded(some, [record]))
    if sorted(map(repr, _rows(whole))) != sorted(map(repr, alone)):
        raise Wrong(f"{_rows(whole)} as a block, {alone} alone")
    texts = whole.columns[-1].to_pylist()
    is_bad = any(text is not None for text in texts)
    try:
        _decoded(_decoder(schema, format, encodings, "FAILFAST"), records)
    except BacklogError as error:
        if not is_bad:
            raise Wrong(f"only FAILFAST refuses: {error}") from None
    else:
        if is_bad:
            raise Wrong("FAILFAST accepts malformed records")
    if told is not ANY:
        if is_bad:
            raise Wrong(f"malformed: {texts}")
        told(whole)
    if is_bad:
        raise Refusal("malformed")


def _debezium(chance: random.Random) -> tuple[Any, Any]:
    table, form = Table.random(chance), chance.choice(_FORMS)
    changes = changes_of(table, chance, chance.choice((1, 2, 8)))
    records = [test_debezium.record(table, change, form) for change in changes]
    encodings = test_debezium.encodings(table, has_schema=form != "plain")
    expected = expected_of(list(enumerate(changes)), 12)

    def told(found: Any) -> None:
        found.columns.pop()
        compared(found, expected, table.names)

    return (table.schema, "debezium", encodings, records), told


def _simple(format: str) -> Callable[[random.Random], tuple[Any, Any]]:
    def valid(chance: random.Random) -> tuple[Any, Any]:
        table = Table.random(chance)
        rows = [table.row(chance, chance.randint(1, 9)) for _ in range(chance.choice((1, 2, 6)))]
        if format == "canal":
            records = [
                message(test_canal.envelope("INSERT", 1_600_000_000_000, data=[test_canal.sent(table, row)]), chance)
                for row in rows
            ]
            encodings = {n: COLUMNS[n].canal_encoding for n in table.names if COLUMNS[n].canal_encoding}
        else:
            records = [
                message(
                    {
                        "database": "shop",
                        "table": "orders",
                        "type": "insert",
                        "ts": 1_600_000_000,
                        "xid": 7,
                        "commit": True,
                        "position": f"b.000012:{at + 4}",
                        "data": test_maxwell.sent(row),
                    },
                    chance,
                )
                for at, row in enumerate(rows)
            ]
            encodings = {n: COLUMNS[n].maxwell_encoding for n in table.names if COLUMNS[n].maxwell_encoding}

        def told(found: Any) -> None:
            for name, column, values in zip(table.names, found.columns, rows_of(table.names, list(rows)), strict=False):
                if plain(column) != plain(values):
                    raise Wrong(f"{name}: {plain(column)} for {plain(values)}")

        return (table.schema, format, ",".join(f"{n}:{e}" for n, e in encodings.items()), records), told

    return valid


_ODD = [
    *NUMBERS,
    *BROKEN,
    *(f'"{text}"' for text in TEXTS if '"' not in text),
    '"op":"u"',
    '"before":{',
    '"after":null',
    '"old":[{}]',
    '"type":"delete"',
]
_ODD += [
    '"payload":',
    '"schema":{}',
    '"file":"b.99999999999999999999"',
    '"pos":-1',
    '"row":99999999999999999999',
    '"ts_ms":1e400',
]


def _mutate(chance: random.Random, found: Any, other: Any) -> Any:
    *head, records = found
    return (*head, mutated_records(chance, records, other[-1], _ODD))


KINDS = [
    Kind("Debezium records", _debezium, _judge, _mutate),
    Kind("Canal records", _simple("canal"), _judge, _mutate),
    Kind("Maxwell records", _simple("maxwell"), _judge, _mutate),
]
