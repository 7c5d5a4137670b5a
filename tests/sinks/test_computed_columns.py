"""Columns that a Delta sink computes, and the layouts of tables that it creates."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DecimalType, LongType, StructType, TimestampType

from backlog_spark import SettingError
from backlog_spark.sinks import BatchInfo, DeltaAppend, DeltaUpsert, SinkContext
from backlog_spark.sinks.computed_columns import partition_columns
from backlog_spark.sinks.delta.sink import DeltaSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("id", LongType()).add("at", TimestampType()).add("price", DecimalType(10, 2))
ROWS: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}


def write(spark: SparkSession, sink: DeltaSink, batch: int, *rows: tuple[int, str, str]) -> None:
    committed = batch - 1 if batch else None
    sink.open(SinkContext(spark, "app", SCHEMA, False, committed, committed))
    frame = spark.createDataFrame(list(rows), "id BIGINT, at STRING, price STRING")
    frame = frame.selectExpr("id", "CAST(at AS TIMESTAMP) AS at", "CAST(price AS DECIMAL(10,2)) AS price")
    sink.write(frame, BatchInfo(batch, False))


def test_partitions_by_parts_of_a_time() -> None:
    assert partition_columns(["day", "days(at)", "months(`odd name`)", "years(at)"], {"x": "1"}) == (
        ("day", "at_day", "odd name_month", "at_year"),
        {
            "x": "1",
            "at_day": "CAST(`at` AS DATE)",
            "odd name_month": "CAST(trunc(`odd name`, 'MM') AS DATE)",
            "at_year": "year(`at`)",
        },
    )
    with pytest.raises(
        SettingError, match=r"partition_by = 'hours\(at\)': there is no hours.*There are years\(column\)"
    ):
        DeltaAppend("/t", partition_by=["hours(at)"])


@pytest.mark.parametrize("small_batch_rows", [0, 1000])
def test_a_row_moves_to_its_partition(spark: SparkSession, tmp_path: Path, small_batch_rows: int) -> None:
    """By delta-rs and by Spark; each row has the values of its newest change."""
    own: dict[str, Any] = {
        "partition_by": ["days(at)", "years(at)"],
        "computed": {"cents": "CAST(price * 100 AS BIGINT)"},
        "small_batch_rows": small_batch_rows,
    }
    write(
        spark,
        DeltaUpsert(tmp_path, ["id"], **own, **ROWS),
        0,
        (1, "2024-12-31 23:00", "1.50"),
        (2, "2025-01-01 00:00", "2"),
    )
    write(spark, DeltaUpsert(tmp_path, ["id"], **own, **ROWS), 1, (1, "2025-01-01 01:00", "3.25"))
    found = spark.read.format("delta").load(str(tmp_path)).orderBy("id").drop("at", "price").collect()
    day = dt.date(2025, 1, 1)
    assert [tuple(row) for row in found] == [(1, 325, day, 2025), (2, 200, day, 2025)]
    assert DeltaTable(tmp_path).metadata().partition_columns == ["at_day", "at_year"]


def test_a_clustered_table(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaAppend(tmp_path, cluster_by=["id"])
    write(spark, sink, 0, (1, "2024-12-31 23:00", "1.50"))
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}`").select("clusteringColumns").first()
    assert detail is not None
    assert detail[0] == ["id"]
    assert sink.written is not None
    assert sink.written.writer == "spark"
    assert spark.read.format("delta").load(str(tmp_path)).count() == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"computed": {"ID": "1"}}, "computed = 'ID': the stream has a column of this name"),
        ({"computed": {"x": "nothing + 1"}}, "computed = .*is no expression of one row: .*nothing"),
        ({"computed": {"x": "count(1)"}}, "computed = .*is no expression of one row: "),
        ({"computed": {"x": "explode(array(1, 2))"}}, "computed = .*is no expression of one row"),
        ({"computed": {"x": "row_number() OVER (ORDER BY id)"}}, "computed = .*is no expression of one row"),
        ({"computed": {"x": "(SELECT max(id) FROM range(3))"}}, "computed = .*is no expression of one row"),
        ({"computed": {"at_day": "id"}, "partition_by": ["days(at)"]}, r"computed = 'at_day': is the column that days"),
        ({"computed": {"x": "id id id"}}, "computed = .*is no expression of one row: "),
        ({"partition_by": ["days(nothing)"]}, "computed = .*is no expression of one row: .*nothing"),
        ({"cluster_by": ["nothing"]}, r"DeltaAppend cluster_by = \['nothing'\]: there is no column"),
        ({"cluster_by": ["id"], "partition_by": ["at"]}, r"cluster_by = \['id'\]: a Delta table is clustered or"),
    ],
)
def test_refused(spark: SparkSession, tmp_path: Path, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingError, match=error):
        write(spark, DeltaAppend(tmp_path, **arguments), 0, (1, "2024-12-31 23:00", "1.50"))
