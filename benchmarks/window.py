"""A sum by window and key over files in backlog, against Spark's batch and streaming window aggregation.

All read the same Parquet files with Spark's own reader at local[2,4] and write to the ``noop`` sink. A row every 10 ms,
``--keys`` keys, windows of ten minutes.

Ours is measured from ``start()`` of a new query, with no commit during backlog, until its one backlog batch has been
written, with the windows up to the watermark at its end. The peers: ``spark_batch``, Spark's ``groupBy`` by window and
key. ``foreach_batch``, the same in ``foreachBatch`` of a streaming query of one batch, without state to continue from.
``spark_stream``, Spark's streaming window aggregation on RocksDB over 100 batches, which runs once.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import backlog_spark as bs
from benchmarks.backlogs import Written, batch_time, fingerprint, foreach_batch_time, ours_time, stream_time
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from benchmarks.flag import add_flag_connector
from servers.session import local_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

_DDL = "key long, value long, ts timestamp"
_FILES = 100
_COLUMNS = ("key", "window_start", "value")


def _ours(inputs: Mapping[str, bs.BacklogStream]) -> bs.BacklogStream:
    marked = inputs["rows"].with_watermark("ts", "10 seconds")
    return marked.key_by("key").window(bs.TumblingEventTimeWindows.of("10 minutes")).sum("value").map(*_COLUMNS)


def _spark(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    windows = rows.groupBy("key", F.window("ts", "10 minutes")).agg(F.sum("value").alias("value"))
    return windows.select("key", F.col("window.start").alias("window_start"), "value")


def run(arguments: argparse.Namespace) -> None:
    """Make the data, compare the results, then measure."""
    from pyspark.sql import functions as F

    rows, keys = arguments.rows, arguments.keys
    with contextlib.ExitStack() as stack:
        progress("starting Spark")
        spark = local_session(
            "window benchmark", conf={"spark.sql.sources.parallelPartitionDiscovery.threshold": "200"}
        )
        stack.callback(spark.stop)
        add_flag_connector()
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-"))) / "rows"
        progress(f"making {rows:,} rows")
        made = spark.range(0, rows, 1, _FILES).selectExpr(
            f"pmod(xxhash64(id), {keys}) AS key",
            "id % 1000 AS value",
            "timestamp_millis(1704067200000 + id * 10) AS ts",
        )
        made.write.parquet(str(data))
        whole = spark.read.schema(_DDL).parquet(str(data))
        last = 1704067200000 + (rows - 1) * 10 - 10_001
        expected = _spark(whole).where(F.unix_millis("window_start") + 600_000 - 1 <= last)
        count, _ = found = fingerprint(expected)
        progress("comparing the results")
        inputs = {"rows": (data, _DDL)}
        sink = Written(fingerprint=True)
        ours_time(spark, inputs, _ours, count, sink)
        require_equal({"ours": sink.found, "spark_batch": found})
        candidates = {
            "ours": lambda: ours_time(spark, inputs, _ours, count),
            "spark_batch": lambda: batch_time(_spark(whole)),
            "foreach_batch": lambda: foreach_batch_time(spark.readStream.schema(_DDL).parquet(str(data)), _spark),
        }
        times = interleave(candidates, arguments.runs)
        speeds = {name: show(name, rows, taken) for name, taken in times.items()}
        progress("spark_stream")
        stream = stream_time(
            spark,
            lambda: _spark(
                spark.readStream.schema(_DDL)
                .option("maxFilesPerTrigger", 1)
                .parquet(str(data))
                .withWatermark("ts", "10 seconds")
            ),
            "append",
        )
        progress("")
        peers = {name: speeds[name] for name in ("spark_batch", "foreach_batch")}
        peers["spark_stream"] = show("spark_stream", rows, [stream])
        result("window", f"rows={rows} keys={keys} results={count}", speeds["ours"], peers)


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=10_000_000, keys=1_000)))
