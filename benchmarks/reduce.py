"""A sum by key, sorted in backlog and then in stream mode, against Spark's batch and streaming aggregation.

All read the same Parquet files with Spark's native reader at local[2,4] and write to the ``noop`` sink, which drops
every row. State is written to disk as in production.

* ``ready``: from ``start()`` of a new query, with no commit during backlog, until its one backlog batch has been
  written. It includes the query's start, the plan with the idle stateful branch, the state's version on disk and the
  output read back from it. The peers: ``spark_batch``, Spark's ``groupBy(key).sum(value)``. ``spark_stream``, Spark's
  streaming aggregation on RocksDB over 100 batches; it is slow and runs once. ``foreach_batch``, the query that a user
  would write by hand around Spark's ``groupBy``: one batch with ``foreachBatch``, without state to continue from.
* ``live``: from the same ``start()`` until the first live batch has been written. It adds the state's publication, the
  start of the stream plan and the batch that reads the state. Its peer is ``spark_batch`` again. The file with the live
  rows was made before, because making it takes two jobs on the same cores.
* ``stream rows=…``: a live batch over the state of all keys, as reported by Spark. Its peers: ``few_keys``, the same
  over the state of 10,000 keys, and ``spark_stream``, Spark's streaming aggregation.
* ``process``: like ``ready``, with a Python function of one line and a state of one value instead of the sum. Its
  further peer, ``tws_per_key``, is Spark's transformWithStateInPandas by key with the same line, over 100,000 rows.

Before the measurement our results are compared with those of ``spark_batch``. At the end it prints the memory
of the driver's Python process (peak, before the first query, at the end) and the JVM's heap after a collection.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from benchmarks.backlogs import foreach_batch_time
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from benchmarks.flag import add_flag_connector
from benchmarks.per_key import PER_KEY_ROWS, per_key_time
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DDL", "Ours", "Written", "live_times", "made_rows", "totals"]

DDL = "key long, value long"
_FILES = 100
_FEW = 10_000
_LIVE = (1_000, 100_000)
_LIVE_BATCHES = 5
_LIMIT_S = 600


class Written(bs.Sink):
    """Drops rows and notes the time of each write. Optionally keeps a fingerprint of the rows."""

    def __init__(self, *, fingerprint: bool = False) -> None:
        self.at: list[float] = []
        self.fingerprint = fingerprint
        self.found: Any = None

    def open(self, context: Any) -> None:
        pass

    def write(self, batch_df: DataFrame, batch: Any) -> None:
        if self.fingerprint:
            self.found = fingerprint(batch_df)
        else:
            batch_df.write.format("noop").mode("append").save()
        self.at.append(time.perf_counter())


def fingerprint(frame: DataFrame) -> tuple[int, Any]:
    """Rows, and the sum of a hash of each."""
    from pyspark.sql import functions as F

    row = frame.agg(F.count("*"), F.sum(F.xxhash64("*").cast("decimal(20,0)"))).first()
    assert row is not None, "an aggregate without keys has one row"
    return row[0], row[1]


def made_rows(spark: SparkSession, first: int, count: int, keys: int, files: int) -> DataFrame:
    """Rows of numbers from ``first`` on, in so many partitions."""
    from pyspark.sql import functions as F

    key = F.pmod(F.xxhash64("id"), F.lit(keys)).alias("key")
    return spark.range(first, first + count, 1, files).select(key, (F.col("id") % 1000).alias("value"))


class Total(bs.KeyedProcessFunction):
    """A sum as a function of one line."""

    output = "key long, value long"
    total = bs.ValueState("long", default=0)

    def process_element(self, row: Any, ctx: Any) -> None:
        self.total.update(self.total.value() + row.value)


Operate = Callable[[bs.KeyedStream], bs.BacklogStream]


def _sum_by_key(keyed: bs.KeyedStream) -> bs.BacklogStream:
    return keyed.sum("value")


def _total_by_key(keyed: bs.KeyedStream) -> bs.BacklogStream:
    return keyed.process(Total(), name="total")


class Ours:
    """A query of ours over files. More files can be added."""

    def __init__(
        self,
        spark: SparkSession,
        data: Path,
        keys: int,
        sink: Written,
        operate: Operate = _sum_by_key,
        ahead: int = 0,
    ) -> None:
        self._spark, self._keys, self.sink = spark, keys, sink
        self._folder = tempfile.TemporaryDirectory(prefix="backlog-bench-")
        self._root = Path(self._folder.name)
        _link(data, self._root / "in")
        self._live: Path | None = None
        native = spark.readStream.schema(DDL).parquet(str(self._root / "in"))
        stream = bs.stream(native).union(bs.source("backlog_flag", name="flag", ddl=DDL))
        writer = operate(stream.key_by("key")).write("reduce")
        writer = writer.trigger(processing_time="50 ms", interval_during_backlog=0)
        writer = writer.option("checkpointLocation", str(self._root / "checkpoint")).to(sink)
        if ahead:
            self._live = _made(spark, self._root, ahead, keys)
        self.began = time.perf_counter()
        self.query = writer.start(spark)

    def until(self, batches: int) -> float:
        """Seconds from the start until this many batches have been written."""
        _wait(lambda: len(self.sink.at) >= batches, self.query)
        return self.sink.at[batches - 1] - self.began

    def go_live(self) -> None:
        """Add the file that was made before."""
        assert self._live is not None, "made at the start if it was asked for"
        _put(self._live, self._root)

    def add(self, rows: int) -> None:
        """Add one more file."""
        _add(self._spark, self._root, rows, self._keys)

    def stop(self) -> None:
        self.query.stop()
        self._folder.cleanup()


def _link(data: Path, to: Path) -> None:
    to.mkdir()
    for file in data.glob("*.parquet"):
        os.link(file, to / file.name)


def _made(spark: SparkSession, root: Path, rows: int, keys: int) -> Path:
    """A directory with a file of new rows, next to the files that a query reads."""
    made = Path(tempfile.mkdtemp(dir=root))
    made_rows(spark, time.time_ns() % 10**9, rows, keys, 1).write.mode("overwrite").parquet(str(made))
    return made


def _put(made: Path, root: Path) -> None:
    for file in made.glob("*.parquet"):
        file.rename(root / "in" / f"{time.time_ns()}-{file.name}")


def _add(spark: SparkSession, root: Path, rows: int, keys: int) -> None:
    _put(_made(spark, root, rows, keys), root)


def _wait(condition: Callable[[], bool], query: Any) -> None:
    limit = time.perf_counter() + _LIMIT_S
    while not condition():
        if not query.isActive or time.perf_counter() > limit:
            raise query.exception() or TimeoutError("the query ended early or takes too long")
        time.sleep(0.01)


def totals(rows: DataFrame) -> DataFrame:
    """The sum of each key."""
    from pyspark.sql import functions as F

    return rows.groupBy("key").agg(F.sum("value").alias("value"))


def _batch(spark: SparkSession, data: Path) -> DataFrame:
    return totals(spark.read.schema(DDL).parquet(str(data)))


def _driver(spark: SparkSession) -> str:
    """Memory of the driver: its Python process at its peak, and the JVM, which in local mode is the executor too."""
    jvm = spark._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    heap = runtime.totalMemory() - runtime.freeMemory()
    return f"Python {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB, heap {heap >> 20} MB"


def _batch_time(spark: SparkSession, data: Path) -> float:
    began = time.perf_counter()
    _batch(spark, data).write.format("noop").mode("append").save()
    return time.perf_counter() - began


def live_times(spark: SparkSession, data: Path, keys: int, counts: Sequence[int] = _LIVE) -> dict[int, float]:
    """Median seconds of live batches over the state of the data, by their number of rows."""
    ours = Ours(spark, data, keys, Written())
    try:
        ours.add(1_000)
        ours.until(2)
        found = {}
        for rows in counts:
            times = []
            for _ in range(_LIVE_BATCHES):
                before = len(ours.sink.at)
                ours.add(rows)
                _wait(lambda: len(ours.sink.at) > before, ours.query)  # noqa: B023
                last = ours.query.streamingQuery
                _wait(lambda: last.lastProgress.numInputRows == rows, ours.query)  # noqa: B023
                times.append(last.lastProgress.durationMs["triggerExecution"] / 1000)
            found[rows] = statistics.median(times[1:])
        return found
    finally:
        ours.stop()


@contextlib.contextmanager
def _rocksdb(spark: SparkSession) -> Iterator[None]:
    from backlog_spark.spark.jvm.session import session_conf

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with session_conf(spark, {"spark.sql.streaming.stateStore.providerClass": provider}):
        yield


def _stream_times(spark: SparkSession, data: Path, keys: int) -> tuple[float, dict[int, float]]:
    """Spark's streaming aggregation: seconds for all data in 100 batches, and for live batches after it."""
    from pyspark.sql import functions as F

    with tempfile.TemporaryDirectory(prefix="backlog-bench-") as folder, _rocksdb(spark):
        root = Path(folder)
        _link(data, root / "in")
        frame = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(root / "in"))
        totals = frame.groupBy("key").agg(F.sum("value").alias("value"))
        writer = totals.writeStream.format("noop").outputMode("update")
        writer = writer.option("checkpointLocation", str(root / "checkpoint"))
        began = time.perf_counter()
        writer.trigger(availableNow=True).start().awaitTermination()
        whole = time.perf_counter() - began
        query = writer.trigger(processingTime="50 milliseconds").start()
        found = {}
        for rows in _LIVE:
            times = []
            for _ in range(_LIVE_BATCHES):
                before = query.lastProgress.batchId if query.lastProgress else -1
                _add(spark, root, rows, keys)
                _wait(
                    lambda: (p := query.lastProgress) is not None and p.batchId > before and p.numInputRows == rows,  # noqa: B023
                    query,
                )
                times.append(query.lastProgress.durationMs["triggerExecution"] / 1000)
            found[rows] = statistics.median(times[1:])
        query.stop()
        return whole, found


def run(arguments: argparse.Namespace) -> None:
    """Make the data, compare the results, then measure."""
    rows, keys = arguments.rows, arguments.keys
    with contextlib.ExitStack() as stack:
        progress("starting Spark")
        # Spark lists more than 32 files in a job of its own: half a second for a hundred local ones.
        spark = local_session(
            "reduce benchmark", conf={"spark.sql.sources.parallelPartitionDiscovery.threshold": "200"}
        )
        stack.callback(spark.stop)
        add_flag_connector()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-")))
        data, few = folder / "rows", folder / "few"
        progress(f"making {rows:,} rows of {keys:,} keys")
        made_rows(spark, 0, rows, keys, _FILES).write.parquet(str(data))
        made_rows(spark, 0, 10 * _FEW, _FEW, 2).write.parquet(str(few))
        before = _driver(spark)
        progress("comparing the results")
        checked = Ours(spark, data, keys, Written(fingerprint=True))
        try:
            checked.until(1)
            require_equal({"ours": checked.sink.found, "spark_batch": fingerprint(_batch(spark, data))})
        finally:
            checked.stop()
        checked = Ours(spark, data, keys, Written(), _total_by_key)
        try:
            checked.until(1)
            _wait(lambda: not checked.query.isProcessingBacklog, checked.query)
            state = checked.query.state("total").select("key", "total")
            require_equal({"process": fingerprint(state), "spark_batch": fingerprint(_batch(spark, data))})
        finally:
            checked.stop()
        live: list[float] = []

        def ours() -> float:
            one = Ours(spark, data, keys, Written(), ahead=1_000)
            try:
                ready = one.until(1)
                one.go_live()
                live.append(one.until(2))
                return ready
            finally:
                one.stop()

        def process() -> float:
            one = Ours(spark, data, keys, Written(), _total_by_key)
            try:
                return one.until(1)
            finally:
                one.stop()

        candidates = {
            "ours": ours,
            "process": process,
            "spark_batch": lambda: _batch_time(spark, data),
            "foreach_batch": lambda: foreach_batch_time(spark.readStream.schema(DDL).parquet(str(data)), totals),
        }
        times = interleave(candidates, arguments.runs)
        progress("tws_per_key")
        per_key = per_key_time(spark, folder, lambda: made_rows(spark, 0, PER_KEY_ROWS, keys, 2))
        progress("spark_stream")
        whole, native = _stream_times(spark, data, keys)
        progress("live batches")
        all_keys, few_keys = live_times(spark, data, keys), live_times(spark, few, _FEW)
        progress("")
        ready, batch = show("ours, ready", rows, times["ours"]), show("spark_batch", rows, times["spark_batch"])
        first = show("ours, first live output", rows, live[1:])  # the first was the warm-up's
        stream = show("spark_stream", rows, [whole])
        by_hand = show("foreach_batch", rows, times["foreach_batch"])
        peers = {"spark_batch": batch, "foreach_batch": by_hand, "spark_stream": stream}
        result("reduce", f"ready keys={keys}", ready, peers)
        result("reduce", f"live keys={keys}", first, {"spark_batch": batch})
        function = show("ours, process", rows, times["process"])
        by_key = show("tws_per_key", PER_KEY_ROWS, [per_key])
        result("reduce", f"process keys={keys}", function, {"spark_batch": batch, "tws_per_key": by_key})
        for count in _LIVE:
            peers = {"few_keys": count / few_keys[count], "spark_stream": count / native[count]}
            result("reduce", f"stream rows={count} keys={keys}", count / all_keys[count], peers)
        print(f"driver before: {before}; at the end: {_driver(spark)}", flush=True)


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=10_000_000, keys=200_000)))
