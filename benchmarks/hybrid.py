"""Files, then Kafka: the source ``hybrid`` and Spark's own readers as phases, against Spark's own sources alone.

All run at local[2], into the ``noop`` sink unless said otherwise. Broker and client share the machine. Each run has a
new checkpoint and is measured from ``start()`` to the query's end, so the starts of the query and of Python count.

* ``file``: 16 Parquet files of 8 mixed columns. Ours is ``hybrid`` with one phase of files. The peers read them with
  Spark's own reader: as a stream (``availableNow``), which is the main figure, and as a batch, which starts no query.
* ``native``: the same files as the first phase of `backlog_spark.hybrid`, until the phase has ended. The peer is
  Spark's own stream of them.
* ``kafka``: a topic of 4 partitions with records of 120 bytes. Ours is ``hybrid`` with one phase of Kafka and raw
  values. The peer is Spark's own Kafka source.
* ``delta``: five of the files into a Delta table. Ours is a query with an interval during backlog of 0. The peer is the
  same source and sink with a trigger of a second and 100,000 rows per batch: a job that is tuned for live data.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from servers.jars import spark_kafka_jars
from servers.kafka import KafkaServer
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["run", "write_topic"]

_FILES, _PARTITIONS, _RECORD = 16, 4, 120
_OF_DELTA = 5
_TOPIC = "bench"
_PER_TRIGGER = 100_000
_DDL = (
    "id BIGINT, customer INT, status STRING, amount DECIMAL(12,2), discount DOUBLE, note STRING, day DATE, at TIMESTAMP"
)


def _write_files(spark: SparkSession, folder: Path, rows: int) -> None:
    frame = spark.range(0, rows, 1, _FILES).selectExpr(
        "id",
        "cast(id * 7919 % 200000 AS int) AS customer",
        "element_at(array('new', 'paid', 'shipped', 'returned'), cast(id % 4 + 1 AS int)) AS status",
        "cast(id * 37 % 100000 / 100 AS decimal(12,2)) AS amount",
        "if(id % 5 = 0, NULL, id % 100 / 7) AS discount",
        "if(id % 11 = 0, NULL, concat('order ', id)) AS note",
        "date_add(DATE'2024-01-01', cast(id % 700 AS int)) AS day",
        "timestamp_seconds(1704067200 + id) AS at",
    )
    # Row groups as small as the peer's batches: Spark's own limit and ours end at one.
    frame.write.option("parquet.block.row.count.limit", _PER_TRIGGER).parquet(str(folder))


def write_topic(broker: str, topic: str, values: Iterable[bytes], partitions: int = _PARTITIONS) -> None:
    """Make a topic with these records, evenly over its partitions."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 20, "queue.buffering.max.messages": 200_000})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
        if not number % 50_000:
            producer.flush()
    producer.flush()


def _count(frame: DataFrame) -> object:
    """Number of rows and sum of a hash of each, in any order."""
    import pyspark.sql.functions as F

    hashes = F.sum(F.xxhash64(*frame.columns).cast("decimal(20,0)"))
    return tuple(frame.agg(F.count("*"), hashes).collect()[0])


class _Bench:
    def __init__(self, spark: SparkSession, folder: Path, broker: str, rows: int, records: int) -> None:
        self.spark, self.folder, self.broker = spark, folder, broker
        self.rows, self.records = rows, records
        self.files = str(folder / "files")
        self.delta_rows = spark.read.parquet(f"{self.files}/part-0000[0-{_OF_DELTA - 1}]*").count()

    def hybrid(self, kind: str, **options: str) -> DataFrame:
        given = {"phases": kind, "intervalDuringBacklog": "0", "maxRowsPerBatch": str(10**9), **options}
        return self.spark.readStream.format("hybrid").options(**given).load()

    def ours(self, kind: str) -> DataFrame:
        """One phase of our source."""
        if kind == "kafka":
            options = {"kafka.bootstrap.servers": self.broker, "subscribe": _TOPIC, "startingOffsets": "earliest"}
            return self.hybrid(kind, schema="key BINARY, value BINARY, partition INT, offset BIGINT", **options)
        return self.hybrid(kind, path=self.files, metadataLocation=str(self.folder / "metadata"), schema=_DDL)

    def kafka(self, reader: Any) -> DataFrame:
        frame: DataFrame = (
            reader.format("kafka")
            .option("kafka.bootstrap.servers", self.broker)
            .option("subscribe", _TOPIC)
            .option("startingOffsets", "earliest")
            .load()
        )
        return frame.select("key", "value", "partition", "offset")

    def stream(self, frame: DataFrame) -> float:
        """Seconds of a stream up to the present data."""
        with tempfile.TemporaryDirectory(dir=self.folder) as checkpoint:
            began = time.perf_counter()
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()
            return time.perf_counter() - began

    def batch(self, frame: DataFrame) -> float:
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    def native(self) -> float:
        """Seconds of the first phase of Spark's own readers."""
        phases = bs.hybrid(
            self.spark,
            "bench",
            phases={
                "old": lambda reader, ctx: reader.schema(_DDL).parquet(self.files),
                "live": lambda reader, ctx: self.kafka(reader).selectExpr(
                    *(f"cast(NULL AS {kind}) AS {name}" for name, kind in map(str.split, _DDL.split(", ")))
                ),
            },
        )
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as checkpoint:
            began = time.perf_counter()
            query = bs.backlog_query(
                lambda ctx: ctx.frame.writeStream.format("noop"),
                checkpoint=checkpoint, spark=self.spark, source=phases, interval_during_backlog="0",
            )  # fmt: skip
            first = query.streamingQuery
            first.awaitTermination()
            took = time.perf_counter() - began
            query.stop()
        return took

    def delta(self, during: str | None) -> float:
        """Seconds until the files are in a Delta table."""
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as made:
            source = bs.source(
                "hybrid", name="bench", phases="files", path=f"{self.files}/part-0000[0-{_OF_DELTA - 1}]*", schema=_DDL,
                maxRowsPerBatch=None if during == "0" else _PER_TRIGGER,
            )  # fmt: skip
            began = time.perf_counter()
            query = (
                source.write("bench")
                .trigger(processing_time="1 second", interval_during_backlog=during)
                .option("checkpointLocation", f"{made}/checkpoint")
                .to(bs.DeltaAppend(f"{made}/target"))
                .start(self.spark)
            )
            while query.backlogProgress.rows < self.delta_rows:
                if not query.isActive:
                    raise query.exception() or RuntimeError("The query ended early.")
                time.sleep(0.02)
            took = time.perf_counter() - began
            query.stop()
        return took


def run(arguments: argparse.Namespace) -> None:
    """Write the data, compare the results, then measure."""
    rows, records = arguments.rows, max(1, arguments.rows // 2)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-")))
        progress("starting Kafka and Spark")
        server = stack.enter_context(KafkaServer())
        conf = {"spark.jars": ",".join(map(str, spark_kafka_jars())), "spark.backlog.progress": "off"}
        spark = local_session("hybrid benchmark", master="local[2]", conf=conf)
        stack.callback(spark.stop)
        bs.register(spark)
        progress(f"writing {rows:,} rows and {records:,} records")
        _write_files(spark, folder / "files", rows)
        write_topic(server.address(), _TOPIC, (f"{number:0{_RECORD}}".encode() for number in range(records)))
        bench = _Bench(spark, folder, server.address(), rows, records)
        progress("comparing the results")
        parquet = spark.read.schema(_DDL).parquet(bench.files)
        require_equal({"ours": _streamed(bench, bench.ours("files")), "spark_parquet": _count(parquet)})
        require_equal({"ours": _streamed(bench, bench.ours("kafka")), "spark_kafka": _count(bench.kafka(spark.read))})
        candidates: dict[str, Callable[[], float]] = {
            "file ours": lambda: bench.stream(bench.ours("files")),
            "file spark_parquet (stream)": lambda: bench.stream(spark.readStream.schema(_DDL).parquet(bench.files)),
            "file spark_parquet (batch)": lambda: bench.batch(parquet),
            "native ours": bench.native,
            "kafka ours": lambda: bench.stream(bench.ours("kafka")),
            "kafka spark_kafka": lambda: bench.stream(bench.kafka(spark.readStream)),
            "delta ours": lambda: bench.delta("0"),
            "delta fixed_trigger": lambda: bench.delta(None),
        }
        times = interleave(candidates, arguments.runs)
        sizes = {"file": rows, "native": rows, "kafka": records, "delta": bench.delta_rows}
        speeds = {name: show(name, sizes[name.partition(" ")[0]], times[name]) for name in times}
        stream = speeds["file spark_parquet (stream)"]
        result("hybrid", f"file rows={rows}", speeds["file ours"], {"spark_parquet": stream})
        result("hybrid", f"native rows={rows}", speeds["native ours"], {"spark_parquet": stream})
        result("hybrid", f"kafka rows={records}", speeds["kafka ours"], {"spark_kafka": speeds["kafka spark_kafka"]})
        fixed = speeds["delta fixed_trigger"]
        result("hybrid", f"delta rows={bench.delta_rows}", speeds["delta ours"], {"fixed_trigger": fixed})


def _streamed(bench: _Bench, frame: DataFrame) -> object:
    found: list[object] = []

    def add(batch: DataFrame, batch_id: int) -> None:
        counted = _count(batch)
        if counted != (0, None):
            found.append(counted)

    with tempfile.TemporaryDirectory(dir=bench.folder) as checkpoint:
        writer = frame.writeStream.foreachBatch(add).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    assert len(found) == 1, "the whole of it is one batch"
    return found[0]


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=10_000_000)))
