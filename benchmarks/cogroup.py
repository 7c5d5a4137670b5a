"""A co-group of two sets of files in backlog, against Spark's own full outer join.

All read the same Parquet files with Spark's own reader at local[2,4] and write to the ``noop`` sink. Both sides have
``--rows`` rows with distinct keys, the same keys on both sides. The function emits 1 for each key.

Ours is measured from ``start()`` of a new query, with no commit during backlog, until its one backlog batch has been
written. ``vectorised`` passes many keys at once to the function, ``per key`` one key at a time in Python. The peers are
``spark_batch``, Spark's full outer join, and ``spark_stream``, the vectorised co-group without backlog in 100 batches,
which runs once.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import backlog_spark as bs
from benchmarks.backlogs import Written, batch_time, ours_time
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from benchmarks.flag import add_flag_connector
from servers.session import local_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DDL", "One", "Ones", "co_grouped", "write_sides"]

DDL = "key long, value long, ts timestamp"
_FILES = 100


class One(bs.CoGroupFunction):
    """Emits a 1 for each key."""

    output = "one long"

    def co_group(self, left: list[Any], right: list[Any]) -> Any:
        yield (1,)


class Ones(bs.CoGroupFunction):
    """The same for many keys at once."""

    output = "one long"

    def process_groups(self, groups: Any) -> pa.RecordBatch:
        return pa.record_batch({"one": pa.array([1] * groups.keys.num_rows, pa.int64())})


def co_grouped(function: bs.CoGroupFunction) -> Callable[[Mapping[str, bs.BacklogStream]], bs.BacklogStream]:
    """The co-group of ``left`` and ``right`` in windows of a day."""

    def operate(inputs: Mapping[str, bs.BacklogStream]) -> bs.BacklogStream:
        left, right = (inputs[side].with_watermark("ts", "0 seconds") for side in ("left", "right"))
        grouped = left.co_group(right).where("key").equal_to("key")
        return grouped.window(bs.TumblingEventTimeWindows.of("1 day")).apply(function)

    return operate


def write_sides(spark: SparkSession, folder: Path, rows: int) -> dict[str, DataFrame]:
    """Write the files of both sides, each in a folder with its name.

    All rows are on one day. One last row, with a negative key, lets the watermark pass that day.
    """
    frames = {}
    for number, side in enumerate(("left", "right")):
        made = spark.range(0, rows + 1, 1, _FILES).selectExpr(
            f"if(id = {rows}, -1, pmod(xxhash64(id), {2**62})) AS key", f"id * {number + 2} AS value",
            f"timestamp_millis(1704067200000 + if(id = {rows}, 3 * 86400000, id % 86400000)) AS ts",
        )  # fmt: skip
        made.write.parquet(str(folder / side))
        frames[side] = spark.read.schema(DDL).parquet(str(folder / side))
    return frames


def run(arguments: argparse.Namespace) -> None:
    """Make the data, compare the results, then measure."""
    rows = arguments.rows
    with contextlib.ExitStack() as stack:
        progress("starting Spark")
        spark = local_session(
            "cogroup benchmark", conf={"spark.sql.sources.parallelPartitionDiscovery.threshold": "400"}
        )
        stack.callback(spark.stop)
        add_flag_connector()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-")))
        progress(f"making twice {rows:,} rows")
        frames = write_sides(spark, folder, rows)
        inputs = {side: (folder / side, DDL) for side in frames}
        left, right = frames["left"].where("key >= 0"), frames["right"].where("key >= 0")
        joined = left.join(right, "key", "full")
        progress("comparing the results")
        expected = left.select("key").union(right.select("key")).distinct().count()
        for function in (Ones(), One()):
            sink = Written(fingerprint=True)
            ours_time(spark, inputs, co_grouped(function), expected, sink)
            require_equal({"ours": sink.rows, "spark_batch": expected})
        candidates = {
            "vectorised": lambda: ours_time(spark, inputs, co_grouped(Ones()), expected),
            "per key": lambda: ours_time(spark, inputs, co_grouped(One()), expected),
            "spark_batch": lambda: batch_time(joined),
        }
        times = interleave(candidates, arguments.runs)
        speeds = {name: show(name, 2 * rows, taken) for name, taken in times.items()}
        progress("spark_stream")
        stream = ours_time(spark, inputs, co_grouped(Ones()), expected, in_backlog=False)
        progress("")
        slow = show("spark_stream", 2 * rows, [stream])
        batch = speeds["spark_batch"]
        result("cogroup", f"vectorised rows={rows}", speeds["vectorised"], {"spark_batch": batch, "spark_stream": slow})
        result("cogroup", f"per key rows={rows}", speeds["per key"], {"spark_batch": batch, "spark_stream": slow})


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=5_000_000)))
