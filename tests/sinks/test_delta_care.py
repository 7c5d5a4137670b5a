"""The care of tables keeps every row: with other writers, all types, and a killed process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from backlog_spark.sinks import BatchInfo, DeltaAppend, SinkContext
from backlog_spark.sinks.delta.maintenance.care import TableCare
from backlog_spark.spark.jvm.session import session_conf
from tests.sinks.caring import APP, ROWS, append, care_of, eager, rows
from tests.sinks.s3 import lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = 30


def table_of(path: Path, commits: int = SMALL) -> DeltaTable:
    write_deltalake(path, rows(0))
    table = DeltaTable(path)
    for batch in range(1, commits):
        append(table, rows(batch), batch)
    return table


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def commit_of(path: Path, version: int) -> list[dict[str, Any]]:
    text = (path / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_small_files_become_one_that_changes_no_data(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    merged = [done for done in care_of(table) if done.files]
    assert [(done.files, done.into, done.version) for done in merged] == [(SMALL, 1, SMALL)]
    assert ids(tmp_path) == list(range(SMALL * ROWS))
    assert len(table.file_uris()) == 1
    assert table.version() == SMALL
    actions = commit_of(tmp_path, SMALL)
    files = [action.get("add") or action.get("remove") for action in actions if "commitInfo" not in action]
    assert {file["dataChange"] for file in files} == {False}
    (added,) = (action["add"] for action in actions if "add" in action)
    assert json.loads(added["stats"]) == {
        "numRecords": SMALL * ROWS,
        "minValues": {"id": 0},
        "maxValues": {"id": SMALL * ROWS - 1},
        "nullCount": {"id": 0},
    }
    assert added["size"] == (tmp_path / added["path"]).stat().st_size


def test_a_table_with_few_small_files_is_left_alone(tmp_path: Path) -> None:
    table = table_of(tmp_path, 23)
    assert not [done for done in care_of(table) if done.files]
    assert table.version() == 22


@pytest.mark.parametrize("compact", [False, True])
def test_compaction_can_be_switched_off(tmp_path: Path, compact: bool) -> None:
    """For good, or for batches of backlog."""
    table, care = table_of(tmp_path), TableCare(compact=compact, clock=time.monotonic)
    for batch in range(SMALL, SMALL + 20):
        append(table, rows(batch), batch)
        care.after_batch(table, merge=not compact)
    assert len(table.file_uris()) == SMALL + 20
    assert list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))


def test_care_takes_a_tenth_of_the_time(tmp_path: Path) -> None:
    seconds = iter([0.0, 1.0, 5.0, 9.9, 10.0, 10.0, 11.0, 12.0])
    table, care = table_of(tmp_path), TableCare(clock=lambda: next(seconds))
    care._batches = 100
    assert care.after_batch(table) is not None  # 0 to 1: then nothing before 10
    assert care.after_batch(table) is None
    assert care.after_batch(table) is None
    assert next(seconds) == 10.0


class Interrupted(DeltaTable):
    """A table that another writer commits to when a merge is about to be committed."""

    other: Callable[[], object]

    def create_write_transaction(self, *args: Any, **kwargs: Any) -> None:
        other, self.other = self.other, lambda: None
        other()
        super().create_write_transaction(*args, **kwargs)


@pytest.mark.parametrize(
    "other", ["append", "delete of a row", "delete of a file", "compaction", "overwrite", "column"]
)
def test_a_merge_gives_way_to_a_writer_that_changes_its_files(tmp_path: Path, other: str) -> None:
    table_of(tmp_path)
    late = Interrupted(tmp_path)
    first = set(range(SMALL * ROWS))
    acts: dict[str, tuple[Callable[[], object], set[int]]] = {
        "append": (lambda: append(DeltaTable(tmp_path), rows(SMALL), SMALL), first | {90, 91, 92}),
        "delete of a row": (lambda: DeltaTable(tmp_path).delete("id = 4"), first - {4}),
        "delete of a file": (lambda: DeltaTable(tmp_path).delete("id < 3"), first - {0, 1, 2}),
        "compaction": (lambda: DeltaTable(tmp_path).optimize.compact(), first),
        "column": (lambda: DeltaTable(tmp_path).alter.add_columns(Field("new", PrimitiveType("long"))), first),
        "overwrite": (lambda: write_deltalake(tmp_path, rows(7), mode="overwrite"), {21, 22, 23}),
    }
    late.other, expected = acts[other]
    care = eager()
    problems = [done.problem for _ in range(8) if (done := care.after_batch(late)) and done.problem]
    assert len(problems) == (other != "append")  # which is let pass
    assert all("another writer was faster" in problem for problem in problems)
    assert ids(tmp_path) == sorted(expected)
    for _ in range(20):  # later, if there is still something to merge
        done = care.after_batch(late)
        assert not (done and done.problem)
    assert ids(tmp_path) == sorted(expected)
    assert len(late.file_uris()) < 24


@pytest.mark.slow
@pytest.mark.parametrize("merges", [1, pytest.param(30, marks=pytest.mark.grid)])
def test_two_cares_and_a_writer_at_the_same_time_keep_every_row(tmp_path: Path, merges: int) -> None:
    """Two queries that write to one table each look after it, while rows are deleted too."""
    write_deltalake(tmp_path, rows(0))
    lock, batches, deleted, merged = threading.Lock(), [0], set[int](), Counter[str]()

    def is_over() -> bool:
        return batches[0] > 400 * merges or (min(merged["one"], merged["two"]) >= merges and len(deleted) >= merges)

    def write(name: str) -> None:
        table, care = DeltaTable(tmp_path), eager()
        # Where two are always faster than a merge, one goes on alone.
        while not is_over() or (name == "one" and not sum(merged.values())):
            with lock:
                batches[0] += 1
                batch = batches[0]
            while True:
                try:
                    append(table, rows(batch), batch)
                    break
                except CommitFailedError:
                    table.update_incremental()
            done = care.after_batch(table)
            merged[name] += bool(done and done.files)

    def delete() -> None:
        while not is_over():
            unlucky = random.randrange(0, ROWS * batches[0] + 1)
            try:
                found = DeltaTable(tmp_path).delete(f"id = {unlucky}")
            except CommitFailedError:
                continue
            if found["num_deleted_rows"]:
                deleted.add(unlucky)
            time.sleep(0.1)  # it rewrites a file that a merge may be about to take

    threads = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
    threads.append(threading.Thread(target=delete))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids(tmp_path) == sorted(set(range(ROWS * (batches[0] + 1))) - deleted)
    assert sum(merged.values()) > 0


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.grid)])
def test_a_kill_at_any_moment_loses_and_duplicates_nothing(tmp_path: Path, kills: int) -> None:
    write_deltalake(tmp_path, rows(0))
    done = 0
    for _ in range(kills):
        job = subprocess.Popen(
            [sys.executable, "-m", "tests.sinks.caring", str(tmp_path), str(done + 1)], stdout=subprocess.PIPE
        )
        assert job.stdout is not None
        assert job.stdout.readline() == b"started\n"
        time.sleep(random.uniform(0.05, 0.6))
        job.kill()
        job.wait()
        job.stdout.close()
        table = DeltaTable(tmp_path)
        done = table.transaction_version(APP) or 0
        assert ids(tmp_path) == list(range(ROWS * (done + 1)))
        assert len(table.file_uris()) < 60
    assert done > 24


def every_type(number: int) -> pa.Table:
    first = [
        None,
        number,
        date(1, 1, 1),
        datetime(1, 1, 1, tzinfo=UTC),
        Decimal("-1.5"),
        -0.0,
        b"\x00",
        "",
        [1],
        {"a": 1},
    ]
    last = [
        number,
        None,
        date(9999, 12, 31),
        datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        Decimal("9" * 36 + ".99"),
    ]
    last += [float("nan"), None, "\U0010ffff" * 40, None, None]
    types = [pa.int8(), pa.int64(), pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(38, 2), pa.float64()]
    types += [pa.binary(), pa.string(), pa.list_(pa.int32()), pa.struct([("a", pa.int16())])]
    columns = {
        f"c{place}": pa.array(values, type)
        for place, (values, type) in enumerate(zip(zip(first, last, strict=True), types, strict=True))
    }
    return pa.table({"day": pa.array([date(2024, 1, 1), None]), "even": [number % 2 == 0, None], **columns})


@pytest.mark.slow
def test_values_of_every_type_and_their_bounds_stay(tmp_path: Path) -> None:
    for number in range(60):
        write_deltalake(tmp_path, every_type(number), mode="append", partition_by=["day", "even"])
    table = DeltaTable(tmp_path)

    def content() -> Counter[str]:
        return Counter(repr(row) for row in DeltaTable(tmp_path).to_pyarrow_table().to_pylist())

    before = content()
    assert sum(done.files for done in care_of(table)) == 120
    assert content() == before
    added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {(row["partition.day"], row["partition.even"]) for row in added} == {
        (date(2024, 1, 1), True), (date(2024, 1, 1), False), (None, None),
    }  # fmt: skip
    actions = commit_of(tmp_path, table.version())
    stats = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
    (last,) = (found for found in stats if found["numRecords"] == 60)
    # The latest time is rounded up, which Python's calendar cannot say. Floats, decimals, bytes and long texts have no
    # bounds that all readers take alike.
    assert last["minValues"] == {"c0": 0, "c2": "9999-12-31"}
    assert last["maxValues"] == {"c0": 59, "c2": "9999-12-31"}
    assert last["nullCount"] == {"c0": 0, "c1": 60, "c2": 0, "c3": 0, "c4": 0, "c5": 0, "c6": 60, "c7": 0}


def test_files_that_lack_a_new_column_have_nulls(tmp_path: Path) -> None:
    table_of(tmp_path)
    wider = pa.table({"id": pa.array([-1], pa.int64()), "extra": ["x"]})
    write_deltalake(tmp_path, wider, mode="append", schema_mode="merge")
    table = DeltaTable(tmp_path)
    assert sum(done.files for done in care_of(table)) == SMALL + 1
    found = Counter(table.to_pyarrow_table()["extra"].to_pylist())
    assert found == {None: SMALL * ROWS, "x": 1}


def test_a_file_that_is_gone_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    away = Path(table.file_uris()[3])
    away.rename(tmp_path / "away")
    problems = [done.problem for done in care_of(table) if done.problem]
    assert len(problems) == 1
    assert table.version() == SMALL - 1
    (tmp_path / "away").rename(away)
    assert ids(tmp_path) == list(range(SMALL * ROWS))


@pytest.mark.grid
def test_a_batch_is_known_when_only_the_checkpoint_has_it(tmp_path: Path, spark: SparkSession) -> None:
    """The log is cleaned up as its table says; Spark and the sink read what is left."""
    from pyspark.sql.types import LongType, StructType

    path, schema = tmp_path / "t", StructType().add("id", LongType())
    retention = {f"delta.{what}RetentionDuration": "interval 0 seconds" for what in ("log", "deletedFile")}
    sink = DeltaAppend(str(path), properties={**retention, "delta.checkpointInterval": "1"}, small_batch_rows=0)
    sink.open(SinkContext(spark, APP, schema, False))
    sink.write(spark.createDataFrame([(n,) for n in range(ROWS)], schema), BatchInfo(0, False))
    checksum = path / "_delta_log" / "._last_checkpoint.crc"
    assert checksum.exists()
    table, care = DeltaTable(path), eager()
    for batch in range(1, 60):
        append(table, rows(batch), batch)
        care.after_batch(table)
    assert not checksum.exists()  # Spark would take the file that deltalake has written for corrupt
    log = path / "_delta_log"
    assert not (log / f"{1:020d}.json").exists()
    assert list(log.glob("*.checkpoint.parquet"))
    assert DeltaTable(path).transaction_version(APP) == 59

    def found(where: str = "true") -> list[int]:
        return sorted(row.id for row in spark.read.format("delta").load(str(path)).where(where).collect())

    assert found() == list(range(60 * ROWS))
    again = DeltaAppend(str(path))
    again.open(SinkContext(spark, APP, schema, False, 59, 58))
    again.write(spark.createDataFrame([(7,)], schema), BatchInfo(59, False))  # is there already
    again.write(spark.createDataFrame([(-1,)], schema), BatchInfo(60, False))
    table.update_incremental()
    assert len(table.file_uris()) < 60
    assert found() == [-1, *range(60 * ROWS)]
    assert found("id > 10 and id < 14") == [11, 12, 13]  # by the statistics of merged files


@pytest.mark.grid
def test_timestamps_that_spark_wrote_stay(tmp_path: Path, spark: SparkSession) -> None:
    """Spark's INT96 has nanoseconds, which end in the year 2262 for most other readers."""
    from pyspark.sql import functions as f

    path = str(tmp_path / "t")
    texts = [
        "0001-01-01 00:00:00",
        "1582-10-04 01:02:03.000001",
        "1969-12-31 23:59:59.999999",
        "9999-12-31 23:59:59.999999",
    ]
    frame = spark.createDataFrame([(text,) for text in texts for _ in range(6)], "text string").repartition(12)
    frame = frame.select(
        "text", f.col("text").cast("timestamp").alias("at"), f.col("text").cast("timestamp_ntz").alias("n")
    )
    empty = frame.limit(0).writeTo(f"delta.`{path}`").using("delta")
    empty.tableProperty("delta.enableDeletionVectors", "false").create()
    for kind in ("INT96", "TIMESTAMP_MICROS"):
        with session_conf(spark, {"spark.sql.parquet.outputTimestampType": kind}):
            frame.write.format("delta").mode("append").save(path)
    before = Counter(
        map(tuple, spark.read.format("delta").load(path).selectExpr("text", "string(at)", "string(n)").collect())
    )
    assert sum(done.files for done in care_of(DeltaTable(path))) == 24
    after = spark.read.format("delta").load(path)
    assert Counter(map(tuple, after.selectExpr("text", "string(at)", "string(n)").collect())) == before
    for text in texts:
        assert after.where(f"at = timestamp '{text}'").count() == 12
        assert after.where(f"n = timestamp_ntz '{text}'").count() == 12


def test_files_of_the_old_calendar_stay_as_they_are(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "t")
    frame = spark.sql("SELECT date'1200-02-03' AS day").repartition(1)
    frame.limit(0).writeTo(f"delta.`{path}`").using("delta").tableProperty(
        "delta.enableDeletionVectors", "false"
    ).create()
    with session_conf(spark, {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}):
        for _ in range(2):
            frame.write.format("delta").mode("append").save(path)
    for _ in range(SMALL):
        write_deltalake(path, pa.table({"day": [date(1200, 2, 3)]}), mode="append")
    assert sum(done.files for done in care_of(DeltaTable(path))) == SMALL
    found = spark.read.format("delta").load(path)
    assert Counter(row.day for row in found.collect()) == {date(1200, 2, 3): SMALL + 2}


@pytest.mark.slow
@pytest.mark.parametrize("feature", ["deletion vectors", "column mapping"])
def test_a_table_that_needs_another_reader_is_left_alone(tmp_path: Path, spark: SparkSession, feature: str) -> None:
    path = str(tmp_path / "t")
    name, value = {
        "deletion vectors": ("delta.enableDeletionVectors", "true"),
        "column mapping": ("delta.columnMapping.mode", "name"),
    }[feature]
    spark.range(0).writeTo(f"delta.`{path}`").using("delta").tableProperty(name, value).create()
    spark.range(0, 30, 1, 30).write.format("delta").mode("append").save(path)
    assert not [done for done in care_of(DeltaTable(path)) if done.files]


@pytest.mark.grid
@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.grid)])
def test_a_concurrent_optimize_by_spark_duplicates_nothing(tmp_path: Path, spark: SparkSession, times: int) -> None:
    from delta.tables import DeltaTable as SparkTable

    path, runs, conflicts = tmp_path / "t", 0, 0
    spark.range(ROWS).writeTo(f"delta.`{path}`").using("delta").tableProperty(
        "delta.enableDeletionVectors", "false"
    ).create()
    stop, batches, merged = threading.Event(), [0], [0]

    def write() -> None:
        table, care = DeltaTable(path), eager()
        while not stop.is_set():
            batch = batches[0] + 1
            try:
                append(table, rows(batch), batch)
            except CommitFailedError:
                table.update_incremental()
                continue
            batches[0] = batch
            done = care.after_batch(table)
            merged[0] += done.files if done else 0

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while runs + conflicts < times:
            try:
                SparkTable.forPath(spark, str(path)).optimize().executeCompaction()
                runs += 1
            except Exception as error:
                if "Concurrent" not in type(error).__name__:
                    raise
                conflicts += 1
    finally:
        stop.set()
        writer.join()
    expected = list(range(ROWS * (batches[0] + 1)))
    assert sorted(row.id for row in spark.read.format("delta").load(str(path)).collect()) == expected == ids(path)
    assert merged[0] > 0


@pytest.mark.process
def test_a_table_in_s3_is_merged() -> None:
    with lake() as options:
        write_deltalake("s3://lake/t", rows(0), storage_options=options)
        table, care = DeltaTable("s3://lake/t", storage_options=options), TableCare(options, clock=lambda: 0.0)
        merged = 0
        for batch in range(1, SMALL):
            append(table, rows(batch), batch)
            merged += done.files if (done := care.after_batch(table)) else 0
        assert merged == 25
        assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(SMALL * ROWS))
