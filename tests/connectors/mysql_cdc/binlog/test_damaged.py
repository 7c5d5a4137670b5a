"""Damaged events and documents: one clear error with the place in the log, in little time and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from backlog_spark.connectors.mysql_cdc.binlog.damaged import UNREADABLE
from backlog_spark.connectors.mysql_cdc.binlog.events import Events
from backlog_spark.connectors.mysql_cdc.binlog.inflating import payload_events
from backlog_spark.connectors.mysql_cdc.schema.ddl.timeline import Timeline
from backlog_spark.connectors.mysql_cdc.schema.json_values import from_binary
from backlog_spark.errors import BacklogError
from tests.connectors.mysql_cdc.binlog.test_recorded import FILE, Recorded, T

TABLE_MAP, ROWS, QUERY, GTID = 19, 30, 2, 33


def read(kind: int, damage: Callable[[bytes], bytes], method: Callable[[Events], Any] = lambda e: [*e.read()]) -> Any:
    """The recorded log with the first event of a kind damaged. Its size stays."""
    connection = Recorded(FILE)
    at = next(i for i, event in enumerate(connection.events) if event[5] == kind and i > 3)
    connection.events[at] = damage(connection.events[at])
    connection._left = iter(connection.events)
    return method(Events(connection, (T,), None, Timeline()))


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (TABLE_MAP, lambda e: e[:28] + b"\xff" + e[29:]),
        (TABLE_MAP, lambda e: e[:22]),
        (ROWS, lambda e: e[:29] + b"\xff" + e[30:]),
        (ROWS, lambda e: e[:-9]),
        (QUERY, lambda e: e[:25]),
        (GTID, lambda e: e[:24]),
    ],
    ids=["table map", "cut table map", "column count", "cut rows", "cut statement", "cut GTID"],
)
def test_a_damaged_event_is_told_with_its_place(kind: int, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(
        BacklogError, match=r"binary log (cannot be decoded in the event before binlog.000002:\d+|has a)"
    ):
        read(kind, damage)


def test_a_damaged_packet_in_front_of_the_first_transaction() -> None:
    connection = Recorded(FILE)
    connection._left = iter([b"\0" * 9])
    with pytest.raises(BacklogError, match="binary log cannot be decoded"):
        Events(connection, (), None, Timeline()).first_position()


def number(value: int, width: int = 4) -> bytes:
    return value.to_bytes(width, "little")


SHARED = b"\x03" + number(2) + number(0) + (b"\x03" + number(0)) * 2
"""A large array whose two items are the array itself."""


def doubling(levels: int) -> bytes:
    """Arrays of two items that are both the next array. The last one is empty."""
    out = b""
    for level in range(levels):
        after = number(18)  # from one array to the next
        out += number(2) + number(0) + (b"\x03" + after) * 2
        assert len(out) == 18 * (level + 1)
    return b"\x03" + out + number(0) + number(8)


@pytest.mark.parametrize(
    "document",
    [
        b"\x01" + number(2**24) + bytes(8),
        b"\x03" + number(2**31 - 1) + bytes(8),
        SHARED,
        doubling(60),
        b"\x0c\x7fabc",
        b"\x0f\xf6\x02\xff\xff",
        b"\x0f\xf6\x03\x41\x1e\x00",
        b"\x0f\x0c\x02\x00\x00",
        b"\x0b" + b"\xff" * 8,
        b"\x05\x01",
        b"\x04\x09",
    ],
    ids=[
        "object",
        "array",
        "itself",
        "shared",
        "cut",
        "digits",
        "cut decimal",
        "cut time",
        "NaN",
        "cut number",
        "literal",
    ],
)
def test_damaged_json_ends_at_once(document: bytes) -> None:
    with pytest.raises(UNREADABLE):
        from_binary(document)


def test_a_damaged_size_takes_no_memory() -> None:
    event = b"\0" * 9 + (1 << 29).to_bytes(4, "little") + b"\0" * 6
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(BacklogError, match="cannot be inflated"):
        list(payload_events(b"\0" + pa.compress(event, "zstd", asbytes=True), 1 << 31))
    assert pa.default_memory_pool().max_memory() <= max(before, 16 << 20)
