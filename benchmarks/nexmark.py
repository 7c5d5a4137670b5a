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
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.spark.jvm.session import session_conf
from benchmarks import nexmark_events as made
from benchmarks import nexmark_page as page
from benchmarks.common import arguments_parser, main, positives, progress, result
from benchmarks.nexmark_flink import Request, run_flink
from benchmarks.nexmark_jobs import QUERIES, Query, ours, register_functions, spark_views
from benchmarks.nexmark_results import differences, final_of_batches, final_of_flink, texts
from benchmarks.processes import jvm_of, spent, usage
from servers.jars import spark_kafka_jars
from servers.kafka import KafkaServer
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure"]

_LIVE_BATCHES, _LIVE_ROWS = 10, 1_000
_FLUSHES = 3
"""Records that only move the watermark, each in a batch of its own: a result may pass several operators."""

_LIMIT_S = 900
_POLL_S = 0.05
_CHUNK_S = 0.02
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PEERS = ("spark_batch", "spark_stream", "flink_batch", "flink_stream")


class _Refused(Exception):
    """A candidate cannot run the query; the text says why."""


@dataclass
class _Live:
    """The figures of a run over files and records. ``fresh`` has pairs of seconds and a number of events."""

    backlog: float = 0.0
    cores: float = 0.0
    switch: float = 0.0
    batch: float = 0.0
    fresh: list[tuple[float, int]] = field(default_factory=list)
    state: int = 0

    def percentile(self, percent: float) -> float:
        """Of the seconds of all events."""
        wanted, seen = sum(n for _, n in self.fresh) * percent / 100, 0
        for seconds, n in sorted(self.fresh):
            seen += n
            if seen >= wanted:
                return seconds
        return 0.0


class _Sink(bs.Sink):
    """Notes when each batch was written, and keeps its rows as Parquet if there is a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.at: dict[int, float] = {}
        self.backlog: list[int] = []

    def open(self, context: Any) -> None:
        pass

    def write(self, batch_df: DataFrame, batch: Any) -> None:
        if batch.is_backlog:
            self.backlog.append(batch.batch_id)
        self.keep(batch_df, batch.batch_id)

    def keep(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch. Spark calls it directly."""
        if self._folder is None:
            frame.write.format("noop").mode("append").save()
        else:
            frame.write.mode("overwrite").parquet(str(self._folder / f"batch={batch_id}"))
        self.at[batch_id] = time.time()


class _Topic:
    """A topic of one partition, and the times at which its records were sent."""

    def __init__(self, broker: str, name: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        self.name = name
        self.sent: list[tuple[float, int, int]] = []  # time, number of records until then, records then sent
        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
        self._producer = Producer({"bootstrap.servers": broker, "linger.ms": 0, "queue.buffering.max.messages": 10**6})
        self.count = 0

    def send(self, records: Sequence[bytes]) -> None:
        """Send records, and wait until the broker has them."""
        at = time.time()
        for record in records:
            self._producer.produce(self.name, record, partition=0)
        self._producer.flush()
        self.count += len(records)
        self.sent.append((at, self.count, len(records)))

    def send_evenly(self, records: Sequence[bytes], rate: int) -> None:
        """Send records at a rate."""
        began, done = time.time(), 0
        while done < len(records):
            due = min(len(records), int((time.time() - began) * rate) + 1)
            if due > done:
                self.send(records[done:due])
                done = due
            time.sleep(_CHUNK_S)


class _Bench:
    def __init__(self, spark: SparkSession, folder: Path, broker: str, events: int, rate: int, seconds: float) -> None:
        self.spark, self.folder, self.broker, self.events = spark, folder, broker, events
        self.rate, self.seconds = rate, seconds
        self.files, self.live_files, self.side = folder / "events", folder / "live", folder / "side"
        self.jvm = jvm_of(spark)
        self._topics = 0
        progress(f"making {events:,} events")
        began = time.time()
        made.write_files(made.events(spark, events), self.files)
        self.made_s = time.time() - began
        live = _LIVE_BATCHES * _LIVE_ROWS
        later = max(1, int(rate * seconds))
        made.write_files(made.events(spark, live, events, files=1), self.live_files)
        made.side_input(spark).write.parquet(str(self.side))
        self.side_lines = folder / "side.csv"
        self.side_lines.write_text("".join(f"{key},{value}\n" for key, value in made.side_input(spark).collect()))
        self._live = made.to_json(made.events(spark, live, events, files=1))
        self._later = made.to_json(made.events(spark, later, events + live, files=1))

    # -- candidates over files and records ---------------------------------------------------------------------

    def ours(self, query: Query, output: Path | None) -> _Live:
        """Run ``bs.sql``."""

        def start(topic: str, folder: Path, sink: _Sink) -> Any:
            options = {
                "path": str(self.files), "subscribe": topic, "kafka.bootstrap.servers": self.broker,
                "startingOffsets": "earliest", "valueFormat": "json", "maxOffsetsPerTrigger": str(_LIVE_ROWS),
            }  # fmt: skip
            events = bs.source("hybrid", name="events", schema=made.EVENT, options=options)
            side = self.spark.read.parquet(str(self.side))
            try:
                stream = ours(self.spark, query, events, side)
            except bs.SqlError as error:
                raise _Refused(str(error)) from None
            began = time.time()
            writer = stream.write(f"nexmark {topic}").trigger(interval_during_backlog=0)
            writer = writer.option("checkpointLocation", str(folder / "checkpoint")).to(sink)
            return began, writer.start(self.spark)

        def position(reports: Sequence[Any]) -> list[tuple[int, int]]:
            # A query may read the source several times.
            found = []
            for report in reports:
                ends = [_parsed(source["endOffset"]) or {} for source in report["sources"]]
                topics = [end["position"]["offsets"] for end in ends if "offsets" in end.get("position", {})]
                records = [sum(of_topic.values()) for topic in topics for of_topic in topic.values()]
                # The side input of query 13 has no topic, and files are before the topic.
                reading = [end for end in ends if "kafka" in str(end.get("phases"))]
                is_live = len(records) == len(reading) > 0
                found.append((report["batchId"], self.events + min(records) if is_live else 0))
            return found

        return self._live_run(start, position, output, lambda sink: sink.backlog[-1], lambda after: [made.flush(after)])

    def spark_stream(self, query: Query, output: Path | None) -> _Live:
        """Run Spark's streaming."""
        mode = "update" if query.keys else "append"

        def start(topic: str, folder: Path, sink: _Sink) -> Any:
            kafka = {
                "kafka.bootstrap.servers": self.broker, "subscribe": topic, "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(_LIVE_ROWS),
            }  # fmt: skip
            records = self.spark.readStream.format("kafka").options(**kafka).load()
            decoded = records.selectExpr(f"from_json(cast(value AS string), '{made.EVENT}') AS e").select("e.*")
            files = self.spark.readStream.schema(made.EVENT).parquet(str(self.files))
            spark_views(files.union(decoded), self.spark.read.parquet(str(self.side)))
            began = time.time()
            try:
                writer = self.spark.sql(query.stream).writeStream.outputMode(mode).foreachBatch(sink.keep)
                return began, writer.option("checkpointLocation", str(folder / "checkpoint")).start()
            except Exception as error:
                raise _Refused(_first(error)) from None

        def position(reports: Sequence[Any]) -> list[tuple[int, int]]:
            found = []
            for report in reports:
                ends = [s["endOffset"] for s in report["sources"] if "Kafka" in s["description"] and s["endOffset"]]
                records = [sum(_parsed(end)[topic].values()) for end in ends for topic in _parsed(end)]
                found.append((report["batchId"], self.events + min(records) if records else 0))
            return found

        with session_conf(self.spark, {"spark.sql.streaming.stateStore.providerClass": _ROCKSDB}):
            # Spark filters by event_type first. A window of these records does not close, so they are in no result.
            flush = made.flush_of_views if "window" in query.stream else lambda after: [made.flush(after)]
            return self._live_run(start, position, output, lambda sink: 0, flush)

    def _live_run(
        self, start: Callable[[str, Path, _Sink], Any],
        position: Callable[[Sequence[Any]], list[tuple[int, int]]], output: Path | None,
        backlog_batch: Callable[[_Sink], int],
        flush: Callable[[int], list[bytes]],
    ) -> _Live:  # fmt: skip
        self._topics += 1
        topic = _Topic(self.broker, f"live-{self._topics}")
        topic.send(self._live)
        live, sink = _Live(), _Sink(output)
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as work:
            used = usage(self.jvm)
            began, running = start(topic.name, Path(work), sink)

            def wait(events: int) -> None:
                self._wait(running, lambda: any(rows >= events for _, rows in position(_reports(running, last=True))))

            try:
                self._wait(running, lambda: sink.at and not getattr(running, "isProcessingBacklog", False))
                live.cores = spent(used, usage(self.jvm)) / (time.time() - began)
                wait(self.events + topic.count)
                if output is None:
                    topic.send_evenly(self._later, self.rate)
                    wait(self.events + topic.count)
                else:
                    for number in range(_FLUSHES):
                        topic.send(flush(self.events + topic.count + number))
                        wait(self.events + topic.count)
                    running.processAllAvailable()
                seen = position(_reports(running, last=False))
            except BaseException as error:
                if isinstance(error, _Refused) or not isinstance(error, Exception):
                    raise
                raise _Refused(_first(error)) from None
            finally:
                running.stop()
            live.state = sum(f.stat().st_size for f in (Path(work) / "checkpoint").rglob("*") if f.is_file())
        last = backlog_batch(sink)
        live.backlog = sink.at[last] - began
        after = [at for batch, at in sorted(sink.at.items()) if batch >= last]
        gaps = [b - a for a, b in itertools.pairwise(after)][:_LIVE_BATCHES]
        live.switch, steady = gaps[0], sorted(gaps[1:])
        live.batch = steady[len(steady) // 2] if steady else gaps[0]
        if output is None:
            live.fresh = self._freshness(topic, seen, sink)
        return live

    def _freshness(self, topic: _Topic, seen: Sequence[tuple[int, int]], sink: _Sink) -> list[tuple[float, int]]:
        found = []
        for sent, until, count in topic.sent[1:]:
            batch = next(batch for batch, rows in seen if rows >= self.events + until and batch in sink.at)
            found.append((sink.at[batch] - sent, count))
        return found

    @staticmethod
    def _wait(query: Any, condition: Callable[[], object]) -> None:
        limit = time.monotonic() + _LIMIT_S
        while not condition():
            if not query.isActive:
                raise query.exception() or RuntimeError("the query ended early")
            if time.monotonic() > limit:
                raise TimeoutError(f"it did not end within {_LIMIT_S} s")
            time.sleep(_POLL_S)

    # -- candidates over files ---------------------------------------------------------------------------------

    def spark_batch(self, query: Query, folders: Sequence[Path]) -> DataFrame:
        """The result of Spark's batch."""
        events = self.spark.read.schema(made.EVENT).parquet(*map(str, folders))
        spark_views(events, self.spark.read.parquet(str(self.side)))
        return self.spark.sql(query.spark)


def _reports(query: Any, *, last: bool) -> list[Any]:
    """Spark's progress of the present run. Each report is a call to the JVM, so waiting only looks at the last one."""
    of_spark = getattr(query, "streamingQuery", query)
    reports = [of_spark.lastProgress] if last else of_spark.recentProgress
    return [json.loads(report.json) for report in reports if report is not None]


def _first(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _parsed(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset


def _timed_batch(bench: _Bench, query: Query) -> tuple[float, float]:
    used, began = usage(bench.jvm), time.time()
    bench.spark_batch(query, [bench.files]).write.format("noop").mode("append").save()
    took = time.time() - began
    return took, spent(used, usage(bench.jvm)) / took


def _one(bench: _Bench, query: Query, flink: Mapping[str, Any], row: page.Row, folder: Path) -> None:
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

    for name, run in (("ours", bench.ours), ("spark_stream", bench.spark_stream)):
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
        except _Refused as refused:
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


def _flink(bench: _Bench, queries: Sequence[Query]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mode, long in (("batch", "batch"), ("stream", "streaming")):
        folder = bench.folder / "flink" / mode
        requests = {}
        for query in queries:
            requests[f"{query.name}-check"] = Request(query, [bench.files, bench.live_files], folder / query.name)
            requests[query.name] = Request(query, [bench.files], None)
        progress(f"Flink, {long}")
        done = run_flink(long, requests, bench.side_lines, folder, limit_s=_LIMIT_S + 300 * len(queries))
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
    rates = {name: _LIVE_ROWS / seconds for name, seconds in row.batch.items()}
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
            bench = _Bench(spark, folder, broker, events, arguments.rate, arguments.seconds)
            queries = [QUERIES[name] for name in arguments.queries]
            flink = {} if arguments.peers == "spark" else _flink(bench, queries)
            for query in queries:
                row = page.Row(query.name, events, date=str(dt.datetime.now(dt.UTC).date()))
                with tempfile.TemporaryDirectory(dir=folder) as each:
                    _one(bench, query, flink, row, Path(each))
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
    parser.add_argument("--peers", choices=("all", "spark"), default="all", help="spark: without Flink")
    parser.add_argument("--write", action="store_true", help="add the figures to docs/nexmark.md")
    sys.exit(main(measure, parser))
