"""A live batch into a large Delta table: the ``DeltaUpsert`` sink against Spark's MERGE written by hand.

A batch is 5,000 scattered changes, half updates of existing keys and half new keys, in a Parquet file that both read.
It goes into a table of ``--rows`` rows at local[2,4]. ``ours`` is the sink's ``write``, as called by a query, into a
table that the sink filled itself with a backlog batch. ``spark_merge`` is Delta's MERGE by the key, into a table that
Spark wrote with Delta's defaults. Figures are changes per second. At the end both tables must have the same rows.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from backlog_spark.sinks import DeltaUpsert
from benchmarks.by_hand import merge
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from benchmarks.live_sinks import LiveBatches, filled, table
from benchmarks.snapshot import fingerprint
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["measure"]

_CHANGES = 5_000


def measure(spark: SparkSession, rows: int, runs: int) -> None:
    """Fill both tables, compare them after all batches, and print the figures."""
    with tempfile.TemporaryDirectory(prefix="backlog-bench-") as made:
        folder = Path(made)
        progress(f"filling two tables of {rows:,} rows")
        rows_before = table(spark, rows)
        rows_before.write.format("delta").save(str(folder / "by hand"))
        writes = {
            "ours": filled(DeltaUpsert(str(folder / "ours"), keys=["id"]), rows_before),
            "spark_merge": lambda batch, number: merge(batch, folder / "by hand", "id"),
        }
        batches = {name: LiveBatches(write, spark, folder, rows, _CHANGES) for name, write in writes.items()}
        times = interleave(batches, runs)
        speeds = {name: show(f"rows={rows}, {name}", _CHANGES, taken) for name, taken in times.items()}
        found = {name: spark.read.format("delta").load(str(folder / name)) for name in ("ours", "by hand")}
        require_equal({name: fingerprint(each, rows_before.schema) for name, each in found.items()})
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
