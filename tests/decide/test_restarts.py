"""Restarts after failures."""

from __future__ import annotations

from backlog_spark.decide.restarts import RestartPolicy


def test_pauses_double_up_to_a_minute() -> None:
    policy = RestartPolicy(max_attempts=8, delay_ms=1_000)
    assert [policy.wait_ms(n) for n in range(1, 10)] == [
        1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, None,
    ]  # fmt: skip
    assert RestartPolicy(0, 1_000).wait_ms(1) is None


def test_a_commit_begins_the_count_anew() -> None:
    policy = RestartPolicy(3, 1_000)
    assert policy.attempt_after(2, has_committed=False) == 3
    assert policy.attempt_after(3, has_committed=True) == 1
