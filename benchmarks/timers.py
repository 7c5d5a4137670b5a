"""Event-time timers that are all due at one watermark: with and without stopping for the commit between two of them.

At local[2,4]. ``--keys`` keys have a timer each, all in the state. Then a row of a later day comes, and with it the
watermark that makes them all due. The commit interval is two seconds.

``ours`` is with ``spark.backlog.timers.interruptible.enabled``, ``uninterrupted`` without. Total: from the last row's
coming until all timers have fired and been written; what a ratio below 1 lacks is the cost of the commits in between.
The longest gap between two commits is printed for both, with what `on_timer` takes: a digest of some text.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.embedded.session import local_session
from backlog_spark.session import session_conf
from benchmarks.backlogs import LIMIT_S, Written
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DDL = "key long, ts timestamp"
_INTERVAL_S = 2
_WORK = b"x" * 80_000


class _Digest(bs.KeyedProcessFunction):
    output = "key long, digest string"
    interruptible_timers = True

    def process_element(self, row: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        key = ctx.get_current_key()
        yield key, hashlib.sha256(_WORK + str(key).encode()).hexdigest()


def _time(spark: SparkSession, made: Path, keys: int, gaps: list[float], *, interruptible: bool) -> float:
    """Seconds until all timers have fired; the longest time between two commits is added to ``gaps``."""
    sink = Written()
    with tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as folder:
        files = Path(folder) / "files"
        files.mkdir()
        stream = bs.stream(spark.readStream.schema(_DDL).parquet(str(files))).with_watermark("ts", "0 seconds")
        writer = stream.key_by("key").process(_Digest(), name="digests").write(f"timers {time.time_ns()}")
        writer = writer.trigger(processing_time=f"{_INTERVAL_S} seconds").to(sink)
        with session_conf(spark, {"spark.backlog.timers.interruptible.enabled": str(interruptible).lower()}):
            query = writer.option("checkpointLocation", f"{folder}/checkpoint").start(spark)

        def wait(condition: Any) -> None:
            limit = time.perf_counter() + LIMIT_S
            while not condition():
                if not query.isActive or time.perf_counter() > limit:
                    raise query.exception() or TimeoutError("the query ended early or takes too long")
                time.sleep(0.01)

        try:
            for file in (made / "rows").glob("*.parquet"):
                (files / file.name).hardlink_to(file)
            wait(lambda: query.backlogProgress.rows >= keys)
            query.processAllAvailable()
            before = len(sink.at)
            began = time.perf_counter()
            for file in (made / "last").glob("*.parquet"):
                (files / file.name).hardlink_to(file)
            wait(lambda: sink.rows >= keys)
            at = [began, *sink.at[before:]]
            gaps.append(max(b - a for a, b in itertools.pairwise(at)))
            return at[-1] - began
        finally:
            query.stop()
            require_equal({"fired": sink.rows, "timers": keys})


def run(arguments: argparse.Namespace) -> None:
    """Make the data and measure."""
    keys = arguments.keys
    with contextlib.ExitStack() as stack:
        progress("starting Spark")
        spark = local_session("timers benchmark", conf={"spark.backlog.progress": "off"})
        stack.callback(spark.stop)
        made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-")))
        day = "timestamp_millis(1704067200000 + {} * 86400000 + id % 86400000) AS ts"
        spark.range(0, keys, 1, 4).selectExpr("id AS key", day.format(0)).write.parquet(str(made / "rows"))
        spark.range(0, 1, 1, 1).selectExpr("-1L AS key", day.format(3)).write.parquet(str(made / "last"))
        gaps: dict[bool, list[float]] = {True: [], False: []}
        times = interleave(
            {
                "ours": lambda: _time(spark, made, keys, gaps[True], interruptible=True),
                "uninterrupted": lambda: _time(spark, made, keys, gaps[False], interruptible=False),
            },
            arguments.runs,
        )
        speeds = {name: show(name, keys, taken) for name, taken in times.items()}
        for name, interruptible in (("ours", True), ("uninterrupted", False)):
            # The first was to warm up.
            each = " ".join(f"{gap:.2f}" for gap in gaps[interruptible][1:])
            print(f"{name}: longest gap between commits, of an interval of {_INTERVAL_S} s: {each} s", flush=True)
        result("timers", f"total keys={keys}", speeds["ours"], {"uninterrupted": speeds["uninterrupted"]})
        hourly = {name: 3600 / max(gaps[each][1:]) for name, each in (("ours", True), ("uninterrupted", False))}
        result("timers", f"gap in commits/h, keys={keys}", hourly["ours"], {"uninterrupted": hourly["uninterrupted"]})


if __name__ == "__main__":
    parser = arguments_parser(__doc__, rows=1, keys=1_000_000)
    sys.exit(main(run, parser))
