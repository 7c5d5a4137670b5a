"""The runner uses the key groups' reports only after all groups have reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.model.nodes import KeyedNode
from backlog_spark.model.watermarks import END_OF_TIME, observation_name
from backlog_spark.runner.query_time import Timekeeper
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm import batch_execution
from backlog_spark.spark.jvm.py4j_helpers import java_class
from backlog_spark.state.store import NEVER
from backlog_spark.state.timer_reports import GroupReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = 4
START: dict[str, Any] = {"watermark": None, "now": None, "isBacklog": 0, "firing": None, "budget": None}


class Timers(bs.KeyedProcessFunction):
    output = "k long"
    interruptible_timers = True


class Kept:
    """A timekeeper whose checkpoint says that its source has been read up to second 5."""

    def __init__(self, spark: SparkSession, root: Path, *, max_firing_ms: int | None) -> None:
        (root / "backlog").mkdir(parents=True)
        (root / "commits").mkdir()
        (root / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
        (root / "backlog" / "event-time-0.json").write_text(json.dumps({"greatest": [5_000]}))
        stream = bs.source("hybrid", name="a").with_watermark("ts", "1 second").key_by("k").process(Timers(), name="op")
        node = stream._node
        assert isinstance(node, KeyedNode)
        schema = spark.createDataFrame([], "k long, ts timestamp").schema
        self.time = Timekeeper(
            spark, Checkpoint(spark, str(root)), node, GROUPS, mixed=False, max_firing_ms=max_firing_ms
        )
        self.time.begin({"op": node.bind(schema, GROUPS, True)}, [False], [False], sorted_run=False, tasks=2)
        self._batch = 0

    def report(self, *groups: int, watermark: int, **more: Any) -> None:
        """A batch has been written in which some key groups reported."""
        self.time.reports.add({("op", group): GroupReport(watermark, partition=group % 2, **more) for group in groups})
        self._batch += 1
        self.time.take(self._batch, "no query of this name", [False], [False], sorted_run=False)

    def told(self, start: dict[str, Any]) -> dict[str, Any]:
        return self.time._messages.answer("op", start, at_once=False)


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(spark, tmp_path / "checkpoint", max_firing_ms=1_000)
    yield kept
    kept.time.close()


def test_nothing_is_known_before_all_key_groups_have_answered(made: Kept) -> None:
    first = made.told(START)
    assert first["watermark"] == 4_000 - 1, "the newest time less the delay; what has that time itself may still come"
    # Three of four: the last one may have timers that are due now.
    made.report(0, 1, 2, watermark=first["watermark"], next_event=9_000, next_processing=NEVER)
    assert made.time._passed == {"op": None}
    asked = made.told(first)
    assert asked["now"] is not None, "the time is told until all have been asked"
    made.report(3, watermark=first["watermark"], next_event=NEVER, next_processing=NEVER)
    assert made.time._passed == {"op": first["watermark"]}
    assert made.told(asked) == asked, "nothing is due, and nothing is new"


def test_the_watermark_waits_while_one_group_fires(made: Kept) -> None:
    first = made.told(START)
    reached = first["watermark"]
    made.report(*range(GROUPS), watermark=reached, next_event=reached - 100, fired=10, seconds=0.1)
    again = made.told(first)
    assert (again["firing"], again["watermark"]) == (1, reached)
    assert again["budget"] is not None
    assert made.time._passed == {"op": None}, "not passed on"
    made.report(0, 1, 2, watermark=reached, fired=10, seconds=0.1)
    twice = made.told(again)
    assert twice["firing"] == 2, "one group is left"
    made.report(3, watermark=reached, fired=10, seconds=0.1)
    assert made.time._passed == {"op": reached}
    assert made.told(twice) == twice, "nothing is new"


def test_a_new_run_asks_all_again(spark: SparkSession, made: Kept) -> None:
    first = made.told(START)
    made.report(*range(GROUPS), watermark=first["watermark"])
    assert made.time._passed == {"op": first["watermark"]}
    made.time.begin(made.time._folds, [False], [False], sorted_run=False, tasks=2)
    assert made.time._passed == {"op": None}
    assert made.told(first)["now"] is not None


def test_the_end_has_come_when_all_have_fired_for_it(made: Kept) -> None:
    made.time._tell([False], [True])
    end = made.told(START)
    assert end["watermark"] == END_OF_TIME
    made.report(0, 1, watermark=END_OF_TIME)
    assert not made.time.has_ended
    made.report(2, 3, watermark=END_OF_TIME)
    assert made.time.has_ended


def test_without_interruption_no_budget_is_sent(spark: SparkSession, tmp_path: Path) -> None:
    kept = Kept(spark, tmp_path / "checkpoint", max_firing_ms=None)
    try:
        first = kept.told(START)
        assert first["budget"] is None
        kept.report(*range(GROUPS), watermark=first["watermark"], next_event=first["watermark"] - 1)
        # It fires all in that batch; what it left is of the next one.
        assert kept.told(first)["firing"] is None
    finally:
        kept.time.close()


def test_a_late_row_counts_once_whoever_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    orders = bs.source("hybrid", name="a").with_watermark("ts", "1 second")
    streams = [orders.key_by("k").process(Timers(), name=name) for name in ("one", "two")]
    some = orders.filter("k > 1").key_by("k").process(Timers(), name="three")
    both = streams[0].key_by("k").join(streams[1].key_by("k"), name="both")
    root = both.key_by("k").join(some.key_by("k"), name="last")._node
    (tmp_path / "backlog").mkdir()
    time = Timekeeper(spark, Checkpoint(spark, str(tmp_path)), root, GROUPS, mixed=False)
    # Only whether their rows are backlog is asked.
    fold: Any = SimpleNamespace(_attributes_of_output=lambda *inputs: inputs[0])
    folds = {node.name: fold for node in root.walk() if isinstance(node, KeyedNode)}
    time.begin(folds, [False] * 3, [False] * 3, sorted_run=False, tasks=2)
    for batch, late in enumerate([{"one": 3, "two": 2}, {"two": 2, "three": 1, "last": 1}, {}]):
        time.reports.add({(name, 0): GroupReport(0, late=count) for name, count in late.items()})
        time.take(batch, "no query of this name", [False] * 3, [False] * 3, sorted_run=False)
    assert time.late_rows == 3 + (2 + 1 + 1)


def test_an_input_that_spark_does_not_report_is_logged_and_the_others_count(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = (bs.source("hybrid", name=name).with_watermark(f"{name}_ts", "1 second") for name in "ab")
    root = a.union(b).key_by("k").process(Timers(), name="op")._node
    (tmp_path / "backlog").mkdir()
    made = Timekeeper(spark, Checkpoint(spark, str(tmp_path)), root, GROUPS, mixed=False)
    none = java_class(spark, "scala.Option").empty()

    class Execution:
        """A batch in which only the second input was observed."""

        def observedMetrics(self) -> Any:
            row = spark.range(1).selectExpr("9000L AS greatest")._jdf.first()
            return {observation_name(0): none, observation_name(1): java_class(spark, "scala.Some")(row)}

    monkeypatch.setattr(batch_execution, "_execution_of", lambda session, name: Execution())
    made.take(0, "orders", [False, False], [False, False], sorted_run=True)
    assert made._times.greatest == [None, 9_000]
    assert "Query orders: Spark does not report the greatest a_ts of batch 0." in caplog.text
    assert "b_ts" not in caplog.text
    # Nor where the query is not found: its rows have a time, of which nothing is known.
    monkeypatch.setattr(batch_execution, "_execution_of", lambda session, name: None)
    made.take(1, "orders", [False, False], [False, False], sorted_run=True)
    assert "greatest b_ts of batch 1" in caplog.text
