"""New columns get their one value in all rows of a table, in the commit of a batch."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from backlog_spark.sinks.base import BatchInfo, SinkContext
from backlog_spark.sinks.delta.upsert import DeltaUpsert
from backlog_spark.sinks.fills import names_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

VALUES: dict[str, tuple[pa.DataType, Any, str]] = {
    "byte": (pa.int8(), -128, "tinyint"),
    "short": (pa.int16(), 32767, "smallint"),
    "int": (pa.int32(), -1, "int"),
    "long": (pa.int64(), 2**63 - 1, "bigint"),
    "real": (pa.float32(), 0.1, "float"),
    "number": (pa.float64(), 1e308, "double"),
    "money": (pa.decimal128(38, 10), Decimal("-1.0000000001"), "decimal(38,10)"),
    "yes": (pa.bool_(), True, "boolean"),
    "text": (pa.string(), "it's \\ ü `x`\n", "string"),
    "bytes": (pa.binary(), b"\x00\xff", "binary"),
    "day": (pa.date32(), date(1, 1, 1), "date"),
    "no_day": (pa.date32(), None, "date"),
    "wall": (pa.timestamp("us"), datetime(2020, 3, 29, 2, 30, 0, 123456), "timestamp_ntz"),
    "moment": (pa.timestamp("us", "UTC"), datetime(2020, 10, 25, 1, 30, 0, 1, UTC), "timestamp"),
    "nothing": (pa.int32(), None, "int"),
    "never": (pa.timestamp("us", "UTC"), None, "timestamp"),
}


def fill(table: str, **columns: tuple[pa.DataType, Any]) -> tuple[str, str, str]:
    row = pa.table({name: pa.array([value], kind) for name, (kind, value) in columns.items()})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, row.schema) as writer:
        writer.write_table(row)
    return "shop", table, base64.b64encode(out.getvalue()).decode()


def changes(spark: SparkSession, *rows: tuple[Any, ...], columns: str = "") -> DataFrame:
    more = f", {columns}" if columns else ""
    return spark.createDataFrame(list(rows), f"_change_type string, _commit_seq long, id int{more}")


def opened(spark: SparkSession, path: Path, rows: DataFrame, newest: int | None = None) -> DeltaUpsert:
    metadata = ("_change_type", "_commit_seq")
    sink = DeltaUpsert(str(path), keys=["id"], metadata_columns=metadata, merge_schema=True)
    sink.open(SinkContext(spark, "app", rows.schema, False, newest, newest, of_one_table=True))
    return sink


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_value_of_each_type_is_the_same_in_the_table(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        first = changes(spark, ("insert", 1, 1), ("insert", 1, 2), ("insert", 1, 3))
        opened(spark, tmp_path / "t", first).write(first, BatchInfo(0, False))
        nulls = [F.lit(None).cast(kind).alias(name) for name, (_, _, kind) in VALUES.items()]
        more = changes(spark, ("update_postimage", 2, 1), ("delete", 2, 2), ("insert", 2, 4)).select("*", *nulls)
        of_all = fill("t", **{name: (kind, value) for name, (kind, value, _) in VALUES.items()})
        sink = opened(spark, tmp_path / "t", more, newest=0)
        for _ in range(2):  # a replay changes nothing
            sink.write(more, BatchInfo(1, False, fills=(of_all,)))
        target = spark.read.format("delta").load(str(tmp_path / "t"))
        literal = [pa.scalar(value, kind) for kind, value, _ in VALUES.values()]
        found = target.orderBy("id").toArrow()
        assert found.column("id").to_pylist() == [1, 3, 4]
        for name, wanted in zip(VALUES, literal, strict=True):
            assert found.column(name).cast(wanted.type).to_pylist() == [wanted.as_py()] * 3, name
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_rows_of_other_tables_stay_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    columns = "_database string, _table string, n int"
    rows = changes(spark, ("insert", 1, 1, "shop", "a", None), ("insert", 1, 2, "shop", "b", None), columns=columns)
    sink = opened(spark, tmp_path / "t", rows)
    sink.write(rows, BatchInfo(0, False))
    sink.write(rows.limit(0), BatchInfo(1, False, fills=(fill("a", n=(pa.int32(), 7)),)))
    found = spark.read.format("delta").load(str(tmp_path / "t")).select("id", "n").collect()
    assert sorted(map(tuple, found)) == [(1, 7), (2, None)]


def test_without_names_all_rows_are_of_the_one_table() -> None:
    assert names_of([("shop", "a", "")], ("id", "_table")) == [()]
    assert names_of([("shop", "a", "")], ("id", "_table", "_database")) == [("shop", "a")]
