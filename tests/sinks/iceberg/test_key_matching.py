"""Rows whose keys are in another table, compared with a dict."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as some

from backlog_spark.sinks.iceberg.key_matching import positions_of

KEYS = pa.schema([("a", pa.int64()), ("b", pa.large_string()), ("c", pa.decimal128(20, 0))])
KEY = some.tuples(
    some.none() | some.sampled_from([0, 1, -(2**63), 2**63 - 1]),
    some.none() | some.sampled_from(["", "x", "X", "é"]),
    some.none() | some.sampled_from([Decimal(0), Decimal(2**64 - 1)]),
)


def table(keys: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*keys, strict=True) if keys else [[], [], []]
    return pa.table([pa.array(list(column), field.type) for column, field in zip(columns, KEYS, strict=True)], KEYS)


@given(some.lists(KEY, max_size=30), some.lists(KEY, unique=True, max_size=30))
def test_equal_keys_are_found_and_null_is_one(keys: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> None:
    expected = [wanted.index(key) if key in wanted else -1 for key in keys]
    assert positions_of(table(keys), table(wanted)).tolist() == expected


def test_many_columns_with_many_values_do_not_overflow() -> None:
    numbers = pa.table({f"c{n}": pa.array(range(2000)) for n in range(12)})
    other = numbers.set_column(11, "c11", pa.array([*range(1000), *range(5000, 6000)]))
    found = positions_of(numbers, other).tolist()
    assert found == [*range(1000), *[-1] * 1000]
