"""Rows of the binary protocol, written here as its documentation says, and parsed by the source."""

from __future__ import annotations

import datetime as dt
import itertools
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from backlog_spark.connectors.mysql_cdc.schema.temporal import packed_days, packed_micros, packed_text
from backlog_spark.connectors.mysql_cdc.server.wire import HEADER, SLACK, RowDecoder, WireColumn, whole_rows
from backlog_spark.errors import BacklogError

NULL = None
_CODES = {"i8": 1, "i16": 2, "i32": 3, "i64": 8, "f32": 4, "f64": 5, "time": 12, "bytes": 253}
_FORMS = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}


def lenenc(data: bytes) -> bytes:
    """As "Protocol::LengthEncodedInteger" and "Protocol::LengthEncodedString" have it."""
    size = len(data)
    if size < 251:
        return bytes([size]) + data
    if size < 1 << 16:
        return b"\xfc" + struct.pack("<H", size) + data
    if size < 1 << 24:
        return b"\xfd" + struct.pack("<I", size)[:3] + data
    return b"\xfe" + struct.pack("<Q", size) + data


def moment(value: tuple[int, ...]) -> bytes:
    """Year to microseconds, without what is zero at the end."""
    year, month, day, hour, minute, second, micros = value
    full = struct.pack("<HBBBBBI", *value)
    if micros:
        return bytes([11]) + full
    if hour or minute or second:
        return bytes([7]) + full[:7]
    return bytes([4]) + full[:4] if year or month or day else b"\0"


def packet(kinds: list[str], row: list[Any], number: int = 0) -> bytes:
    """A row's packet: header, 0, the bits of what is NULL, and the values of what is not."""
    bits = sum(1 << (i + 2) for i, value in enumerate(row) if value is NULL)
    body = b"\0" + bits.to_bytes((len(row) + 9) // 8, "little")
    for kind, value in zip(kinds, row, strict=True):
        if value is NULL:
            continue
        if kind == "bytes":
            body += lenenc(value)
        elif kind == "time":
            body += moment(value)
        else:
            body += struct.pack("<" + _FORMS[kind], value)
    return struct.pack("<I", len(body) | number % 256 << 24) + body


moment_of_day = (2020, 1, 2, 3, 4, 5, 6)


def decoded(kinds: list[str], rows: list[list[Any]]) -> list[pa.Array]:
    data = b"".join(packet(kinds, row, number) for number, row in enumerate(rows))
    packets = whole_rows(data + bytes(SLACK), 0, len(data))
    assert (len(packets.starts), packets.end) == (len(rows), len(data))
    columns = [WireColumn(_CODES[kind], unsigned=False) for kind in kinds]
    return RowDecoder(columns).decode(data + bytes(SLACK), packets.starts)


_MOMENTS = some.one_of(
    some.datetimes().map(lambda t: (t.year, t.month, t.day, t.hour, t.minute, t.second, t.microsecond)),
    some.dates().map(lambda d: (d.year, d.month, d.day, 0, 0, 0, 0)),
    some.sampled_from(
        [(0, 0, 0, 0, 0, 0, 0), (2020, 0, 10, 1, 2, 3, 4), (2023, 2, 29, 0, 0, 0, 0), (0, 1, 1, 0, 0, 0, 9)]
    ),
)
_VALUES: dict[str, some.SearchStrategy[Any]] = {
    **{kind: some.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for kind, bits in _BITS.items()},
    "f32": some.floats(width=32, allow_nan=False),
    "f64": some.floats(allow_nan=False),
    "time": _MOMENTS,
    "bytes": some.one_of(
        some.binary(max_size=20), some.sampled_from([250, 251, 252, 65535, 65536]).map(lambda n: b"x" * n)
    ),
}


@some.composite
def tables(draw: some.DrawFn) -> tuple[list[str], list[list[Any]]]:
    kinds = draw(some.lists(some.sampled_from(sorted(_CODES)), min_size=1, max_size=18))
    row = some.tuples(*(some.one_of(some.none(), _VALUES[kind]) for kind in kinds)).map(list)
    return kinds, draw(some.lists(row, min_size=1, max_size=6))


def expected(kind: str, value: Any) -> Any:
    if value is NULL or kind != "time":
        return value
    try:
        return dt.datetime(*value)
    except ValueError:
        return NULL


@given(tables())
def test_every_value_comes_out_as_it_was_put_in(table: tuple[list[str], list[list[Any]]]) -> None:
    kinds, rows = table
    for at, (kind, array) in enumerate(zip(kinds, decoded(kinds, rows), strict=True)):
        written = [row[at] for row in rows]
        if kind == "time":
            found = packed_micros(array).view(pa.timestamp("us")).to_pylist()
            days = [None if value is None else value.date() for value in found]
            assert packed_days(array).to_pylist() == days
        else:
            found = array.to_pylist()
        assert found == [expected(kind, value) for value in written]


def test_unsigned_integers_are_of_their_own_type() -> None:
    data = packet(["i8", "i64"], [-1, -1]) + bytes(SLACK)
    found = RowDecoder([WireColumn(1, True), WireColumn(8, True)]).decode(data, [0])
    assert [(array.type, array[0].as_py()) for array in found] == [(pa.uint8(), 255), (pa.uint64(), 2**64 - 1)]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ((0, 0, 0, 0, 0, 0, 0), "0000-00-00"),
        ((2020, 0, 10, 1, 2, 3, 4), "2020-00-10"),
        ((2023, 2, 31, 9, 0, 0, 0), "2023-02-31"),
    ],
)
def test_a_date_that_is_none_is_told_as_the_server_prints_it(written: tuple[int, ...], text: str) -> None:
    (array,) = decoded(["time"], [[written]])
    assert packed_days(array).to_pylist() == [None]
    assert packed_text(array[0].as_py()) == text


@given(some.lists(some.integers(0, 300), min_size=1, max_size=9), some.data())
def test_packets_that_are_not_there_as_a_whole_are_left(sizes: list[int], data: some.DataObject) -> None:
    """As they come from the network, cut anywhere."""
    packets = [struct.pack("<I", size) + bytes([7]) * size for size in sizes]
    whole = b"".join(packets)
    ends = [sum(map(len, packets[:n])) for n in range(len(packets) + 1)]
    cut = data.draw(some.integers(0, len(whole)))
    packets = whole_rows(whole + bytes(SLACK), 0, cut)
    there = [start for start, end in itertools.pairwise(ends) if end <= cut]
    assert packets.starts == there
    assert packets.end == max(end for end in ends if end <= cut)


def test_a_packet_that_is_continued_is_left() -> None:
    first = struct.pack("<I", 1) + b"\0"
    data = first + struct.pack("<I", 0xFFFFFF) + bytes(0xFFFFFF) + struct.pack("<I", 2) + bytes(2)
    assert whole_rows(data + bytes(SLACK), 0, len(data)) == ([0], len(first))
    assert HEADER == 4


@pytest.mark.parametrize("rows_after", [0, 3])
@pytest.mark.parametrize("kinds", [["i32", "i64"], ["bytes", "i8"], ["i8", "time", "f64"]])
def test_a_row_that_its_values_do_not_fill_is_refused(kinds: list[str], rows_after: int) -> None:
    """Otherwise values of the next row would be taken, or memory behind the last one."""
    good = packet(kinds, [b"x" * 5 if kind == "bytes" else moment_of_day if kind == "time" else 1 for kind in kinds])
    for body in (good[HEADER:-3], good[HEADER:] + b"\0\0"):
        data = struct.pack("<I", len(body)) + body + good * rows_after + bytes(SLACK)
        packets = whole_rows(data, 0, len(data) - SLACK)
        with pytest.raises(BacklogError, match="longer than the row"):
            RowDecoder([WireColumn(_CODES[kind], unsigned=False) for kind in kinds]).decode(data, packets.starts)


@pytest.mark.parametrize(
    "claim",
    [b"\x64", b"\xfc\xff\xff", b"\xfd\xff\xff\xff", b"\xfe" + b"\xff" * 8, b"\xfe" + b"\xff" * 7 + b"\x7f"],
    ids=["one byte", "two", "three", "eight, negative", "eight"],
)
@pytest.mark.parametrize("rows_after", [0, 3])
def test_a_value_that_claims_more_bytes_than_its_row_is_refused(claim: bytes, rows_after: int) -> None:
    """Otherwise Arrow would take the memory behind it."""
    body = b"\0\0" + claim + b"abc"
    bad = struct.pack("<I", len(body)) + body
    data = packet(["bytes"], [b"good"]) + bad + b"".join(packet(["bytes"], [b"good"]) for _ in range(rows_after))
    data += bytes(SLACK)
    packets = whole_rows(data, 0, len(data) - SLACK)
    with pytest.raises(BacklogError, match="longer than the row"):
        RowDecoder([WireColumn(_CODES["bytes"], unsigned=False)]).decode(data, packets.starts)
