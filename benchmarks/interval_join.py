"""An interval join of two sets of files, buffered in backlog and joined at its end, against Spark's own range joins.

All run at local[2], into the ``noop`` sink, which drops every row. Each side has ``--rows`` rows in 100 Parquet files,
ordered by time, one row every 10 ms.

Ours reads both sides with the source ``hybrid``, whose phase of files is backlog, at an interval during backlog of 0.
It is measured from ``start()`` of a new query until the result has been written. That includes the query's start, the
rows' way through Python, and the copy of all rows that the stay keeps. Its peers:

* ``spark_batch``: Spark's batch join of the same files, on the key with the range of times as a further condition.
* ``spark_stream``: Spark's stream-stream join of the same files in 100 batches, on RocksDB. It is slow and runs once.

``even``: equally frequent keys, and an interval in which a row matches about two rows. ``hot``: as many rows, but every
hundredth has the same key, and an interval of 200 ms; only against ``spark_batch``.

Before the measurement the results of ours and of ``spark_batch`` are compared, afterwards those of ``spark_stream``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.spark.jvm.session import session_conf
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = 100
_STEP_MS = 10
_LIMIT_S = 3_600
_STREAM_CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}
_DDL: Mapping[str, str] = {
    "left": "key BIGINT, ts TIMESTAMP, amount BIGINT, note STRING",
    "right": "user BIGINT, at TIMESTAMP, page BIGINT, url STRING",
}


@dataclass(frozen=True)
class _Case:
    """Two folders of files, and the interval of their join."""

    folder: Path
    reach_ms: int

    def path(self, side: str) -> str:
        return str(self.folder / side)


def _write(spark: SparkSession, case: _Case, rows: int, keys: int, hot_every: int) -> None:
    for number, side in enumerate(_DDL):
        key = f"pmod(xxhash64(id, {number}), {keys})"
        if hot_every:
            key = f"if(id % {hot_every} = 0, -1, {key})"
        names = [column.split()[0] for column in _DDL[side].split(", ")]
        frame = spark.range(0, rows, 1, _FILES).selectExpr(
            f"{key} AS {names[0]}",
            f"timestamp_millis(1704067200000 + id * {_STEP_MS} + {number}) AS {names[1]}",
            f"id AS {names[2]}",
            f"concat('row ', id % 1000) AS {names[3]}",
        )
        frame.write.parquet(case.path(side))
        # Spark's stream takes the oldest files first.
        for age, file in enumerate(sorted(Path(case.path(side)).glob("*.parquet"))):
            os.utime(file, (1_704_067_200 + age, 1_704_067_200 + age))


class _Sink(bs.Sink):
    """Drops rows and counts them. Optionally computes their fingerprint."""

    def __init__(self, *, fingerprint: bool = False) -> None:
        self._fingerprint = fingerprint
        self.found: tuple[int, int] = (0, 0)

    def open(self, context: Any) -> None:
        pass

    def write(self, batch_df: DataFrame, batch: Any) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        if self._fingerprint:
            rows, total = _fingerprint(batch_df)
        else:
            seen = Observation()
            batch_df.observe(seen, F.count("*").alias("n")).write.format("noop").mode("append").save()
            rows, total = seen.get["n"], 0
        self.found = self.found[0] + rows, self.found[1] + total


def _sums(frame: DataFrame) -> list[Any]:
    from pyspark.sql import functions as F

    return [F.count("*").alias("n"), F.sum(F.xxhash64(*frame.columns).cast("decimal(38,0)")).alias("hashes")]


def _fingerprint(frame: DataFrame) -> tuple[int, int]:
    """Number of rows and sum of a hash of each, in any order."""
    row = frame.agg(*_sums(frame)).first()
    assert row is not None, "an aggregate without keys has one row"
    return row.n, int(row.hashes or 0)


def _ours(spark: SparkSession, case: _Case, sink: _Sink, expected: int) -> float:
    """Seconds from the start of a query until this many rows have been written."""
    left, right = (
        bs.source("hybrid", name=side, phases="files", path=case.path(side), schema=ddl).with_watermark(at, "1 second")
        for (side, ddl), at in zip(_DDL.items(), ("ts", "at"), strict=True)
    )

    reach = f"{case.reach_ms} ms"
    pairs = left.key_by("key").interval_join(right.key_by("user")).between(f"-{reach}", reach, name="pairs")
    with tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as checkpoint:
        writer = pairs.write("interval_join").trigger(processing_time="50 ms", interval_during_backlog=0)
        writer = writer.option("checkpointLocation", checkpoint).to(sink)
        began = time.perf_counter()
        query = writer.start(spark)
        try:
            while sink.found[0] < expected:
                if not query.isActive or time.perf_counter() > began + _LIMIT_S:
                    raise query.exception() or TimeoutError("the query ended early or takes too long")
                time.sleep(0.01)
            return time.perf_counter() - began
        finally:
            query.stop()


def _joined(left: DataFrame, right: DataFrame, reach_ms: int) -> DataFrame:
    from pyspark.sql import functions as F

    reach = F.expr(f"INTERVAL {reach_ms} MILLISECONDS")
    near = (F.col("at") >= F.col("ts") - reach) & (F.col("at") <= F.col("ts") + reach)
    return left.join(right, (F.col("key") == F.col("user")) & near)


def _batch(spark: SparkSession, case: _Case) -> DataFrame:
    return _joined(*(spark.read.schema(ddl).parquet(case.path(side)) for side, ddl in _DDL.items()), case.reach_ms)


def _batch_time(spark: SparkSession, case: _Case) -> float:
    began = time.perf_counter()
    _batch(spark, case).write.format("noop").mode("append").save()
    return time.perf_counter() - began


def _stream(spark: SparkSession, case: _Case) -> tuple[float, tuple[int, int]]:
    """Seconds of Spark's stream-stream join, and the fingerprint of its result."""
    sides = [
        spark.readStream.schema(ddl)
        .option("maxFilesPerTrigger", 1)
        .parquet(case.path(side))
        .withWatermark(at, "1 second")
        for (side, ddl), at in zip(_DDL.items(), ("ts", "at"), strict=True)
    ]
    pairs = _joined(sides[0], sides[1], case.reach_ms)
    pairs = pairs.observe("pairs", *_sums(pairs))
    with tempfile.TemporaryDirectory(prefix="backlog-bench-") as checkpoint, session_conf(spark, _STREAM_CONF):
        writer = pairs.writeStream.format("noop").outputMode("append").option("checkpointLocation", checkpoint)
        began = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        took = time.perf_counter() - began
        counts = [p.observedMetrics["pairs"] for p in query.recentProgress if "pairs" in p.observedMetrics]
    return took, (sum(row.n for row in counts), sum(int(row.hashes or 0) for row in counts))


def run(arguments: argparse.Namespace) -> None:
    """Make the data, compare the results, then measure."""
    rows, keys = arguments.rows, arguments.keys
    with contextlib.ExitStack() as stack:
        progress("starting Spark")
        conf = {"spark.sql.sources.parallelPartitionDiscovery.threshold": "300", "spark.backlog.progress": "off"}
        spark = local_session("interval join benchmark", master="local[2]", conf=conf)
        stack.callback(spark.stop)
        bs.register(spark)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-")))
        # Rows of one key come every keys * step. An interval of that length to each side contains two of them.
        cases = {"even": _Case(folder / "even", keys * _STEP_MS), "hot": _Case(folder / "hot", 100)}
        for name, case in cases.items():
            progress(f"writing 2 x {rows:,} rows, {name}")
            _write(spark, case, rows, keys, 100 if name == "hot" else 0)
        for name, case in cases.items():
            progress(f"comparing the results, {name}")
            found = _fingerprint(_batch(spark, case))
            checked = _Sink(fingerprint=True)
            _ours(spark, case, checked, found[0])
            require_equal({"ours": checked.found, "spark_batch": found})
            print(f"{name}: {found[0]:,} pairs", flush=True)
            times = interleave(
                {
                    "ours": lambda case=case, n=found[0]: _ours(spark, case, _Sink(), n),  # type: ignore[misc]
                    "spark_batch": lambda case=case: _batch_time(spark, case),  # type: ignore[misc]
                },
                arguments.runs,
            )
            speeds = {which: show(f"{name}, {which}", 2 * rows, each) for which, each in times.items()}
            ours = speeds.pop("ours")
            if name == "even":
                progress("spark_stream")
                took, streamed = _stream(spark, case)
                progress("")
                require_equal({"spark_batch": found, "spark_stream": streamed})
                speeds["spark_stream"] = show(f"{name}, spark_stream", 2 * rows, [took])
            result("interval_join", f"{name} keys={keys}", ours, speeds)


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=5_000_000, keys=200_000)))
