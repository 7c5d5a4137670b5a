"""Live batches into sinks: scattered changes of a table, half updates of existing keys and half new keys.

Each batch is a Parquet file that all candidates read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from backlog_spark.sinks import BatchInfo, Sink, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CHANGE", "LiveBatches", "Write", "filled", "opened", "table"]

Write = Callable[["DataFrame", int], None]

_FILES = 8
_COLUMNS = "id", "CAST(id % 50000 AS INT) AS k", "id % 1000 AS v", "concat('order ', id) AS note"
CHANGE = "'insert' AS _change_type", "CAST('2026-01-01' AS TIMESTAMP) AS _commit_timestamp", "0L AS _commit_seq"
"""The change columns of a snapshot's rows."""


def table(spark: SparkSession, rows: int) -> DataFrame:
    """The table before the first batch, without change columns."""
    return spark.range(1, rows + 1, 1, _FILES).selectExpr(*_COLUMNS)


def opened(sink: Sink, first: DataFrame) -> Write:
    """Open a sink for batches of these columns. Batch 0 is backlog with unique keys."""
    sink.open(SinkContext(first.sparkSession, "benchmark", first.schema, key_is_unique_in_backlog=True))
    return lambda batch, number: sink.write(batch, BatchInfo(number, is_backlog=number == 0))


def filled(sink: Sink, rows: DataFrame) -> Write:
    """Open a sink, and fill its table with rows that have no change columns."""
    first = rows.selectExpr("*", *CHANGE)
    write = opened(sink, first)
    write(first, 0)
    return write


class LiveBatches:
    """Writes batch after batch, each one once. A call writes the next one and returns its seconds.

    Parameters
    ----------
    write : callable
        Takes a batch and its number, from 1 on.
    spark : SparkSession
    folder : Path
        Of the files. Candidates that share it get the same batches.
    rows : int
        Rows of `table`.
    changes : int
        Changes of a batch.
    """

    def __init__(self, write: Write, spark: SparkSession, folder: Path, rows: int, changes: int) -> None:
        self._write, self._spark, self._folder = write, spark, folder
        self._rows, self._changes, self._number = rows, changes, 0

    def __call__(self) -> float:
        self._number += 1
        file = self._folder / f"{self._number}.parquet"
        if not file.exists():
            _make(file, self._number, self._rows, self._changes)
        batch = self._spark.read.parquet(str(file))
        began = time.perf_counter()
        self._write(batch, self._number)
        return time.perf_counter() - began


def _make(file: Path, number: int, rows: int, changes: int) -> None:
    """The changes of one batch. Batches with other numbers insert other keys."""
    chance = random.Random(number)
    half = changes // 2
    old = chance.sample(range(1, rows + 1), min(half, rows))
    first = rows + 1 + number * half
    ids = [*old, *range(first, first + half)]
    columns = {
        "id": pa.array(ids, pa.int64()),
        "k": pa.array([key % 50_000 for key in ids], pa.int32()),
        "v": pa.array([number] * len(ids), pa.int64()),
        "note": [f"order {key}" for key in ids],
        "_change_type": ["update_postimage"] * len(old) + ["insert"] * half,
        "_commit_timestamp": pa.array([1_790_000_000_000_000 + number] * len(ids), pa.timestamp("us", "UTC")),
        "_commit_seq": pa.array(range(number * changes, number * changes + len(ids)), pa.int64()),
    }
    pq.write_table(pa.table(columns), file)
