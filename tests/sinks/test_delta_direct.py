"""Small batches that delta-rs commits: the same rows and transactions as Spark's, and when Spark has to write."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable
from pyspark.sql.types import LongType, StringType, StructType

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo, DeltaAppend, DeltaUpsert, SinkContext
from backlog_spark.sinks.delta.sink import DeltaSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.delta.deltars.commits import DirectTable

SCHEMA = (
    StructType()
    .add("id", LongType())
    .add("name", StringType())
    .add("_change_type", StringType())
    .add("_commit_timestamp", StringType())
    .add("_commit_seq", LongType())
)
Change = tuple[int | None, str | None, str, int]


def changes(spark: SparkSession, *rows: Change) -> DataFrame:
    return spark.createDataFrame([(key, name, kind, None, seq) for key, name, kind, seq in rows], SCHEMA)


def upsert(path: Path, **options: Any) -> DeltaUpsert:
    return DeltaUpsert(str(path), ["id"], **options)


def opened(
    spark: SparkSession, sink: DeltaSink, planned: int | None = None, committed: int | None = None, directory: str = ""
) -> DeltaSink:
    sink.open(SinkContext(spark, "app", SCHEMA, False, planned, committed, directory=directory))
    return sink


def rows_of(spark: SparkSession, path: Path) -> Counter[tuple[Any, ...]]:
    table = spark.read.format("delta").load(str(path))
    return Counter(tuple(row) for row in table.select("id", "name").collect())


def writer_of(sink: DeltaSink) -> tuple[str, str]:
    assert sink.written is not None
    return sink.written.writer, sink.written.reason


FIRST: tuple[Change, ...] = ((1, "a", "insert", 0), (2, "b", "insert", 0), (None, "n", "insert", 0))
SECOND: tuple[Change, ...] = (
    (1, "a1", "update_postimage", 2),
    (1, "a", "update_preimage", 2),
    (2, "b", "delete", 3),
    (None, "n1", "update_postimage", 4),
    (3, "c", "insert", 5),
    (9, None, "delete", 6),
)
MERGED = Counter([(1, "a1"), (None, "n1"), (3, "c")])


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows", [(0, 100), (100, 0), *(pytest.param(same, marks=pytest.mark.grid) for same in ((0, 0), (100, 100)))]
)
def test_each_road_continues_after_the_other(spark: SparkSession, tmp_path: Path, rows: tuple[int, int]) -> None:
    for batch_id, (batch, most) in enumerate(zip((FIRST, SECOND), rows, strict=True)):
        committed = batch_id - 1 if batch_id else None
        sink = opened(spark, upsert(tmp_path, small_batch_rows=most), committed, committed)
        sink.write(changes(spark, *batch), BatchInfo(batch_id, False))
        assert writer_of(sink) == (("direct", "") if most else ("spark", "small_batch_rows is 0"))
        # The same batch again, by either writer.
        for other in (0, 100):
            again = opened(spark, upsert(tmp_path, small_batch_rows=other), batch_id, committed)
            again.write(changes(spark, (7, "other", "insert", 9)), BatchInfo(batch_id, False))
            assert writer_of(again) == ("none", "the table has the batch")
    assert rows_of(spark, tmp_path) == MERGED


def test_batches_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, upsert(tmp_path, small_batch_rows=3), 1)
    batches: Sequence[tuple[bool, tuple[Change, ...], tuple[str, str]]] = [
        (True, FIRST[:1], ("spark", "it is backlog")),
        (False, FIRST[:1], ("spark", "it is replayed")),  # as planned before this start; there is no directory
        (False, FIRST, ("direct", "")),
        (False, SECOND, ("spark", "it has more than 3 rows")),
        (False, (), ("direct", "")),
    ]
    for batch_id, (is_backlog, rows, expected) in enumerate(batches):
        sink.write(changes(spark, *rows), BatchInfo(batch_id, is_backlog))
        assert writer_of(sink) == expected
    assert rows_of(spark, tmp_path) == MERGED
    assert RustTable(str(tmp_path)).transaction_version("app") == 4
    sink.write(changes(spark), BatchInfo(5, True, has_changes=True))
    assert writer_of(sink) == ("direct", "")
    wide = opened(spark, upsert(tmp_path, small_batch_bytes=10_000), 5, 5)
    wide.write(changes(spark, (5, "x" * 20_000, "insert", 9)), BatchInfo(6, False))
    assert writer_of(wide)[0] == "spark"
    assert "bytes" in writer_of(wide)[1]


@pytest.mark.parametrize("is_backlog", [False, True])
def test_the_driver_tries_a_replayed_batch_once(spark: SparkSession, tmp_path: Path, is_backlog: bool) -> None:
    place, table = str(tmp_path / "own"), tmp_path / "t"

    def started(newest: int) -> DeltaSink:
        return opened(spark, upsert(table), newest, newest - 1, directory=place)

    def batch(number: int) -> BatchInfo:
        return BatchInfo(number, is_backlog, has_changes=True)

    opened(spark, upsert(table), directory=place).write(changes(spark, *FIRST), batch(0))
    assert not started(1)._replays.refuse(1)  # type: ignore[union-attr]  # and the driver dies of it
    last = started(1)
    last.write(changes(spark, *SECOND), batch(1))
    assert writer_of(last) == ("spark", "it is replayed")
    for number in (2, 3):  # killed once at each batch
        next_one = started(number)
        next_one.write(changes(spark, (7, "g", "insert", 10 + number)), batch(number))
        assert writer_of(next_one) == ("direct", "")
    assert rows_of(spark, table) == MERGED + Counter([(7, "g")])


@pytest.mark.grid
def test_a_property_that_delta_rs_does_not_know_is_seen_by_the_next_batch(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, upsert(tmp_path))
    sink.write(changes(spark, *FIRST), BatchInfo(0, False))
    assert writer_of(sink) == ("direct", "")
    table = f"delta.`{tmp_path}`"
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (id IS NULL OR id < 100)")
    sink.write(changes(spark, *SECOND), BatchInfo(1, False))
    assert writer_of(sink)[0] == "spark"
    with pytest.raises(Exception, match="CHECK constraint small"):
        sink.write(changes(spark, (100, "x", "insert", 9)), BatchInfo(2, False))
    assert rows_of(spark, tmp_path) == MERGED


@pytest.mark.slow
@pytest.mark.parametrize("small_batch_rows", [0, pytest.param(100, marks=pytest.mark.grid)])
def test_another_writers_commit_costs_a_try_and_no_row(
    spark: SparkSession, tmp_path: Path, small_batch_rows: int
) -> None:
    table, reached, go = (tmp_path / name for name in ("t", "reached", "go"))
    begun, edited, runs = str(reached), str(go), spark.sparkContext.accumulator(0)

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows after the other writer is done."""
        runs.add(1)
        Path(begun).touch()
        while not Path(edited).exists():
            time.sleep(0.01)
        yield from batches

    def edit() -> None:
        while not reached.exists():
            time.sleep(0.01)
        spark.newSession().sql(f"DELETE FROM delta.`{table}` WHERE id = 2")
        go.touch()

    class Slow(DeltaUpsert):
        def _write_small(self, rows: pa.Table, table: DirectTable, txn_app_id: str, batch_id: int) -> None:
            if batch_id == 1 and not go.exists():
                reached.touch()
                editor.join()
            super()._write_small(rows, table, txn_app_id, batch_id)

    sink = opened(spark, Slow(str(table), ["id"], small_batch_rows=small_batch_rows))
    sink.write(changes(spark, *FIRST), BatchInfo(0, False))
    batch = changes(spark, *[change for change in SECOND if change[0] != 2])
    editor = threading.Thread(target=edit)
    editor.start()
    sink.write(batch if small_batch_rows else batch.coalesce(1).mapInArrow(held, batch.schema), BatchInfo(1, False))
    editor.join()
    assert sink.written is not None
    assert sink.written.attempts == 2
    assert runs.value == (0 if small_batch_rows else 1)
    assert rows_of(spark, table) == MERGED


def test_a_table_that_is_gone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, upsert(tmp_path / "t"))
    sink.write(changes(spark, *FIRST), BatchInfo(0, False))
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(BacklogError, match="lacks batches of this query"):
        sink.write(changes(spark, *SECOND), BatchInfo(1, False))


@pytest.mark.slow
def test_timestamps_that_delta_rs_would_change_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    schema = StructType().add("id", LongType()).add("at", "timestamp")
    every_row: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
    late = "SELECT id, timestamp'9999-12-31 00:00:00Z' AS at FROM range(0, 3, 1, 1)"
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` USING delta AS {late}")
    sink = DeltaUpsert(str(tmp_path), ["id"], **every_row)
    sink.open(SinkContext(spark, "app", schema, False))
    for batch_id, expected in enumerate(["spark", "direct"]):
        rows = spark.sql("SELECT 1L AS id, timestamp'2020-01-01 00:00:00Z' AS at")
        sink.write(rows, BatchInfo(batch_id, False))
        # The first, by Spark, has written the file anew.
        assert writer_of(sink)[0] == expected, writer_of(sink)
    found = spark.read.format("delta").load(str(tmp_path)).selectExpr("id", "date_format(at, 'yyyy') AS y")
    assert Counter(tuple(row) for row in found.collect()) == Counter([(0, "9999"), (1, "2020"), (2, "9999")])


def test_columns_of_the_table_that_the_rows_lack(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` (extra INT, NAME STRING, Id LONG) USING delta")
    spark.sql(f"INSERT INTO delta.`{tmp_path}` VALUES (7, 'old', 1)")
    sink = opened(spark, upsert(tmp_path))
    sink.write(changes(spark, (1, "new", "update_postimage", 1), (2, "b", "insert", 2)), BatchInfo(0, False))
    assert writer_of(sink) == ("direct", "")
    log = DeltaAppend(str(tmp_path))
    log.open(SinkContext(spark, "log", StructType(SCHEMA.fields[:2]), False))
    log.write(changes(spark, (3, "c", "insert", 0)).select("id", "name"), BatchInfo(0, False))
    assert writer_of(log) == ("direct", "")
    found = DeltaTable.forPath(spark, str(tmp_path)).toDF().select("id", "name", "extra").collect()
    assert Counter(map(tuple, found)) == Counter([(1, "new", 7), (2, "b", None), (3, "c", None)])


@pytest.mark.parametrize("setting", ["small_batch_rows", "small_batch_bytes"])
@pytest.mark.parametrize("value", [-1, 1.5, "10", True])
def test_refused_sizes(setting: str, value: Any) -> None:
    with pytest.raises(SettingError, match=setting):
        DeltaAppend("/t", **{setting: value})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keyed", "small_batch_rows", "columns", "problem"),
    [
        (False, 100, "id, 2.5F AS x", "has column 'x' of type float; the stream's column 'x' is double"),
        (False, 100, "id", "has no column 'x'; the stream's column 'x' is double"),
        (False, 0, "id", "has no column 'x'; the stream's column 'x' is double"),
        (True, 100, "2.5D AS x", "has no column 'id'; the stream's key column 'id' is bigint"),
    ],
)
def test_a_column_that_another_writer_has_changed_is_refused(
    spark: SparkSession, tmp_path: Path, keyed: bool, small_batch_rows: int, columns: str, problem: str
) -> None:
    every_row: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
    options: dict[str, Any] = {"small_batch_rows": small_batch_rows}
    table = str(tmp_path)
    sink = DeltaUpsert(table, ["id"], **every_row, **options) if keyed else DeltaAppend(table, **options)
    sink.open(SinkContext(spark, "app", StructType.fromDDL("id BIGINT, x DOUBLE"), False))
    rows = spark.sql("SELECT 1L AS id, 1.123456789D AS x")
    sink.write(rows, BatchInfo(0, False))
    other = spark.newSession().sql("SELECT 1L AS id").selectExpr(*columns.split(", "))
    other.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table)
    with pytest.raises(BacklogError, match=problem):
        sink.write(rows, BatchInfo(1, False))
    assert spark.read.format("delta").load(table).collect() == other.collect()


@pytest.mark.slow
def test_what_delta_rs_cannot_do_is_done_by_spark_without_a_restart(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(DeltaUpsert):
        def _write_small(self, rows: pa.Table, table: DirectTable, txn_app_id: str, batch_id: int) -> None:
            raise OSError("no access with the key hunter22")

    sink = opened(spark, Failing(str(tmp_path), ["id"]))
    for batch_id, batch in enumerate((FIRST, SECOND)):
        sink.write(changes(spark, *batch), BatchInfo(batch_id, False))
        assert writer_of(sink) == ("spark", "delta-rs failed with OSError")
    assert rows_of(spark, tmp_path) == MERGED
    assert "hunter22" not in caplog.text


@pytest.mark.grid
def test_a_file_with_a_column_in_another_case_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    made, table = tmp_path / "made", tmp_path / "t"
    spark.range(0, 3, 1, 1).selectExpr("id", "'old' AS NAME").write.parquet(str(made))
    DeltaTable.convertToDelta(spark, f"parquet.`{made}`")
    # As if an owner had named the column otherwise when the files were converted.
    shutil.copytree(made, table, ignore=shutil.ignore_patterns("*.checkpoint.*", "*_last_checkpoint*", "*.crc"))
    log = table / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text().replace("NAME", "name"))
    sink = opened(spark, upsert(table))
    sink.write(changes(spark, (1, "new", "update_postimage", 1)), BatchInfo(0, False))
    assert writer_of(sink)[0] == "spark"
    assert "another case" in writer_of(sink)[1]
    assert rows_of(spark, table) == Counter([(0, "old"), (1, "new"), (2, "old")])


@pytest.mark.grid
def test_a_clone_whose_files_are_elsewhere_is_merged_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(0, 3, 1, 1).selectExpr("id", "'old' AS name").write.format("delta").save(str(tmp_path / "source"))
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` SHALLOW CLONE delta.`{tmp_path}/source`")
    sink = opened(spark, upsert(tmp_path / "t"))
    sink.write(changes(spark, (1, "new", "update_postimage", 1)), BatchInfo(0, False))
    assert writer_of(sink)[0] == "spark"
    assert rows_of(spark, tmp_path / "t") == Counter([(0, "old"), (1, "new"), (2, "old")])
