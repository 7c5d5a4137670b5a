"""Queries of Spark's own sources, switched by rules: files and Delta."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.decide.rules import Judge
from backlog_spark.decide.steps import Mode
from backlog_spark.runner.handle import JobStatus
from backlog_spark.spark.foreign.outstanding_files import Outstanding
from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spark.jvm.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LIMIT_S = 300


@contextmanager
def rules(spark: SparkSession, **values: str) -> Iterator[None]:
    with session_conf(spark, {f"spark.backlog.rule.{k.replace('_', '.')}": v for k, v in values.items()}):
        yield


def wait(condition: Callable[[], bool], query: bs.NativeQuery | bs.BacklogQuery) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit, (query.history, query.backlogProgress)
        time.sleep(0.1)


def files(folder: Path, first: int, count: int, rows: int = 20) -> None:
    """Files of some rows each; row n is n."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        table = pa.table({"n": list(range(number * rows, number * rows + rows))})
        pq.write_table(table, folder / f".{number:05}.parquet")
        (folder / f".{number:05}.parquet").rename(folder / f"{number:05}.parquet")


def written(spark: SparkSession, target: Path) -> Counter[int]:
    return Counter(row.n for row in spark.read.format("delta").load(str(target)).collect())


def batches(checkpoint: Path) -> int:
    return max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit()) + 1


@pytest.mark.grid
def test_files_are_worked_off_in_rounds_and_then_followed(spark: SparkSession, tmp_path: Path) -> None:
    source, target, checkpoint = tmp_path / "source", tmp_path / "target", tmp_path / "checkpoint"
    files(source, 0, 60)
    built: list[bs.RunContext] = []

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        built.append(ctx)
        frame = spark.readStream.schema("n long").option("maxFilesPerTrigger", ctx.scaled(2)).parquet(str(source))
        return frame.writeStream.format("delta").option("path", str(target))

    with rules(spark, filesOutstanding="10", minStay="0 s"):
        query = bs.backlog_query(build, checkpoint=str(checkpoint), spark=spark, interval_during_backlog="2 minutes")
    try:
        wait(lambda: query.backlogProgress.rows == 60 * 20 and query.mode is Mode.STREAM, query)
        wait(lambda: not built[-1].in_backlog, query)
        files(source, 60, 3)
        wait(lambda: query.backlogProgress.rows == 63 * 20, query)
        runs = len(built)
        assert query.mode is Mode.STREAM
    finally:
        query.stop()
    assert query.exception() is None
    assert written(spark, target) == Counter(range(63 * 20))
    # Two files at first, then more: not thirty batches of two.
    assert [ctx.in_backlog for ctx in built[:2]] == [True, True]
    limits = [ctx.scaled(2) for ctx in built if ctx.in_backlog]
    assert limits == sorted(limits)
    assert limits[-1] > 2
    assert batches(checkpoint) < 20
    assert built[runs - 1].read_limit is None
    assert [s.mode for s in query.history] == [Mode.STREAM, Mode.BACKLOG, Mode.STREAM]


@pytest.mark.grid
def test_a_delta_source_comes_into_backlog_again(spark: SparkSession, tmp_path: Path) -> None:
    source, target, checkpoint = tmp_path / "source", tmp_path / "target", tmp_path / "checkpoint"

    def append(first: int, commits: int) -> None:
        for n in range(first, first + commits):
            spark.range(n * 10, n * 10 + 10, 1, 1).toDF("n").write.format("delta").mode("append").save(str(source))

    append(0, 1)
    built: list[Mode] = []

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        built.append(ctx.mode)
        limit = ctx.scaled(1)
        frame = spark.readStream.format("delta").option("maxFilesPerTrigger", limit).load(str(source))
        return frame.writeStream.format("delta").option("path", str(target))

    with rules(spark, filesOutstanding="4", filesOutstanding_leave="1", minStay="0 s"):
        query = bs.backlog_query(
            build, checkpoint=str(checkpoint), spark=spark, interval="2 seconds", interval_during_backlog="0"
        )
        try:
            wait(lambda: built[-1] is Mode.STREAM and query.backlogProgress.rows == 10, query)
            append(1, 12)  # at one a trigger they would take 24 s
            wait(lambda: query.backlogProgress.rows == 130, query)
            wait(lambda: query.mode is Mode.STREAM and built[-1] is Mode.STREAM, query)
        finally:
            query.stop()
    assert query.exception() is None
    assert written(spark, target) == Counter(range(130))
    assert Mode.BACKLOG in built[2:], built
    modes = [s.mode for s in query.history]
    assert modes == [Mode.STREAM, Mode.BACKLOG, Mode.STREAM]
    assert query.backlogProgress.commits_in_backlog >= 1


def test_without_an_interval_during_backlog_it_is_the_users_query(spark: SparkSession, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    files(source, 0, 3)
    built: list[bs.RunContext] = []

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        built.append(ctx)
        frame = spark.readStream.schema("n long").parquet(str(source))
        return frame.writeStream.format("delta").option("path", str(target)).trigger(availableNow=True)

    query = bs.backlog_query(build, checkpoint=str(tmp_path / "checkpoint"), spark=spark, name="plain")
    query.awaitTermination(LIMIT_S)
    assert (query.name, query.isActive, query.exception()) == ("plain", False, None)
    assert written(spark, target) == Counter(range(60))
    assert [(c.in_backlog, c.read_limit, c.scaled(7)) for c in built] == [(False, None, 7)]


def test_no_batch_is_interrupted_by_a_switch(spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    files(source, 0, 24)
    begun: list[int] = []
    done: list[int] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        begun.append(batch_id)
        assert batch.count()
        time.sleep(0.5)
        done.append(batch_id)

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        frame = spark.readStream.schema("n long").option("maxFilesPerTrigger", ctx.scaled(1)).parquet(str(source))
        return frame.writeStream.foreachBatch(write)

    with rules(spark, filesOutstanding="3", minStay="0 s"):
        query = bs.backlog_query(
            build, checkpoint=str(checkpoint), spark=spark, interval="1 second", interval_during_backlog="5 seconds"
        )
        try:
            wait(lambda: query.backlogProgress.rows == 24 * 20 and query.mode is Mode.STREAM, query)
        finally:
            query.stop()
    assert query.exception() is None
    if is_usable("end between batches"):
        assert begun == done == list(range(len(done)))
    else:  # one is interrupted and replayed
        assert list(dict.fromkeys(done)) == list(range(len(set(done))))


def test_a_flag_from_outside(spark: SparkSession, tmp_path: Path) -> None:
    """A rule of the user's own, that somebody else sets and unsets."""
    files(tmp_path / "source", 0, 1)
    loading = threading.Event()

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        frame = spark.readStream.schema("n long").parquet(str(tmp_path / "source"))
        return frame.writeStream.format("noop")

    with rules(spark, minStay="0 s"):
        query = bs.backlog_query(
            build, checkpoint=str(tmp_path / "c"), spark=spark, interval="300 ms", interval_during_backlog="2 seconds",
            backlog_when=lambda report: loading.is_set() if report.num_input_rows else None,
        )  # fmt: skip
        try:
            wait(lambda: query.backlogProgress.rows == 20, query)
            assert [switch.mode for switch in query.history] == [Mode.STREAM]
            loading.set()
            files(tmp_path / "source", 1, 1)
            wait(lambda: Mode.BACKLOG in [switch.mode for switch in query.history], query)
            loading.clear()
            files(tmp_path / "source", 2, 1)
            wait(lambda: query.backlogProgress.rows == 60 and query.mode is Mode.STREAM, query)
        finally:
            query.stop()
    assert query.exception() is None


def test_what_cannot_work_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "source", 0, 1)

    def build(ctx: bs.RunContext) -> Any:
        return spark.readStream.schema("n long").parquet(str(tmp_path / "source"))

    with pytest.raises(bs.SettingError, match=r"no rule .*Set a rule, such as spark\.backlog\.rule\.offsetsBehind"):
        bs.backlog_query(build, checkpoint=str(tmp_path / "c"), spark=spark, interval_during_backlog="1 min")
    with pytest.raises(bs.SettingError, match="is no function"):
        bs.backlog_query(build, checkpoint=str(tmp_path / "c"), spark=spark, backlog_when="late")  # type: ignore[arg-type]
    with pytest.raises(bs.SettingError, match="a query needs one"):
        bs.backlog_query(build, checkpoint="", spark=spark)
    with pytest.raises(bs.BacklogError, match=r"build returned DataFrame\. Return the DataStreamWriter"):
        bs.backlog_query(build, checkpoint=str(tmp_path / "c"), spark=spark)


@pytest.mark.slow
def test_a_failed_query_is_restarted_and_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source, target, checkpoint = tmp_path / "source", tmp_path / "target", tmp_path / "checkpoint"
    files(source, 0, 8)
    failures = iter([1, 4])
    fails_at = next(failures)

    def write(batch: DataFrame, batch_id: int) -> None:
        nonlocal fails_at
        if batch_id == fails_at:
            fails_at = next(failures, -1)
            raise OSError("the disk is full")
        writer = batch.write.format("delta").mode("append").option("txnAppId", "t").option("txnVersion", batch_id)
        writer.save(str(target))

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        limit = 1 if ctx.in_backlog else 2
        frame = spark.readStream.schema("n long").option("maxFilesPerTrigger", limit).parquet(str(source))
        return frame.writeStream.foreachBatch(write)

    with rules(spark, filesOutstanding="3"):
        query = bs.backlog_query(build, checkpoint=str(checkpoint), spark=spark, interval_during_backlog="1 min")
        try:
            wait(lambda: query.backlogProgress.rows == 8 * 20, query)
        finally:
            query.stop()
    assert query.backlogProgress.restarts == 2
    assert written(spark, target) == Counter(range(160))
    assert json.loads((checkpoint / "metadata").read_text())["id"] == query.id


@contextmanager
def followed(spark: SparkSession, root: Path) -> Iterator[bs.NativeQuery]:
    """A query of files with a rule on them, which are archived once they are read."""

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("delta").mode("append").save(str(root / "target"))
        for file in (root / "source").glob("*.parquet"):
            file.unlink()

    def build(ctx: bs.RunContext) -> DataStreamWriter:
        frame = spark.readStream.schema("n long").parquet(str(root / "source" / "*.parquet"))
        return frame.writeStream.foreachBatch(write)

    with rules(spark, filesOutstanding="10", minStay="0 s"):
        query = bs.backlog_query(
            build,
            checkpoint=str(root / "checkpoint"),
            spark=spark,
            name=root.name,
            interval="500 ms",
            interval_during_backlog="1 minute",
        )
    try:
        yield query
    finally:
        query.stop()


def test_files_that_are_archived_are_not_outstanding(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files(tmp_path / "source", 0, 3)
    with followed(spark, tmp_path) as query:
        wait(lambda: query.backlogProgress.rows == 60 and query.mode is Mode.STREAM, query)
        files(tmp_path / "source", 3, 1)
        wait(lambda: query.backlogProgress.rows == 80, query)
    assert query.exception() is None
    assert "could not be counted" not in caplog.text
    assert written(spark, tmp_path / "target") == Counter(range(80))


def test_a_failed_check_for_backlog_is_logged_once_and_the_query_continues(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[str] = []

    def fails(self: Outstanding, path: str, source: Any) -> tuple[int, int]:
        looks.append(path)
        raise RuntimeError("the store is away")

    monkeypatch.setattr(Outstanding, "_of_files", fails)
    files(tmp_path / "source", 0, 1)
    with followed(spark, tmp_path) as query:
        wait(lambda: query.backlogProgress.rows == 20 and query.mode is Mode.STREAM, query)
        files(tmp_path / "source", 1, 1)
        wait(lambda: query.backlogProgress.rows == 40 and len(looks) > 1, query)
    assert query.exception() is None
    assert len([m for m in caplog.messages if m.endswith("could not be counted: the store is away")]) == 1


def test_a_failure_of_the_runner_stops_the_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Judge, *given: Any) -> bool:
        raise RuntimeError("the runner's own")

    files(tmp_path / "source", 0, 1)
    with followed(spark, tmp_path) as query:
        wait(lambda: query.backlogProgress.rows == 20 and query.mode is Mode.STREAM, query)
        time.sleep(1)  # the run with the normal trigger, which does not end by itself
        monkeypatch.setattr(Judge, "take", fails)
        files(tmp_path / "source", 1, 1)
        with pytest.raises(RuntimeError, match="the runner's own"):
            query.awaitTermination(LIMIT_S)
        assert query.jobStatus is JobStatus.FAILED
        assert tmp_path.name not in [each.name for each in spark.streams.active]
