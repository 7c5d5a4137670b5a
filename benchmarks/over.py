"""OVER aggregation: sorted in backlog, against Spark's window functions in a batch.

Both read the same Parquet files at local[2] and write to the ``noop`` sink. Ours is a query over the source ``hybrid``
with one phase of files as backlog, and no commit during it. It is measured from ``start()`` until its rows have been
written, so it includes the start of the query and of Python, and the version of the operator's rows on disk. The peer,
``spark_batch``, is the same window functions over Spark's own reader. It starts no query and keeps nothing.

* ``unbounded``: running sum and count of a key's rows, from the first row.
* ``range``: sum of a key's rows in the last hour.

Before the measurement the results are compared. One last row, with a key of its own and a day later, lets the watermark
pass all others. It does not count in the comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.operators.over.select_list import parse_over
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["run"]

_DDL = "key long, value long, ts timestamp"
_FILES = 16
_LIMIT_S = 1_800
# The functions, our frame, and Spark's frame.
_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "unbounded": (
        "sum(value) AS total, count(*) AS n",
        {"rows": "unbounded"},
        "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    ),
    "range": (
        "sum(value) AS total",
        {"range": "1 hour"},
        "RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW",
    ),
}


class Written(bs.Sink):
    """Drops rows and notes the time of each write. Optionally keeps a fingerprint of the rows."""

    def __init__(self, *, fingerprint: bool = False) -> None:
        self.at: float | None = None
        self.found: object = None
        self.fingerprint = fingerprint

    def open(self, context: Any) -> None:
        self.at = None

    def write(self, batch_df: DataFrame, batch: Any) -> None:
        if self.fingerprint:
            # The first write is measured, so it must have all rows.
            self.found = self.found or _fingerprint(batch_df)
        else:
            batch_df.write.format("noop").mode("append").save()
        self.at = time.perf_counter()


def _fingerprint(frame: DataFrame) -> object:
    """Number of rows and sum of a hash of each, without the last row, in any order."""
    import pyspark.sql.functions as F

    hashes = F.sum(F.xxhash64(*frame.columns).cast("decimal(20,0)"))
    return tuple(frame.where("key >= 0").agg(F.count("*"), hashes).collect()[0])


def _write_files(spark: SparkSession, folder: Path, rows: int, keys: int) -> None:
    frame = spark.range(0, rows, 1, _FILES).selectExpr(
        f"id * 7919 % {keys} AS key", "id * 37 % 100000 AS value", "timestamp_millis(1704067200000 + id * 10) AS ts"
    )
    last = spark.sql(f"SELECT -1L AS key, 0L AS value, timestamp_millis(1704153600000 + {rows} * 10L) AS ts")
    frame.write.parquet(str(folder))
    last.coalesce(1).write.mode("append").parquet(str(folder))


def _stream(files: str, case: str) -> bs.BacklogStream:
    functions, frame, _ = _CASES[case]
    rows = bs.source("hybrid", name="bench", phases="files", path=files, schema=_DDL, maxRowsPerBatch=10**9)
    return rows.with_watermark("ts", "1 second").key_by("key").over(functions, name="over", **frame)


def _ours(spark: SparkSession, files: str, case: str, sink: Written) -> float:
    """Seconds until the backlog's rows have been written."""
    with tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as folder:
        began = time.perf_counter()
        query = (
            _stream(files, case)
            .write("over")
            .trigger(processing_time="1 second", interval_during_backlog=0)
            .option("checkpointLocation", folder)
            .to(sink)
            .start(spark)
        )
        try:
            while sink.at is None:
                if not query.isActive or time.perf_counter() - began > _LIMIT_S:
                    raise query.exception() or TimeoutError("the query ended early or takes too long")
                time.sleep(0.01)
            return sink.at - began
        finally:
            query.stop()


def _windowed(spark: SparkSession, files: str, case: str) -> DataFrame:
    functions, _, frame = _CASES[case]
    over = f"OVER (PARTITION BY key ORDER BY ts {frame})"
    columns = [f"{f.text} {over} AS {f.name}" for f in parse_over(functions)]
    return spark.read.schema(_DDL).parquet(files).selectExpr("*", *columns)


def _batch(spark: SparkSession, files: str, case: str) -> float:
    began = time.perf_counter()
    _windowed(spark, files, case).write.format("noop").mode("append").save()
    return time.perf_counter() - began


def run(arguments: argparse.Namespace) -> None:
    """Write the data, compare the results, then measure."""
    rows, keys = arguments.rows, arguments.keys
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-")))
        progress("starting Spark")
        spark = local_session("over benchmark", master="local[2]", conf={"spark.backlog.progress": "off"})
        stack.callback(spark.stop)
        bs.register(spark)
        files = str(folder / "files")
        progress(f"writing {rows:,} rows of {keys:,} keys")
        _write_files(spark, Path(files), rows, keys)
        candidates: dict[str, Callable[[], float]] = {}
        for case in _CASES:
            progress(f"comparing the results: {case}")
            checked = Written(fingerprint=True)
            _ours(spark, files, case, checked)
            require_equal({"ours": checked.found, "spark_batch": _fingerprint(_windowed(spark, files, case))})
            candidates[f"{case} ours"] = functools.partial(_one, spark, files, case)
            candidates[f"{case} spark_batch"] = functools.partial(_batch, spark, files, case)
        times = interleave(candidates, arguments.runs)
        speeds = {name: show(name, rows, times[name]) for name in times}
        for case in _CASES:
            peer = speeds[f"{case} spark_batch"]
            result("over", f"{case} rows={rows} keys={keys}", speeds[f"{case} ours"], {"spark_batch": peer})


def _one(spark: SparkSession, files: str, case: str) -> float:
    return _ours(spark, files, case, Written())


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=10_000_000, keys=200_000)))
