"""A live batch into a large Delta table: the ``DeltaUpsert`` sink against Spark's MERGE written by hand.

A batch is 5,000 scattered changes, half updates of existing keys and half new keys, in a Parquet file that both read.
It goes into a table of ``--rows`` rows at local[2,4]. ``ours`` is the sink's ``write``, as called by a query, into a
table that the sink filled itself with a backlog batch. ``spark_merge`` is Delta's MERGE by the key, into a table that
Spark wrote with Delta's defaults. Figures are changes per second. At the end both tables must have the same rows.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from backlog_spark.sinks import BatchInfo, DeltaUpsert, SinkContext
from benchmarks.by_hand import merge
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from benchmarks.snapshot import fingerprint
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure"]

_CHANGES = 5_000
_FILES = 8
_COLUMNS = "id", "CAST(id % 50000 AS INT) AS k", "id % 1000 AS v", "concat('order ', id) AS note"
_CHANGE = "'insert' AS _change_type", "CAST('2026-01-01' AS TIMESTAMP) AS _commit_timestamp", "0L AS _commit_seq"


def _batch(file: Path, number: int, rows: int) -> None:
    """The changes of one batch. Batches with other numbers insert other keys."""
    chance = random.Random(number)
    half = _CHANGES // 2
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
        "_commit_seq": pa.array(range(number * _CHANGES, number * _CHANGES + len(ids)), pa.int64()),
    }
    pq.write_table(pa.table(columns), file)


class _Batches:
    """Reads batch after batch, each one once."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self._spark, self._folder, self._rows, self.number = spark, folder, rows, 0

    def next(self) -> DataFrame:
        self.number += 1
        file = self._folder / f"{self.number}.parquet"
        if not file.exists():
            _batch(file, self.number, self._rows)
        return self._spark.read.parquet(str(file))


def measure(spark: SparkSession, rows: int, runs: int) -> None:
    """Fill both tables, compare them after all batches, and print the figures."""
    with tempfile.TemporaryDirectory(prefix="backlog-bench-") as made:
        folder = Path(made)
        progress(f"filling two tables of {rows:,} rows")
        table = spark.range(1, rows + 1, 1, _FILES).selectExpr(*_COLUMNS)
        table.write.format("delta").save(str(folder / "by hand"))
        first = table.selectExpr("*", *_CHANGE)
        sink = DeltaUpsert(str(folder / "ours"), keys=["id"])
        sink.open(SinkContext(spark, "benchmark", first.schema, key_is_unique_in_backlog=True))
        sink.write(first, BatchInfo(0, is_backlog=True))
        batches = {name: _Batches(spark, folder, rows) for name in ("ours", "spark_merge")}

        def ours() -> float:
            batch = batches["ours"].next()
            began = time.perf_counter()
            sink.write(batch, BatchInfo(batches["ours"].number, is_backlog=False))
            return time.perf_counter() - began

        def by_hand() -> float:
            batch = batches["spark_merge"].next()
            began = time.perf_counter()
            merge(batch, folder / "by hand", "id")
            return time.perf_counter() - began

        times = interleave({"ours": ours, "spark_merge": by_hand}, runs)
        speeds = {name: show(f"rows={rows}, {name}", _CHANGES, taken) for name, taken in times.items()}
        tables = {name: spark.read.format("delta").load(str(folder / name)) for name in ("ours", "by hand")}
        require_equal({name: fingerprint(each, table.schema) for name, each in tables.items()})
        result("sink", f"rows={rows}", speeds["ours"], {"spark_merge": speeds["spark_merge"]})


def run(arguments: argparse.Namespace) -> None:
    """Measure each size."""
    with contextlib.ExitStack() as stack:
        spark = local_session("sink benchmark")
        stack.callback(spark.stop)
        for rows in arguments.rows:
            measure(spark, rows, arguments.runs)


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=[1_000_000, 10_000_000], runs=5)))
