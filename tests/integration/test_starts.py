"""Starts of keyed queries: in a second session, ones that fail, and checkpoints with names that are patterns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
import connectors
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Same(bs.KeyedProcessFunction):
    """Gives the keys; of the kind that may have timers."""

    output = "k long"

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[int]]:
        yield (row.k,)


def start(spark: SparkSession, root: Path, sink: bs.Sink) -> bs.BacklogQuery:
    stream = bs.source("scripted", name="s", path=root / "s").key_by("k").process(Same()).write("starts")
    return stream.option("checkpointLocation", str(root / "c")).to(sink).start(spark)


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(connectors.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))
    append(tmp_path / "s", pa.table({"k": [1]}), backlog=False)


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
