"""Fixtures for all tests: one Spark session per pytest run, and one real query that leaves its backlog."""

from __future__ import annotations

import os
import queue
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.decide.reports import Report
    from backlog_spark.embedded.kafka import KafkaServer
    from backlog_spark.embedded.mysql import MySQLServer


# Fixtures that are a process of their own, or start one. A test that starts one itself is marked.
_PROCESSES = {
    "spark",
    "mysql",
    "mariadb",
    "kafka",
    "broker",
    "own",
    "nameless",
    "server",
    "servers",
    "secured",
    "crashed",
    "fragile",
}


def pytest_configure(config: pytest.Config) -> None:
    """Before any JVM is started, also by the workers of xdist."""
    if "not process" in config.option.markexpr:
        sys.addaudithook(_refuse_processes)
    elif not hasattr(config, "workerinput"):
        from tests.classes import java_options

        os.environ.update(java_options())


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """`make test-fast` runs what starts no process, and notices what does."""
    if event == "subprocess.Popen" and "PYTEST_CURRENT_TEST" in os.environ:  # xdist starts some too
        raise AssertionError(f"a test that starts {arguments[0]} needs the mark `process`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses a process; files that do come first, those of pure tests fill the workers' last seconds."""
    for item in items:
        if _PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker("process")
    heavy = {item.path for item in items if item.get_closest_marker("process")}
    items.sort(key=lambda item: item.path not in heavy)


# A deadline would assert on timing, which a shared machine cannot promise.
settings.register_profile("backlog_spark", deadline=None)
settings.load_profile("backlog_spark")

# Spark's own decoder of Avro, which ours is compared with. That of 4.2.0 is on no mirror.
SPARK_AVRO = (
    "org.apache.spark",
    "spark-avro_2.13",
    "4.1.1",
    "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with Delta for the whole run; started by the first test that asks for it."""
    from backlog_spark.embedded.jars import Artifact, fetch, spark_kafka_jars
    from backlog_spark.embedded.session import local_session

    jars = [*spark_kafka_jars(), *fetch([Artifact(*SPARK_AVRO)])]
    conf = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.shuffle.partitions": "2",
        # Delta's default of 50 tasks to build a table's state costs each read after a write 3 s here.
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    session = local_session("backlog_spark-tests", conf=conf)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQLServer]:
    """A real MySQL server for the whole run; tests use databases of their own."""
    from backlog_spark.embedded.mysql import MySQLServer

    with MySQLServer() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A real Kafka broker for the whole run; tests use topics of their own."""
    from backlog_spark.embedded.kafka import KafkaServer

    with KafkaServer() as server:
        yield server


@dataclass(frozen=True)
class FlaggedRun:
    """What is left of the query of `flagged_run`; `offsets` is `FLAGGED_OFFSETS`."""

    offsets: list[dict[str, Any]]
    query_id: str
    run_id: str
    checkpoint: str
    table: str
    txn_app_id: str
    reports: list[Report]
    is_backlog_of_batch: dict[int, bool]


FLAGGED_OFFSETS: list[dict[str, Any]] = [
    {"position": 0, "isProcessingBacklog": True, "isBacklog": True},
    {"position": 2, "isProcessingBacklog": True, "isBacklog": True},
    # The last backlog batch: its end offset already says false, its rows are still backlog.
    {"position": 4, "isProcessingBacklog": False, "isBacklog": True},
    {"position": 5, "isProcessingBacklog": False, "isBacklog": False, "isFinished": True},
]
"""Initial offset of the query of `flagged_run`, then the end offset of each of its three batches."""


@pytest.fixture(scope="session")
def flagged_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FlaggedRun:
    """Run a Python source through `FLAGGED_OFFSETS` into a Delta table, heard by a listener.

    Keys 1 to 4 are inserted in backlog (batches 0 and 1), then key 1 is updated (batch 2).
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    from backlog_spark.decide.reports import ProgressReport, Terminated
    from backlog_spark.sinks import BatchInfo, DeltaUpsert, SinkContext
    from backlog_spark.spark.checkpoint import Checkpoint
    from backlog_spark.spark.listener import BacklogListener

    # The classes are local, so that they reach the Python workers by value; the test modules are not
    # importable there.
    offsets = FLAGGED_OFFSETS
    rows = [
        (1, "one", "insert", 0),
        (2, "two", "insert", 0),
        (3, "three", "insert", 0),
        (4, "four", "insert", 0),
        (1, "uno", "update_postimage", 1),
    ]

    class Slice(InputPartition):
        def __init__(self, start: int, end: int) -> None:
            self.start, self.end = start, end

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, Any]:
            return offsets[0]

        def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
            following = [offset for offset in offsets if offset["position"] > start["position"]]
            return following[0] if following else start

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Slice]:
            return [Slice(start["position"], end["position"])]

        def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:
            return iter(rows[partition.start : partition.end])

    class Flagged(DataSource):
        @classmethod
        def name(cls) -> str:
            return "flagged_test"

        def schema(self) -> str:
            return "id bigint, name string, _change_type string, _commit_seq bigint"

        def streamReader(self, schema: Any) -> Reader:
            return Reader()

    root = tmp_path_factory.mktemp("flagged")
    location, table = str(root / "checkpoint"), str(root / "table")
    spark.dataSource.register(Flagged)
    frame = spark.readStream.format("flagged_test").load()
    checkpoint = Checkpoint(spark, location)
    app_id = checkpoint.identity()
    sink = DeltaUpsert(table, ["id"], metadata_columns=("_change_type", "_commit_seq"))
    sink.open(SinkContext(spark, app_id, frame.schema, key_is_unique_in_backlog=True))
    is_backlog: dict[int, bool] = {}

    def write(batch_df: DataFrame, batch_id: int) -> None:
        is_backlog[batch_id] = checkpoint.is_backlog(batch_id)
        sink.write(batch_df, BatchInfo(batch_id, is_backlog[batch_id]))

    heard: queue.Queue[Report] = queue.Queue()
    reports: list[Report] = []
    listener = BacklogListener()
    spark.streams.addListener(listener)
    try:
        query = frame.writeStream.foreachBatch(write).option("checkpointLocation", location).start()
        try:
            # Late on purpose: events before the subscription must not be lost.
            listener.subscribe(query.id, heard)
            while not any(isinstance(report, ProgressReport) and report.batch_id == 2 for report in reports):
                assert query.exception() is None, query.exception()
                reports.append(heard.get(timeout=300))
        finally:
            query.stop()
        while not isinstance(reports[-1], Terminated):
            reports.append(heard.get(timeout=300))
        listener.unsubscribe(query.id)
    finally:
        spark.streams.removeListener(listener)
    return FlaggedRun(
        offsets=offsets,
        query_id=query.id,
        run_id=query.runId,
        checkpoint=location,
        table=table,
        txn_app_id=app_id,
        reports=reports,
        is_backlog_of_batch=is_backlog,
    )
