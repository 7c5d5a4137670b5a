"""A year of files, then a live topic, as one stream of sums per minute in a Delta table, with a real Kafka broker.

``make demo-hybrid`` runs it. The files are backlog: their sums are folded as one sorted batch and written in one
commit. At the exact batch where the topic begins, the same query continues as a stream from that state. At the end the
sums are compared with those of the files and of all records in the topic.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import backlog_spark as bs
from servers.kafka import KafkaServer
from servers.session import local_session

from .common import arguments_parser, follow, main, outcome, write_report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"
SCHEMA = "id BIGINT, at TIMESTAMP, shop INT, cents BIGINT"
_DAYS = 365
_PARTITIONS = 3
_BEGIN = np.datetime64("2025-01-01T00:00:00", "us")
END = _BEGIN + np.timedelta64(_DAYS, "D")
"""Rows of the files are before this time, records of the topic at or after it."""


def write_files(folder: Path, rows: int) -> None:
    """One file per day, in one directory per month."""
    day = np.timedelta64(1, "D") // np.timedelta64(1, "us")
    for number in range(_DAYS):
        first, last = rows * number // _DAYS, rows * (number + 1) // _DAYS
        ids = np.arange(first, last)
        at = _BEGIN + np.timedelta64(number, "D") + (ids - first) * day // max(1, last - first)
        table = pa.table(
            {
                "id": ids,
                "at": pa.array(at, pa.timestamp("us", "UTC")),
                "shop": (ids * 31 % 100).astype("int32"),
                "cents": ids * 37 % 100_000,
            }
        )
        month = folder / f"month={str(at[0] if len(at) else END)[:7]}"
        month.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, month / f"{number:03}.parquet")


@contextlib.contextmanager
def producer(broker: str, first: int) -> Iterator[subprocess.Popen[bytes]]:
    """The topic, and the producer's process. It has ended when the block ends."""
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.create_topics([NewTopic(TOPIC, _PARTITIONS, 1)])
    admin.close()
    command = [sys.executable, "-m", "examples.demo_producer", "--broker", broker, "--topic", TOPIC]
    process = subprocess.Popen([*command, "--first", str(first), "--begin", str(END)])
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def records(broker: str) -> pa.Table:
    """All records of the topic: minute and cents."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=broker, group_id=None, enable_auto_commit=False)
    values: list[dict[str, Any]] = []
    try:
        partitions = [TopicPartition(TOPIC, number) for number in range(_PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        count = sum(consumer.end_offsets(partitions).values())
        while len(values) < count:
            found = consumer.poll(1_000, max_records=10_000)
            values += [json.loads(record.value) for records in found.values() for record in records]
    finally:
        consumer.close()
    at = pa.array([v["at"].rstrip("Z") for v in values], pa.string()).cast(pa.timestamp("us"))
    return pa.table({"minute": pc.floor_temporal(at, unit="minute"), "cents": pa.array([v["cents"] for v in values])})


def expected(folder: Path, broker: str) -> dict[Any, tuple[int, int]]:
    """Sum and count of each minute, computed without Spark."""
    files = pq.read_table(folder, columns=["at", "cents"])
    minutes = pc.floor_temporal(files["at"].cast(pa.timestamp("us")), unit="minute")
    rows = pa.concat_tables([pa.table({"minute": minutes, "cents": files["cents"]}), records(broker)])
    sums = rows.group_by("minute").aggregate([("cents", "sum"), ("cents", "count")])
    columns = [sums[name].to_pylist() for name in ("minute", "cents_sum", "cents_count")]
    return {minute: (cents, count) for minute, cents, count in zip(*columns, strict=True)}


def compare(spark: SparkSession, target: Path, wanted: dict[Any, tuple[int, int]]) -> tuple[int, int, int, int]:
    """Minutes in the target, and how many are lost, duplicated or different."""
    table = spark.read.format("delta").load(str(target)).select("minute", "cents", "orders").toArrow()
    minutes = table["minute"].cast(pa.timestamp("us")).to_pylist()
    found = dict(zip(minutes, zip(table["cents"].to_pylist(), table["orders"].to_pylist(), strict=True), strict=True))
    different = sum(wanted.get(minute) != sums for minute, sums in found.items())
    return len(found), len(wanted.keys() - found.keys()), len(minutes) - len(found), different


def by_minute(frame: DataFrame) -> DataFrame:
    """The rows of either source, with their minute."""
    return frame.selectExpr("date_trunc('minute', at) AS minute", "cents")


def run(arguments: argparse.Namespace) -> str:
    """The whole demo. Returns the last line to print."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-demo-")))
        began = time.time()
        write_files(folder / "history", arguments.rows)
        print(f"{_DAYS} files with {arguments.rows:,} orders written in {time.time() - began:.0f} s", flush=True)
        broker = stack.enter_context(KafkaServer()).address()
        process = stack.enter_context(producer(broker, arguments.rows))
        print(f"Kafka on {broker}; a producer keeps adding orders", flush=True)
        conf = {"spark.backlog.progress": "off"}  # the demo draws its own
        spark = local_session("backlog_spark hybrid demo", conf=conf)
        stack.callback(spark.stop)
        orders = bs.source(
            "hybrid",
            name="orders",
            schema=SCHEMA,
            path=str(folder / "history"),
            subscribe=TOPIC,
            options={"kafka.bootstrap.servers": broker, "startingOffsets": "earliest", "valueFormat": "json"},
        )
        target = folder / "minutes"
        began = time.time()
        query = (
            orders.transform(by_minute)
            .key_by("minute")
            .aggregate("sum(cents) AS cents, count(*) AS orders")
            .write("minutes")
            .trigger(processing_time=arguments.interval, interval_during_backlog=arguments.interval_during_backlog)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .to(bs.DeltaUpsert(str(target), keys=["minute"]))
            .start(spark)
        )
        stack.callback(query.stop)

        def end_of_changes() -> None:
            process.terminate()
            process.wait()

        progress = follow(query, arguments, began, end_of_changes)
        print(write_report(folder / "checkpoint", "demo-hybrid"), flush=True)
        print("Comparing each minute, a row of the Delta table, with the files and the topic", flush=True)
        return outcome(progress, compare(spark, target, expected(folder / "history", broker)))


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=5_000_000, during_backlog="0")))
