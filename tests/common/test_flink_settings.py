"""Flink's settings in a Spark configuration: none is dropped without a word."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.common.settings import is_read, parse_settings
from backlog_spark.errors import SettingError

BEFORE = ("", "spark.")
TIMERS = "spark.backlog.timers.interruptible.enabled"
WORD = st.text(string.ascii_lowercase, min_size=1, max_size=12)
AREAS = ("execution", "execution.checkpointing", "execution.checkpointing.unaligned", "execution.batch", "pipeline",
         "restart-strategy", "state.backend", "table.exec", "parallelism")  # fmt: skip


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(
    ("name", "text", "setting", "value"),
    [
        # FLIP-443, and the name that Flink has released
        ("execution.checkpointing.unaligned.splittable-timers.enabled", "true", TIMERS, "true"),
        ("execution.checkpointing.unaligned.interruptible-timers.enabled", "true", TIMERS, "true"),
        # FLIP-328
        ("pipeline.backlog.watermark-lag-threshold", "5 min", "spark.backlog.rule.watermarkLag", 300_000),
        ("pipeline.max-parallelism", "64", "spark.backlog.keyGroups", 64),
    ],
)
def test_names_that_stand_for_ours(before: str, name: str, text: str, setting: str, value: object) -> None:
    assert parse_settings({before + name: text})[setting] == value
    assert parse_settings({before + name: text, setting: text})[setting] == value
    with pytest.raises(SettingError, match=f"{name} = 'x y'"):
        parse_settings({before + name: "x y"})


def test_two_names_that_disagree() -> None:
    names = {"execution.checkpointing.unaligned.splittable-timers.enabled": "true", TIMERS: "false"}
    for pair in (names, dict(reversed(names.items()))):
        with pytest.raises(SettingError, match=r"contradicts .*enabled = .*Set spark\.backlog\.timers.* only"):
            parse_settings(pair)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("execution.checkpointing.mode", "EXACTLY_ONCE"),
        ("execution.checkpointing.max-concurrent-checkpoints", "1"),
        ("execution.checkpointing.unaligned.enabled", "false"),
        ("execution.runtime-mode", "STREAMING"),
        ("execution.checkpointing.interval", "30sec"),
        ("execution.checkpointing.interval-during-backlog", "PT30M"),
    ],
)
def test_values_that_are_so_anyway(name: str, text: str) -> None:
    assert parse_settings({name: text}) == parse_settings({f"spark.{name}": text}) == parse_settings({})


@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [
        ("execution.checkpointing.min-pause", "5 s", r"spark\.backlog\.interval"),
        ("execution.checkpointing.max-concurrent-checkpoints", "3", "batches follow one another"),
        ("execution.checkpointing.mode", "AT_LEAST_ONCE", "exactly once"),
        ("execution.checkpointing.timeout", "10 min", "spark.task.maxFailures"),
        ("execution.checkpointing.tolerable-failed-checkpoints", "3", "restart.maxAttempts"),
        ("execution.checkpointing.dir", "s3://lake/c", "checkpointLocation"),
        ("execution.checkpointing.unaligned.enabled", "true", "no barriers"),
        ("execution.checkpointing.unaligned.max-subtasks-per-channel-state-file", "5", "no barriers"),
        ("execution.runtime-mode", "BATCH", "interval during backlog to 0"),
        ("execution.buffer-timeout.interval", "100 ms", "processing_time"),
        ("execution.checkpointing.intervall", "5 s", r"Did you mean execution\.checkpointing\.interval\?"),
        ("execution.checkpointing.interval_during_backlog", "5 s", "Did you mean .*interval-during-backlog"),
        ("restart-strategy.type", "fixed-delay", "restart.delay"),
        ("state.backend.type", "rocksdb", "stateStore"),
        ("table.exec.mini-batch.enabled", "true", "processing_time"),
        ("parallelism.default", "4", "shuffle.partitions"),
    ],
)
def test_what_takes_the_place_of_the_others(name: str, text: str, instead: str) -> None:
    for before in BEFORE:
        with pytest.raises(SettingError, match=instead) as caught:
            parse_settings({before + name: text})
        assert (caught.value.setting, caught.value.value) == (before + name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [("pipeline.global-job-parameters", "db.password:correct-horse"), ("execution.my-secret", "correct-horse")],
)
def test_a_value_that_may_be_secret_is_not_shown(name: str, text: str) -> None:
    with pytest.raises(SettingError, match=r"= '\*\*\*': is a setting of Flink") as caught:
        parse_settings({name: text})
    assert "correct-horse" not in str(caught.value)


@given(st.sampled_from(AREAS), st.lists(WORD, min_size=1, max_size=3), st.sampled_from(BEFORE))
def test_no_name_of_these_areas_is_dropped(area: str, words: list[str], before: str) -> None:
    name = f"{before}{area}.{'.'.join(words)}"
    assert is_read(name)
    with pytest.raises(SettingError, match="is a setting of Flink") as caught:
        parse_settings({name: "1"})
    assert str(caught.value).rstrip().endswith(".")


@given(WORD, WORD)
def test_other_settings_are_left_alone(area: str, name: str) -> None:
    for key in (f"spark.sql.{area}.{name}", f"spark.executor.{name}", f"spark.sql.execution.{name}"):
        assert not is_read(key)
        parse_settings({key: "1"})
