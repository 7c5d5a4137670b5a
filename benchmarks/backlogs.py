"""Queries over Parquet files that are backlog. Several benchmarks run and time them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LIMIT_S", "Written", "batch_time", "fingerprint", "foreach_batch_time", "ours_time", "stream_time"]

LIMIT_S = 3_600

Operate = Callable[[Mapping[str, bs.BacklogStream]], bs.BacklogStream]


class Written(bs.Sink):
    """Drops rows and notes the time of each write. Optionally adds up a fingerprint of the rows."""

    def __init__(self, *, fingerprint: bool = False) -> None:
        self.at: list[float] = []
        self.rows = 0
        self._wanted = fingerprint
        self.found: tuple[int, int] = (0, 0)

    def open(self, context: Any) -> None:
        pass

    def write(self, batch_df: DataFrame, batch: Any) -> None:
        if self._wanted:
            count, total = fingerprint(batch_df)
            self.found = self.found[0] + count, self.found[1] + int(total or 0)
            self.rows += count
        else:
            from pyspark.sql import Observation
            from pyspark.sql import functions as F

            seen = Observation()
            batch_df.observe(seen, F.count("*").alias("rows")).write.format("noop").mode("append").save()
            self.rows += seen.get["rows"]
        self.at.append(time.perf_counter())


def fingerprint(frame: DataFrame) -> tuple[int, Any]:
    """Rows, and the sum of a hash of each."""
    from pyspark.sql import functions as F

    row = frame.agg(F.count("*"), F.sum(F.xxhash64("*").cast("decimal(38,0)"))).first()
    assert row is not None, "an aggregate without keys has one row"
    return row[0], int(row[1] or 0)


def _wait(condition: Callable[[], bool], query: Any) -> None:
    limit = time.perf_counter() + LIMIT_S
    while not condition():
        if not query.isActive or time.perf_counter() > limit:
            raise query.exception() or TimeoutError("the query ended early or takes too long")
        time.sleep(0.01)


def ours_time(
    spark: SparkSession, inputs: Mapping[str, tuple[Path, str]], operate: Operate, expected: int,
    sink: Written | None = None, *, in_backlog: bool = True, use_processing_time: bool = False,
) -> float:  # fmt: skip
    """Seconds from the start of a new query until this many rows have been written.

    Parameters
    ----------
    inputs : mapping of str to (Path, str)
        A folder of Parquet files for each input, and its columns. Spark's own reader reads them.
    operate : callable
        Takes the inputs' streams and returns the result.
    expected : int
    sink : Written, optional
    in_backlog : bool
        Whether the files are backlog. Then they come in one batch; otherwise file by file, as a stream.
    use_processing_time : bool
        As of `backlog_spark.stream`.
    """
    sink = sink or Written()
    with tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as made:
        streams = {}
        for name, (folder, ddl) in inputs.items():
            files = Path(made) / name
            files.mkdir()
            for file in folder.glob("*.parquet"):
                os.link(file, files / file.name)
            reader = spark.readStream.schema(ddl)
            native = (reader if in_backlog else reader.option("maxFilesPerTrigger", 1)).parquet(str(files))
            flag = bs.source("backlog_flag", name=f"flag {name}", ddl=ddl)
            stream = bs.stream(native, use_processing_time=use_processing_time)
            streams[name] = stream.union(flag) if in_backlog else stream
        writer = operate(streams).write(f"bench {time.time_ns()}")
        writer = writer.trigger(interval_during_backlog=0 if in_backlog else None)
        began = time.perf_counter()
        query = writer.option("checkpointLocation", f"{made}/checkpoint").to(sink).start(spark)
        try:
            _wait(lambda: sink.rows >= expected, query)
        finally:
            query.stop()
        return sink.at[-1] - began


def batch_time(frame: DataFrame) -> float:
    """Seconds of a batch query into the ``noop`` sink."""
    began = time.perf_counter()
    frame.write.format("noop").mode("append").save()
    return time.perf_counter() - began


def foreach_batch_time(rows: DataFrame, operate: Callable[[DataFrame], DataFrame]) -> float:
    """Seconds of the query that a user would write by hand: one batch with all rows, in ``foreachBatch``.

    It has no state that a stream could continue from. It is the minimum that Spark's own streaming takes.

    Parameters
    ----------
    rows : DataFrame
        A stream.
    operate : callable
        Takes a batch and returns the result.
    """

    def write(batch: DataFrame, _: int) -> None:
        operate(batch).write.format("noop").mode("append").save()

    with tempfile.TemporaryDirectory(prefix="backlog-bench-") as made:
        began = time.perf_counter()
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", made)
        writer.trigger(availableNow=True).start().awaitTermination()
        return time.perf_counter() - began


def stream_time(spark: SparkSession, build: Callable[[], DataFrame], mode: str) -> float:
    """Seconds of one of Spark's own streaming queries on RocksDB, over the present data."""
    from backlog_spark.spark.jvm.session import session_conf

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with (
        tempfile.TemporaryDirectory(prefix="backlog-bench-") as made,
        session_conf(spark, {"spark.sql.streaming.stateStore.providerClass": provider}),
    ):
        writer = build().writeStream.format("noop").outputMode(mode).option("checkpointLocation", made)
        began = time.perf_counter()
        writer.trigger(availableNow=True).start().awaitTermination()
        return time.perf_counter() - began
