"""DeltaUpsert carries out a TRUNCATE or DROP: older rows go, later ones stay, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from backlog_spark.errors import BacklogError
from backlog_spark.sinks import BatchInfo, DeltaUpsert, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Change = tuple[Any, ...]
WITH_TABLE = (
    StructType()
    .add("_database", StringType())
    .add("_table", StringType())
    .add("id", LongType())
    .add("v", StringType())
    .add("_change_type", StringType())
    .add("_commit_seq", LongType())
)
ALONE = StructType(WITH_TABLE.fields[2:])
METADATA = ("_change_type", "_commit_seq")


def sink_of(spark: SparkSession, path: Path, schema: StructType, *, one_table: bool, **more: Any) -> DeltaUpsert:
    keys = [name for name in ("_database", "_table", "id") if name in schema.names]
    sink = DeltaUpsert(str(path), keys, **{"metadata_columns": METADATA, **more})
    sink.open(SinkContext(spark, "app", schema, True, of_one_table=one_table))
    return sink


def rows_of(spark: SparkSession, path: Path) -> list[Change]:
    return sorted(tuple(row) for row in spark.read.format("delta").load(str(path)).collect())


def changes(table: str, *rows: Change) -> Sequence[Change]:
    return [("db", table, *row) for row in rows]


@pytest.mark.grid
@pytest.mark.parametrize("is_backlog", [False, pytest.param(True, marks=pytest.mark.grid)])
def test_the_rows_of_one_of_several_tables(spark: SparkSession, tmp_path: Path, is_backlog: bool) -> None:
    sink = sink_of(spark, tmp_path, WITH_TABLE, one_table=False)
    first = [*changes("a", (1, "1", "insert", 1), (2, "2", "insert", 2)), *changes("b", (1, "1", "insert", 3))]
    sink.write(spark.createDataFrame([*first, ("other", "a", 1, "o", "insert", 0)], WITH_TABLE), BatchInfo(0, False))
    batch = changes(
        "a",
        (2, "old", "update_postimage", 10),
        (3, "old", "insert", 11),
        (None, None, "truncate", 12),
        (2, "new", "insert", 13),
        (None, None, "drop", 14),
        (0, "snapshot of before", "insert", 0),
        (3, "3", "insert", 15),
        (4, "4", "insert", 16),
        (4, "4", "delete", 17),
    )
    more = changes("b", (2, "2", "insert", 5))
    info = BatchInfo(1, is_backlog, has_table_events=True)
    sink.write(spark.createDataFrame([*batch, *more], WITH_TABLE), info)
    expected = [("db", "a", 3, "3"), ("db", "b", 1, "1"), ("db", "b", 2, "2"), ("other", "a", 1, "o")]
    assert rows_of(spark, tmp_path) == expected
    assert sink.written is not None
    assert sink.written.writer == "spark"
    sink.write(spark.createDataFrame(batch, WITH_TABLE), info)  # the same batch again
    sink.write(spark.createDataFrame(changes("b", (None, None, "drop", 20)), WITH_TABLE), BatchInfo(2, False, True))
    sink.write(spark.createDataFrame(changes("b", (None, None, "drop", 21)), WITH_TABLE), BatchInfo(3, False, True))
    sink.write(spark.createDataFrame(changes("b", (5, "5", "insert", 22)), WITH_TABLE), BatchInfo(4, False))
    assert rows_of(spark, tmp_path) == [("db", "a", 3, "3"), ("db", "b", 5, "5"), ("other", "a", 1, "o")]


@pytest.mark.slow
def test_all_rows_of_the_only_table(spark: SparkSession, tmp_path: Path) -> None:
    sink = sink_of(spark, tmp_path, ALONE, one_table=True)
    sink.write(spark.createDataFrame([(1, "1", "insert", 0), (None, "n", "insert", 0)], ALONE), BatchInfo(0, True))
    rows = [(2, "2", "insert", 1), (None, None, "truncate", 2), (1, "new", "insert", 3)]
    sink.write(spark.createDataFrame(rows, ALONE), BatchInfo(1, False, has_table_events=True))
    assert rows_of(spark, tmp_path) == [(1, "new")]
    # The batch's flag stays when it is read again with tableEvents=skip.
    sink.write(spark.createDataFrame([(7, "7", "insert", 4)], ALONE), BatchInfo(2, False, has_table_events=True))
    assert rows_of(spark, tmp_path) == [(1, "new"), (7, "7")]


@pytest.mark.slow
def test_a_table_with_columns_of_its_own_that_are_named_like_the_source_s(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaUpsert(str(tmp_path), ["id"], metadata_columns=METADATA)
    sink.open(SinkContext(spark, "app", WITH_TABLE, True, of_one_table=True))
    sink.write(spark.createDataFrame([("a", "b", 1, "1", "insert", 0)], WITH_TABLE), BatchInfo(0, True))
    rows = [
        ("a", "b", 2, "2", "insert", 1),
        (None, None, None, None, "truncate", 2),
        ("a", "b", 3, "3", "insert", 3),
        (None, None, None, None, "drop", 4),
        ("c", None, 4, "4", "insert", 5),
    ]
    sink.write(spark.createDataFrame(rows, WITH_TABLE), BatchInfo(1, False, has_table_events=True))
    assert rows_of(spark, tmp_path) == [("c", None, 4, "4")]


@pytest.mark.slow
def test_refused_where_the_rows_are_not_known(spark: SparkSession, tmp_path: Path) -> None:
    event = spark.createDataFrame([(None, None, "truncate", 2)], ALONE)
    info = BatchInfo(0, False, has_table_events=True)
    with pytest.raises(BacklogError, match=r"without the columns _database and _table.*tableEvents=skip"):
        sink_of(spark, tmp_path / "1", ALONE, one_table=False).write(event, info)
    unnamed = spark.createDataFrame([(None, None, None, None, "truncate", 2)], WITH_TABLE)
    with pytest.raises(BacklogError, match=r"without the columns _database and _table"):
        sink_of(spark, tmp_path / "4", WITH_TABLE, one_table=False).write(unnamed, info)
    unordered = sink_of(spark, tmp_path / "2", ALONE, one_table=True, sequence=None)
    with pytest.raises(BacklogError, match=r"without a sequence column.*tableEvents=skip"):
        unordered.write(event, info)
    schema = StructType(ALONE.fields[:2])
    plain = DeltaUpsert(str(tmp_path / "3"), ["id"], change_type=None, sequence=None, metadata_columns=())
    plain.open(SinkContext(spark, "app", schema, False, of_one_table=True))
    with pytest.raises(BacklogError, match=r"change_type is None.*tableEvents=skip"):
        plain.write(event.select("id", "v"), info)
    assert [rows_of(spark, tmp_path / str(n)) for n in (1, 2, 3)] == [[], [], []]
