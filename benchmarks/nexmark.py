"""The queries of Nexmark: ours beside Spark's batch, Spark's streaming and Flink.

``--events`` events are files, which are backlog. 10,000 further ones are in a topic of Kafka with one partition. Each
query runs over both on a new checkpoint: ``bs.sql`` over ``bs.source("hybrid")``, with an interval during backlog of 0.

* ``backlog``: events per second, from ``start()`` to the end of the sink's last write of the backlog.
* ``cores``: processor seconds per second, of the driver's JVM and all Python processes, until the backlog has ended.
* ``live``: events per second, in batches of 1,000 events one after another: the median time from the end of a batch's
  write to the end of the next one. The first batch after the backlog is ``switch``.
* ``p50``, ``p95``: seconds from the record's way to Kafka to the end of the write of the batch that has it, at
  ``--rate`` events per second for ``--seconds``, after the live batches.
* ``state``: bytes of the checkpoint at the end.

The peers run the same statement, or a variant of it where they lack a form of the language:

* ``spark_batch``: Spark's batch over the files.
* ``spark_stream``: Spark's streaming on RocksDB, where it can run the query. Its first batch has all files, the others
  1,000 records.
* ``flink_batch``, ``flink_stream``: Flink SQL over the files, with two threads in one process, to ``blackhole``;
  streaming with RocksDB and the settings of the public benchmark.

Each runs twice. The first run writes its result, over the events of the files and the topic, and warms up. The results
of all must be equal before a time counts: as multisets, or, if rows are replaced, what is left at the end. The second
run writes to ``noop``.
A query that is not supported, or whose results differ, is shown with the reason and without a figure.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from benchmarks import nexmark_page as page
from benchmarks.common import arguments_parser, main, positives, progress, result
from benchmarks.nexmark_flink import Request, run_flink
from benchmarks.nexmark_jobs import QUERIES, Query, register_functions
from benchmarks.nexmark_results import differences, final_of_batches, final_of_flink, texts
from benchmarks.nexmark_runs import LIMIT_S, LIVE_ROWS, Bench, Refused
from benchmarks.processes import spent, usage
from servers.jars import spark_kafka_jars
from servers.kafka import KafkaServer
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure"]

_PEERS = ("spark_batch", "spark_stream", "flink_batch", "flink_stream")


def _timed_batch(bench: Bench, query: Query) -> tuple[float, float]:
    used, began = usage(bench.jvm), time.time()
    bench.spark_batch(query, [bench.files]).write.format("noop").mode("append").save()
    took = time.time() - began
    return took, spent(used, usage(bench.jvm)) / took


def _one(
    bench: Bench, query: Query, flink: Mapping[str, Any], row: page.Row, folder: Path, *, beside_stream: bool = True
) -> None:
    """Compare and time one query."""
    both = [bench.files, bench.live_files]
    progress(f"{query.name}: spark_batch, with its result")
    began = time.time()
    bench.spark_batch(query, [bench.files]).write.parquet(str(folder / "cold"))
    row.first["spark_batch"] = time.time() - began
    texts(bench.spark_batch(query, both)).write.parquet(str(folder / "expected"))
    expected = bench.spark.read.parquet(str(folder / "expected"))

    def check(name: str, found: DataFrame) -> bool:
        if not query.is_compared:
            return True
        lines = differences(found, expected)
        if lines:
            row.why[name] = f"its result differs: {lines[0]}"
            print(f"{query.name} {name} differs from spark_batch:\n  " + "\n  ".join(lines), flush=True)
        return not lines

    runs = {"ours": bench.ours} | ({"spark_stream": bench.spark_stream} if beside_stream else {})
    for name, run in runs.items():
        try:
            progress(f"{query.name}: {name}, with its result")
            first = run(query, folder / name)
            row.first[name], row.first[f"{name} batch"] = first.backlog, first.batch
            if check(name, final_of_batches(bench.spark, folder / name, query, expected)):
                progress(f"{query.name}: {name}")
                live = run(query, None)
                row.seconds[name], row.cores[name], row.state[name] = live.backlog, live.cores, live.state
                row.switch[name], row.batch[name] = live.switch, live.batch
                row.fresh[name] = live.percentile(50), live.percentile(95)
        except Refused as refused:
            row.why[name] = str(refused)
    progress(f"{query.name}: spark_batch")
    row.seconds["spark_batch"], row.cores["spark_batch"] = _timed_batch(bench, query)
    for mode in ("batch", "stream"):
        name = f"flink_{mode}"
        written, timed = flink.get(f"{mode} {query.name}-check"), flink.get(f"{mode} {query.name}")
        if written is None or timed is None:
            continue
        if written.why or timed.why:
            row.why[name] = written.why or timed.why
        elif check(name, final_of_flink(bench.spark, bench.folder / "flink" / mode / query.name, expected)):
            row.seconds[name], row.cores[name] = timed.seconds, timed.cpu / max(0.001, timed.seconds)


def _flink(bench: Bench, queries: Sequence[Query]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mode, long in (("batch", "batch"), ("stream", "streaming")):
        folder = bench.folder / "flink" / mode
        requests = {}
        for query in queries:
            requests[f"{query.name}-check"] = Request(query, [bench.files, bench.live_files], folder / query.name)
            requests[query.name] = Request(query, [bench.files], None)
        progress(f"Flink, {long}")
        done = run_flink(long, requests, bench.side_lines, folder, limit_s=LIMIT_S + 300 * len(queries))
        found |= {f"{mode} {name}": outcome for name, outcome in done.items()}
    return found


def _report(row: page.Row) -> None:
    """Print what was measured for a query."""
    variant = f"{row.query} events={row.events}"
    for name, why in row.why.items():
        print(f"{variant} {name}: no figure: {why}", flush=True)
    for name, seconds in row.seconds.items():
        print(
            f"{variant} {name}: {row.events / seconds:,.0f} events/s, {seconds:.2f} s (first run "
            f"{row.first.get(name, 0):.2f}), {row.cores[name]:.2f} cores"
            + (
                f"; switch {row.switch[name]:.2f} s, {row.batch[name]:.2f} s a live batch; fresh p50 "
                f"{row.fresh[name][0]:.2f} s, p95 {row.fresh[name][1]:.2f} s; state {row.state[name]:,} bytes"
                if name in row.batch
                else ""
            ),
            flush=True,
        )
    if "ours" not in row.seconds:
        return
    others = {name: row.events / row.seconds[name] for name in _PEERS if name in row.seconds}
    result("nexmark", f"{variant} backlog", row.events / row.seconds["ours"], others)
    stream = "spark_stream" in row.batch
    rates = {name: LIVE_ROWS / seconds for name, seconds in row.batch.items()}
    result("nexmark", f"{variant} live", rates["ours"], {"spark_stream": rates["spark_stream"]} if stream else {})
    for at, percent in enumerate((50, 95)):
        peers = {"spark_stream": row.fresh["spark_stream"][at]} if stream else {}
        result("nexmark", f"{variant} p{percent}", row.fresh["ours"][at], peers, less_is_better=True)
    peers = {"spark_stream": float(row.state["spark_stream"])} if stream else {}
    result("nexmark", f"{variant} state", row.state["ours"], peers, less_is_better=True)


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[tuple[SparkSession, str]]:
    with KafkaServer() as server:
        conf = {
            "spark.jars": ",".join(map(str, spark_kafka_jars())),
            "spark.backlog.progress": "off",
            # Freshness needs the reports of all batches of a run.
            "spark.sql.streaming.numRecentProgressUpdates": "5000",
        }
        spark = local_session("nexmark benchmark", master="local[2,4]", conf=conf)
        try:
            bs.register(spark)
            register_functions(spark)
            yield spark, server.address()
        finally:
            spark.stop()


def measure(arguments: argparse.Namespace) -> None:
    """Measure the queries at each number of events, and write the page if asked to."""
    rows: list[page.Row] = []
    with tempfile.TemporaryDirectory(prefix="backlog-bench-") as work, _started(Path(work)) as (spark, broker):
        for events in arguments.events:
            folder = Path(work) / str(events)
            bench = Bench(spark, folder, broker, events, arguments.rate, arguments.seconds)
            queries = [QUERIES[name] for name in arguments.queries]
            flink = _flink(bench, queries) if arguments.peers == "all" else {}
            for query in queries:
                row = page.Row(query.name, events, date=str(dt.datetime.now(dt.UTC).date()))
                with tempfile.TemporaryDirectory(dir=folder) as each:
                    _one(bench, query, flink, row, Path(each), beside_stream=arguments.peers != "batch")
                progress("")
                _report(row)
                rows.append(row)
                if arguments.write:  # now: a run of all queries takes an hour
                    page.write(rows, page.Facts.of(spark, arguments))


def _names(text: str) -> list[str]:
    found = text.split(",")
    if not set(found) <= set(QUERIES):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(QUERIES)}")
    return found


if __name__ == "__main__":
    parser = arguments_parser(__doc__, rows=1)
    parser.add_argument("--events", type=positives, default=[1_000_000], help="events in files, default 1000000")
    parser.add_argument("--queries", type=_names, default=list(QUERIES), help="such as q0,q5; default all")
    parser.add_argument("--rate", type=int, default=200, help="events per second for freshness, default 200")
    parser.add_argument("--seconds", type=float, default=10, help="duration of this rate, default 10")
    parser.add_argument(
        "--peers", choices=("all", "spark", "batch"), default="all",
        help="spark: without Flink; batch: Spark's batch only",
    )  # fmt: skip
    parser.add_argument("--write", action="store_true", help="add the figures to docs/nexmark.md")
    sys.exit(main(measure, parser))
