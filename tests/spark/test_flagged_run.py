"""One real query that leaves its backlog, as the listener, the checkpoint and the sink see it."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from backlog_spark.decide.reports import ProgressReport, Report, Terminated
from backlog_spark.sinks import BatchInfo, DeltaUpsert, SinkContext
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.listener import BacklogListener
from backlog_spark.spi.offset_flags import BatchFlags
from tests.sinks.test_delta import log_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class FlaggedRun:
    """The traces of the query of `flagged_run`; `offsets` is `FLAGGED_OFFSETS`."""

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


@pytest.fixture(scope="module")
def flagged_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FlaggedRun:
    """Run a Python source through `FLAGGED_OFFSETS` into a Delta table, heard by a listener.

    Keys 1 to 4 are inserted in backlog (batches 0 and 1), then key 1 is updated (batch 2).
    """
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
        is_backlog[batch_id] = flags_of(checkpoint, batch_id).is_backlog
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


def flags_of(checkpoint: Checkpoint, batch_id: int) -> BatchFlags:
    starts, ends = checkpoint.offsets(batch_id - 1), checkpoint.offsets(batch_id)
    assert ends is not None
    return BatchFlags(starts or [None], ends, [True])


def test_the_listener_reports_it(flagged_run: FlaggedRun) -> None:
    batches = [report for report in flagged_run.reports if isinstance(report, ProgressReport)]
    assert {(report.query_id, report.run_id) for report in batches} == {(flagged_run.query_id, flagged_run.run_id)}
    seen = [
        (b.batch_id, s.num_input_rows, s.is_processing_backlog, s.is_backlog, s.finished)
        for b in batches
        for s in b.sources
    ]
    assert seen == [
        (0, 2, True, True, False),
        (1, 2, False, True, False),
        (2, 1, False, False, True),
    ]
    assert [b.sources[0].start_offset and b.sources[0].start_offset["position"] for b in batches] == [
        None,
        2,
        4,
    ]
    assert all(b.duration_ms["triggerExecution"] > 0 for b in batches)
    assert flagged_run.reports[-1] == Terminated(flagged_run.query_id, flagged_run.run_id, None)


def test_the_checkpoint_has_it(spark: SparkSession, flagged_run: FlaggedRun) -> None:
    checkpoint = Checkpoint(spark, flagged_run.checkpoint)
    assert [checkpoint.offsets(batch_id) for batch_id in range(4)] == [
        [flagged_run.offsets[1]],
        [flagged_run.offsets[2]],
        [flagged_run.offsets[3]],
        None,
    ]
    assert (checkpoint.latest_batch(), checkpoint.latest_committed()) == (2, 2)
    assert flagged_run.is_backlog_of_batch == {0: True, 1: True, 2: False}
    assert [flags_of(checkpoint, batch_id).is_backlog for batch_id in range(3)] == [True, True, False]
    assert flags_of(checkpoint, 2).in_backlog == [False]
    assert checkpoint.identity() == flagged_run.txn_app_id


def test_the_sink_wrote_it(spark: SparkSession, flagged_run: FlaggedRun) -> None:
    app = flagged_run.txn_app_id
    assert rows_of(spark, flagged_run.table) == Counter([(1, "uno"), (2, "two"), (3, "three"), (4, "four")])
    assert log_of(flagged_run.table) == [
        ("CREATE TABLE", []),
        ("WRITE", [(app, 0)]),
        ("WRITE", [(app, 1)]),
        ("MERGE", [(app, 2)]),
    ]
