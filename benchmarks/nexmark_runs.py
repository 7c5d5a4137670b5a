"""Runs of Nexmark's queries: ours and Spark's streaming over files and then records, and Spark's batch over files."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.spark.jvm.session import session_conf
from benchmarks import nexmark_events as made
from benchmarks.common import progress
from benchmarks.nexmark_jobs import Query, ours, spark_views
from benchmarks.processes import jvm_of, spent, usage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LIMIT_S", "LIVE_ROWS", "Bench", "LiveRun", "Refused"]

_LIVE_BATCHES, LIVE_ROWS = 10, 1_000
_FLUSHES = 3
"""Records that only move the watermark, each in a batch of its own: a result may pass several operators."""

LIMIT_S = 900
_POLL_S = 0.05
_CHUNK_S = 0.02
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Refused(Exception):
    """A candidate cannot run the query; the text says why."""


@dataclass
class LiveRun:
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


class Bench:
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
        live = _LIVE_BATCHES * LIVE_ROWS
        later = max(1, int(rate * seconds))
        made.write_files(made.events(spark, live, events, files=1), self.live_files)
        made.side_input(spark).write.parquet(str(self.side))
        self.side_lines = folder / "side.csv"
        self.side_lines.write_text("".join(f"{key},{value}\n" for key, value in made.side_input(spark).collect()))
        self._live = made.to_json(made.events(spark, live, events, files=1))
        self._later = made.to_json(made.events(spark, later, events + live, files=1))

    # -- candidates over files and records ---------------------------------------------------------------------

    def ours(self, query: Query, output: Path | None) -> LiveRun:
        """Run ``bs.sql``."""

        def start(topic: str, folder: Path, sink: _Sink) -> Any:
            options = {
                "path": str(self.files), "subscribe": topic, "kafka.bootstrap.servers": self.broker,
                "startingOffsets": "earliest", "valueFormat": "json", "maxOffsetsPerTrigger": str(LIVE_ROWS),
            }  # fmt: skip
            events = bs.source("hybrid", name="events", schema=made.EVENT, options=options)
            side = self.spark.read.parquet(str(self.side))
            try:
                stream = ours(self.spark, query, events, side)
            except bs.SqlError as error:
                raise Refused(str(error)) from None
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

    def spark_stream(self, query: Query, output: Path | None) -> LiveRun:
        """Run Spark's streaming."""
        mode = "update" if query.keys else "append"

        def start(topic: str, folder: Path, sink: _Sink) -> Any:
            kafka = {
                "kafka.bootstrap.servers": self.broker, "subscribe": topic, "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(LIVE_ROWS),
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
                raise Refused(_first(error)) from None

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
    ) -> LiveRun:  # fmt: skip
        self._topics += 1
        topic = _Topic(self.broker, f"live-{self._topics}")
        topic.send(self._live)
        live, sink = LiveRun(), _Sink(output)
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
                if isinstance(error, Refused) or not isinstance(error, Exception):
                    raise
                raise Refused(_first(error)) from None
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
        limit = time.monotonic() + LIMIT_S
        while not condition():
            if not query.isActive:
                raise query.exception() or RuntimeError("the query ended early")
            if time.monotonic() > limit:
                raise TimeoutError(f"it did not end within {LIMIT_S} s")
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
