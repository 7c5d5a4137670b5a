"""Queries end between two batches, whenever they are asked to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.spark.jvm import stop_between_batches
from backlog_spark.spark.jvm.internals import SWITCH
from backlog_spark.spark.jvm.stop_between_batches import (
    end_after_batch,
    end_at_boundary,
    ends_by_itself,
    found_the_end,
    is_running,
    set_interval_after_batch,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT_S = 60


def numbers(spark: SparkSession, folder: Path, count: int) -> None:
    for n in range(count):
        spark.range(n, n + 1, 1, 1).write.mode("append").parquet(str(folder))


def over(query: Any) -> None:
    limit = time.monotonic() + LIMIT_S
    while is_running(query):
        assert time.monotonic() < limit
        time.sleep(0.01)


def until_planned(query: Any, done: list[int]) -> None:
    """Wait until a batch is being planned: its offsets are logged, its plan is not made yet."""
    while is_running(query) and len(done) < 12:
        context = query._jsq.streamingQuery().getLatestExecutionContext()
        if context.getDuration("walCommit").isDefined() and context.getDuration("queryPlanning").isEmpty():
            return


@pytest.mark.slow
@pytest.mark.parametrize(
    "trigger", [pytest.param({"availableNow": True}, marks=pytest.mark.grid), {"processingTime": "0 seconds"}]
)
def test_no_batch_is_interrupted_wherever_it_is(spark: SparkSession, tmp_path: Path, trigger: dict[str, Any]) -> None:
    """Asked in the planning of a batch, after which Spark looks and interrupts itself, and at other moments."""
    numbers(spark, tmp_path / "source", 12)
    begun: list[int] = []
    done: list[int] = []
    refused = 0

    def write(batch: DataFrame, batch_id: int) -> None:
        begun.append(batch_id)
        assert batch.count() == 1
        done.append(batch_id)

    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    for attempt in range(40):
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(**trigger).start()
        time.sleep(0.02 * attempt)
        if attempt % 3:
            until_planned(query, done)
        while is_running(query) and not end_at_boundary(query):
            refused += 1
        over(query)
        assert query.exception() is None
        if len(done) == 12:
            break
    assert refused
    assert begun == done == list(range(12))


def test_a_query_that_sleeps_is_woken(spark: SparkSession, tmp_path: Path) -> None:
    numbers(spark, tmp_path / "source", 1)
    done: list[int] = []
    frame = spark.readStream.schema("id long").parquet(str(tmp_path / "source"))
    writer = frame.writeStream.foreachBatch(lambda batch, batch_id: done.append(batch.count()))
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="10 minutes").start()
    )
    limit = time.monotonic() + LIMIT_S
    while not done or query.status["isTriggerActive"]:
        assert time.monotonic() < limit
        time.sleep(0.05)
    while not end_at_boundary(query):
        time.sleep(0.02)
    over(query)
    assert (done, query.exception()) == ([1], None)


def test_a_batch_can_say_that_it_is_the_last(spark: SparkSession, tmp_path: Path) -> None:
    numbers(spark, tmp_path / "source", 3)
    done: list[int] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        end_after_batch(next(q for q in spark.streams.active if q.name == "the-last"))
        done.append(batch.count())

    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    writer = frame.writeStream.queryName("the-last").foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    over(query)
    assert (done, query.exception()) == ([1], None)
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()


def test_where_sparks_state_is_out_of_reach_the_query_is_stopped(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    class Other:
        """A query of another engine, such as Spark Connect's: no Java object behind it."""

        name = "elsewhere"
        stopped = 0

        def stop(self) -> None:
            self.stopped += 1

    query: Any = Other()
    assert end_at_boundary(query)
    assert query.stopped == 1
    assert "elsewhere is stopped within a batch" in caplog.text
    end_after_batch(query)  # which Spark's stop() would wait for
    assert query.stopped == 1
    assert "The end of query elsewhere after its batch could not be requested" in caplog.text
    assert found_the_end(query) is ends_by_itself(query) is None
    set_interval_after_batch(query, 0)
    assert "elsewhere has more to do, but waits for its next trigger" in caplog.text


def test_a_batch_can_let_the_next_one_begin_at_once(spark: SparkSession, tmp_path: Path) -> None:
    numbers(spark, tmp_path / "source", 5)
    done: list[int] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        query = next(q for q in spark.streams.active if q.name == "at-once")
        # The tick after which batch 2 begins was found when it began: one more does so at once.
        set_interval_after_batch(query, 600_000 if batch_id >= 2 else 0)
        done.append(batch.count())

    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    writer = frame.writeStream.queryName("at-once").foreachBatch(write).trigger(processingTime="10 minutes")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        limit = time.monotonic() + LIMIT_S
        while len(done) < 4 or query.status["isTriggerActive"]:
            assert time.monotonic() < limit
            time.sleep(0.05)
        assert (done, query.exception()) == ([1] * 4, None)
        assert "Waiting for next trigger" in query.status["message"]
    finally:
        query.stop()


class Renamed:
    """A Java object of another version of Spark, which has one member or one class by another name."""

    def __init__(self, java: Any, name: str) -> None:
        self.java, self.name = java, name

    def __getattr__(self, member: str) -> Any:
        if member == self.name:
            raise AttributeError(member)

        def call(*values: Any) -> Any:
            found = getattr(self.java, member)(*values)
            if found == self.name:
                return f"{found}2"
            return Renamed(found, self.name) if hasattr(found, "getClass") else found

        return call


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> dict[str, Any]:
    """Runs that have ended: one stopped between two batches, one reached its end, one found nothing to do."""
    numbers(spark, tmp_path / "source", 2)
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))

    def run(name: str, write: Any) -> Any:
        writer = frame.writeStream.queryName(name).foreachBatch(write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        over(query)
        assert query.exception() is None
        return query

    def stops(batch: DataFrame, batch_id: int) -> None:
        end_after_batch(next(q for q in spark.streams.active if q.name == "stopped"))

    return {
        "stopped": run("stopped", stops),
        "ended": run("ended", lambda batch, batch_id: None),
        "idle": run("idle", lambda batch, batch_id: None),
    }


def test_a_run_that_was_stopped_counts_as_ended_by_no_renamed_member(
    runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [found_the_end(runs[name]) for name in ("stopped", "ended", "idle")] == [False, True, True]
    execution = stop_between_batches._execution
    names = (
        "triggerExecutor", "MultiBatchExecutor", "getLatestExecutionContext", "isCurrentBatchConstructed",
        "getDuration", "isDefined", "getSimpleName",
    )  # fmt: skip
    for name in names:
        monkeypatch.setattr(stop_between_batches, "_execution", lambda query, n=name: Renamed(execution(query), n))
        found = [found_the_end(runs[each]) for each in ("stopped", "ended", "idle")]
        assert (name, found[0] in (False, None), found[1:]) == (name, True, [None, True])
    monkeypatch.undo()
    monkeypatch.setenv(SWITCH, "off")
    assert [found_the_end(runs[name]) for name in ("stopped", "ended", "idle")] == [None, None, True]
