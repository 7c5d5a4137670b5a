"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.common.durations import format_duration, parse_duration
from backlog_spark.errors import SettingError


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
        ("PT30S", 30_000),
        ("pt1h30m", 5_400_000),
        ("P1DT2H3M4.005S", 93_784_005),
        ("PT0,5S", 500),
        (" P2W ", 1_209_600_000),
        ("+PT1M", 60_000),
        ("PT0S", 0),
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
        ("-PT5S", "negative"),
        ("PT0.0005S", "whole number of milliseconds"),
        ("PT", "is not a duration"),
        ("P", "is not a duration"),
        ("P1DT", "is not a duration"),
        ("P1M", "is not a duration"),
        ("PT30", "is not a duration"),
        ("PT1S2M", "is not a duration"),
        ("PT1.5M", "is not a duration"),
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


def test_refused_number_names_the_forms() -> None:
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
