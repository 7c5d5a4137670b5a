"""DeltaAppend on real Delta tables: each batch's rows once, whatever happened before, and what is refused."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo, DeltaAppend, SinkContext
from backlog_spark.sinks.outputs import Outputs

from .test_delta import counted, log_of, rows_of, rows_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType().add("id", LongType()).add("day", StringType())
Event = tuple[int | None, str | None]


def events(spark: SparkSession, rows: Sequence[Event]) -> DataFrame:
    """A batch."""
    return spark.createDataFrame(list(rows), SCHEMA)


def opened(spark: SparkSession, path: Path, app_id: str = "app", **context: Any) -> DeltaAppend:
    """A sink that is open for batches of SCHEMA."""
    sink = DeltaAppend(str(path))
    sink.open(SinkContext(spark, app_id, SCHEMA, False, **context))
    return sink


SOME: list[Event] = [(1, "mon"), (1, "mon"), (None, None)]


def test_batches_are_added_and_replays_are_not(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t a b"
    sink = DeltaAppend(str(table), partition_by=["day"], properties={"delta.appendOnly": "true"})
    for _ in range(2):  # the second as after a crash between the creation and the first batch
        sink.open(SinkContext(spark, "app", SCHEMA, False))
    read: list[Any] = []
    sink.write(counted(spark, events(spark, SOME), read), BatchInfo(0, True))
    assert rows_read(read) == 3
    sink.write(events(spark, [(2, "tue"), (1, "mon")]), BatchInfo(1, False))
    expected = Counter([(1, "mon"), (1, "mon"), (None, None), (2, "tue"), (1, "mon")])
    assert rows_of(spark, table) == expected

    # Neither in this run nor in the next one, which finds batch 1 planned but not committed.
    read.clear()
    restarted = opened(spark, table, newest_planned=1, newest_committed=0)
    for again in (sink, restarted):
        for batch_id in (0, 1):
            again.write(counted(spark, events(spark, [(8, "wed")]), read), BatchInfo(batch_id, False))
    assert (rows_of(spark, table), rows_read(read)) == (expected, 0)
    # The next batch goes on from there, and so does another checkpoint, which counts its batches on its own.
    restarted.write(events(spark, [(3, "wed")]), BatchInfo(2, False))
    opened(spark, table, "other").write(events(spark, [(4, "wed")]), BatchInfo(0, True))
    assert rows_of(spark, table) == expected + Counter([(3, "wed"), (4, "wed")])
    appended = [("app", 0), ("app", 1), ("app", 2), ("other", 0)]
    assert log_of(table) == [("CREATE TABLE", []), *[("WRITE", [each]) for each in appended]]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()[0]
    assert detail.partitionColumns == ["day"]
    assert detail.properties == {"delta.appendOnly": "true", "backlog_spark.createdBy": "app"}


def test_one_object_in_several_outputs(spark: SparkSession, tmp_path: Path) -> None:
    """Each counts its own batches, though the object is the same."""
    sink = DeltaAppend(str(tmp_path / "t"))
    outputs = [Outputs({"": [sink]}) for _ in range(2)]
    for number, each in enumerate(outputs):
        each.open(SinkContext(spark, f"query {number}", SCHEMA, False), {}, lambda keys: False)
    for batch_id in range(2):
        for number, each in enumerate(outputs):
            each.write(events(spark, [(10 * number + batch_id, "mon")]), {}, BatchInfo(batch_id, False))
    assert rows_of(spark, tmp_path / "t") == Counter((id, "mon") for id in (0, 1, 10, 11))


def test_an_empty_batch_is_a_transaction_without_files(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path)
    read: list[Any] = []
    for batch_id, rows in enumerate([[], SOME, [], [], SOME]):
        sink.write(counted(spark, events(spark, rows), read), BatchInfo(batch_id, False))
    assert rows_of(spark, tmp_path) == Counter(SOME + SOME)
    assert rows_read(read) == 6
    assert log_of(tmp_path)[1:] == [("WRITE", [("app", batch_id)]) for batch_id in range(5)]
    added = [
        (tmp_path / "_delta_log" / f"{version:020}.json").read_text().count('{"add":') > 0 for version in range(1, 6)
    ]
    assert added == [False, True, False, False, True]


def failing(spark: SparkSession, path: Path, rows: DataFrame) -> DataFrame:
    """The same rows in two tasks; when the first one's file is in the table's directory, the second one fails."""
    before = len(list(path.glob("part-00000*.parquet")))

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        end = time.monotonic() + 60
        while context.partitionId() == 1:
            assert time.monotonic() < end, "no file of the first task was seen"
            if len(list(path.glob("part-00000*.parquet"))) > before:
                raise RuntimeError("half-way")
            time.sleep(0.01)

    return rows.repartition(2).mapInArrow(fail, rows.schema)


@pytest.mark.slow
def test_a_batch_that_failed_half_way_is_written_once_by_the_next_try(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path)
    sink.write(events(spark, SOME), BatchInfo(0, False))
    files = set(tmp_path.glob("*.parquet"))
    batch = events(spark, [(number, "mon") for number in range(100)])
    with pytest.raises(Exception, match="half-way"):
        sink.write(failing(spark, tmp_path, batch), BatchInfo(1, True))  # backlog: Spark's tasks write files
    assert set(tmp_path.glob("*.parquet")) > files, "the failed try has left files"
    assert rows_of(spark, tmp_path) == Counter(SOME)
    restarted = opened(spark, tmp_path, newest_planned=1, newest_committed=0)
    restarted.write(batch, BatchInfo(1, True))
    assert rows_of(spark, tmp_path) == Counter(SOME + [(number, "mon") for number in range(100)])


@pytest.mark.grid
def test_a_query_that_died_between_the_two_commits_adds_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    target, given, checkpoint = tmp_path / "t", tmp_path / "in", tmp_path / "c"

    def run() -> None:
        frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(given))
        made = bs.stream(frame).write("events").trigger(available_now=True)
        made = made.option("checkpointLocation", str(checkpoint)).to(bs.DeltaAppend(str(target)))
        assert made.start(spark).awaitTermination(300)

    given.mkdir()
    for number in range(2):
        (given / f"{number}.json").write_text(f'{{"id": {number}, "day": "mon"}}\n' * 2)
    run()
    once = Counter({(0, "mon"): 2, (1, "mon"): 2})
    assert rows_of(spark, target) == once
    # What is on disk when the driver dies after the table's commit and before Spark's own.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    (given / "2.json").write_text('{"id": 2, "day": "tue"}\n')
    run()
    assert rows_of(spark, target) == once + Counter([(2, "tue")])
    versions = [number for _, transactions in log_of(target) for _, number in transactions]
    assert versions == [0, 1, 2]


@pytest.mark.slow
def test_an_existing_table_is_appended_to(spark: SparkSession, tmp_path: Path) -> None:
    there = [("mon", 5, "kept")]
    spark.createDataFrame(there, "DAY string, id bigint, note string").write.format("delta").save(str(tmp_path))
    sink = opened(spark, tmp_path)
    sink.write(events(spark, [(6, "tue")]), BatchInfo(0, True))
    assert rows_of(spark, tmp_path) == Counter([("mon", 5, "kept"), ("tue", 6, None)])
    assert spark.read.format("delta").load(str(tmp_path)).columns == ["DAY", "id", "note"]


def test_refused_tables(spark: SparkSession, tmp_path: Path) -> None:
    missing, wrong, files = tmp_path / "missing", tmp_path / "wrong", tmp_path / "files"
    spark.createDataFrame([(1,)], "id bigint").write.format("delta").save(str(missing))
    spark.createDataFrame([(1, "a")], "id int, day string").write.format("delta").save(str(wrong))
    files.mkdir()
    (files / "data.csv").write_text("1,a")
    for path, problem in (
        (missing, "has no column 'day'; the stream's column 'day' is string.*ADD COLUMNS"),
        (wrong, "has column 'id' of type int; the stream's column 'id' is bigint"),
        (files, "is not a Delta table but holds 'data.csv'"),
    ):
        with pytest.raises(BacklogError, match=problem):
            opened(spark, path)
    assert [file.name for file in files.iterdir()] == ["data.csv"]


def test_refused_settings(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"DeltaAppend partition_by = \['hour'\].*no column 'hour'.*day, id"):
        DeltaAppend(str(tmp_path / "t"), partition_by=["hour"]).open(SinkContext(spark, "app", SCHEMA, False))
    assert not (tmp_path / "t").exists()
    with pytest.raises(SettingError, match=r"Write partition_by=\['day'\]"):
        DeltaAppend("/nowhere", partition_by="day")
    with pytest.raises(BacklogError, match=r"DeltaAppend\('/nowhere'\) is not open"):
        DeltaAppend("/nowhere").write(events(spark, SOME), BatchInfo(0, True))


def test_a_table_that_lost_batches_or_is_ahead_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table, kept = tmp_path / "t", tmp_path / "kept"
    sink = opened(spark, table)
    sink.write(events(spark, SOME), BatchInfo(0, True))
    shutil.copytree(table, kept)
    sink.write(events(spark, []), BatchInfo(1, False))
    with pytest.raises(BacklogError, match=r"committed up to 2, the table has them up to 1"):
        sink.write(events(spark, SOME), BatchInfo(3, False))
    with pytest.raises(BacklogError, match=r"has batch 1 of this query.*is 0"):
        opened(spark, table, newest_planned=0)
    shutil.rmtree(table)
    shutil.copytree(kept, table)
    with pytest.raises(BacklogError, match=r"committed up to 1, the table has them up to 0"):
        sink.write(events(spark, SOME), BatchInfo(2, False))
    with pytest.raises(BacklogError, match=r"committed up to 1, the table has them up to 0.*new checkpointLocation"):
        opened(spark, table, newest_planned=1, newest_committed=1)
    assert rows_of(spark, table) == Counter(SOME)


def test_a_location_may_be_written_in_any_form(spark: SparkSession, tmp_path: Path) -> None:
    """Each batch by another form: all of them are one table."""
    forms = [
        lambda path: f"file://{path}",
        lambda path: f"file:{path}/",
        lambda path: f"{path}//",
        lambda path: f"{path.parent}/sub/..//{path.name}",
        os.path.relpath,
    ]
    table = tmp_path / "t 1"
    for batch, written in enumerate([*forms, *forms[:1]]):
        sink = DeltaAppend(written(table))
        committed = batch - 1 if batch else None
        sink.open(SinkContext(spark, "app", SCHEMA, False, newest_planned=committed, newest_committed=committed))
        sink.write(events(spark, SOME[:1]), BatchInfo(batch, False))
        assert sink.path == f"file:{table}"
    assert rows_of(spark, table) == Counter(SOME[:1] * (1 + len(forms)))


def test_a_copy_of_a_checkpoint_does_not_lose_its_rows_silently(spark: SparkSession, tmp_path: Path) -> None:
    sink, copy = (opened(spark, tmp_path) for _ in range(2))
    sink.write(events(spark, SOME[:1]), BatchInfo(0, False))
    with pytest.raises(BacklogError, match="already has batch 0 of this query, which it has not run"):
        copy.write(events(spark, SOME[1:]), BatchInfo(0, False))
    again = opened(spark, tmp_path, newest_planned=0)  # the same batch, after a crash
    for _ in range(2):
        again.write(events(spark, SOME[:1]), BatchInfo(0, False))
    assert rows_of(spark, tmp_path) == Counter(SOME[:1])
