"""Rounds of ``availableNow``: when a query enters one, when it leaves it, and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from backlog_spark.decide.available_now_runs import Round, after_round, first_round, leaves
from backlog_spark.decide.coordinator import Coordinator
from backlog_spark.decide.rules import Figures, Judge, Rule
from backlog_spark.decide.steps import Facts

ON = Facts(1_000, 60_000)
OFF = Facts(1_000, None)


def made(facts: Facts = ON, *, rule_holds: bool = False, has_rules: bool = True) -> Coordinator:
    judge = Judge([Rule("filesOutstanding", 100, 50)] if has_rules else ())
    judge.take(Figures({"filesOutstanding": 200 if rule_holds else 0}), 0)
    return Coordinator(facts, judge)


@pytest.mark.parametrize(
    ("coordinator", "is_bounded", "expected"),
    [
        (made(ON), False, True),
        (made(OFF), False, False),
        (made(ON, has_rules=False), False, False),
        (made(OFF), True, True),  # a phase with an end is read to it, whatever the intervals
    ],
)
def test_how_a_phase_begins(coordinator: Coordinator, is_bounded: bool, expected: bool) -> None:
    assert first_round(coordinator, is_bounded=is_bounded) is expected


def test_a_normal_run_ends_when_a_rule_holds() -> None:
    assert leaves(made(ON, rule_holds=True), in_round=False, limit=1, wanted=1)
    assert not leaves(made(ON, rule_holds=False), in_round=False, limit=1, wanted=100)
    assert not leaves(made(OFF, rule_holds=True), in_round=False, limit=1, wanted=1)


@pytest.mark.parametrize(("wanted", "expected"), [(51, False), (199, False), (50, True), (200, True)])
def test_a_round_ends_for_a_limit_that_is_worth_a_restart(wanted: int, expected: bool) -> None:
    assert leaves(made(ON, rule_holds=True), in_round=True, limit=100, wanted=wanted) is expected


def after(facts: Facts = ON, *, rule_holds: bool = False, **more: Any) -> Round:
    given = {
        "in_round": True, "left": False, "idle": False, "is_bounded": False, "next_is_bounded": False,
        "took_ms": 0.0, **more,
    }  # fmt: skip
    return after_round(made(facts, rule_holds=rule_holds), **given)


def test_what_follows() -> None:
    assert after() == Round(True)
    assert after(rule_holds=True) == Round(True, in_round=True)
    assert after(took_ms=10_001) == Round(True, in_round=True)  # much may have come meanwhile
    assert after(Facts(20_000, 60_000), took_ms=10_001) == Round(True)
    assert after(idle=True, rule_holds=True, took_ms=10_001) == Round(True, is_drained=True)
    assert after(left=True) == Round(True, in_round=True)
    assert after(in_round=False, left=True) == Round(True, in_round=True)
    assert after(in_round=False) == Round(False)


def test_phases() -> None:
    assert after(is_bounded=True, next_is_bounded=True) == Round(True, in_round=True, next_phase=True)
    assert after(is_bounded=True) == Round(True, in_round=True, next_phase=True)
    assert after(OFF, is_bounded=True) == Round(True, next_phase=True)
    assert after(is_bounded=True, left=True) == Round(True, in_round=True)
