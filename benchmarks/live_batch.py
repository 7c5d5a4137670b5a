"""The time of one live batch, part by part: from the server's commit to the sink.

A table in an embedded MySQL changes continuously. A query without keyed operators takes the changes, one batch a
second. After a warm-up the median of each part is printed. There is no peer: this shows which part to shorten.

* ``source.*`` is measured in the processes of the Python source: the planner next to the driver, and the task's worker.
* ``spark.*`` is Spark's own ``durationMs``.
* ``sink`` is the call of the sink within ``addBatch``. ``task`` and ``job`` are the Spark work for it.
* ``fresh`` is the time from just before the server's commit to the sink's end, for every row.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pymysql

import backlog_spark as bs
from backlog_spark.connectors.mysql_cdc.source import MySqlCdcDataSource, inspect
from backlog_spark.connectors.mysql_cdc.stream.reader import MySqlCdcStreamReader
from backlog_spark.sinks import BatchInfo, DeltaAppend, Sink, SinkContext
from backlog_spark.spi import add_connector
from benchmarks.common import arguments_parser, main
from servers.mysql import MySQLServer
from servers.session import local_session

__all__ = ["TracedDataSource", "inspect"]

_FORMAT = "mysql_cdc_traced"
_TRACE = "BACKLOG_SPARK_TRACE"
_KEYS = 10_000
_WARM_UP_S = 12


def _note(part: str, began: float, **more: object) -> None:
    line = json.dumps({"part": part, "at": began, "ms": (time.time() - began) * 1000, **more})
    with Path(os.environ[_TRACE]).open("a") as trace:
        trace.write(line + "\n")


class _TracedReader(MySqlCdcStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        began = time.time()
        found = super().latestOffset(start, limit)
        _note("source.latestOffset" if found is not start else "source.poll", began)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        began = time.time()
        found = super().partitions(start, end)
        _note("source.partitions", began)
        return found

    def read(self, partition: Any) -> Iterator[Any]:
        began, rows = time.time(), 0
        for batch in super().read(partition):
            if not rows:
                _note("source.read first", began)
            rows += batch.num_rows
            yield batch
        _note("source.read", began, rows=rows, pid=os.getpid())


class TracedDataSource(MySqlCdcDataSource):
    """The source, which also records the duration of each of its calls."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def streamReader(self, schema: Any) -> Any:
        reader = super().streamReader(schema)
        reader.__class__ = _TracedReader
        return reader


class _Timed(Sink):
    """Writes into a Delta table, or only converts the rows to Arrow."""

    def __init__(self, kind: str, path: str, slow_s: float) -> None:
        self._slow_s = slow_s
        self._sink = DeltaAppend(path) if kind == "delta" else None
        self.fresh: list[float] = []

    def open(self, context: SinkContext) -> None:
        if self._sink is not None:
            self._sink.open(context)

    def write(self, batch_df: Any, batch: BatchInfo) -> None:
        began = time.time()
        if self._sink is None:
            rows = batch_df.toArrow()
            times = rows["at"]
        else:
            self._sink.write(batch_df, batch)
            rows = None
        time.sleep(self._slow_s)
        done = time.time()
        _note("sink", began)
        if rows is not None and not batch.is_backlog:
            _note("rows", began, rows=rows.num_rows, at0=pc.min(times).as_py())
            self.fresh += [
                done - at
                for at, kind in zip(times.to_pylist(), rows["_change_type"].to_pylist(), strict=True)
                if kind != "update_preimage"
            ]


def _writer(port: int, rate: int) -> None:
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True, ssl_disabled=True)
    cursor, number, size = connection.cursor(), 0, max(5, rate // 200)
    due = time.time()
    while True:
        first = number * 7919 % (_KEYS - size)
        cursor.execute(
            f"UPDATE live.t SET v = v + 1, at = {time.time()!r} WHERE id BETWEEN {first} AND {first + size - 1}"
        )
        number += 1
        due += size / rate
        if (wait := due - time.time()) > 0:
            time.sleep(wait)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _processes(root: int) -> dict[int, str]:
    """A process and all processes below it."""
    parents: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int((entry / "stat").read_text().rpartition(")")[2].split()[1])].append(int(entry.name))
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
        waiting += parents[pid]
    return found


def _usage(skip: set[int]) -> dict[int, tuple[str, float]]:
    found = {}
    for pid, command in _processes(os.getpid()).items():
        if pid not in skip:
            with contextlib.suppress(OSError):
                name = (
                    "jvm"
                    if "java" in command[:60]
                    else "driver"
                    if pid == os.getpid()
                    else command.split("python")[-1][:60]
                )
                found[pid] = name, _cpu(pid)
    return found


def _spark_parts(spark: Any, query: Any, first: int) -> dict[str, list[float]]:
    """Spark's own times of each batch from ``first`` on."""
    found: dict[str, list[float]] = defaultdict(list)
    for progress_ in query.streamingQuery.recentProgress:
        if progress_.batchId >= first and progress_.numInputRows:
            for name, took in progress_.durationMs.items():
                found[f"spark.{name}"].append(took)
            found["rows"].append(progress_.numInputRows)
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(store.jobsList(None))
    batches = len(found["rows"])
    newest = sorted(jobs, key=lambda job: -job.jobId())[:batches]
    for job in newest:
        found["job"].append(job.completionTime().get().getTime() - job.submissionTime().get().getTime())
        for stage in spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(job.stageIds()):
            data = store.lastStageAttempt(stage)
            found["task run"].append(data.executorRunTime())
            found["task deserialize"].append(data.executorDeserializeTime())
            found["tasks"].append(data.numTasks())
    return found


def run(arguments: argparse.Namespace) -> None:
    """Start server and query, warm up, then measure."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ[_TRACE] = str(work / "trace")
        server = stack.enter_context(MySQLServer(fast=True))
        server.execute("CREATE DATABASE live")
        server.execute("CREATE TABLE live.t (id INT PRIMARY KEY, v BIGINT NOT NULL, at DOUBLE NOT NULL, n VARCHAR(40))")
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION cte_max_recursion_depth = 1000000")
            cursor.execute(
                "INSERT INTO live.t WITH RECURSIVE s (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s "
                f"WHERE n < {_KEYS}) SELECT n, n, 0, CONCAT('note ', n) FROM s"
            )
        add_connector(_FORMAT, "benchmarks.live_batch", "TracedDataSource")
        spark = local_session(
            "live-batch", conf={"spark.backlog.progress": "off", **dict(pair.split("=") for pair in arguments.conf)}
        )
        stack.callback(spark.stop)
        from benchmarks.live_batch import TracedDataSource

        spark.dataSource.register(TracedDataSource)
        sink = _Timed(arguments.sink, str(work / "table"), arguments.slow)
        stream = bs.source(_FORMAT, name="t", host="127.0.0.1", port=server.port, user="root", table="live.t")
        query = (
            stream.write("live")
            .trigger(processing_time=arguments.interval or None, interval_during_backlog=arguments.during or None)
            .option("checkpointLocation", str(work / "checkpoint"))
            .to(sink)
            .start(spark)
        )
        stack.callback(query.stop)
        rate = arguments.rows
        if rate > 1:
            command = [sys.executable, "-m", "benchmarks.live_batch", "writer", str(server.port), str(rate)]
            process = subprocess.Popen(command)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        time.sleep(_WARM_UP_S)
        skip = {
            pid for pid, command_ in _processes(os.getpid()).items() if "mysqld" in command_ or " writer " in command_
        }
        before, began, first = _usage(skip), time.time(), query.streamingQuery.lastProgress.batchId + 1
        sink.fresh.clear()
        time.sleep(arguments.seconds)
        after, ended = _usage(skip), time.time()
        found = _spark_parts(spark, query, first)
        for line in Path(os.environ[_TRACE]).read_text().splitlines():
            entry = json.loads(line)
            if began <= entry["at"] <= ended:
                found[entry["part"]].append(entry["ms"])
        print(f"{len(found['rows'])} batches with rows in {ended - began:.0f} s", flush=True)
        for part in sorted(part for part in found if found[part]):
            values = found[part]
            print(f"{part:28} median {statistics.median(values):8.1f}  max {max(values):8.1f}  n {len(values)}")
        if sink.fresh:
            times = sorted(sink.fresh)
            p = [times[int(len(times) * q)] for q in (0.5, 0.95)]
            print(f"fresh p50 {p[0]:.2f} s, p95 {p[1]:.2f} s, rows {len(times)}")
        for pid, (name, cpu) in sorted(after.items()):
            used = cpu - before.get(pid, ("", 0.0))[1]
            if used > 0.005 * (ended - began) / 10:
                print(f"cpu {100 * used / (ended - began):6.2f} %  {pid} {name}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "writer":
        _writer(int(sys.argv[2]), int(sys.argv[3]))
    parser = arguments_parser(__doc__, rows=500)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--interval", default="1 second")
    parser.add_argument("--slow", type=float, default=0.0, help="additional seconds in the sink")
    parser.add_argument("--during", default="10 seconds", help="interval during backlog; empty: unset")
    parser.add_argument("--conf", action="append", default=[], help="name=value for the session")
    parser.add_argument("--sink", choices=("arrow", "delta"), default="arrow")
    sys.exit(main(run, parser))
