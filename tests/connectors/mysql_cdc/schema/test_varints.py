"""Numbers of variable length, compared with independent writers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.mysql_cdc.schema.json_values import varint


def test_specification_example() -> None:
    assert varint(b"\x96\x01", 0) == (150, 2)  # Protocol Buffers, "Encoding"


@given(st.integers(0, 2**70), st.binary(max_size=3), st.binary(max_size=3))
def test_number_between_other_bytes(number: int, before: bytes, after: bytes) -> None:
    digits = [number >> shift & 0x7F for shift in range(0, max(1, number.bit_length()), 7)]
    written = bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])
    assert varint(before + written + after, len(before)) == (number, len(before) + len(written))


def test_truncated_number() -> None:
    with pytest.raises(IndexError):
        varint(b"\x96", 0)
