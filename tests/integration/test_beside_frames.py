"""Sources with a backlog flag next to streaming DataFrames, whose batches Spark's trigger spaces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from backlog_spark.model.nodes import SourceSpec
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.spi import registry
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.api.streams import BacklogStream


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str | None]]:
    """The options that the runner adds to declared sources, at each start of a run."""
    seen: list[dict[str, str | None]] = []
    completed = SourceSpec.completed

    def spy(self: SourceSpec, more: Any) -> dict[str, str]:
        if more:
            seen.append({name: more[name] for name in ("interval", "intervalDuringBacklog")})
        return completed(self, more)

    monkeypatch.setattr(SourceSpec, "completed", spy)
    return seen


def both(spark: SparkSession, root: Path) -> BacklogStream:
    """Five rows of a source (four of them backlog, one per micro-batch), and one row of a file."""
    for n in range(5):
        append(root / "s", pa.table({"k": [n], "v": [n]}), backlog=n < 4)
    (root / "f").mkdir()
    pq.write_table(pa.table({"k": [9], "v": [9]}), root / "f" / "0.parquet")
    frame = spark.readStream.schema("k long, v long").parquet(str(root / "f"))
    return bs.source("scripted", name="s", path=root / "s").union(bs.stream(frame))


def run(
    spark: SparkSession, stream: BacklogStream, root: Path, keys: int, interval: str, during: object
) -> tuple[bs.BacklogQuery, Collect]:
    """A query that has committed all rows, and is stopped."""
    sink = Collect()
    writer = stream.write("both").trigger(processing_time=interval, interval_during_backlog=during)
    query = writer.option("checkpointLocation", str(root / "c")).to(sink).start(spark)
    try:
        wait(lambda: query.backlogProgress.rows == 6 and query.mode is Mode.STREAM, query)
    finally:
        query.stop()
    assert query.exception() is None
    assert sorted(sink.newest(keys)) == [(n,) for n in (0, 1, 2, 3, 4, 9)]
    return query, sink


def test_a_source_commits_once_in_backlog(spark: SparkSession, tmp_path: Path) -> None:
    query, _ = run(spark, both(spark, tmp_path), tmp_path, 1, "200 ms", 0)
    assert query.backlogProgress.commits_in_backlog == 1


@pytest.mark.parametrize(
    ("interval", "during", "expected"),
    [
        ("200 ms", "1 minute", "60000 ms"),
        # A batch that ends early seems to take until the tick: sized for no more than that, they would shrink.
        ("400 ms", "400 ms", "500 ms"),
        ("200 ms", None, None),
    ],
)
def test_a_source_sizes_its_batches_and_the_trigger_spaces_them(
    spark: SparkSession,
    tmp_path: Path,
    given: list[dict[str, str | None]],
    interval: str,
    during: str | None,
    expected: str | None,
) -> None:
    run(spark, both(spark, tmp_path), tmp_path, 1, interval, during)
    assert given == [{"interval": None, "intervalDuringBacklog": expected}]


@pytest.mark.grid
def test_keyed_operators_that_do_not_run_sorted(
    spark: SparkSession, tmp_path: Path, given: list[dict[str, str | None]]
) -> None:
    spark.conf.set("spark.backlog.sortedBatch.enabled", "false")
    try:
        run(spark, both(spark, tmp_path).key_by("k").sum("v"), tmp_path, 1, "200 ms", "1 minute")
    finally:
        spark.conf.unset("spark.backlog.sortedBatch.enabled")
    assert {"interval": None, "intervalDuringBacklog": "60000 ms"} in given
    assert all(options["intervalDuringBacklog"] == "60000 ms" for options in given)


def test_rules_without_effect_are_named(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of the rules in settings only the lag of the watermark counts beside a source's own flag."""
    append(tmp_path / "s", pa.table({"n": [1]}), backlog=False)
    stream = bs.source("scripted", name="s", path=tmp_path / "s")
    writer = stream.write("alone").option("checkpointLocation", str(tmp_path / "c")).to(Collect())
    rules = {"spark.backlog.rule.watermarkLag": "5 min", "spark.backlog.rule.busyRatio": "3"}
    with session_conf(spark, rules):
        writer.trigger(available_now=True).start(spark).awaitTermination()
    for name in rules:
        assert name in caplog.text.split("has no effect")[0], "the source has no watermark"
    with pytest.raises(bs.SettingError, match=r"backlog_when = .*has no effect.*interval_during_backlog"):
        writer.backlog_when(lambda report: None).start(spark)
    caplog.clear()
    timed = bs.source("scripted", name="s", path=tmp_path / "s").map("*", "current_timestamp() AS t")
    made = timed.with_watermark("t", "1 second").write("timed").option("checkpointLocation", str(tmp_path / "c2"))
    made = made.to(Collect()).trigger(available_now=True, interval_during_backlog="1 minute")
    with session_conf(spark, rules):
        made.start(spark).awaitTermination()
    assert "Query timed: spark.backlog.rule.busyRatio has no effect" in caplog.text
