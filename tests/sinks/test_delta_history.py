"""Tables that were reset: RESTORE and similar commands are refused, edits of rows are allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable
from pyspark.sql.types import LongType, StructType

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo, DeltaAppend, DeltaUpsert, SinkContext
from backlog_spark.sinks.delta.history import Commit, parse_commit, undoing
from backlog_spark.sinks.delta.sink import DeltaSink
from backlog_spark.sinks.outputs import Outputs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.delta.deltars.commits import DirectTable

SCHEMA = StructType().add("id", LongType()).add("n", LongType())
EVERY_ROW: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}


def batch(version: int) -> Commit:
    return Commit(version, "WRITE", batch=version)


def restore(version: int, to: int) -> Commit:
    return Commit(version, "RESTORE", restored=to)


@pytest.mark.parametrize(
    ("commits", "base", "expected"),
    [
        ([], 4, None),
        ([batch(5), Commit(6, "DELETE")], 4, None),
        ([batch(5), restore(6, 5)], 4, None),  # took nothing out
        ([batch(5), Commit(6, "DELETE"), restore(7, 5)], 4, None),  # took out another's edit
        ([batch(5), restore(6, 4)], 4, 6),
        ([restore(5, 4)], 4, None),
        ([restore(5, 3)], 4, 5),
        ([restore(5, 3)], -1, None),  # nothing of ours was there
        ([restore(5, -1)], 4, 5),
        ([restore(5, -1)], -1, None),
        ([restore(5, 3), restore(6, 4)], 4, None),  # undone
        ([restore(5, 3), restore(6, 5)], 4, 5),
        ([restore(5, 3), restore(6, 3), restore(7, 4)], 4, None),
        ([restore(5, 3), batch(6), restore(7, 4)], 4, 7),  # undone, but a batch went with it
        ([batch(5), restore(6, 4), batch(7)], 4, 6),
        ([batch(5), batch(6), Commit(7), restore(8, 7), restore(9, 6), batch(10)], -1, None),
        ([batch(5), batch(6), restore(7, 5)], -1, 7),
        ([batch(5), restore(6, 5), restore(7, 4), restore(8, 6)], 4, None),
    ],
)
def test_what_undoes_a_batch(commits: Sequence[Commit], base: int, expected: int | None) -> None:
    for order in (commits, commits[::-1]):
        found = undoing(order, base)
        assert (found.version if found else None) == expected


def test_commits_of_other_writers_are_understood() -> None:
    file = '{"add":{"path":"x","stats":"{\\"commitInfo\\": 1}"}}'
    ours, other = (f'{{"txn":{{"appId":"{name}","version":3}}}}' for name in ("app", "app-side"))
    for info, expected in (
        ('{"operation":"RESTORE","operationParameters":{"version":"4","timestamp":null}}', ("RESTORE", 4)),
        ('{"operation":"RESTORE","operationParameters":{"version":4}}', ("RESTORE", 4)),
        ('{"operation":"RESTORE","operationParameters":{"timestamp":"2024-01-01"}}', ("RESTORE", -1)),
        ('{"operation":"CREATE OR REPLACE TABLE AS SELECT"}', ("CREATE OR REPLACE TABLE AS SELECT", -1)),
        ('{"operation":"CLONE","operationParameters":null}', ("CLONE", -1)),
        ('{"operation":"WRITE","operationParameters":{"mode":"Overwrite"}}', ("WRITE", None)),
        ('{"timestamp":1}', ("", None)),
    ):
        text = "\n".join((file, other, f'{{"commitInfo":{info}}}'))
        assert parse_commit(9, text, "app") == Commit(9, expected[0], None, expected[1])
        assert parse_commit(9, text + "\n" + ours, "app") == Commit(9, expected[0], 3, expected[1])
    assert parse_commit(9, "", "app") == Commit(9)


def sink_of(kind: str, table: Path) -> DeltaSink:
    return DeltaAppend(str(table)) if kind == "append" else DeltaUpsert(str(table), ["id"], **EVERY_ROW)


def opened(spark: SparkSession, sink: DeltaSink, planned: int | None = None, committed: int | None = None) -> DeltaSink:
    sink.open(SinkContext(spark, "app", SCHEMA, False, planned, committed))
    return sink


def rows(spark: SparkSession, *given: tuple[int, int]) -> DataFrame:
    return spark.createDataFrame(list(given), SCHEMA)


def restore_by_other(table: Path, version: int) -> None:
    """A RESTORE by delta-rs takes milliseconds. `test_a_restored_table_is_refused_until_that_is_undone` has Spark's."""
    RustTable(str(table)).restore(version)


def table_of(spark: SparkSession, table: Path) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in spark.read.format("delta").load(str(table)).collect())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("upsert", marks=pytest.mark.grid), "append"])
def test_a_restored_table_is_refused_until_that_is_undone(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = tmp_path / "t"
    sink = opened(spark, sink_of(kind, table))
    sink.write(rows(spark, (1, 0), (2, 0)), BatchInfo(0, False))  # version 1
    sink.write(rows(spark, (3, 0)), BatchInfo(1, False))  # version 2
    delta = DeltaTable.forPath(spark, str(table))
    delta.restoreToVersion(1)  # version 3
    found = r"RESTORE in its version 3.*RESTORE TABLE delta.*VERSION AS OF 2, or start with a new checkpoint"
    with pytest.raises(BacklogError, match=found):
        sink.write(rows(spark, (4, 0)), BatchInfo(2, False))
    with pytest.raises(BacklogError, match=found):  # also a batch that would be skipped
        sink.write(rows(spark, (3, 0)), BatchInfo(1, False))
    # Stopped before the restore: also between the table's commit and Spark's.
    for committed in (0, 1):
        with pytest.raises(BacklogError, match=found):
            opened(spark, sink_of(kind, table), planned=1, committed=committed)
    assert table_of(spark, table) == Counter([(1, 0), (2, 0)])

    delta.restoreToVersion(2)  # version 4: what the error says
    again = opened(spark, sink_of(kind, table), planned=2, committed=1)
    for goes_on in (sink, again):
        goes_on.write(rows(spark, (4, 0)), BatchInfo(2, False))
    assert table_of(spark, table) == Counter([(1, 0), (2, 0), (3, 0), (4, 0)])


@pytest.mark.slow
@pytest.mark.parametrize("small_batch_rows", [0, 100])
def test_a_restore_during_a_batch_is_noticed_before_the_batch_counts(
    spark: SparkSession, tmp_path: Path, small_batch_rows: int
) -> None:
    class Meanwhile(DeltaAppend):
        def _write_rows(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> None:
            self._restore(batch.batch_id)
            super()._write_rows(batch_df, batch, context)

        def _write_small(self, rows: pa.Table, table: DirectTable, txn_app_id: str, batch_id: int) -> None:
            self._restore(batch_id)
            super()._write_small(rows, table, txn_app_id, batch_id)

        def _restore(self, batch_id: int) -> None:
            if batch_id == 1:
                restore_by_other(tmp_path, 0)

    sink = opened(spark, Meanwhile(str(tmp_path), small_batch_rows=small_batch_rows))
    sink.write(rows(spark, (1, 0)), BatchInfo(0, False))
    with pytest.raises(BacklogError, match="RESTORE in its version 2"):
        sink.write(rows(spark, (2, 0)), BatchInfo(1, False))
    # By Spark the table has the batch, Spark has not counted it, and the restore lies before it.
    assert table_of(spark, tmp_path) == Counter([] if small_batch_rows else [(2, 0)])
    with pytest.raises(BacklogError, match="RESTORE in its version 2"):
        opened(spark, DeltaAppend(str(tmp_path)), planned=1, committed=0)


def test_a_replaced_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    sink = opened(spark, sink_of("append", table))
    sink.write(rows(spark, (1, 0)), BatchInfo(0, False))  # version 1

    def go_on() -> None:
        sink.write(rows(spark, (2, 0)), BatchInfo(1, False))

    def reopen() -> None:
        opened(spark, sink_of("append", table), planned=0, committed=0)

    def replace_it() -> None:  # Delta replaces tables of a catalog alone
        spark.sql(f"CREATE TABLE replaced USING delta LOCATION '{table}'")
        try:
            spark.sql("CREATE OR REPLACE TABLE replaced (id BIGINT, n BIGINT) USING delta")
        finally:
            spark.sql("DROP TABLE replaced")

    replace_it()
    for start in (go_on, reopen):
        with pytest.raises(BacklogError, match="CREATE OR REPLACE TABLE in its version 2 took rows out"):
            start()
    restore_by_other(table, 1)
    go_on()
    assert table_of(spark, table) == Counter([(1, 0), (2, 0)])


@pytest.mark.grid
@pytest.mark.parametrize("kind", ["upsert", pytest.param("append", marks=pytest.mark.grid)])
def test_edits_of_rows_and_restores_of_others_are_the_owners_business(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    rows(spark, (8, 0)).write.format("delta").save(str(tmp_path))  # version 0
    rows(spark, (9, 0)).write.format("delta").mode("append").save(str(tmp_path))
    delta = DeltaTable.forPath(spark, str(tmp_path))
    sink = opened(spark, sink_of(kind, tmp_path))
    restore_by_other(tmp_path, 0)  # version 2, before anything of ours
    sink.write(rows(spark, (1, 0), (2, 0)), BatchInfo(0, False))  # version 3
    delta.delete("id = 8")
    sink.write(rows(spark, (3, 0)), BatchInfo(1, False))  # version 5
    delta.delete("id = 1")
    delta.optimize().executeCompaction()
    restore_by_other(tmp_path, 5)  # takes back the deletion
    sink.write(rows(spark, (4, 0)), BatchInfo(2, False))
    assert table_of(spark, tmp_path) == Counter((number, 0) for number in (1, 2, 3, 4))
    rows(spark, (5, 5)).write.format("delta").mode("overwrite").save(str(tmp_path))
    again = opened(spark, sink_of(kind, tmp_path), planned=2, committed=2)
    again.write(rows(spark, (6, 6)), BatchInfo(3, False))
    assert table_of(spark, tmp_path) == Counter([(5, 5), (6, 6)])


@pytest.mark.grid
def test_the_owner_can_accept_what_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, sink_of("append", tmp_path))
    for number in range(3):
        sink.write(rows(spark, (number, 0)), BatchInfo(number, False))  # versions 1 to 3
    restore_by_other(tmp_path, 1)  # version 4
    with pytest.raises(BacklogError, match=r"go on without these rows: ALTER TABLE .*acceptedVersion' = '4'"):
        sink.write(rows(spark, (3, 0)), BatchInfo(3, False))
    accept(spark, tmp_path, 4)
    sink.write(rows(spark, (3, 0)), BatchInfo(3, False))  # version 6
    opened(spark, sink_of("append", tmp_path), planned=3, committed=3)
    assert table_of(spark, tmp_path) == Counter([(0, 0), (3, 0)])
    restore_by_other(tmp_path, 5)  # accepts no later one
    with pytest.raises(BacklogError, match="RESTORE in its version 7"):
        opened(spark, sink_of("append", tmp_path), planned=3, committed=3)
    for wrong in ("99", "x"):
        accept(spark, tmp_path, wrong)
        with pytest.raises(SettingError, match="must be a version of the table; the newest is"):
            opened(spark, sink_of("append", tmp_path), planned=3, committed=3)


def accept(spark: SparkSession, table: Path, version: object) -> None:
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('backlog_spark.acceptedVersion' = '{version}')")


@pytest.mark.grid
def test_a_log_that_was_cut_after_the_last_batch_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, sink_of("append", tmp_path))
    sink.write(rows(spark, (1, 0)), BatchInfo(0, False))  # version 1
    for _ in range(10):  # Delta writes a checkpoint of its log every ten versions
        rows(spark, (2, 0)).write.format("delta").mode("append").save(str(tmp_path))
    for version in range(5):
        Path(tmp_path, "_delta_log", f"{version:020d}.json").unlink()
    with pytest.raises(BacklogError, match=r"does not reach back to the last batch.*acceptedVersion' = '11'"):
        opened(spark, sink_of("append", tmp_path), planned=0, committed=0)
    accept(spark, tmp_path, 11)
    again = opened(spark, sink_of("append", tmp_path), planned=0, committed=0)
    again.write(rows(spark, (3, 0)), BatchInfo(1, False))
    assert table_of(spark, tmp_path)[(3, 0)] == 1


def test_a_first_batch_whose_transaction_the_table_forgot_is_not_written_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    retention = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    sink = opened(spark, DeltaAppend(str(tmp_path), properties=retention))
    sink.write(rows(spark, (1, 0)), BatchInfo(0, False))
    for committed in (None, 0):  # killed before Spark counted the batch, and behind that
        with pytest.raises(BacklogError, match=r"lacks batches of this query.*setTransactionRetentionDuration"):
            opened(spark, DeltaAppend(str(tmp_path)), planned=0, committed=committed)
    assert table_of(spark, tmp_path) == Counter([(1, 0)])


def test_a_side_output_that_was_restored_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    context = SinkContext(spark, "app", SCHEMA, False)
    outputs = Outputs({name: [DeltaAppend(str(tmp_path / (name or "main")))] for name in ("", "late")})
    outputs.open(context, {"late": SCHEMA}, lambda keys: False)
    for number in range(2):
        outputs.write(rows(spark, (number, 0)), {"late": rows(spark, (number, 1))}, BatchInfo(number, False))
    restore_by_other(tmp_path / "late", 1)
    with pytest.raises(BacklogError, match=r"late no longer has.*RESTORE in its version 3"):
        outputs.write(rows(spark, (2, 0)), {"late": rows(spark, (2, 1))}, BatchInfo(2, False))
    with pytest.raises(BacklogError, match=r"late no longer has.*RESTORE in its version 3"):
        outputs.open(replace(context, newest_planned=2, newest_committed=1), {"late": SCHEMA}, lambda keys: False)


def test_a_query_killed_between_the_two_commits_finds_a_restored_table(spark: SparkSession, tmp_path: Path) -> None:
    target, given, checkpoint = tmp_path / "t", tmp_path / "in", tmp_path / "c"

    def run() -> None:
        frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(given))
        made = bs.stream(frame).write("restored").trigger(available_now=True)
        made = made.option("checkpointLocation", str(checkpoint)).to(DeltaAppend(str(target)))
        assert made.start(spark).awaitTermination(300)

    given.mkdir()
    for number in range(2):
        (given / f"{number}.json").write_text(f'{{"id": {number}, "n": 0}}\n')
    run()
    # What is on disk when the driver dies after the table's commit and before Spark's own.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    restore_by_other(target, 1)
    with pytest.raises(BacklogError, match="RESTORE in its version 3"):
        run()
    restore_by_other(target, 2)
    run()  # the batch again, which the table has
    assert table_of(spark, target) == Counter([(0, 0), (1, 0)])
