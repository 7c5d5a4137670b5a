"""A MySQL table into a Delta table, as backlog: ``DeltaUpsert`` against Spark's JDBC reader that writes to Delta.

Both read the demo's orders table (10 columns of mixed types) from an embedded MySQL at local[2,4]. The table does not
change.

* ``ours`` is a query with ``DeltaUpsert`` and an interval during backlog of 0 (one commit) or of 10 seconds. Measured
  from ``start()`` to the last commit of the backlog, by its file's time.
* ``spark_jdbc`` is ``spark.read.format("jdbc")`` with 8 partitions by ``id``, written to a new Delta table. The whole
  ``save()`` is measured. It runs with row-by-row reading and with the driver's default fetch size; the faster counts.

``warm``: in one JVM, after a run of each, interleaved. ``new_jvm``: each run in a new process and JVM, with a Spark
session that has done nothing else. At interval 0 this is the time to the first commit. The rows of the first tables are
compared: their number, and the sum of a hash of all columns.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import backlog_spark as bs
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from benchmarks.snapshot import STREAMING, Fingerprint, fingerprint, jdbc_frame
from examples.demo import load
from examples.freshness import read_log
from servers.jars import jdbc_jar
from servers.mysql import MySQLServer
from servers.session import local_session

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["measure"]

_INTERVALS = ("0", "10 seconds")
_LIMIT_S = 3_600

Candidate = Callable[["SparkSession", "_Address", int, Path], float]


def _ours(during: str, spark: SparkSession, server: _Address, rows: int, folder: Path) -> float:
    orders = bs.source(
        "mysql_cdc", name="orders", host="127.0.0.1", port=server.port, user=server.user, table="shop.orders",
        **{"ssl.mode": "disabled"},  # like the peer
    )  # fmt: skip
    writer = orders.write("backlog").trigger(processing_time="1 second", interval_during_backlog=during)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    began, limit = time.time(), time.monotonic() + _LIMIT_S
    query = writer.to(bs.DeltaUpsert(str(folder / "out"), keys=["id"])).start(spark)
    try:
        while query.isProcessingBacklog or query.mode != "stream":
            if not query.isActive or time.monotonic() > limit:
                raise query.exception() or TimeoutError("the query ended early or takes too long")
            time.sleep(0.01)
    finally:
        query.stop()
    return max(commit.at for commit in read_log(folder / "out") if commit.files) - began


def _jdbc(fetch_size: int, spark: SparkSession, server: _Address, rows: int, folder: Path) -> float:
    began = time.time()
    jdbc_frame(spark, server, rows, fetch_size).write.format("delta").save(str(folder / "out"))
    return time.time() - began


def _session() -> SparkSession:
    conf = {
        "spark.jars": str(jdbc_jar()),
        "spark.backlog.progress": "off",
        # Spark's JDBC reader takes an ENUM for a CHAR of its longest label, and would pad the shorter ones.
        "spark.sql.readSideCharPadding": "false",
    }
    return local_session("backlog benchmark", conf=conf)


class _Address(NamedTuple):
    """Address of a server, in a form that another process can use."""

    port: int
    user: str
    password: str


class _Tables:
    """Runs candidates, each into a new table. The first tables of all candidates must have the same rows."""

    def __init__(self, spark: SparkSession, server: _Address, rows: int) -> None:
        self._spark, self._server, self._rows = spark, server, rows
        self._schema: StructType | None = None
        self.found: dict[str, Fingerprint] = {}

    def run(self, name: str, candidate: Candidate) -> float:
        with tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as made:
            taken = candidate(self._spark, self._server, self._rows, Path(made))
            if name not in self.found:
                table = self._spark.read.format("delta").load(f"{made}/out")
                self._schema = self._schema or table.schema
                self.found[name] = fingerprint(table, self._schema)
        return taken


def _in_new_jvm(candidate: Candidate, server: _Address, rows: int) -> float:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(candidate, server, rows, theirs))
    process.start()
    theirs.close()
    try:
        return float(ours.recv())
    finally:
        process.join()


def _child(candidate: Candidate, server: _Address, rows: int, parent: Connection) -> None:
    spark = _session()
    with tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as made:
        parent.send(candidate(spark, server, rows, Path(made)))
    spark.stop()


def measure(server: MySQLServer, rows: int, runs: int) -> None:
    """Measure an existing table, warm in this process and in new processes."""
    address = _Address(server.port, server.user, server.password)
    ours = {f"ours interval={during}": functools.partial(_ours, during) for during in _INTERVALS}
    peers = {
        "spark_jdbc (fetchsize default)": functools.partial(_jdbc, 0),
        "spark_jdbc (fetchsize streaming)": functools.partial(_jdbc, STREAMING),
    }
    with contextlib.ExitStack() as stack:
        spark = _session()
        stack.callback(spark.stop)
        tables = _Tables(spark, address, rows)
        candidates = {name: functools.partial(tables.run, name, each) for name, each in {**ours, **peers}.items()}
        warm = interleave(candidates, runs)
        require_equal(tables.found)
    speeds = {name: show(f"warm, {name}", rows, times) for name, times in warm.items()}
    best = max(peers, key=speeds.__getitem__)
    for during in _INTERVALS:
        peer = {"spark_jdbc": speeds[best]}
        result("backlog", f"warm rows={rows} interval={during}", speeds[f"ours interval={during}"], peer)
    fresh: dict[str, list[float]] = {name: [] for name in [*ours, best]}
    for number in range(runs):
        for name in fresh:
            progress(f"new JVM, run {number + 1} of {runs}: {name}")
            fresh[name].append(_in_new_jvm({**ours, **peers}[name], address, rows))
    progress("")
    speeds = {name: show(f"new_jvm, {name}", rows, times) for name, times in fresh.items()}
    for during in _INTERVALS:
        peer = {"spark_jdbc": speeds[best]}
        result("backlog", f"new_jvm rows={rows} interval={during}", speeds[f"ours interval={during}"], peer)


def run(arguments: argparse.Namespace) -> None:
    """Load tables of each size and measure them."""
    for rows in arguments.rows:
        with MySQLServer() as server:
            progress(f"loading {rows:,} rows")
            load(server, rows)
            measure(server, rows, arguments.runs)


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=[1_000_000, 10_000_000])))
