"""Rows of a SELECT in the server's binary protocol, which numpy and Arrow read without a look at each."""

from __future__ import annotations

import random
from typing import Any

from backlog_spark.connectors.mysql_cdc.server.wire import SLACK, RowDecoder, WireColumn, whole_rows
from tests.connectors.mysql_cdc.server import test_wire
from tests.fuzz.kinds import ANY, Kind, Wrong, mutated_bytes

__all__ = ["KINDS"]

_VALUES = {"i8": (-128, 127), "i16": (-5, 2**15 - 1), "i32": (0, -(2**31)), "i64": (2**63 - 1, -1), "f32": (1.5, -0.0)}


def _value(chance: random.Random, kind: str) -> Any:
    if chance.random() < 0.2:
        return None
    if kind == "bytes":
        return b"x" * chance.choice((0, 3, 250, 251, 70_000))
    if kind == "time":
        return chance.choice(((0, 0, 0, 0, 0, 0, 0), (2020, 1, 2, 0, 0, 0, 0), (2020, 1, 2, 3, 4, 5, 6)))
    return chance.choice(_VALUES.get(kind, (2.5, 1e300)))


def _valid(chance: random.Random) -> tuple[Any, Any]:
    kinds = chance.choices(sorted(test_wire._CODES), k=chance.choice((1, 4, 12)))
    rows = [[_value(chance, kind) for kind in kinds] for _ in range(chance.choice((1, 2, 6)))]
    return (kinds, b"".join(test_wire.packet(kinds, row, number) for number, row in enumerate(rows))), (kinds, rows)


def _judge(found: Any, told: Any) -> None:
    kinds, data = found
    starts = whole_rows(data + bytes(SLACK), 0, len(data)).starts
    if not starts:
        return
    # As `_Packets` has it: memory goes on behind the rows.
    columns = [WireColumn(test_wire._CODES[kind], unsigned=False) for kind in kinds]
    arrays = RowDecoder(columns).decode(data + bytes(SLACK), starts)
    for at, (kind, array) in enumerate(zip(kinds, arrays, strict=True)):
        array.validate(full=True)
        if told is not ANY and kind != "time" and array.to_pylist() != [row[at] for row in told[1]]:
            raise Wrong(f"{kind}: {array}")


def _mutate(chance: random.Random, found: Any, other: Any) -> Any:
    return found[0], mutated_bytes(chance, found[1], other[1])


KINDS = [Kind("rows on the wire", _valid, _judge, _mutate)]
