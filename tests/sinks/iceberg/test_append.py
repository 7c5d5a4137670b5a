"""IcebergAppend on real tables, by both writers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from backlog_spark.errors import BacklogError
from backlog_spark.sinks import BatchInfo, IcebergAppend, SinkContext
from backlog_spark.sinks.iceberg import commits
from tests.sinks.iceberg.places import TABLE, catalog_at, created, rows_of, table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("id", LongType()).add("day", StringType())


def opened(spark: SparkSession, lake: Path, app_id: str = "app", *at: int | None, **options: Any) -> IcebergAppend:
    sink = IcebergAppend(TABLE, catalog_at(lake), **options)
    sink.open(SinkContext(spark, app_id, SCHEMA, False, *at))
    return sink


def test_all_rows_by_both_writers_in_partitions(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path, partition_by=["day"])
    days = ["a", None, "", "x/y é", "a"]
    expected: Counter[tuple[Any, ...]] = Counter()
    for batch, is_backlog in enumerate((True, False, False)):
        rows = [] if batch == 2 else [(10 * batch + n, day) for n, day in enumerate(days)]
        sink.write(spark.createDataFrame(rows, SCHEMA), BatchInfo(batch, is_backlog))
        assert sink.written is not None
        assert (sink.written.writer, sink.written.rows) == ("files" if is_backlog else "direct", len(rows))
        expected += Counter(rows)
        assert rows_of(table_at(tmp_path)) == expected
    table = table_at(tmp_path)
    assert sorted(table.scan(row_filter="day = 'x/y é'").to_arrow()["id"].to_pylist()) == [3, 13]
    assert {len(task.file.partition) for task in table.scan().plan_files()} == {1}
    sink.write(spark.createDataFrame([(99, "z")], SCHEMA), BatchInfo(1, False))
    assert rows_of(table_at(tmp_path)) == expected, "a replay"


def test_two_queries_and_a_foreign_writer(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = commits.commit_batch

    def after_another(*arguments: Any) -> None:
        monkeypatch.setattr(commits, "commit_batch", plain)
        table_at(tmp_path).append(pa.table({"id": [-1], "day": ["foreign"]}))
        plain(*arguments)

    one, two = opened(spark, tmp_path, "one"), opened(spark, tmp_path, "two")
    expected: Counter[tuple[Any, ...]] = Counter()
    for batch, is_backlog in enumerate((True, False)):
        for number, sink in enumerate((one, two)):
            monkeypatch.setattr(commits, "commit_batch", after_another)
            rows = [(100 * batch + 10 * number + n, "d") for n in range(3)]
            sink.write(spark.createDataFrame(rows, SCHEMA), BatchInfo(batch, is_backlog))
            assert sink.written is not None
            assert sink.written.attempts == 2
            expected += Counter([*rows, (-1, "foreign")])
    assert rows_of(table_at(tmp_path)) == expected
    for app_id in ("one", "two"):
        opened(spark, tmp_path, app_id, 1, 1)


def test_an_existing_table_with_more_columns_and_no_partitions(spark: SparkSession, tmp_path: Path) -> None:
    created(tmp_path, pa.schema([("more", pa.int32()), ("day", pa.string()), ("id", pa.int64())]))
    for batch, is_backlog in enumerate((True, False)):
        sink = opened(spark, tmp_path, "app", batch - 1 if batch else None, batch - 1 if batch else None)
        sink.write(spark.createDataFrame([(batch, "d")], SCHEMA), BatchInfo(batch, is_backlog))
    assert rows_of(table_at(tmp_path), ["id", "day", "more"]) == Counter([(0, "d", None), (1, "d", None)])


def test_the_table_is_dropped_while_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path)
    table_at(tmp_path).catalog.drop_table(TABLE)
    with pytest.raises(BacklogError, match="was dropped while the query runs"):
        sink.write(spark.createDataFrame([(1, "d")], SCHEMA), BatchInfo(0, False))


def test_old_snapshots_go_between_batches(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path, expire_snapshots="1 ms", compact=True)
    for batch in range(20):
        sink.write(spark.createDataFrame([(batch, "d")], SCHEMA), BatchInfo(batch, False))
    assert rows_of(table_at(tmp_path)) == Counter((batch, "d") for batch in range(20))
    assert len(table_at(tmp_path).snapshots()) < 17
    assert len(list(table_at(tmp_path).scan().plan_files())) < 17
    opened(spark, tmp_path, "app", 19, 19)
