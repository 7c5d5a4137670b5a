"""Two drivers on one checkpoint in every order of their steps, and three in many: `tests.spark.interleavings`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from backlog_spark.errors import BacklogError
from backlog_spark.spark.checkpoint.driver_claim import DriverClaim, NewerDriver

from .driver_program import Program
from .interleavings import Broken, Driver, Rules, State, check_quiet, explored, steps_of

# On HDFS an entry of Spark's logs is looked for and written in one step. There a driver may be paused anywhere. On a
# local disk and on S3 it takes two, and the newer driver waits until the older one has ended.
HDFS = Rules(Program(is_atomic=True), can_pause=True)
DISK = Rules(Program(is_atomic=False), can_pause=False)


@pytest.mark.parametrize("rules", [HDFS, DISK], ids=["HDFS", "disk"])
@pytest.mark.parametrize(("deaths", "stops"), [(1, 0), (0, 1)])
def test_every_order_of_two_drivers(rules: Rules, deaths: int, stops: int) -> None:
    assert explored(2, replace(rules, deaths=deaths, stops=stops)) > 1_000


class Unchecked(DriverClaim):
    """Never looks before a batch."""

    def check_batch(self, batch_id: int) -> None:
        pass


class OfAnyBatch(DriverClaim):
    """Does not see that another driver has committed the batch meanwhile."""

    def check_batch(self, batch_id: int) -> None:
        self.check()


class Uncompared(DriverClaim):
    """Only looks whether its claim is still there."""

    def check(self) -> None:
        if self._mine is not None and self._mine not in self._claims():
            raise NewerDriver(self._checkpoint.location, "")


class Forgetful(DriverClaim):
    """Does not mind that its claim is gone."""

    def check(self) -> None:
        if self._mine is not None and max([*self._claims(), self._mine]) != self._mine:
            raise NewerDriver(self._checkpoint.location, "")


class Renewing(DriverClaim):
    """Makes its claim again at each look, and does not look whether there is another one."""

    def check(self) -> None:
        if self._mine is not None:
            self._checkpoint.write_metadata(f"drivers/{self._mine[0]}-{self._mine[1]}", {"version": 1, "pid": -1})
            super().check()


class Hasty(DriverClaim):
    """Does not wait for older drivers."""

    def _is_dead(self, claim: Any) -> bool:
        return True


class Unnumbered(DriverClaim):
    """All claims have the same number."""

    def _claims(self) -> Any:
        return [(-1, name) for _, name in super()._claims()]


class Careless(DriverClaim):
    """Leaves the claims of those for which it has waited."""

    def _delete(self, claim: Any) -> None:
        if claim == self._mine or self._mine is None:
            super()._delete(claim)


class Unreleased(DriverClaim):
    """Leaves its claim when it ends."""

    def release(self) -> None:
        pass


class Silent(DriverClaim):
    """Ends with an error that names no other driver."""

    def check(self) -> None:
        try:
            super().check()
        except NewerDriver:
            raise BacklogError("It cannot go on.", "") from None


def broken(rules: Rules, claim: type[DriverClaim] = DriverClaim, **given: Any) -> Any:
    """Rules with a program in which something is broken."""
    name = f"{claim.__name__}{given or ''}"
    return pytest.param(
        replace(rules, program=replace(rules.program, claim=claim, **given), deaths=0, stops=1), id=name
    )


@pytest.mark.parametrize(
    "rules",
    [
        *(broken(HDFS, claim) for claim in (Unchecked, OfAnyBatch, Uncompared, Forgetful, Unnumbered, Careless)),
        *(broken(HDFS, checks=when) for when in ("before the plan", "after the write")),
        *(broken(DISK, claim) for claim in (Hasty, Unreleased)),
        broken(HDFS, Silent),
        broken(HDFS, is_atomic=False),  # a disk cannot do what HDFS does: `driver_claim` says so
    ],
)
def test_the_model_sees_what_is_broken(rules: Rules) -> None:
    with pytest.raises(Broken):
        explored(2, rules)


class ThreeDrivers(RuleBasedStateMachine):
    """Three drivers and a longer source, in the order that Hypothesis likes. Any two may be paused at any moment."""

    limits = replace(HDFS, program=Program(rows=9), deaths=2, stops=1)

    def __init__(self) -> None:
        super().__init__()
        self.state = State(tuple(Driver(number) for number in range(3)))
        self.paused: set[int] = set()

    def _following(self) -> list[State]:
        following = steps_of(self.state, self.limits)
        return [after for name, after in following if int(name.partition(" ")[0]) not in self.paused]

    @rule(steps=st.lists(st.integers(0, 5), min_size=1, max_size=8))
    def go_on(self, steps: list[int]) -> None:
        for step in steps:
            following = self._following()
            if following:
                self.state = following[step % len(following)]

    @rule(number=st.integers(0, 2), until=st.integers(1, 25))
    def only_one_goes_on(self, number: int, until: int) -> None:
        before, self.paused = self.paused, {0, 1, 2} - {number}
        for _ in range(until):
            alive = [after for after in self._following() if after.drivers[number].alive]
            if alive:
                self.state = alive[-1]
        self.paused = before

    @precondition(lambda self: len(self.paused) < 2)
    @rule(number=st.integers(0, 2))
    def pause(self, number: int) -> None:
        self.paused.add(number)

    @precondition(lambda self: self.paused)
    @rule()
    def wake(self) -> None:
        self.paused.pop()

    def teardown(self) -> None:
        self.paused.clear()
        calm = replace(self.limits, deaths=0, stops=0)
        while following := [after for _, after in steps_of(self.state, calm)]:
            self.state = following[-1]
        check_quiet(self.state, calm)


TestThreeDrivers = ThreeDrivers.TestCase
TestThreeDrivers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
