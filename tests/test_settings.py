"""The settings registry, and which interval wins."""

from __future__ import annotations

from datetime import timedelta

import pytest

from backlog_spark.errors import SettingError
from backlog_spark.settings import (
    SETTINGS,
    Intervals,
    parse_settings,
    resolve_intervals,
    settings_table,
)


def test_defaults() -> None:
    assert parse_settings({"spark.sql.shuffle.partitions": "4"}) == {
        "spark.backlog.interval": None,
        "spark.backlog.intervalDuringBacklog": None,
        "spark.backlog.restart.maxAttempts": 3,
        "spark.backlog.restart.delay": 1_000,
        "spark.backlog.keyGroups": None,
        "spark.backlog.sortedBatch.enabled": "false",
        "spark.backlog.fastPythonStart": "true",
        "spark.backlog.progress": "auto",
    }


def test_parsed_settings() -> None:
    values = parse_settings(
        {
            "spark.backlog.interval": "30sec",
            "spark.backlog.intervalDuringBacklog": "0",
            "spark.backlog.restart.maxAttempts": "1000",
            "spark.backlog.restart.delay": "1 min",
            "spark.backlog.keyGroups": "32768",
            "spark.backlog.sortedBatch.enabled": "TRUE",
            "spark.backlog.fastPythonStart": "False",
            "spark.backlog.progress": "OFF",
        }
    )
    assert list(values.values()) == [30_000, 0, 1000, 60_000, 32_768, "true", "false", "off"]
    assert list(values) == list(SETTINGS)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("spark.backlog.restart.maxAttempts", "1001", "from 0 to 1000"),
        ("spark.backlog.restart.maxAttempts", "-1", "from 0 to 1000"),
        ("spark.backlog.restart.maxAttempts", "three", "whole number"),
        ("spark.backlog.restart.delay", "61 s", "at most 1 min"),
        ("spark.backlog.restart.delay", "5", "has no unit"),
        ("spark.backlog.keyGroups", "0", "from 1 to 32768"),
        ("spark.backlog.sortedBatch.enabled", "yes", "true, false"),
        ("spark.backlog.progress", "yes", "auto, on, off"),
        ("spark.backlog.intervalduringBacklog", "0", r"Did you mean spark\.backlog\.intervalDuringBacklog\?"),
        ("spark.backlog.restart.maxAttempt", "1", r"Did you mean spark\.backlog\.restart\.maxAttempts\?"),
        ("spark.backlog.intervall", "1 s", r"Did you mean spark\.backlog\.interval\?"),
        ("spark.backlog.zzz", "1", r"Known settings: spark\.backlog\.interval, "),
    ],
)
def test_refused_setting(key: str, value: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem) as caught:
        parse_settings({key: value})
    assert key in str(caught.value)


def test_table_has_every_setting_with_its_default() -> None:
    lines = settings_table().splitlines()
    assert len(lines) == 2 + len(SETTINGS)
    assert all(line.count("|") == 7 for line in lines)
    assert "| `spark.backlog.restart.delay` | duration | 1 s |" in settings_table()
    assert "| `spark.backlog.intervalDuringBacklog` | duration | unset |" in settings_table()


def test_every_default_is_what_its_text_parses_to() -> None:
    for setting in SETTINGS.values():
        if setting.default is not None:
            assert setting.parse(setting.default_text) == setting.default


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
