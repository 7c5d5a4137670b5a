"""The grid's cells, rules and page, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .actions import Plan, Rule
from .cells import FAULTS, PHASES, SOURCES, Cell, cells_of, excluded, runs
from .operators import OPERATORS
from .results import page

PROOF = Path(__file__).parents[3] / "docs" / "proof"


def test_each_cell_is_in_one_run() -> None:
    every = [Cell(s, o, f, p) for s in SOURCES for o in OPERATORS for f in FAULTS for p in PHASES]
    there = [cell for run in runs() for cell in cells_of(run)]
    assert sorted(there) == sorted(cell for cell in every if not excluded(cell))
    names = [run.name for run in runs()]
    assert len(set(names)) == len(names)


def test_the_page_has_the_figures() -> None:
    assert (PROOF / "faults.md").read_text() == page(json.loads((PROOF / "faults.json").read_text())), "make faults"


@pytest.mark.parametrize(
    ("points", "log", "is_due"),
    [
        (("a",), ["a"], True),
        (("a",), ["a", "b"], False),
        (("a", "b"), ["b"], False),
        (("a", "b"), ["a", "c", "b"], True),
        (("a", "a"), ["a"], False),
        (("a|b", "c"), ["b", "c"], True),
    ],
)
def test_a_rule_waits_for_its_points(points: tuple[str, ...], log: list[str], is_due: bool) -> None:
    assert Rule(points, "fail").is_due(log) is is_due


def test_a_rule_counts_from_when_it_was_added_and_happens_once(tmp_path: Path) -> None:
    plan = Plan(tmp_path)
    assert plan.take("live") == []
    plan.begin(1, tmp_path)
    assert plan.take("live") == []
    once, always = plan.add(Rule(("live",), "fail")), plan.add(Rule(("live",), "free", always=True))
    assert plan.take("run") == []
    assert plan.take("live") == [(once, "fail"), (always, "free")]
    assert plan.take("live") == [(always, "free")]
    assert plan.has_happened(once)
    assert plan.log() == ["live", "run", "live", "live"]
