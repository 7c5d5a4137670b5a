"""Durations, the settings registry, and which interval wins."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.errors import SettingError
from backlog_spark.settings import (
    SETTINGS,
    Intervals,
    format_duration,
    parse_duration,
    parse_settings,
    resolve_intervals,
    settings_table,
)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("30 seconds", 30_000),
        ("1 second", 1_000),
        ("30s", 30_000),
        ("30sec", 30_000),
        ("10 min", 600_000),
        ("30min", 1_800_000),
        ("5m", 300_000),
        ("500 ms", 500),
        ("1 minute 30 seconds", 90_000),
        ("1min30s", 90_000),
        ("1h", 3_600_000),
        ("2 days", 172_800_000),
        ("1 week", 604_800_000),
        ("1.5 s", 1_500),
        ("2000 us", 2),
        (" 10 SECONDS ", 10_000),
        ("0", 0),
        ("0 seconds", 0),
        (0, 0),
        (0.0, 0),
        (timedelta(minutes=2, milliseconds=1), 120_001),
        (timedelta(0), 0),
    ],
)
def test_duration(value: str | int | float | timedelta, ms: int) -> None:
    assert parse_duration(value, "interval") == ms


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("30", "has no unit"),
        (30, "has no unit"),
        (1.5, "has no unit"),
        ("1 minute 30", "has no unit"),
        ("-5 seconds", "negative"),
        ("1 minute -5 seconds", "negative"),
        (timedelta(seconds=-1), "negative"),
        ("0.5 ms", "whole number of milliseconds"),
        ("500 us", "whole number of milliseconds"),
        (timedelta(microseconds=1), "whole number of milliseconds"),
        ("3 months", "unknown unit 'months'"),
        ("soon", "is not a duration"),
        ("10 s!", "is not a duration"),
        ("", "is empty"),
        ("  ", "is empty"),
        (True, "is not a duration"),
        (float("nan"), "has no unit"),
        ([], "but a list"),
    ],
)
def test_refused_duration(value: object, problem: str) -> None:
    with pytest.raises(SettingError, match=problem) as caught:
        parse_duration(value, "spark.backlog.interval")  # type: ignore[arg-type]
    assert caught.value.setting == "spark.backlog.interval"
    assert caught.value.value is value


def test_refused_number_tells_the_forms() -> None:
    with pytest.raises(SettingError, match=r"'500 ms', '30 seconds', '10 min', '1h'"):
        parse_duration("30", "interval")


@given(st.integers(min_value=0, max_value=10**12))
def test_formatted_duration_reads_back(ms: int) -> None:
    assert parse_duration(format_duration(ms), "interval") == ms


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10_000)))
def test_timedelta_is_taken_exactly_or_refused(value: timedelta) -> None:
    micros = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    if micros % 1000:
        with pytest.raises(SettingError):
            parse_duration(value, "interval")
    else:
        assert parse_duration(value, "interval") == micros // 1000


def test_defaults() -> None:
    assert parse_settings({"spark.sql.shuffle.partitions": "4"}) == {
        "spark.backlog.interval": None,
        "spark.backlog.intervalDuringBacklog": None,
        "spark.backlog.restart.maxAttempts": 3,
        "spark.backlog.restart.delay": 1_000,
        "spark.backlog.progress": "auto",
    }


def test_parsed_settings() -> None:
    values = parse_settings(
        {
            "spark.backlog.interval": "30sec",
            "spark.backlog.intervalDuringBacklog": "0",
            "spark.backlog.restart.maxAttempts": "1000",
            "spark.backlog.restart.delay": "1 min",
            "spark.backlog.progress": "OFF",
        }
    )
    assert list(values.values()) == [30_000, 0, 1000, 60_000, "off"]
    assert list(values) == list(SETTINGS)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("spark.backlog.restart.maxAttempts", "1001", "from 0 to 1000"),
        ("spark.backlog.restart.maxAttempts", "-1", "from 0 to 1000"),
        ("spark.backlog.restart.maxAttempts", "three", "whole number"),
        ("spark.backlog.restart.delay", "61 s", "at most 1 min"),
        ("spark.backlog.restart.delay", "5", "has no unit"),
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
