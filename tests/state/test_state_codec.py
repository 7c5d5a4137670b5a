"""Bytes encoded as text are decoded unchanged."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampType,
)

from backlog_spark.errors import BacklogError
from backlog_spark.state.state_codec import (
    as_text,
    from_text,
    packed_hashes,
    packed_rows,
    unpacked_hashes,
    unpacked_rows,
)
from backlog_spark.state.tables import StateSchema


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    text = as_text(data)
    assert text.isascii()
    assert from_text(text).tobytes() == data


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 111, 112, 1 << 20])
def test_size(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    text = as_text(data)
    assert from_text(text).tobytes() == data
    # Up to a block of 56 bytes is filled up, and the last character says how far.
    assert len(text) == -(-size // 56) * 64 + 1
    # As Spark's state server has it: a byte a character.
    assert len(pickle.dumps(text, 2)) < len(text) + 20


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_hashes(hashes: list[int]) -> None:
    assert unpacked_hashes(packed_hashes(np.array(hashes, dtype=np.int64))).tolist() == hashes


NUMBERS = [
    LongType(),
    IntegerType(),
    ShortType(),
    DoubleType(),
    BooleanType(),
    DecimalType(38, 10),
    TimestampType(),
    DateType(),
]


@pytest.mark.parametrize("kind", [*NUMBERS, StringType(), ArrayType(IntegerType())], ids=lambda kind: kind.typeName())
@pytest.mark.parametrize("count", [0, 1, 7, 1_000])
def test_rows(kind: DataType, count: int) -> None:
    state = StateSchema((LongType(),), (kind, LongType()))
    assert state.is_of_numbers == (kind in NUMBERS)
    made = state.arrow().field(2).type
    places = range(count)
    if pa.types.is_list(made):
        values = pa.array([[n] for n in places], made)
    elif pa.types.is_date(made):
        values = pa.array(list(places), pa.int32()).cast(made)
    else:
        values = pa.array([n % 100 for n in places], pa.int64()).cast(made)
    numbers = pa.array(range(count), pa.int64())
    nulls = pa.array([None if n % 3 else n << 40 for n in range(count)], pa.int64())
    rows = pa.RecordBatch.from_arrays([numbers, nulls, values, numbers], schema=state.arrow())
    text, slots = packed_rows(rows, state)
    assert unpacked_rows(text, slots, state).equals(rows)


def test_a_damaged_text_is_told() -> None:
    schema = StateSchema((LongType(),), (LongType(),))
    columns = [pa.array(range(50), field.type) for field in schema.arrow()]
    text, slots = packed_rows(pa.RecordBatch.from_arrays(columns, schema=schema.arrow()), schema)
    for damaged in (
        "",
        "x" * 20,
        text[:40],
        f"ffffffff{text[8:]}",
        text[:8] + as_text(b"\0" * 56),
        text[:-1] + "\uffff",
    ):
        with pytest.raises(BacklogError, match="State in the checkpoint is damaged"):
            unpacked_rows(damaged, slots, schema)
    with pytest.raises(BacklogError, match="State in the checkpoint is damaged"):
        unpacked_hashes("x" * 9)


def test_numbers_take_the_bytes_that_they_need() -> None:
    state = StateSchema((LongType(),), (LongType(),))
    chance = np.random.default_rng(1)
    columns = [chance.integers(-(2**63), 2**63 - 1, 3_000), chance.integers(0, 1 << 24, 3_000), range(3_000)]
    rows = pa.RecordBatch.from_arrays([pa.array(c, pa.int64()) for c in columns], schema=state.arrow())
    text, _ = packed_rows(rows, state)
    assert len(text) < 3_000 * (8 + 3 + 2) * 8 / 7 * 1.05
