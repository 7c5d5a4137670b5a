"""Starts of keyed queries: in a second session, after failures, and with checkpoint paths that look like patterns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.native.phase_handoff import Handover
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spi import registry
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Same(bs.KeyedProcessFunction):
    """Emits the keys. A kind of function that may have timers."""

    output = "k long"

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[int]]:
        yield (row.k,)


def start(spark: SparkSession, root: Path, sink: bs.Sink) -> bs.BacklogQuery:
    stream = bs.source("scripted", name="s", path=root / "s").key_by("k").process(Same()).write("starts")
    return stream.option("checkpointLocation", str(root / "c")).to(sink).start(spark)


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))
    append(tmp_path / "s", pa.table({"k": [1]}), backlog=False)


@pytest.mark.slow
def test_each_session_of_an_application_has_the_sources(spark: SparkSession, tmp_path: Path) -> None:
    for number, session in enumerate((spark, spark.newSession())):
        sink, root = Collect(), tmp_path / str(number)
        append(root / "s", pa.table({"k": [number]}), backlog=False)
        query = start(session, root, sink)
        try:
            wait(lambda found=sink: found.batches != {}, query)  # type: ignore[misc]
        finally:
            query.stop()
        assert sink.newest(1) == {(number,): ()}


def test_a_start_that_fails_leaves_no_server_behind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(options: Any) -> None:
        raise bs.BacklogError("The server cannot be reached.", "Start it.")

    monkeypatch.setattr("tests.operators.scripted.inspect", refuses)
    before = [each.name for each in threading.enumerate()].count("backlog-control")
    with pytest.raises(bs.BacklogError, match="cannot be reached"):
        start(spark, tmp_path, Collect())
    assert [each.name for each in threading.enumerate()].count("backlog-control") <= before


@pytest.mark.parametrize("name", ["a[1]", "a{b,c}", "a*b", "a?b", "a\\b"])
def test_a_checkpoint_that_readers_would_take_for_a_pattern_is_refused(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    stream = bs.source("scripted", name="s", path=tmp_path / "s")
    sum_ = stream.key_by("k").count().write("starts").option("checkpointLocation", str(tmp_path / name))
    with pytest.raises(bs.SettingError, match=r"checkpointLocation = .*pattern") as told:
        sum_.to(Collect()).start(spark)
    sign = next(each for each in name if not each.isalnum())
    assert f"contains {sign}," in str(told.value)
    assert not (tmp_path / name).exists()


def test_keys_of_phases_are_read_from_any_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint, handover = Checkpoint(spark, str(tmp_path / "a[1]")), Handover("at", 1_000, ("k",))
    rows = spark.sql("SELECT id AS k, timestamp_seconds(id) AS at FROM range(1, 4)")
    reached = handover.take(checkpoint, 0, rows.where("k < 3"), None)
    assert [r.k for r in handover.without_known(spark, checkpoint, 1, rows, reached).collect()] == [3]
    # However late: a row is known by its key and its time, so a later change of a known key, or an older one, stays.
    others = spark.sql("SELECT 2L AS k, timestamp_seconds(at) AS at FROM VALUES (3), (1), (2), (100000) AS t (at)")
    kept = handover.without_known(spark, checkpoint, 1, others, reached).collect()
    assert sorted(r["at"].timestamp() for r in kept) == [1, 3, 100_000]
