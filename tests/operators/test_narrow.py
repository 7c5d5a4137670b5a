"""Narrow rows: fewer columns on the way to workers, and unchanged after it."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from backlog_spark.operators.joins.regular import JoinFold
from backlog_spark.operators.narrow import Narrow
from backlog_spark.operators.rows import SIDE_OF
from backlog_spark.operators.sides import tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
LEFT = "id string, weight double, n int, at timestamp, tags array<string>, more struct<a: int, b: string>, d date"
LEFTS = [
    ("x", 0.0, 1, AT, ["a", None], (1, None), dt.date(2024, 2, 29)),
    ("x", -0.0, None, None, None, None, None),
    (None, math.nan, -(2**31), AT, [], (None, "b"), dt.date(1, 1, 1)),
    ("", None, 7, None, [""], (2, ""), None),
]
RIGHT = "price decimal(20,3), m int, rid string, load double, other struct<a: int, b: string>, blob binary, note string"
RIGHTS = [
    (decimal.Decimal("1.500"), 5, "x", 0.0, (9, "z"), b"\x00", None),
    (None, None, None, -0.0, None, None, "n"),
    (decimal.Decimal(-(10**16)), 0, "", math.nan, (None, None), b"", ""),
]


def fold_of(spark: SparkSession, keys: tuple[list[str], list[str]]) -> tuple[JoinFold, Any]:
    left, right = spark.createDataFrame(LEFTS, LEFT), spark.createDataFrame(RIGHTS, RIGHT)
    both = tagged(left, right, (left.schema, right.schema))
    rows = both[0].unionByName(both[1])
    fold = JoinFold(rows.schema, *keys, 4)
    return fold, fold.placed(rows)


def narrow_of(fold: JoinFold, placed: Any) -> Narrow:
    sides = [(side, fold.values(number)) for number, side in enumerate(fold.sides)]
    return Narrow(placed, fold.state.key_names, SIDE_OF, sides)


@pytest.mark.parametrize(
    ("keys", "columns"),
    [
        # The other text, the struct, both doubles in one, and what has no counterpart: at, tags, d; price, blob.
        pytest.param((["id"], ["rid"]), ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"], id="text"),
        # A floating point key goes beside the form in which it is compared: -0.0 is 0.0 there.
        pytest.param((["weight"], ["load"]), [f"n{i}" for i in range(10)], id="double"),
        pytest.param((["id", "n"], ["rid", "m"]), [f"n{i}" for i in range(8)], id="two"),
    ],
)
def test_rows_arrive_as_they_were(spark: SparkSession, keys: tuple[list[str], list[str]], columns: list[str]) -> None:
    fold, placed = fold_of(spark, keys)
    narrow = narrow_of(fold, placed)
    way = narrow.of(placed)
    assert [name for name in way.columns if name.startswith("n")] == columns
    assert len(way.columns) < len(placed.columns)
    expected = placed.toArrow().to_pylist()
    for batches in (way.toArrow().to_batches(), way.where("side = 1").toArrow().to_batches()):
        arrived = narrow.widened(batches)
        wanted = expected if arrived.num_rows > len(RIGHTS) else [row for row in expected if row[SIDE_OF] == 1]
        # NaN is no equal of itself, and 0.0 is one of -0.0.
        assert list(map(repr, arrived.to_pylist())) == list(map(repr, wanted))
    assert narrow.widened([]).num_rows == 0


def test_columns_of_different_types_do_not_share(spark: SparkSession) -> None:
    fold, placed = fold_of(spark, (["id"], ["rid"]))
    kinds = narrow_of(fold, placed).schema
    shared = [kinds.field(name).type for name in kinds.names if name.startswith("n")]
    assert shared.count(pa.float64()) == 1, "weight and load"
    assert shared.count(pa.int32()) == 1, "n and m"
    assert shared.count(pa.decimal128(20, 3)) == 1
    assert sum(map(pa.types.is_struct, shared)) == 1
