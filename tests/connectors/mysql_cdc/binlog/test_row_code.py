"""Generated code for a table's rows gives the same values as the readers of its columns, with any NULLs."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.mysql_cdc.binlog.column_readers import reader, value_bytes
from backlog_spark.connectors.mysql_cdc.binlog.row_code import Code, Reader, as_reader, row_end, row_reader
from backlog_spark.connectors.mysql_cdc.binlog.row_decoder import RowDecoder, TableMap
from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.packed import packed_decimal, packed_size
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.errors import BacklogError


def column(name: str, kind: str, *, digits: tuple[int, int] = (0, 0), charset: str = "") -> Column:
    declared = kind.split("(")[0].split(" ")[0]
    return Column(name, declared, kind, precision=digits[0], scale=digits[1], charset=charset)


# Type code, metadata and a value's bytes of each column.
KINDS = [
    (column("tiny", "tinyint"), 1, 0, st.binary(min_size=1, max_size=1)),
    (column("medium", "mediumint"), 9, 0, st.binary(min_size=3, max_size=3)),
    (column("big", "bigint unsigned"), 8, 0, st.binary(min_size=8, max_size=8)),
    (column("small", "smallint"), 2, 0, st.binary(min_size=2, max_size=2)),
    (column("real", "double"), 5, 0, st.floats(allow_nan=False).map(lambda v: struct.pack("<d", v))),
    (column("day", "date"), 10, 0, st.binary(min_size=3, max_size=3)),
    (column("at", "datetime(3)"), 18, 3, st.binary(min_size=7, max_size=7)),
    (column("seen", "timestamp(6)"), 17, 6, st.binary(min_size=7, max_size=7)),
    (column("clock", "time(2)"), 19, 2, st.binary(min_size=4, max_size=4)),
    (column("year", "year"), 13, 0, st.binary(min_size=1, max_size=1)),
    (column("price", "decimal(12,2)", digits=(12, 2)), 246, 12 << 8 | 2, st.binary(min_size=6, max_size=6)),
    (
        column("name", "varchar(20)", charset="utf8mb4"), 15, 80,
        st.text(max_size=20).map(lambda t: bytes([len(t.encode())]) + t.encode()),
    ),
    (column("raw", "blob"), 252, 2, st.binary(max_size=300).map(lambda b: struct.pack("<H", len(b)) + b)),
    (column("flags", "bit(9)"), 16, 1 << 8 | 1, st.binary(min_size=2, max_size=2)),
    (column("old", "varchar(9)", charset="latin1"), 15, 9, st.binary(max_size=9).map(lambda b: bytes([len(b)]) + b)),
]  # fmt: skip
SCHEMA = TableSchema("d", "t", tuple(kind for kind, *_ in KINDS), ())


def codes() -> list[Code | Reader]:
    return [reader(SCHEMA, kind, code, meta) for kind, code, meta, _ in KINDS]


@given(st.tuples(*(values for *_, values in KINDS)), st.integers(0, (1 << len(KINDS)) - 1))
def test_a_row_is_its_columns(values: tuple[bytes, ...], nulls: int) -> None:
    data = b"\xff" + b"".join(value for at, value in enumerate(values) if not nulls >> at & 1)
    expected: list[object] = []
    at = 1
    for number, code in enumerate(codes()):
        value = None
        if not nulls >> number & 1:
            value, at = as_reader(code)(data, at)
        expected.append(value)
    assert row_reader(codes(), nulls)(data, 1) == (expected, len(data))
    assert at == len(data)


@given(st.tuples(*(values for *_, values in KINDS)), st.integers(0, (1 << len(KINDS)) - 1))
def test_a_rows_end_is_found_without_its_values(values: tuple[bytes, ...], nulls: int) -> None:
    sizes = [value_bytes(kind.name, code, meta) for kind, code, meta, _ in KINDS]
    data = b"\xff" + b"".join(value for at, value in enumerate(values) if not nulls >> at & 1)
    assert row_end(sizes, nulls)(data, 1) == len(data)


@given(st.integers(-(10**12) + 1, 10**12 - 1))
def test_decimals(unscaled: int) -> None:
    """Packed as strings/decimal.cc does it: a sign bit that is set for positive ones, all bits turned for others."""
    whole, fraction = divmod(abs(unscaled), 100)
    digits = (whole // 10**9).to_bytes(1, "big") + (whole % 10**9).to_bytes(4, "big") + fraction.to_bytes(1, "big")
    packed = bytearray(digits if unscaled >= 0 else bytes(b ^ 0xFF for b in digits))
    packed[0] ^= 0x80
    assert packed_size(12, 2) == len(packed)
    assert as_reader(packed_decimal(12, 2))(bytes(packed), 0) == (unscaled, 6)


def decoder(count: int) -> RowDecoder:
    """A decoder of so many TINYINT columns."""
    columns = tuple(column(f"c{n}", "tinyint") for n in range(count))
    table_map = TableMap(1, "d", "t", bytes([1] * count), (0,) * count, ())
    return RowDecoder(TableSchema("d", "t", columns, ()), table_map)


def test_more_sets_of_nulls_than_are_kept() -> None:
    made = decoder(10)
    for nulls in [*range(1 << 10), 0, 1, 513]:
        there = [at for at in range(10) if not nulls >> at & 1]
        data = nulls.to_bytes(2, "little") + bytes(there)
        assert made.read_row(data, 0) == ([at if at in there else None for at in range(10)], len(data))
        assert made.skip_row(data, 0)[1] == len(data)
    assert len(made._functions) == 256
    assert len(made._ends) <= 256


def test_bits_behind_the_last_column_say_nothing() -> None:
    assert decoder(3).read_row(b"\xfa\x07\x08", 0) == ([7, None, 8], 3)


@pytest.mark.parametrize("count", [3, 8, 10, 16])
@pytest.mark.parametrize("behind", [False, True], ids=["clear", "set"])
def test_images_of_all_columns_are_read_by_the_code_for_all(count: int, behind: bool) -> None:
    made, size = decoder(count), (count + 7) // 8
    bits = size * 8 if behind else count
    assert made.of_images(((1 << bits) - 1).to_bytes(size, "little")) is made


def test_a_text_that_cannot_be_read_is_named() -> None:
    columns = (column("n", "tinyint"), column("told", "varchar(9)", charset="utf8mb4"))
    table_map = TableMap(1, "d", "t", bytes([1, 15]), (0, 36), ())
    made = RowDecoder(TableSchema("d", "t", columns, ()), table_map)
    with pytest.raises(BacklogError, match="told"):
        made.read_row(b"\x00\x05\x02\xff\xff", 0)
