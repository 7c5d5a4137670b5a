"""Writers beside the sinks: a batch that loses against one is tried again, the query is not failed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from deltalake import write_deltalake
from pyspark.sql.types import LongType, StructType

from backlog_spark.sinks import BatchInfo, DeltaAppend, DeltaUpsert, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.delta.sink import DeltaSink

SCHEMA = StructType().add("id", LongType()).add("n", LongType())
PLAIN = {"properties": {"delta.enableDeletionVectors": "false"}}


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[list[int]]:
    """Repeat something in a thread. Yields how often it ran."""
    done, stop, failed = [0], threading.Event(), list[BaseException]()

    def run() -> None:
        while not stop.is_set():
            try:
                act()
            except Exception as error:
                if "Concurrent" not in type(error).__name__:
                    failed.append(error)
                    return
            done[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()
    assert not failed, failed


@pytest.mark.grid
@pytest.mark.parametrize(
    ("kind", "writer", "batches"),
    [
        ("upsert", "spark", 3),
        pytest.param("append", "direct", 3, marks=pytest.mark.grid),
        *(pytest.param(k, r, 40, marks=pytest.mark.grid) for k in ("append", "upsert") for r in ("direct", "spark")),
    ],
)
def test_optimize_and_deletes_fail_no_batch(
    spark: SparkSession, tmp_path: Path, kind: str, writer: str, batches: int
) -> None:
    path = str(tmp_path / "t")
    given: dict[str, Any] = {**PLAIN, **({} if writer == "direct" else {"small_batch_rows": 0})}
    sink: DeltaSink = DeltaAppend(path, **given)
    if kind == "upsert":
        sink = DeltaUpsert(path, ["id"], change_type=None, sequence=None, metadata_columns=(), **given)
    sink.open(SinkContext(spark, "app", SCHEMA, False))
    # A session of its own: that of a batch carries the transaction that the batch is to be marked with.
    table, expected, attempts = DeltaTable.forPath(spark.newSession(), path), Counter[tuple[int, int]](), Counter[str]()

    def others() -> None:
        table.optimize().executeCompaction()
        table.delete("id < 0")  # the owner's row of the batch, or none

    with beside(others) as done:
        number = 0
        while number < batches or done[0] < 2:
            rows = [(-1, number), (number, number), (number + 1, number)]
            sink.write(spark.createDataFrame(rows, SCHEMA), BatchInfo(number, False))
            assert sink.written is not None
            attempts[sink.written.writer] += sink.written.attempts
            for row in rows[1:]:
                if kind == "upsert":
                    expected = Counter({old: 1 for old in expected if old[0] != row[0]})
                expected[row] += 1
            number += 1
    assert set(attempts) == {writer}
    found = Counter(tuple(row) for row in spark.read.format("delta").load(path).where("id >= 0").collect())
    assert found == expected


KEYED: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["files", "spark"])
@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.grid)])
def test_a_backlog_has_one_row_per_key_although_others_insert_its_keys(
    spark: SparkSession, tmp_path: Path, writer: str, first: int
) -> None:
    path, marker = str(tmp_path / "t"), tmp_path / "marker"

    def sink(newest: int | None) -> DeltaUpsert:
        made = DeltaUpsert(path, ["id"], small_batch_rows=1000 if writer == "files" else 0, **KEYED)
        made.open(SinkContext(spark, "app", SCHEMA, True, newest, newest))
        return made

    def rows(low: int, high: int) -> DataFrame:
        return spark.range(low, high, 1, 1).selectExpr("id", "id AS n")

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not marker.exists():
            marker.touch()
            other = pa.table({"id": pa.array([4], pa.int64()), "n": pa.array([-1], pa.int64())})
            write_deltalake(path, other, mode="append")

    opened = sink(None)
    if first:
        opened.write(rows(0, 3), BatchInfo(0, True))
        assert opened.written is not None
        assert opened.written.writer == writer
    # Another writer commits while Spark runs the batch.
    with pytest.raises(Exception, match=r"Another writer added rows|CONCURRENT_APPEND"):
        opened.write(rows(3, 6).mapInArrow(slow, SCHEMA), BatchInfo(first, True))
    assert marker.exists()
    opened.write(rows(3, 6), BatchInfo(first, True))
    opened = sink(first)
    opened.write(rows(3, 6), BatchInfo(first, True))
    assert opened.written is not None
    assert opened.written.writer == "none"
    opened.write(rows(6, 8), BatchInfo(first + 1, True))
    found = sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())
    assert found == [(number, number) for number in range(0 if first else 3, 8)]


def test_commits_that_add_no_rows_leave_a_table_to_its_query(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    sink = DeltaUpsert(path, ["id"], **KEYED)
    sink.open(SinkContext(spark, "app", SCHEMA, True))
    for batch in range(2):
        sink.write(spark.createDataFrame([(batch, 0)], SCHEMA), BatchInfo(batch, True))
    DeltaTable.forPath(spark, path).optimize().executeCompaction()
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('some' = 'property')")
    sink.write(spark.createDataFrame([(2, 0)], SCHEMA), BatchInfo(2, True))
    assert sink.written is not None
    assert sink.written.writer == "files"
