"""Which interval wins, and the rule between the two."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from backlog_spark.common.intervals import Intervals, resolve_intervals
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.errors import SettingError
from backlog_spark.spark.jvm.session import own_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {"spark.backlog.interval": "20 s", "spark.backlog.intervalDuringBacklog": "20 min"}
ORDERS = ("orders", {"interval": "30 s", "intervalDuringBacklog": "30 min", "table": "shop.orders"})


@pytest.mark.parametrize(
    ("builder", "conf", "sources", "expected"),
    [
        ({}, {}, [], Intervals(0, None, "default", "default")),
        ({"interval": None}, {}, [("a", {})], Intervals(0, None, "default", "default")),
        (
            {"interval": "10 s", "interval_during_backlog": timedelta(minutes=10)},
            CONF,
            [ORDERS],
            Intervals(10_000, 600_000, "trigger(processing_time=…)", "trigger(interval_during_backlog=…)"),
        ),
        (
            {"interval": "10 s"},
            CONF,
            [ORDERS],
            Intervals(10_000, 1_200_000, "trigger(processing_time=…)", "spark.backlog.intervalDuringBacklog"),
        ),
        (
            {},
            CONF,
            [ORDERS],
            Intervals(20_000, 1_200_000, "spark.backlog.interval", "spark.backlog.intervalDuringBacklog"),
        ),
        (
            {"interval_during_backlog": 0},
            {},
            [ORDERS],
            Intervals(30_000, 0, "option interval of source orders", "trigger(interval_during_backlog=…)"),
        ),
        (
            {},
            {},
            [("a", {"INTERVAL": "1 s"}), ("b", {"intervalduringbacklog": "1 s"})],
            Intervals(1_000, 1_000, "option INTERVAL of source a", "option intervalduringbacklog of source b"),
        ),
        # Written differently, the same duration.
        (
            {},
            {},
            [("a", {"interval": "60 s"}), ("b", {"interval": "1 min"})],
            Intervals(60_000, None, "option interval of source a", "default"),
        ),
        # Two sources disagree, but the configuration decides.
        (
            {},
            {"spark.backlog.interval": "5 s"},
            [("a", {"interval": "1 s"}), ("b", {"interval": "2 s"})],
            Intervals(5_000, None, "spark.backlog.interval", "default"),
        ),
    ],
)
def test_strength(
    builder: dict[str, object],
    conf: dict[str, str],
    sources: list[tuple[str, dict[str, str]]],
    expected: Intervals,
) -> None:
    assert resolve_intervals(builder, conf, sources) == expected


FLINK = {"execution.checkpointing.interval": "30sec", "execution.checkpointing.interval-during-backlog": "PT30M"}


@pytest.mark.parametrize("prefix", ["", "spark."])
def test_names_of_flink(prefix: str) -> None:
    """As in FLIP-309's example; spark-submit takes only names that begin with ``spark.``."""
    conf = {prefix + name: text for name, text in FLINK.items()}
    assert resolve_intervals({}, conf, [ORDERS]) == Intervals(30_000, 1_800_000, *conf)
    of_source = resolve_intervals({}, {}, [("a", {name.upper(): text for name, text in FLINK.items()})])
    assert (of_source.interval_ms, of_source.during_backlog_ms) == (30_000, 1_800_000)
    # Both names may be there if they say the same.
    assert resolve_intervals({}, {**conf, "spark.backlog.interval": "PT30S"}, []).interval_ms == 30_000


@pytest.mark.parametrize("builder", [{}, {"interval": "1 s", "interval_during_backlog": 0}])
def test_two_names_that_disagree(builder: dict[str, object]) -> None:
    conf = {**FLINK, "spark.backlog.intervalDuringBacklog": "20 min"}
    with pytest.raises(
        SettingError, match=r"during-backlog = 'PT30M': contradicts spark\.backlog\.\w+ = '20 min'\. Set"
    ):
        resolve_intervals(builder, conf, [])
    options = {"interval": "30 s", "execution.checkpointing.interval": "31 s"}
    message = r"option execution\.checkpointing\.interval of source a = '31 s': contradicts option interval of source a"
    with pytest.raises(SettingError, match=message):
        resolve_intervals(builder, {}, [("a", options)])


def test_sources_that_disagree() -> None:
    with pytest.raises(SettingError) as caught:
        resolve_intervals({}, {}, [("orders", {"interval": "1 s"}), ("users", {"Interval": "2 s"})])
    text = str(caught.value)
    assert "option interval of source orders = '1 s'" in text
    assert "option Interval of source users = '2 s'" in text
    assert "spark.backlog.interval" in text


def test_a_malformed_value_is_refused_even_if_overruled() -> None:
    with pytest.raises(SettingError, match="option interval of source orders = '10'"):
        resolve_intervals({"interval": "1 s"}, {}, [("orders", {"interval": "10"})])


@pytest.mark.parametrize(
    ("builder", "conf", "sources", "parts"),
    [
        (
            {"interval_during_backlog": "10 seconds"},
            {"spark.backlog.interval": "30 seconds"},
            [],
            ["trigger(interval_during_backlog=…)", "'10 seconds'", "spark.backlog.interval", "'30 seconds'"],
        ),
        (
            {"interval": timedelta(minutes=1)},
            {},
            [("orders", {"intervalDuringBacklog": "59 s"})],
            [
                "option intervalDuringBacklog of source orders",
                "'59 s'",
                "trigger(processing_time=…)",
                "seconds=60",
            ],
        ),
        (
            {},
            {"spark.backlog.interval": "1001 ms", "spark.backlog.intervalDuringBacklog": "1 s"},
            [],
            ["spark.backlog.intervalDuringBacklog", "'1 s'", "spark.backlog.interval =", "'1001 ms'"],
        ),
    ],
)
def test_interval_during_backlog_below_the_interval_names_both(
    builder: dict[str, object],
    conf: dict[str, str],
    sources: list[tuple[str, dict[str, str]]],
    parts: list[str],
) -> None:
    with pytest.raises(SettingError) as caught:
        resolve_intervals(builder, conf, sources)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(("interval", "during"), [("30 s", "30 s"), ("30 s", "0"), ("0", "0"), ("0", "1 ms")])
def test_interval_during_backlog_zero_or_at_least_the_interval(interval: str, during: str) -> None:
    resolve_intervals({"interval": interval, "interval_during_backlog": during}, {}, [])


def test_connectors_take_them_too() -> None:
    """Also in a plain ``readStream``, where no query completes the options."""
    hybrid = HybridOptions.parse({"path": "/lake/orders", **FLINK})
    mysql = MySqlOptions.parse({"host": "db", "user": "reader", "table": "shop.orders", **FLINK})
    for found in (hybrid, mysql):
        assert (found.interval_ms, found.during_backlog_ms) == (30_000, 1_800_000)
    unset = HybridOptions.parse({"path": "/lake/orders"})
    assert (unset.interval_ms, unset.during_backlog_ms) == (None, None)


@pytest.mark.parametrize("name", [*FLINK, "intervalDuringBacklog"])
def test_a_query_has_a_trigger_for_them(name: str) -> None:
    writer = bs.source("hybrid", name="orders").write("orders")
    with pytest.raises(SettingError, match=r"is an option of sources.*Write \.trigger\(processing_time='30 seconds'"):
        writer.option(name, "30 s")


def test_the_session_is_asked_for_them(spark: SparkSession) -> None:
    names = ["spark.backlog.interval", "execution.checkpointing.interval", f"spark.{[*FLINK][1]}"]
    try:
        for number, name in enumerate(names):
            spark.conf.set(name, f"{number} s")
        assert {name: text for name, text in own_conf(spark).items() if "interval" in name} == {
            name: f"{number} s" for number, name in enumerate(names)
        }
    finally:
        for name in names:
            spark.conf.unset(name)


def test_a_setting_of_flink_without_effect_is_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    stream = bs.stream(spark.readStream.format("rate").load()).write("refused").to(bs.DeltaAppend(str(tmp_path / "t")))
    spark.conf.set("spark.execution.checkpointing.min-pause", "5 s")
    try:
        with pytest.raises(SettingError, match=r"min-pause = '5 s': is a setting of Flink.*Set the interval"):
            stream.option("checkpointLocation", str(tmp_path / "c")).start(spark)
    finally:
        spark.conf.unset("spark.execution.checkpointing.min-pause")
