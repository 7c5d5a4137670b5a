"""Rounds of ``availableNow``: when a query enters one, when it leaves it, and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from backlog_spark.decide.rounds import Round, RoundFacts, after_round, first_round, leaves

ON = RoundFacts(1_000, 60_000, has_rules=True)
OFF = RoundFacts(1_000, None, has_rules=True)


@pytest.mark.parametrize(
    ("facts", "is_bounded", "expected"),
    [
        (ON, False, True),
        (OFF, False, False),
        (RoundFacts(1_000, 60_000, has_rules=False), False, False),
        (OFF, True, True),  # a phase with an end is read to it, whatever the intervals
    ],
)
def test_how_a_phase_begins(facts: RoundFacts, is_bounded: bool, expected: bool) -> None:
    assert first_round(facts, is_bounded=is_bounded) is expected


def test_a_normal_run_ends_when_a_rule_holds() -> None:
    assert leaves(ON, in_round=False, rule_holds=True, limit=1, wanted=1)
    assert not leaves(ON, in_round=False, rule_holds=False, limit=1, wanted=100)
    assert not leaves(OFF, in_round=False, rule_holds=True, limit=1, wanted=1)


@pytest.mark.parametrize(("wanted", "expected"), [(51, False), (199, False), (50, True), (200, True)])
def test_a_round_ends_for_a_limit_that_is_worth_a_restart(wanted: int, expected: bool) -> None:
    assert leaves(ON, in_round=True, rule_holds=True, limit=100, wanted=wanted) is expected


def after(facts: RoundFacts = ON, **more: Any) -> Round:
    given = {
        "in_round": True, "left": False, "idle": False, "is_bounded": False, "next_is_bounded": False,
        "rule_holds": False, "took_ms": 0.0, **more,
    }  # fmt: skip
    return after_round(facts, **given)


def test_what_follows() -> None:
    assert after() == Round(True)
    assert after(rule_holds=True) == Round(True, in_round=True)
    assert after(took_ms=10_001) == Round(True, in_round=True)  # much may have come meanwhile
    assert after(RoundFacts(20_000, 60_000, True), took_ms=10_001) == Round(True)
    assert after(idle=True, rule_holds=True, took_ms=10_001) == Round(True, is_drained=True)
    assert after(left=True) == Round(True, in_round=True)
    assert after(in_round=False, left=True) == Round(True, in_round=True)
    assert after(in_round=False) == Round(False)


def test_phases() -> None:
    assert after(is_bounded=True, next_is_bounded=True) == Round(True, in_round=True, next_phase=True)
    assert after(is_bounded=True) == Round(True, in_round=True, next_phase=True)
    assert after(OFF, is_bounded=True) == Round(True, next_phase=True)
    assert after(is_bounded=True, left=True) == Round(True, in_round=True)
