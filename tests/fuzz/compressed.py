"""Compressed transactions of MySQL, and compressed events of MariaDB."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pyarrow as pa

from backlog_spark.connectors.mysql_cdc.binlog.damaged import UNREADABLE
from backlog_spark.connectors.mysql_cdc.binlog.inflating import inflated, payload_events
from tests.fuzz.kinds import ANY, Kind, Wrong, refused
from tests.fuzz.row_images import length

__all__ = ["KINDS"]

_MOST = 16 << 20


def _event(body: bytes) -> bytes:
    return b"\0" * 4 + b"\x1e" + b"\0" * 4 + (19 + len(body)).to_bytes(4, "little") + b"\0" * 6 + body


def _body(chance: random.Random) -> bytes:
    return chance.choice((chance.randbytes(chance.randint(0, 200)), b"x" * chance.choice((0, 100, 70_000, 300_000))))


def _valid(chance: random.Random) -> tuple[Any, Any]:
    events = [_event(_body(chance)) for _ in range(chance.randint(0, 4))]
    content = b"".join(events)
    method = chance.choice((0, 255)) if len(content) < 10_000 else 0
    packed = pa.compress(content, "zstd", asbytes=True) if method == 0 else content
    fields = [(2, length(method)), (1, length(len(packed))), (9, b"new"), (3, length(len(content)))]
    chance.shuffle(fields)
    head = b"".join(bytes([kind, len(value)]) + value for kind, value in fields)
    return head + b"\0" + packed, events


def _judge(data: bytes, told: Any) -> None:
    with refused(*UNREADABLE):
        found, total = [], 0
        for event in payload_events(data, _MOST):
            found.append(event[1:] if told is not ANY else b"")
            total += len(event) - 1
    if told is not ANY and found != told:
        raise Wrong("other events")
    if total > _MOST:
        raise Wrong(f"{total} bytes")


def _valid_of_mariadb(chance: random.Random) -> tuple[Any, Any]:
    body = _body(chance)
    size = next(n for n in (1, 2, 3, 4) if len(body) < 1 << 8 * n)
    return bytes([0x80 | size]) + len(body).to_bytes(size, "big") + zlib.compress(body), body


def _judge_of_mariadb(data: bytes, told: Any) -> None:
    with refused(*UNREADABLE):
        found = inflated(data, _MOST)
    if told is not ANY and found != told:
        raise Wrong("other bytes")
    if len(found) > _MOST:
        raise Wrong(f"{len(found)} bytes")


KINDS = [
    Kind("compressed transactions", _valid, _judge),
    Kind("compressed events", _valid_of_mariadb, _judge_of_mariadb),
]
