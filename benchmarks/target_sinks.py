"""Parts of the benchmark ``targets`` that call a sink's ``write``: one batch of backlog, and live batches."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import backlog_spark as bs
from benchmarks.by_hand import METADATA
from benchmarks.common import interleave, progress, require_equal, show
from benchmarks.figures import Figure
from benchmarks.hybrid import write_topic
from benchmarks.live_sinks import CHANGE, LiveBatches, Write, filled, opened, table
from benchmarks.snapshot import fingerprint
from benchmarks.table_formats import DELTA, ICEBERG, TableFormat
from servers.kafka import KafkaServer
from servers.mysql import MySQLServer
from servers.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CHANGES", "Bench", "backlog", "databases", "history", "kafka"]

CHANGES: Final = 1_000
"""Of a live batch."""
_BATCHES: Final = 15
_WARM_UP: Final = 4
"""More batches before the warm-up that every benchmark has: the JVM still compiles what they need."""
_TABLE_ROWS: Final = 200_000
_FILES: Final = 8
_PARTITIONS: Final = 4
_COLUMNS: Final = (
    "id",
    "CAST(id * 7919 % 200000 AS INT) AS customer_id",
    "element_at(array('new', 'paid', 'shipped', 'returned'), CAST(1 + id % 4 AS INT)) AS status",
    "CAST(id * 37 % 100000 / 100 AS DECIMAL(12, 2)) AS amount",
    "IF(id % 5 = 0, NULL, id % 100 / 7) AS discount",
    "CAST(1 + id % 9 AS INT) AS quantity",
    "IF(id % 11 = 0, NULL, concat('order ', id, ', \"fragile\"')) AS note",
    "date_add(DATE'2024-01-01', CAST(id % 700 AS INT)) AS ordered_on",
    "TIMESTAMP_NTZ'2024-01-01 00:00:00' + make_dt_interval(0, 0, 0, id % 80000000) AS created_at",
    "timestamp_micros(1704067200000000 + id) AS updated_at",
)
_SUMS: Final = "count(*)", "sum(id)", "sum(v)"


@dataclass
class Bench:
    """What a kind of the benchmark ``targets`` needs: a session, a folder of its own, and the arguments."""

    spark: SparkSession
    folder: Path
    arguments: argparse.Namespace

    @property
    def table_rows(self) -> int:
        return min(int(self.arguments.rows), _TABLE_ROWS)

    def live(self, writes: Mapping[str, Write], sums: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        """The median seconds of live batches of each candidate, whose tables are compared by count and sums."""
        folder = self.folder / "batches"
        folder.mkdir()
        rows = self.table_rows
        each = {name: LiveBatches(write, self.spark, folder, rows, CHANGES) for name, write in writes.items()}
        for write in [*each.values()] * _WARM_UP:
            write()
        times = interleave(each, _BATCHES)
        require_equal({name: tuple(map(int, found())) for name, found in sums.items()})
        for name, taken in times.items():
            show(name, CHANGES, taken)
        return {name: statistics.median(taken) for name, taken in times.items()}

    def delta_sums(self, name: str, where: str = "true") -> Callable[[], Any]:
        return lambda: DELTA.rows(self.spark, self.folder / name).where(where).selectExpr(*_SUMS).first()


def backlog(bench: Bench) -> Iterator[Figure]:
    spark, rows = bench.spark, bench.arguments.rows
    progress(f"making files of {rows:,} rows")
    files = str(bench.folder / "files")
    spark.range(1, rows + 1, 1, _FILES).selectExpr(*_COLUMNS, *CHANGE).write.parquet(files)
    first = spark.read.parquet(files)
    stored = first.drop(*METADATA).schema
    found: dict[str, object] = {}

    def candidate(name: str, form: TableFormat) -> Callable[[], float]:
        def write() -> float:
            with tempfile.TemporaryDirectory(dir=bench.folder, ignore_cleanup_errors=True) as made:
                into = opened(form.upsert(f"{made}/out"), first)
                began = time.perf_counter()
                into(first, 0)
                taken = time.perf_counter() - began
                if name not in found:
                    found[name] = fingerprint(form.rows(spark, Path(made, "out")), stored)
            return taken

        return write

    forms = {"IcebergUpsert": ICEBERG, "DeltaUpsert": DELTA}
    times = interleave({name: candidate(name, form) for name, form in forms.items()}, bench.arguments.runs)
    require_equal({"files": fingerprint(first, stored), **found})
    speeds = {name: show(name, rows, taken) for name, taken in times.items()}
    yield Figure(
        "backlog IcebergUpsert", speeds["IcebergUpsert"], "rows/s", "DeltaUpsert", speeds["DeltaUpsert"], ">= 0.8"
    )
    best = {name: rows / min(taken) for name, taken in times.items()}
    yield Figure("backlog IcebergUpsert, best run", best["IcebergUpsert"], "rows/s", "DeltaUpsert", best["DeltaUpsert"])


def history(bench: Bench) -> Iterator[Figure]:
    rows = table(bench.spark, bench.table_rows)
    sinks = {
        "scd2": bs.DeltaUpsert(str(bench.folder / "scd2"), keys=["id"], history="scd2"),
        "plain": bs.DeltaUpsert(str(bench.folder / "plain"), keys=["id"]),
    }
    sums = {"scd2": bench.delta_sums("scd2", "is_current"), "plain": bench.delta_sums("plain")}
    found = bench.live({name: filled(sink, rows) for name, sink in sinks.items()}, sums)
    yield Figure('live DeltaUpsert(history="scd2")', found["scd2"], "s", "DeltaUpsert", found["plain"], "<= 1.5")


def kafka(bench: Bench) -> Iterator[Figure]:
    import pyspark.sql.functions as F

    rows = table(bench.spark, bench.table_rows)
    peer = "Spark's sink"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(KafkaServer())
        brokers = {"kafka.bootstrap.servers": server.address()}
        writes: dict[str, Write] = {}
        for delivery in ("exactly_once", "at_least_once"):
            sink = bs.KafkaSink(
                delivery, key=["id"], options=brokers, delivery=delivery, partitions=_PARTITIONS, replication=1
            )
            stack.callback(sink.close)
            writes[delivery] = filled(sink, rows)
        write_topic(server.address(), "by_spark", (), _PARTITIONS)

        def by_spark(batch: DataFrame, number: int) -> None:
            stored = batch.drop(*METADATA)
            records = stored.select(F.to_json(F.struct("id")).alias("key"), F.to_json(F.struct("*")).alias("value"))
            records.write.format("kafka").options(**brokers, topic="by_spark").save()

        by_spark(rows, 0)
        writes[peer] = by_spark

        def sums(topic: str) -> Callable[[], Any]:
            committed = {**brokers, "kafka.isolation.level": "read_committed", "subscribe": topic}
            values = bench.spark.read.format("kafka").options(**committed).load()
            fields = values.selectExpr("from_json(CAST(value AS STRING), 'id LONG, v LONG') AS row").select("row.*")
            return fields.selectExpr(*_SUMS).first

        topics = {name: "by_spark" if name == peer else name for name in writes}
        found = bench.live(writes, {name: sums(topic) for name, topic in topics.items()})
    for delivery in ("exactly_once", "at_least_once"):
        yield Figure(f"live KafkaSink {delivery}", found[delivery], "s", peer, found[peer])


def databases(bench: Bench) -> Iterator[Figure]:
    rows = table(bench.spark, bench.table_rows)
    with contextlib.ExitStack() as stack:
        postgres, mysql = stack.enter_context(PostgresServer()), stack.enter_context(MySQLServer())
        mysql.execute("CREATE DATABASE shop")
        writes: dict[str, Write] = {}
        addresses = {
            "PostgreSQL": (f"postgresql://127.0.0.1:{postgres.port}/postgres", postgres.user),
            "MySQL": (f"mysql://127.0.0.1:{mysql.port}/shop", mysql.user),
        }
        for name, (url, user) in addresses.items():
            sink = bs.JdbcUpsert(url, "t", ["id"], user=user, ssl_mode="disabled")
            stack.callback(sink.close)
            writes[name] = filled(sink, rows)
        writes["DeltaUpsert"] = filled(DELTA.upsert(str(bench.folder / "delta")), rows)
        ask = f"SELECT {', '.join(_SUMS)} FROM "
        sums: dict[str, Callable[[], Any]] = {
            "PostgreSQL": lambda: postgres.execute(f"{ask} t")[0],
            "MySQL": lambda: mysql.execute(f"{ask} shop.t")[0],
            "DeltaUpsert": bench.delta_sums("delta"),
        }
        found = bench.live(writes, sums)
    for name in addresses:
        yield Figure(f"live JdbcUpsert {name}", found[name], "s", "DeltaUpsert", found["DeltaUpsert"])
