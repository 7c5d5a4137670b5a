"""Spark's own readers as phases of files: a query's own state, and the rule for files."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from tests.operators.conftest import Collect

from .test_foreign import LIMIT_S, files, rules, wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def reads(path: Path, schema: str = "n long") -> Any:
    return lambda reader, ctx: reader.schema(schema).parquet(str(path))


def test_two_queries_of_one_declaration_know_nothing_of_each_other(spark: SparkSession, tmp_path: Path) -> None:
    asked: list[int | None] = []
    root = tmp_path / "2030"

    def old(reader: Any, ctx: bs.RunContext) -> DataFrame:
        return reader.schema("at timestamp").parquet(str(root / "old"))  # type: ignore[no-any-return]

    def live(reader: Any, ctx: bs.RunContext) -> DataFrame:
        asked.append(ctx.starting_timestamp)
        return reader.schema("at timestamp").parquet(str(root / "live"))  # type: ignore[no-any-return]

    declared = bs.hybrid(spark, "h", phases={"old": old, "live": live}, timestamp_column="at")
    for year in ("2030", "2020"):
        root = tmp_path / year
        for phase in ("old", "live"):
            spark.sql(f"SELECT timestamp'{year}-01-01 00:00:00Z' AS at").write.parquet(str(root / phase))
        query = bs.backlog_query(
            lambda ctx: ctx.frame.writeStream.format("noop"),
            checkpoint=str(root / "checkpoint"), spark=spark, name="reused", interval="300 ms", source=declared,
        )  # fmt: skip
        wait(lambda: query.backlogProgress.rows == 2, query)  # noqa: B023 - used before the next one
        query.stop()
    # None: the first start makes it once to see what it is.
    times = [dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp() * 1000 for year in (2030, 2020)]
    assert asked == [None, times[0], None, times[1]]


def test_files_that_the_last_phase_has_read_are_not_outstanding(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "old", 0, 2)
    files(tmp_path / "live", 2, 20)
    built: list[tuple[str, Mode]] = []

    def build(ctx: bs.RunContext) -> Any:
        built.append((ctx.phase, ctx.mode))
        return ctx.frame.writeStream.format("noop")

    with rules(spark, filesOutstanding="10", minStay="0 s"):
        query = bs.backlog_query(
            build, checkpoint=str(tmp_path / "checkpoint"), spark=spark, name="files", interval="300 ms",
            interval_during_backlog="1 minute",
            source=bs.hybrid(
                spark, "h", phases={"old": reads(tmp_path / "old"), "live": reads(tmp_path / "live")}
            ),
        )  # fmt: skip
    try:
        wait(lambda: query.backlogProgress.rows == 22 * 20 and built[-1] == ("live", Mode.STREAM), query)
        runs = len(built)
        for number in (22, 23):
            files(tmp_path / "live", number, 1)
            wait(lambda n=number: query.backlogProgress.rows == (n + 1) * 20, query)  # type: ignore[misc]
        assert query.mode is Mode.STREAM
        assert built[runs:] == []
    finally:
        query.stop()


def test_other_queries_start_while_a_phase_is_made(spark: SparkSession, tmp_path: Path) -> None:
    for number, folder in enumerate(("old", "live", "plain", "ours")):
        files(tmp_path / folder, number, 1)
    entered, go = threading.Event(), threading.Event()

    def old(reader: Any, ctx: bs.RunContext) -> DataFrame:
        made = reader.schema("n long").parquet(str(tmp_path / "old"))
        entered.set()
        assert go.wait(LIMIT_S)
        return made.where("n >= 0")  # type: ignore[no-any-return]

    with ThreadPoolExecutor(1) as thread:
        phases = {"old": old, "live": reads(tmp_path / "live")}
        started = thread.submit(
            lambda: bs.backlog_query(
                lambda ctx: ctx.frame.writeStream.format("noop"),
                checkpoint=str(tmp_path / "phases"), spark=spark, name="phases", interval="300 ms",
                source=bs.hybrid(spark, "h", phases=phases),
            )
        )  # fmt: skip
        try:
            assert entered.wait(LIMIT_S)
            frame = spark.readStream.schema("n long").parquet(str(tmp_path / "plain"))
            plain = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
            plain.processAllAvailable()
            plain.stop()
            ours = bs.stream(spark.readStream.schema("n long").parquet(str(tmp_path / "ours"))).key_by("n").count()
            sink = Collect()
            query = ours.write("ours").option("checkpointLocation", str(tmp_path / "k")).to(sink).start(spark)
            wait(lambda: query.backlogProgress.rows == 20, query)
            query.stop()
        finally:
            go.set()
        phased = started.result(LIMIT_S)
    wait(lambda: phased.backlogProgress.rows == 40, phased)
    phased.stop()
    assert (tmp_path / "c" / "offsets" / "0").read_text().startswith("v1\n")
    assert (tmp_path / "phases" / "offsets" / "0").read_text().startswith("v2\n")


def test_a_phase_that_finds_no_file_ends_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """A misspelt pattern must not count as an empty history, as it does in Spark."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new/a.json").write_text('{"n": 1}\n')

    def run(allow_empty: bool, old: Any) -> bs.NativeQuery:
        source = bs.hybrid(
            spark, "orders", allow_empty=allow_empty,
            phases={"old": old, "new": lambda reader, ctx: reader.schema("n long").json(str(tmp_path / "new"))},
        )  # fmt: skip

        def build(ctx: bs.RunContext) -> DataStreamWriter:
            return ctx.frame.writeStream.format("parquet").option("path", str(tmp_path / "target"))

        return bs.backlog_query(build, checkpoint=str(tmp_path / "checkpoint"), spark=spark, source=source)

    by_format = "file:" + str(tmp_path / "old/*.csv")
    old: Any
    for old in (
        lambda reader, ctx: reader.schema("n long").json(str(tmp_path / "old/*.json")),
        lambda reader, ctx: reader.schema("n long").format("csv").load(by_format),
        lambda reader, ctx: reader.schema("n long").load(str(tmp_path / "old")),
    ):
        with pytest.raises(bs.BacklogError, match=r"phase old of orders has found no file to read\..*allow_empty=True"):
            run(False, old).awaitTermination(300)
    assert not list((tmp_path / "target").glob("*.parquet"))
    query = run(True, old)
    try:
        wait(lambda: query.backlogProgress.rows == 1, query)
    finally:
        query.stop()
    assert [row.n for row in spark.read.parquet(str(tmp_path / "target")).collect()] == [1]
