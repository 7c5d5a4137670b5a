"""Writers beside the sinks: a batch that loses against one is tried again, the query is not failed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql.types import LongType, StructType

from backlog_spark.sinks import BatchInfo, DeltaAppend, DeltaUpsert, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.sinks.delta import DeltaSink

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "road", "batches"),
    [
        ("upsert", "spark", 3),
        pytest.param("append", "direct", 3, marks=pytest.mark.grid),
        *(pytest.param(k, r, 40, marks=pytest.mark.grid) for k in ("append", "upsert") for r in ("direct", "spark")),
    ],
)
def test_optimize_and_deletes_fail_no_batch(
    spark: SparkSession, tmp_path: Path, kind: str, road: str, batches: int
) -> None:
    path = str(tmp_path / "t")
    given: dict[str, Any] = {**PLAIN, **({} if road == "direct" else {"small_batch_rows": 0})}
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
            attempts[sink.written.road] += sink.written.attempts
            for row in rows[1:]:
                if kind == "upsert":
                    expected = Counter({old: 1 for old in expected if old[0] != row[0]})
                expected[row] += 1
            number += 1
    assert set(attempts) == {road}
    found = Counter(tuple(row) for row in spark.read.format("delta").load(path).where("id >= 0").collect())
    assert found == expected
