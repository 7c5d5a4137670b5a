"""Rows of an existing table that a new query's first snapshot does not have: which are removed, and when."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from backlog_spark.errors import SettingError
from backlog_spark.sinks import BatchInfo, IcebergUpsert, SinkContext
from tests.sinks.iceberg.places import TABLE, catalog_at, created, rows_of, table_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    StructType()
    .add("_database", StringType())
    .add("_table", StringType())
    .add("id", IntegerType())
    .add("name", StringType())
    .add("_change_type", StringType())
    .add("_commit_seq", LongType())
)
ARROW = pa.schema([("_database", pa.string()), ("_table", pa.string()), ("id", pa.int32()), ("name", pa.string())])
A, B = ("db", "a"), ("db", "b")
OLD = [(*A, 1, "old"), (*A, 2, "old"), (*A, 3, "old"), (*A, 9, "gone"), (*B, 9, "other")]


def filled(lake: Path) -> None:
    columns = zip(*OLD, strict=True)
    rows = [pa.array(list(column), field.type) for column, field in zip(columns, ARROW, strict=True)]
    created(lake, ARROW).append(pa.table(rows, schema=ARROW))


def opened(spark: SparkSession, lake: Path, *at: int | None, app: str = "app", writer: str = "q", **more: Any) -> Any:
    planned, committed = at or (None, None)
    context = SinkContext(
        spark,
        app,
        SCHEMA,
        True,
        planned,
        committed,
        snapshot_of=(A,),
        directory=str(lake / "_files" / app),
        writer=writer,
    )
    more = {"metadata_columns": ("_change_type", "_commit_seq"), **more}
    sink = IcebergUpsert(TABLE, ["_database", "_table", "id"], catalog_at(lake), **more)
    sink.open(context)
    return sink


def rows(spark: SparkSession, *given: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame([(*A, key, name, kind, seq) for key, name, kind, seq in given], SCHEMA)


PART, END = BatchInfo(0, True, snapshot="part"), BatchInfo(2, True, has_changes=True, snapshot="end")


def test_the_end_of_the_snapshot_removes_what_it_lacks(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path)
    sink = opened(spark, tmp_path)
    sink.write(rows(spark, (1, "new", "insert", 0)), PART)
    assert rows_of(table_at(tmp_path))[(*A, 9, "gone")] == 1, "the snapshot goes on"
    sink = opened(spark, tmp_path, 1, 0)
    for _ in range(2):  # the second time as a replay
        sink.write(rows(spark, (2, "new", "insert", 0), (1, "new", "delete", 1)), BatchInfo(1, True, snapshot="part"))
    sink = opened(spark, tmp_path, 2, 1)
    sink.write(rows(spark, (4, "new", "insert", 0), (3, "x", "delete", 2)), END)
    assert rows_of(table_at(tmp_path)) == Counter([(*A, 2, "new"), (*A, 4, "new"), (*B, 9, "other")])
    sink.write(rows(spark, (4, "newer", "update_postimage", 3)), BatchInfo(3, False))
    assert rows_of(table_at(tmp_path)) == Counter([(*A, 2, "new"), (*A, 4, "newer"), (*B, 9, "other")])


def test_rows_of_another_query_stay(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path)
    opened(spark, tmp_path, app="other", writer="another")
    caplog.set_level(logging.WARNING)
    sink = opened(spark, tmp_path)
    sink.write(rows(spark, (1, "new", "insert", 0)), BatchInfo(0, True, snapshot="end"))
    assert rows_of(table_at(tmp_path)) == Counter([(*A, 1, "new"), *OLD[1:]])
    assert "other queries write there too (another)" in caplog.text


def test_the_other_choices(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(SettingError, match=r"on_existing_rows = 'refuse': the Iceberg table shop\.orders has rows"):
        opened(spark, tmp_path, on_existing_rows="refuse")
    sink = opened(spark, tmp_path, on_existing_rows="keep")
    sink.write(rows(spark, (1, "new", "insert", 0)), BatchInfo(0, True, snapshot="end"))
    assert rows_of(table_at(tmp_path)) == Counter([(*A, 1, "new"), *OLD[1:]])
    opened(spark, tmp_path, 0, 0, on_existing_rows="refuse")
