"""Python steps over Arrow batches: NULL arrays and maps arrive unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from backlog_spark.common.arrow_steps import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = [
    "array<int>",
    "array<array<string>>",
    "array<struct<a:int,b:array<int>>>",
    "map<string,int>",
    "map<struct<a:int,b:string>,array<int>>",
    "struct<a:array<int>,b:map<string,int>>",
    "string",
]
VALUES = {
    "array<int>": ["array(1, NULL, 3)", "array()"],
    "array<array<string>>": ["array(array('x', NULL), NULL, array())", "array()"],
    "array<struct<a:int,b:array<int>>>": ["array(struct(1 AS a, NULL AS b), NULL)", "array()"],
    "map<string,int>": ["map('x', 1, 'y', NULL)", "map()"],
    "map<struct<a:int,b:string>,array<int>>": ["map(struct(1 AS a, 'x' AS b), NULL)", "map()"],
    "struct<a:array<int>,b:map<string,int>>": ["struct(NULL AS a, map('x', 1) AS b)", "NULL"],
    "string": ["'x'", "''"],
}


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nulls", ["none", "some", "all"])
def test_values_and_nulls_come_through(spark: SparkSession, kind: str, nulls: str) -> None:
    full, empty = VALUES[kind]
    values = {"none": [full, empty], "some": [full, "NULL", empty, "NULL"], "all": ["NULL", "NULL"]}[nulls]
    rows = " UNION ALL ".join(
        f"SELECT {i} AS id, cast({value} AS {kind}) AS v, NULL AS n" for i, value in enumerate(values)
    )
    frame = spark.sql(f"SELECT id, v, cast(n AS {kind}) AS n FROM ({rows})")
    found = map_in_arrow(frame, same, frame.schema)
    assert found.schema == frame.schema
    assert sorted(map(str, found.collect())) == sorted(map(str, frame.collect()))
