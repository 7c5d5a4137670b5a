"""Digests and the comparison by key: what is equal, and what only looks so."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from backlog_spark.verification.row_comparison import PART, compared, differing_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "a string, b string, f float, d double, n decimal(38,10), t timestamp, l timestamp_ntz, x binary, k date"
BASE = {
    "a": "x", "b": None, "f": 0.0, "d": 0.1, "n": Decimal("1.5"), "t": dt.datetime(2024, 1, 1),
    "l": dt.datetime(2024, 1, 1), "x": b"\0", "k": dt.date(2024, 1, 1),
}  # fmt: skip
# By key: what the target has in place of the base's values, and which columns differ.
CASES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"f": -0.0}, ()),  # servers lose the sign of zero in a SELECT
    ({"a": None, "b": "x"}, ("a", "b")),  # the same values one column on
    ({"b": ""}, ("b",)),
    ({"a": "X"}, ("a",)),
    ({"a": "x "}, ("a",)),
    ({"f": math.nan}, ("f",)),
    ({"d": 0.1 + 2**-56}, ("d",)),
    ({"n": Decimal("1.5000000001")}, ("n",)),
    ({"t": dt.datetime(2024, 1, 1, 0, 0, 0, 1)}, ("t",)),
    ({"l": dt.datetime(2024, 1, 1, 0, 0, 0, 1)}, ("l",)),
    ({"x": b""}, ("x",)),
    ({"x": b"\0\0"}, ("x",)),
    ({"k": None}, ("k",)),
    ({"f": None, "d": None}, ("f", "d")),
]


def test_every_value_counts_and_nothing_else(spark: SparkSession) -> None:
    schema = f"id int, tenant string, {COLUMNS}"
    ours = [(i, None, *BASE.values()) for i in range(len(CASES))]
    theirs = [(i, None, *{**BASE, **change}.values()) for i, (change, _) in enumerate(CASES)]
    ours += [(100, "a", *BASE.values()), (101, "", *BASE.values())]
    theirs += [(100, "b", *BASE.values())] * 2 + [(101, None, *BASE.values())]
    source = spark.createDataFrame(ours, schema).withColumn(PART, F.col("id").cast("int"))
    target = spark.createDataFrame(theirs, schema)
    values = source.schema.fields[2:-1]
    rows = compared(source, target, ["id", "tenant"], values).collect()
    same = [(r["source"], r["target"], r["part"]) for r in rows if r["kind"] == "same"]
    assert sum(s for s, _, _ in same) == sum(t for _, t, _ in same) == 1
    found = {(*r["key"], r["kind"]): (r["source"], r["target"], r["part"]) for r in rows if r["kind"] != "same"}
    expected = {(i, None, "different"): (1, 1, i) for i in range(1, len(CASES))}
    expected[100, "a", "missing"] = (1, 0, 100)
    expected[100, "b", "doubled"] = (0, 2, None)
    expected[101, "", "missing"] = (1, 0, 101)
    expected[101, None, "extra"] = (0, 1, None)
    assert found == expected
    both = source.alias("s").join(target.alias("t"), "id").where("id < 100")
    both = both.select("id", F.struct("s.*").alias("one"), F.struct("t.*").alias("other"))
    columns = both.select("id", differing_columns(values, "one", "other").alias("c")).collect()
    assert {r["id"]: tuple(r["c"]) for r in columns} == {i: names for i, (_, names) in enumerate(CASES)}
