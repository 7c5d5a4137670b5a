"""Event-time timers that are all due at one watermark, with and without a commit between two timers.

At local[2,4]. Each of ``--keys`` keys has a timer for a later day in the state. Then a row of the next day comes, and
with it the watermark that makes all timers due.

``ours`` is with ``spark.backlog.timers.interruptible.enabled``, at commit intervals of ten and of two seconds.
``uninterrupted`` is without it, at two seconds. The total is from the start of the batch with the watermark, which
comes at a tick of the interval, until all timers have fired and their output has been written. A ratio below 1 is the
cost of the commits in between: some 0.4 s each, nearly all for Spark's planning and start of a batch. The longest gap
between two commits is printed for each. `on_timer` takes the digest of a text.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.spark.jvm.session import session_conf
from benchmarks.backlogs import LIMIT_S, Written
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from servers.session import local_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_DDL = "key long, ts timestamp"
_INTERVAL_S, _SHORT_INTERVAL_S = 10, 2
_DAY_MS = 86_400_000
_WORK = b"x" * 80_000


class _Digest(bs.KeyedProcessFunction):
    output = "key long, digest string"
    interruptible_timers = True

    def process_element(self, row: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + _DAY_MS)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        key = ctx.get_current_key()
        yield key, hashlib.sha256(_WORK + str(key).encode()).hexdigest()


class _Fired(Written):
    """Notes the first batch with rows."""

    first_batch: int | None = None

    def write(self, batch_df: DataFrame, batch: Any) -> None:
        super().write(batch_df, batch)
        if self.rows and self.first_batch is None:
            self.first_batch = batch.batch_id


def _begin(log: Path) -> float:
    """When a batch of Spark's offset log began, on the clock of `Written.at`."""
    metadata = json.loads(log.read_text().splitlines()[1])
    return time.perf_counter() - (time.time() - metadata["batchTimestampMs"] / 1000)


def _time(spark: SparkSession, made: Path, keys: int, gaps: list[float], *, interval_s: int, cut: bool) -> float:
    """Seconds until all timers have fired. Adds the longest time between two commits to ``gaps``."""
    sink = _Fired()
    with tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as folder:
        files = Path(folder) / "files"
        files.mkdir()
        stream = bs.stream(spark.readStream.schema(_DDL).parquet(str(files))).with_watermark("ts", "0 seconds")
        writer = stream.key_by("key").process(_Digest(), name="digests").write(f"timers {time.time_ns()}")
        writer = writer.trigger(processing_time=f"{interval_s} seconds").to(sink)
        with session_conf(spark, {"spark.backlog.timers.interruptible.enabled": str(cut).lower()}):
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
            require_equal({"fired": sink.rows, "before they are due": 0})
            before = len(sink.at)
            for file in (made / "last").glob("*.parquet"):
                (files / file.name).hardlink_to(file)
            wait(lambda: sink.rows >= keys)
            began = _begin(Path(folder) / "checkpoint" / "offsets" / str(sink.first_batch))
            at = [began, *(each for each in sink.at[before:] if each > began)]
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
        day = "timestamp_millis(1704067200000 + {} * {} + id % {}) AS ts"
        spark.range(0, keys, 1, 4).selectExpr("id AS key", day.format(0, _DAY_MS, _DAY_MS)).write.parquet(
            str(made / "rows")
        )
        spark.range(0, 1, 1, 1).selectExpr("-1L AS key", day.format(3, _DAY_MS, _DAY_MS)).write.parquet(
            str(made / "last")
        )
        whole, ours, short = "uninterrupted", f"ours {_INTERVAL_S} s", f"ours {_SHORT_INTERVAL_S} s"
        gaps: dict[str, list[float]] = {ours: [], short: [], whole: []}

        def timed(name: str, interval_s: int) -> Callable[[], float]:
            return lambda: _time(spark, made, keys, gaps[name], interval_s=interval_s, cut=name != whole)

        systems = {ours: _INTERVAL_S, short: _SHORT_INTERVAL_S, whole: _SHORT_INTERVAL_S}
        times = interleave({name: timed(name, interval_s) for name, interval_s in systems.items()}, arguments.runs)
        speeds = {name: show(name, keys, taken) for name, taken in times.items()}
        for name in systems:
            # The first one was the warm-up.
            each = " ".join(f"{gap:.2f}" for gap in gaps[name][1:])
            print(f"{name}: longest gap between commits {each} s", flush=True)
        hourly = {name: 3600 / max(gaps[name][1:]) for name in systems}
        for name, interval_s in ((ours, _INTERVAL_S), (short, _SHORT_INTERVAL_S)):
            what = f"keys={keys} interval={interval_s} s"
            result("timers", f"total {what}", speeds[name], {whole: speeds[whole]})
            result("timers", f"gap in commits/h, {what}", hourly[name], {whole: hourly[whole]})


if __name__ == "__main__":
    parser = arguments_parser(__doc__, rows=1, keys=1_000_000)
    sys.exit(main(run, parser))
