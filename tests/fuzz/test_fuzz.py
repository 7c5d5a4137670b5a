"""A few inputs of each kind; `make fuzz` takes millions."""

from __future__ import annotations

import pytest

from tests.fuzz.every import FOUND, KINDS
from tests.fuzz.kinds import ANY, Kind, Wrong
from tests.fuzz.running import run

PURE = [kind for kind in KINDS if kind.is_apart]


@pytest.mark.parametrize("kind", PURE, ids=[kind.name for kind in PURE])
def test_bad_input_is_refused(kind: Kind) -> None:
    try:
        result = run(kind, "sample", count=24)
    finally:
        kind.close()
    assert not result.faults
    assert result.inputs == result.accepted + result.refused == 24


def test_the_judge_finds_each_kind_of_fault() -> None:
    def judge(found: int, told: object) -> None:
        if found == 3:
            raise KeyError("not documented")
        if found == 5:
            raise Wrong("another value")
        if found == 7:
            while True:
                pass

    numbers = iter(range(1000))
    kind = Kind("numbers", lambda chance: (0, None), judge, lambda chance, a, b: next(numbers), deadline_s=0.2)
    result = run(kind, "x", count=12)
    assert sorted(fault.what.partition(":")[0] for fault in result.faults.values()) == ["KeyError", "Wrong", "_Hang"]
    assert (result.accepted, result.fault_count) == (9, 3)


def test_an_input_is_named_by_kind_seed_and_number() -> None:
    seen: list[int] = []
    kind = Kind(
        "chosen", lambda c: (c.randrange(10**9), ANY), lambda found, told: seen.append(found), lambda c, a, b: a + b
    )
    run(kind, "x", count=20)
    run(kind, "x", count=1, first=17)
    assert seen[-1] == seen[17]
    assert len({*seen[:20]}) > 5


def test_what_was_found_is_of_kinds_that_there_are() -> None:
    assert FOUND.keys() <= {kind.name for kind in KINDS}
