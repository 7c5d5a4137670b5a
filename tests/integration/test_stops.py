"""Queries that are stopped through Spark, and two queries on one checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.runner.runs import QueryRuns
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm import stop_between_batches as boundaries
from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spi import registry
from backlog_spark.tools.inspection import inspected
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint
from tests.operators.conftest import Collect
from tests.operators.scripted import append

from .test_foreign import LIMIT_S, files, wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def start(spark: SparkSession, root: Path, name: str, checkpoint: str = "") -> bs.BacklogQuery:
    frame = spark.readStream.schema("n long").parquet(str(root / "in"))
    writer = bs.stream(frame).write(name).trigger(processing_time="200 ms")
    return writer.option("checkpointLocation", checkpoint or str(root / "checkpoint")).to(Collect()).start(spark)


def test_a_query_that_spark_was_told_to_stop_is_canceled(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "in", 0, 1)
    query = start(spark, tmp_path, "outside")
    wait(lambda: query.backlogProgress.rows == 20, query)
    next(each for each in spark.streams.active if each.name == "outside").stop()
    assert query.awaitTermination(LIMIT_S)
    assert (query.jobStatus, query.exception()) == (bs.JobStatus.CANCELED, None)


def test_a_checkpoint_has_one_query_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "in", 0, 1)
    first = start(spark, tmp_path, "first")
    try:
        wait(lambda: first.backlogProgress.rows == 20, first)
        again = f"file://{tmp_path}/checkpoint/"
        with pytest.raises(bs.SettingError, match=r"checkpointLocation = .*'first' is running on it\. Stop"):
            start(spark, tmp_path, "second", again)
        found = inspected(StoredCheckpoint(str(tmp_path / "checkpoint")))
        assert (found["query"], found["status"]) == ("first", "running")
        files(tmp_path / "in", 1, 1)
        wait(lambda: first.backlogProgress.rows == 40, first)
    finally:
        first.stop()
    second = start(spark, tmp_path, "second", again)
    try:
        files(tmp_path / "in", 2, 1)
        wait(lambda: second.backlogProgress.rows == 20, second)
    finally:
        second.stop()


def phases(spark: SparkSession, root: Path, *names: str) -> Any:
    def phase(name: str) -> Any:
        return lambda reader, ctx: reader.schema("n long").option("maxFilesPerTrigger", 1).parquet(str(root / name))

    return bs.hybrid(spark, "orders", phases={name: phase(name) for name in names})


@pytest.mark.parametrize("after", ["no batch", "a batch"])
def test_a_phase_that_spark_was_told_to_stop_is_not_over(spark: SparkSession, tmp_path: Path, after: str) -> None:
    """The query is stopped between two batches. The next start reads the rest of its files, then the next phase."""
    files(tmp_path / "old", 0, 4, rows=1)
    files(tmp_path / "live", 10, 2, rows=1)
    checkpoint = tmp_path / "checkpoint"
    found: list[int] = []

    def start(stops: Callable[[int], None]) -> bs.NativeQuery:
        def write(batch: DataFrame, number: int) -> None:
            found.extend(row.n for row in batch.collect())
            stops(number)

        return bs.backlog_query(
            lambda ctx: ctx.frame.writeStream.queryName("phases").foreachBatch(write),
            checkpoint=str(checkpoint), spark=spark, source=phases(spark, tmp_path, "old", "live"), interval="1 second",
        )  # fmt: skip

    def stop() -> None:
        for each in spark.streams.active:
            if each.name == "phases":
                each.stop()

    def once_committed(number: int) -> None:
        def run() -> None:
            while not (checkpoint / "commits" / str(number)).exists():
                time.sleep(0.0005)
            stop()

        if number == 1 and after == "a batch":
            threading.Thread(target=run).start()

    query = start(once_committed)
    if after == "no batch":
        stop()
    if is_usable("end between batches"):
        assert query.awaitTermination(LIMIT_S)
        assert (query.jobStatus, query.exception()) == (bs.JobStatus.CANCELED, None)
        assert len(found) < 4
    else:  # a stop through Spark is not told from an end: the phase is run again, or the query fails
        limit = time.monotonic() + LIMIT_S
        while query.isActive and len(set(found)) < 6:
            assert time.monotonic() < limit
            time.sleep(0.1)
        query.stop()
    query = start(lambda number: None)
    try:
        wait(lambda: len(set(found)) == 6, query)
    finally:
        query.stop()
    in_order = list(dict.fromkeys(found))  # of phases; files of one may be equally old
    assert (set(in_order[:4]), set(in_order[4:])) == ({0, 1, 2, 3}, {10, 11})


@pytest.mark.parametrize("kind", ["declared", "phases"])
def test_a_query_starts_though_its_first_entry_is_half_written(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Spark starts a checkpoint without entries only if its directories are empty; a crash leaves temporary files."""
    checkpoint = Checkpoint(spark, str(tmp_path / "checkpoint"))
    checkpoint.make_directory("offsets")
    checkpoint._files.createAtomic(checkpoint._path("offsets", "0"), False).write(
        b"v1"
    )  # never closed, as after a crash
    assert [name for name in checkpoint.names_in("offsets") if name.endswith(".tmp")]
    files(tmp_path / "in", 0, 1)
    query: bs.BacklogQuery | bs.NativeQuery
    if kind == "declared":
        query = start(spark, tmp_path, "unfinished")
    else:
        files(tmp_path / "live", 1, 1)
        query = bs.backlog_query(
            lambda ctx: ctx.frame.writeStream.queryName("unfinished").format("noop"),
            checkpoint=checkpoint.location, spark=spark, source=phases(spark, tmp_path, "in", "live"),
        )  # fmt: skip
    try:
        wait(lambda: query.backlogProgress.rows == 20, query)
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.parametrize("tells", [True, False])
def test_a_phase_is_over_only_if_spark_reports_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    """Another version of Spark may lack a field. Then the rest of the phase must not be skipped."""
    files(tmp_path / "old", 0, 2)
    files(tmp_path / "live", 10, 1)

    def gone(query: Any) -> Any:
        raise AttributeError("triggerExecutor")

    monkeypatch.setattr(boundaries, "_execution", gone)
    if not tells:
        monkeypatch.setattr(boundaries, "_last_poll_found_nothing", lambda query: None)
    read: list[int] = []
    checkpoint = tmp_path / "checkpoint"

    def start() -> bs.NativeQuery:
        return bs.backlog_query(
            lambda ctx: ctx.frame.writeStream.foreachBatch(lambda batch, number: read.append(batch.count())),
            checkpoint=str(checkpoint), spark=spark, source=phases(spark, tmp_path, "old", "live"),
        )  # fmt: skip

    query = start()
    if not tells:
        with pytest.raises(
            bs.BacklogError, match=r"Spark 4\.2\.0 does not have .* the end of its input.*Use Spark 4\.2"
        ):
            query.awaitTermination(LIMIT_S)
        assert not (checkpoint / "backlog" / "phases-1.json").exists()
        monkeypatch.undo()
        query = start()
    try:
        wait(lambda: sum(read) >= 60, query)
    finally:
        query.stop()
    assert sum(read) == 60


def test_a_refused_query_leaves_the_checkpoint_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "old", 0, 1)
    (tmp_path / "live").mkdir()
    read: list[int] = []

    def start(*names: str) -> bs.NativeQuery:
        return bs.backlog_query(
            lambda ctx: ctx.frame.writeStream.foreachBatch(lambda batch, number: read.append(batch.count())),
            checkpoint=str(tmp_path / "checkpoint"), spark=spark, source=phases(spark, tmp_path, *names),
        )  # fmt: skip

    for _ in range(2):
        query = start("old", "live")
        try:
            with pytest.raises(bs.SettingError, match="is running on it"):
                start("live", "old")
            wait(lambda: sum(read) == 20, query)
        finally:
            query.stop()


class FailsWhileItLeaves(Collect):
    """Fails once, in a batch after which the run should end."""

    def __init__(self) -> None:
        super().__init__()
        self.query: bs.BacklogQuery | None = None

    def write(self, batch_df: Any, batch: Any) -> None:
        if self.query is not None:
            self.query._leaving, self.query = True, None
            raise ValueError("the disk is full")
        super().write(batch_df, batch)


def test_an_error_of_the_sink_is_reported_even_while_the_run_ends(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files(tmp_path / "in", 0, 1)
    sink = FailsWhileItLeaves()
    frame = spark.readStream.schema("n long").parquet(str(tmp_path / "in"))
    writer = bs.stream(frame).write("leaving").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.to(sink).start(spark)
    try:
        wait(lambda: query.backlogProgress.rows == 20, query)
        sink.query = query
        files(tmp_path / "in", 1, 1)
        wait(lambda: query.backlogProgress.rows == 40, query)
        assert query.backlogProgress.restarts == 1
    finally:
        query.stop()
    assert "is restarted" in caplog.text
    assert "the disk is full" in caplog.text
    assert sorted(row.n for rows in sink.batches.values() for row in rows) == list(range(40))


@pytest.mark.grid
def test_all_available_rows_include_those_of_the_next_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner takes longer between two runs than `processAllAvailable` waits for new rows."""
    next_run = QueryRuns._next_run

    def slow(self: QueryRuns) -> BaseException | None:
        time.sleep(4)
        return next_run(self)

    monkeypatch.setattr(QueryRuns, "_next_run", slow)
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))
    for number in range(4):
        append(tmp_path / "script", pa.table({"k": [number % 2], "v": [1]}), backlog=number < 2)
    sink = Collect()
    keyed = (
        bs.source("scripted", name="s", path=tmp_path / "script").key_by("k").sum("v").write("sums")
        .trigger(processing_time="100 ms", interval_during_backlog=0)
        .option("checkpointLocation", str(tmp_path / "sums")).to(sink).start(spark)
    )  # fmt: skip
    try:
        keyed.processAllAvailable()
        assert sink.newest(1) == {(0,): (2,), (1,): (2,)}
    finally:
        keyed.stop()
    files(tmp_path / "old", 0, 2, rows=1)
    files(tmp_path / "live", 10, 2, rows=1)
    found: list[int] = []

    def write(batch: DataFrame, _: int) -> None:
        found.extend(row.n for row in batch.collect())

    in_phases = bs.backlog_query(
        lambda ctx: ctx.frame.writeStream.queryName("in_phases").foreachBatch(write),
        checkpoint=str(tmp_path / "phases"), spark=spark, source=phases(spark, tmp_path, "old", "live"),
        interval="1 second",
    )  # fmt: skip
    try:
        in_phases.processAllAvailable()
        assert len(found) == 4
    finally:
        in_phases.stop()
