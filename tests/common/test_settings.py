"""The settings registry."""

from __future__ import annotations

import pytest

from backlog_spark.common.settings import SETTINGS, parse_settings, settings_table
from backlog_spark.errors import SettingError


def test_defaults() -> None:
    assert parse_settings({"spark.sql.shuffle.partitions": "4"}) == {
        "spark.backlog.interval": None,
        "spark.backlog.intervalDuringBacklog": None,
        "spark.backlog.restart.maxAttempts": 3,
        "spark.backlog.restart.delay": 1_000,
        "spark.backlog.keyGroups": None,
        "spark.backlog.sortedBatch.enabled": "false",
        "spark.backlog.timers.interruptible.enabled": "false",
        "spark.backlog.timers.maxFiringTime": None,
        "spark.backlog.fastPythonStart": "true",
        "spark.backlog.eventLog": "on",
        "spark.backlog.metrics.port": None,
        "spark.backlog.metrics.host": "127.0.0.1",
        "spark.backlog.progress": "auto",
        "spark.backlog.rule.offsetsBehindLatest": None,
        "spark.backlog.rule.offsetsBehindLatest.leave": None,
        "spark.backlog.rule.filesOutstanding": None,
        "spark.backlog.rule.filesOutstanding.leave": None,
        "spark.backlog.rule.bytesOutstanding": None,
        "spark.backlog.rule.bytesOutstanding.leave": None,
        "spark.backlog.rule.watermarkLag": None,
        "spark.backlog.rule.watermarkLag.leave": None,
        "spark.backlog.rule.busyRatio": None,
        "spark.backlog.rule.busyRatio.leave": None,
        "spark.backlog.rule.minStay": 60_000,
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
            "spark.backlog.timers.interruptible.enabled": "True",
            "spark.backlog.timers.maxFiringTime": "2 s",
            "spark.backlog.fastPythonStart": "False",
            "spark.backlog.eventLog": "Off",
            "spark.backlog.metrics.port": "9400",
            "spark.backlog.metrics.host": " 0.0.0.0 ",
            "spark.backlog.progress": "OFF",
            "spark.backlog.rule.offsetsBehindLatest": "1000000",
            "spark.backlog.rule.bytesOutstanding": "10 GB",
            "spark.backlog.rule.bytesOutstanding.leave": "512m",
            "spark.backlog.rule.watermarkLag": "1 h",
            "spark.backlog.rule.busyRatio": "1.5",
            "spark.backlog.rule.minStay": "0 s",
        }
    )
    assert [v for v in values.values() if v is not None] == [
        30_000, 0, 1000, 60_000, 32_768, "true", "true", 2_000, "false", "off", 9_400, "0.0.0.0", "off",
        1_000_000, 10 * 2**30, 2**29, 3_600_000, 1.5, 0,
    ]  # fmt: skip
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
        ("spark.backlog.rule.bytesOutstanding", "10 gigabytes", "not a size"),
        ("spark.backlog.rule.busyRatio", "often", "a number from 0.1 to 1000"),
        ("spark.backlog.rule.busyRatio", "0", "from 0.1 to 1000"),
        ("spark.backlog.rule.watermarkLag", "60", "has no unit"),
        ("spark.backlog.rule.fileOutstanding", "1", r"Did you mean spark\.backlog\.rule\.filesOutstanding\?"),
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


def test_what_somebody_takes_for_a_password_is_not_shown() -> None:
    with pytest.raises(SettingError, match="no such setting") as caught:
        parse_settings({"spark.backlog.mysql.password": "hunter2"})
    assert "hunter2" not in f"{caught.value}{caught.value!r}{vars(caught.value)}"


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
