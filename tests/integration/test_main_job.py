"""The main job on real servers: MySQL to Delta, with the interval switched by backlog."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint
from tests.connectors.mysql_cdc.replay import options, table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

ROWS = 3_000
LIMIT_S = 300


def create(server: MySQLServer, table: str) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS job")
    server.execute(f"DROP TABLE IF EXISTS job.{table}")
    server.execute(f"CREATE TABLE job.{table} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    server.execute(f"INSERT INTO job.{table} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(ROWS)))


def writer(server: MySQLServer, table: str, root: Path, sink: Any = None, **more: object) -> Any:
    source = bs.source("mysql_cdc", name=table, options=options(server, f"job.{table}", **more))
    made = source.write(table).option("checkpointLocation", str(root / "checkpoint"))
    return made.to(sink or bs.DeltaUpsert(str(root / "target"), keys=["id"]))


def wait(condition: Callable[[], bool], query: bs.BacklogQuery) -> None:
    limit = time.monotonic() + 300
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.05)


def contents(spark: SparkSession, root: Path) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in spark.read.format("delta").load(str(root / "target")).collect())


def test_interval_zero_is_one_commit_in_backlog_then_streaming(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    create(mysql, "zero")
    made = writer(mysql, "zero", tmp_path, maxRowsPerBatch=500)
    query = made.trigger(processing_time="300 ms", interval_during_backlog=0).start(spark)
    try:
        assert (query.mode, query.isProcessingBacklog) == (Mode.BACKLOG, True)
        wait(lambda: query.mode is Mode.STREAM, query)
        before = time.time()
        mysql.execute("UPDATE job.zero SET id = id + 10000 WHERE id < 10")
        mysql.execute("DELETE FROM job.zero WHERE id BETWEEN 20 AND 29")
        query.processAllAvailable()
        wait(lambda: query.backlogProgress.commits_after > 0, query)
        progress = query.backlogProgress
        assert (progress.commits_in_backlog, progress.backlog_rows) == (1, ROWS)
        assert [(s.batch_id, s.mode, s.commit_interval_ms) for s in query.history] == [
            (-1, Mode.BACKLOG, None),
            (1, Mode.STREAM, 300),
        ]
        # what a StreamingQuery offers
        assert query.name == "zero"
        assert query.id == query.streamingQuery.id
        assert query.runId == query.streamingQuery.runId
        assert query.status["isTriggerActive"] in (True, False)
        assert query.lastProgress.batchId >= 1
        assert query.awaitTermination(0.01) is False
        # The time of a transaction's commit comes to the millisecond.
        offset = json.loads(query.lastProgress.sources[0].endOffset)
        assert before * 1000 - 1_000 < offset["committedMs"][0] <= offset["committedMs"][1] < time.time() * 1000 + 1_000
        assert any(ms % 1000 for ms in offset["committedMs"])
    finally:
        query.stop()
    assert (query.isActive, query.exception(), query.awaitTermination(1)) == (False, None, True)
    assert contents(spark, tmp_path) == Counter(table_rows(mysql, "job.zero").values())
    live = [e for e in StoredCheckpoint(str(tmp_path / "checkpoint")).events if e["kind"] == "batch"][-1]
    [committed] = [source["committed_ms"] for source in live["sources"]]
    assert committed == offset["committedMs"]
    assert 0 < live["written_ms"] - committed[1] < LIMIT_S * 1000


def test_unset_is_plain_spark_with_bounded_batches(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "unset")
    query = writer(mysql, "unset", tmp_path, maxRowsPerBatch=1_000).trigger(processing_time="200 ms").start(spark)
    try:
        # The flag is told truthfully, but nothing is switched.
        assert (query.mode, query.isProcessingBacklog) == (Mode.STREAM, True)
        wait(lambda: not query.isProcessingBacklog, query)
        assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [1_000, 1_000, 1_000]
        assert query.backlogProgress.commits_in_backlog == 3
        assert [s.mode for s in query.history] == [Mode.STREAM]
    finally:
        query.stop()
    assert contents(spark, tmp_path) == Counter(table_rows(mysql, "job.unset").values())


@pytest.mark.grid
def test_far_behind_the_log_is_backlog_again(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "lag")
    made = writer(mysql, "lag", tmp_path, backlogLagThreshold="5 min", maxRowsPerBatch=1000)
    made = made.trigger(processing_time="300 ms", interval_during_backlog="1 second")
    query = made.start(spark)
    wait(lambda: query.mode is Mode.STREAM, query)
    query.stop()
    with mysql.connect() as connection, connection.cursor() as cursor:
        for first in range(0, 2500, 500):
            cursor.execute("SET TIMESTAMP = UNIX_TIMESTAMP() - 3600")
            cursor.execute(f"UPDATE job.lag SET n = n + 1 WHERE id BETWEEN {first} AND {first + 299}")
            cursor.execute(f"DELETE FROM job.lag WHERE id = {first + 400}")
            connection.commit()
    query = made.start(spark)
    try:
        wait(lambda: len(query.history) == 3, query)
        assert [s.mode for s in query.history] == [Mode.STREAM, Mode.BACKLOG, Mode.STREAM]
        query.processAllAvailable()
    finally:
        query.stop()
    assert contents(spark, tmp_path) == Counter(table_rows(mysql, "job.lag").values())


@pytest.mark.grid
@pytest.mark.parametrize("during", ["0", pytest.param("1 second", marks=pytest.mark.grid)])
def test_the_log_is_backlog_while_a_function_says_so(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, during: str
) -> None:
    create(mysql, "loading")
    is_loading = threading.Event()
    made = writer(mysql, "loading", tmp_path, maxRowsPerBatch=100).backlog_when(lambda report: is_loading.is_set())
    query = made.trigger(processing_time="100 ms", interval_during_backlog=during).start(spark)
    try:
        wait(lambda: query.mode is Mode.STREAM, query)
        query.processAllAvailable()
        is_loading.set()
        with mysql.connect() as connection, connection.cursor() as cursor:
            for first in range(100_000, 101_000, 50):
                rows = ",".join(f"({first + i}, 0, 'x')" for i in range(50))
                cursor.execute(f"INSERT INTO job.loading VALUES {rows}")
                cursor.execute(f"UPDATE job.loading SET n = n + 1 WHERE id BETWEEN {first} AND {first + 20}")
                cursor.execute(f"DELETE FROM job.loading WHERE id = {first + 30}")
                connection.commit()
        wait(lambda: Mode.BACKLOG in [s.mode for s in query.history[2:]], query)
        is_loading.clear()
        mysql.execute("UPDATE job.loading SET v = 'y' WHERE id < 10")
        query.processAllAvailable()
        wait(lambda: query.mode is Mode.STREAM, query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert contents(spark, tmp_path) == Counter(table_rows(mysql, "job.loading").values())


@pytest.mark.slow
def test_available_now_copies_the_table_and_ends(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "once")
    made = writer(mysql, "once", tmp_path).trigger(available_now=True)
    made.start(spark).awaitTermination()
    assert contents(spark, tmp_path) == Counter(table_rows(mysql, "job.once").values())
    mysql.execute("DELETE FROM job.once WHERE id < 100")
    again = made.start(spark)  # recovery needs nothing but the same call
    again.awaitTermination()
    assert again.isProcessingBacklog is False
    assert contents(spark, tmp_path) == Counter(table_rows(mysql, "job.once").values())


def test_a_snapshot_alone_ends_by_itself(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "alone")
    source = bs.source("mysql_cdc", name="s", options=options(mysql, "job.alone", **{"startup.mode": "snapshot"}))
    made = source.write("alone").option("checkpointLocation", str(tmp_path / "checkpoint"))
    made = made.trigger(processing_time="200 ms", interval_during_backlog="1 second")
    made = made.to(bs.DeltaUpsert(str(tmp_path / "target"), keys=["id"]))
    query = made.start(spark)
    assert query.awaitTermination(LIMIT_S)
    assert query.jobStatus is bs.JobStatus.FINISHED
    expected = Counter(table_rows(mysql, "job.alone").values())
    assert contents(spark, tmp_path) == expected
    mysql.execute("DELETE FROM job.alone WHERE id < 100")
    again = made.start(spark)
    assert again.awaitTermination(LIMIT_S)
    assert again.jobStatus is bs.JobStatus.FINISHED
    assert contents(spark, tmp_path) == expected, "it is not read again"


def test_plain_read_stream_works_after_register(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "plain")
    bs.register(spark)
    bs.register(spark)  # again does no harm
    frame = spark.readStream.format("mysql_cdc").options(**options(mysql, "job.plain")).load()
    assert frame.columns == ["id", "n", "v", "_change_type", "_commit_timestamp", "_commit_seq"]
    made = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
    made.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).groupBy("_change_type").count().collect() == [("insert", ROWS)]


def test_from_now_on(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    """The start position is decided once, even if the query stops before any row comes."""
    create(mysql, "later")
    source = bs.source("mysql_cdc", name="s", options=options(mysql, "job.later", **{"startup.mode": "latest"}))
    made = source.write("later").option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(available_now=True)
    made = made.to(bs.DeltaUpsert(str(tmp_path / "target"), keys=["id"]))
    query = made.start(spark)
    query.awaitTermination()
    assert not query.isProcessingBacklog
    mysql.execute("UPDATE job.later SET n = -7 WHERE id < 3")
    made.start(spark).awaitTermination()
    expected = Counter(row for row in table_rows(mysql, "job.later").values() if row[1] == -7)
    assert len(expected) > 1
    assert contents(spark, tmp_path) == expected


class Failing(bs.Sink):
    """Fails a number of times, then writes."""

    def __init__(self, inner: bs.Sink, times: int) -> None:
        self.inner, self.left, self.keys = inner, times, ("id",)
        self.lock = threading.Lock()

    def open(self, context: Any) -> None:
        self.inner.open(context)

    def write(self, batch_df: Any, batch: Any) -> None:
        with self.lock:
            self.left -= 1
            if self.left >= 0:
                raise RuntimeError("the sink is away " + "x" * 10_000)
        self.inner.write(batch_df, batch)


def test_a_failed_query_is_restarted_and_the_restart_reported(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    create(mysql, "restarted")
    sink = Failing(bs.DeltaUpsert(str(tmp_path / "target"), keys=["id"]), times=1)
    made = writer(mysql, "restarted", tmp_path, sink)
    query = made.trigger(processing_time="200 ms", interval_during_backlog="1 second").start(spark)
    try:
        wait(lambda: query.mode is Mode.STREAM, query)
        assert query.backlogProgress.restarts == 1
    finally:
        query.stop()
    assert contents(spark, tmp_path) == Counter(table_rows(mysql, "job.restarted").values())


def test_restarts_are_bounded_and_the_error_says_what_happened(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    create(mysql, "hopeless")
    sink = Failing(bs.DeltaUpsert(str(tmp_path / "target"), keys=["id"]), times=100)
    spark.conf.set("spark.backlog.restart.maxAttempts", "1")
    spark.conf.set("spark.backlog.restart.delay", "10 ms")
    try:
        query = writer(mysql, "hopeless", tmp_path, sink).trigger(processing_time="200 ms").start(spark)
        with pytest.raises(BacklogError, match="the sink is away"):
            query.awaitTermination(300)
        assert not query.isActive
    finally:
        spark.conf.unset("spark.backlog.restart.maxAttempts")
        spark.conf.unset("spark.backlog.restart.delay")


def test_settings_come_from_the_builder_then_the_configuration_then_the_source(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    create(mysql, "strength")
    spark.conf.set("spark.backlog.interval", "400 ms")
    try:
        made = writer(mysql, "strength", tmp_path, interval="700 ms", intervalDuringBacklog="9 s")
        query = made.trigger(interval_during_backlog="8 s").start(spark)
        query.stop()
    finally:
        spark.conf.unset("spark.backlog.interval")
    assert (query._intervals.interval_ms, query._intervals.during_backlog_ms) == (400, 8_000)


def test_a_mistake_is_reported_before_anything_is_read(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "refused")
    with pytest.raises(SettingError) as error:
        writer(mysql, "refused", tmp_path).trigger(processing_time="1 minute", interval_during_backlog="10 s")
    for part in ("processing_time", "interval_during_backlog", "1 minute", "10 s"):
        assert part in str(error.value)
    with pytest.raises(BacklogError, match="no such table"):
        bs.source("mysql_cdc", name="x", options=options(mysql, "job.nothing")).write("x").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).to(bs.DeltaUpsert(str(tmp_path / "target"), keys=["id"])).start(spark)
    with pytest.raises(BacklogError, match="refused user") as denied:
        bs.source("mysql_cdc", name="x", options=options(mysql, "job.refused", password="s3cret")).write("x").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).to(bs.DeltaUpsert(str(tmp_path / "target"), keys=["id"])).start(spark)
    assert "s3cret" not in str(denied.value)
    assert not (tmp_path / "target").exists()
    assert not (tmp_path / "checkpoint" / "offsets").exists()


def test_a_truncate_reaches_the_sink_also_through_plain_read_stream(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    """The query does not declare the source, yet the flags of its batches are in Spark's log."""
    create(mysql, "plain")
    names = "_database,_table,_change_type,_commit_timestamp,_commit_seq"
    given = options(mysql, "job.plain", tableEvents="emit", interval="300 ms", metadataColumns=names)
    bs.register(spark)
    frame = spark.readStream.format("mysql_cdc").options(**given).load()
    made = bs.stream(frame).write("plain").option("checkpointLocation", str(tmp_path / "checkpoint"))
    sink = bs.DeltaUpsert(str(tmp_path / "target"), keys=["id"])
    query = made.trigger(processing_time="300 ms").to(sink).start(spark)
    try:
        wait(lambda: query.backlogProgress.rows >= ROWS, query)
        mysql.execute("TRUNCATE TABLE job.plain")
        mysql.execute("INSERT INTO job.plain VALUES (1, 1, 'new')")
        wait(lambda: contents(spark, tmp_path) == Counter([(1, 1, "new", "job", "plain")]), query)
    finally:
        query.stop()
