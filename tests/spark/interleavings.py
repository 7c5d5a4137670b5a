"""All states that drivers on one checkpoint can come to, in any order of their steps, and what must hold in each.

A state has what each driver has got for its steps so far, the files of the checkpoint and the target. So states can be
compared, and gone on from in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from backlog_spark.spark.checkpoint.driver_claim import DIRECTORY, NewerDriver

from .driver_program import LOOKED, Answers, Program, Step, next_step

__all__ = ["Broken", "Driver", "Rules", "State", "check_quiet", "explored", "steps_of"]


class Broken(AssertionError):
    """A promise is broken."""


class Driver(NamedTuple):
    """One driver.

    Parameters
    ----------
    number : int
    answers : tuple
        What it has got for its steps so far.
    alive : bool
    claim : (int, str), optional
        Number and UUID of its claim, once it has made one.
    after : frozenset of int
        The drivers whose claims had been made when it started.
    fenced : bool
        Whether its claim is no longer the newest, or was removed by another one.
    was_fenced : bool
        Whether it ever was.
    stale : bool
        Whether it has begun its batch since it is fenced.
    stopped : bool
        Whether its user has stopped it.
    """

    number: int
    answers: Answers = ()
    alive: bool = True
    claim: tuple[int, str] | None = None
    after: frozenset[int] = frozenset()
    fenced: bool = False
    was_fenced: bool = False
    stale: bool = False
    stopped: bool = False


class State(NamedTuple):
    """All drivers, the files, and the batches in the target with their rows."""

    drivers: tuple[Driver, ...]
    files: frozenset[tuple[str, str]] = frozenset()
    target: tuple[tuple[int, int, int], ...] = ()

    def file(self, name: str) -> str | None:
        """Its text."""
        return next((text for found, text in self.files if found == name), None)

    def with_file(self, name: str, text: str) -> State:
        kept = frozenset(each for each in self.files if each[0] != name)
        return self._replace(files=kept | {(name, text)})

    def with_driver(self, driver: Driver) -> State:
        found = tuple(driver if each.number == driver.number else each for each in self.drivers)
        return self._replace(drivers=found)

    def listed(self, directory: str) -> tuple[str, ...]:
        """The names of the files in a directory."""
        begin = f"{directory}/"
        return tuple(sorted(name[len(begin) :] for name, _ in self.files if name.startswith(begin)))


@dataclass(frozen=True)
class Rules:
    """What may happen.

    Parameters
    ----------
    program : Program
    can_pause : bool
        Whether a driver may be paused for longer than another one waits for it. Without it the wait ends when the
        older driver has ended, or is dead.
    deaths : int
        How many drivers may die.
    stops : int
        How many may be stopped by their users when they have copied all.
    """

    program: Program = field(default_factory=Program)
    can_pause: bool = True
    deaths: int = 1
    stops: int = 0

    def next_of(self, driver: Driver) -> Step:
        """What a driver asks for next: a step; or ``ended`` and the error."""
        return next_step(self.program, driver.number, driver.answers)


def steps_of(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """All that can happen next, each with its name.

    Raises
    ------
    Broken
        If something happens that never may.
    """
    dead = sum(not driver.alive for driver in state.drivers)
    for driver in state.drivers:
        if not driver.alive:
            continue
        what, *given = rules.next_of(driver)
        if what == "ended":
            _check_end(state, driver, given[0])
            continue
        if dead < rules.deaths:
            yield f"{driver.number} dies", state.with_driver(driver._replace(alive=False))
        if driver.fenced and what in _RUNNING and not str(given).startswith("['backlog"):
            yield f"{driver.number} looks", _answered(state, driver, LOOKED)
        for answer, after in _HAPPENS[what](state, rules, driver, *given):
            yield f"{driver.number} {what} {given} {answer}", _answered(after, driver, answer)


# Steps of the query, in which it can be stopped. Those with names in `DIRECTORY` are of its start or its end.
_RUNNING = ("create", "write", "idle", "exists", "rename")


def _answered(state: State, driver: Driver, answer: Any) -> State:
    now = next(each for each in state.drivers if each.number == driver.number)
    return state.with_driver(now._replace(answers=(*driver.answers, answer)))


Happening = Iterator[tuple[Any, State]]


def _list(state: State, _: Rules, driver: Driver, name: str) -> Happening:
    if not driver.answers:
        before = frozenset(each.number for each in state.drivers if each.claim is not None)
        yield state.listed(name), state.with_driver(driver._replace(after=before))
    else:
        yield state.listed(name), state


def _read(state: State, _: Rules, driver: Driver, name: str) -> Happening:
    yield state.file(name), state


def _starts(state: State, _: Rules, driver: Driver) -> Happening:
    """The next batch, and between which rows it is. It has an end if it is logged: then it is begun again."""
    batch = max(map(int, state.listed("commits")), default=-1) + 1
    start, end = int(state.file(f"offsets/{batch - 1}") or 0), state.file(f"offsets/{batch}")
    yield (batch, start, None if end is None else int(end)), state.with_driver(driver._replace(stale=driver.fenced))


def _create(state: State, rules: Rules, driver: Driver, name: str, text: str) -> Happening:
    if state.file(name) is not None:
        yield False, state
    else:
        yield True, _rename(state, rules, driver, name, text)


def _exists(state: State, _: Rules, driver: Driver, name: str) -> Happening:
    yield state.file(name) is not None, state


def _renames(state: State, rules: Rules, driver: Driver, name: str, text: str) -> Happening:
    yield True, _rename(state, rules, driver, name, text)


def _rename(state: State, _: Rules, driver: Driver, name: str, text: str) -> State:
    after = state.with_file(name, text)
    if name.startswith(DIRECTORY):
        mine = _claim_of(name)
        newer = [each.number for each in state.drivers if each.claim and each.claim > mine and _is_there(each, state)]
        if driver.after & {*newer}:
            raise Broken(f"the claim of driver {driver.number} is older than those that were there: {newer}")
        for other in state.drivers:
            if other.claim and other.claim < mine:
                after = after.with_driver(other._replace(fenced=True, was_fenced=True))
        return after.with_driver(driver._replace(claim=mine, fenced=bool(newer), was_fenced=bool(newer)))
    if name.startswith("offsets/"):
        after = after.with_driver(driver._replace(stale=driver.fenced))
    return after


def _is_there(driver: Driver, state: State) -> bool:
    return driver.claim is not None and state.file(_file_of(driver.claim)) is not None


def _file_of(claim: tuple[int, str]) -> str:
    return f"{DIRECTORY}/{claim[0]}-{claim[1]}.json"


def _delete(state: State, _: Rules, driver: Driver, name: str) -> Happening:
    """Also of a claim: its driver is fenced. One that is older and still there is the newest again."""
    after = state._replace(files=frozenset(each for each in state.files if each[0] != name))
    claims = [each.claim for each in state.drivers if each.claim and _is_there(each, after)]
    for other in state.drivers:
        if other.number != driver.number and other.claim:
            fenced = other.claim not in claims or other.claim != max(claims)
            was, stale = fenced or other.was_fenced, fenced and other.stale
            after = after.with_driver(other._replace(fenced=fenced, was_fenced=was, stale=stale))
    yield None, after


def _write(state: State, _: Rules, driver: Driver, batch: int, start: int, end: int, decided: int) -> Happening:
    if driver.stale:
        raise Broken(f"driver {driver.number} writes batch {batch}, which it began when there was a newer driver")
    if batch != decided:
        raise Broken(f"driver {driver.number} writes batch {batch} in the run that was decided for batch {decided}")
    if any(there >= batch for there, _, _ in state.target):
        yield None, state
        return
    after = state._replace(target=(*state.target, (batch, start, end)))
    _check_rows(after)
    yield None, after


def _is_over(state: State, rules: Rules, driver: Driver) -> Happening:
    yield False, state
    if rules.can_pause:
        yield True, state


def _sleep(state: State, _: Rules, driver: Driver) -> Happening:
    """Until something happens that ends the wait."""
    others = [each for each in state.drivers if each.number != driver.number and _is_there(each, state)]
    assert driver.claim is not None
    if driver.fenced or not any(each.alive and each.claim and each.claim < driver.claim for each in others):
        yield None, state


def _runs(state: State, _: Rules, driver: Driver, pid: int) -> Happening:
    other = next(each for each in state.drivers if each.number == pid)
    yield other.alive, state


def _idle(state: State, rules: Rules, driver: Driver) -> Happening:
    """It has copied all, and goes on only if it finds that it is fenced, or is stopped."""
    if sum(each.stopped for each in state.drivers) < rules.stops:
        yield None, state.with_driver(driver._replace(stopped=True))


_HAPPENS: Mapping[str, Callable[..., Happening]] = {
    "list": _list, "read": _read, "spark starts": _starts, "create": _create, "exists": _exists, "rename": _renames,
    "delete": _delete, "write": _write, "is it over": _is_over, "sleep": _sleep, "runs": _runs, "idle": _idle,
}  # fmt: skip


def _claim_of(name: str) -> tuple[int, str]:
    number, _, rest = name.rpartition("/")[2].removesuffix(".json").partition("-")
    return int(number), rest


def _check_rows(state: State) -> None:
    """Each row of the source is in the target once, up to some row."""
    at = 0
    for batch, start, end in state.target:
        if start != at:
            raise Broken(f"batch {batch} has the rows from {start} on, the target has those up to {at}: {state.target}")
        at = end


def _check_end(state: State, driver: Driver, error: Exception | None) -> None:
    if driver.stopped and error is None:
        return
    if not isinstance(error, NewerDriver):
        raise Broken(f"driver {driver.number} ended with {error!r}")
    if "Another driver" not in str(error) or not error.hint:
        raise Broken(f"the error says nothing: {error}")
    if not driver.was_fenced:
        raise Broken(f"driver {driver.number} ended, and there was no newer one")


def check_quiet(state: State, rules: Rules) -> None:
    """Nothing happens any more: one driver is left, and all is copied. Or none is, and the next one can go on.

    Raises
    ------
    Broken
        If not.
    """
    left = [driver for driver in state.drivers if driver.alive and rules.next_of(driver)[0] != "ended"]
    ended = [driver for driver in state.drivers if not driver.alive or driver.stopped]
    if any(driver.fenced or rules.next_of(driver)[0] != "idle" for driver in left):
        raise Broken(f"a driver waits for ever: {left}")
    if not left and not ended:
        raise Broken("the drivers have ended each other")
    if len(left) > 1:
        raise Broken(f"two drivers go on: {left}")
    _check_complete(state if left else after_all_have_ended(state, rules), rules)


def _check_complete(state: State, rules: Rules) -> None:
    _check_rows(state)
    logged = {int(name): state.file(f"offsets/{name}") for name in state.listed("offsets")}
    if not state.target or state.target[-1][2] != rules.program.rows:
        raise Broken(f"rows are missing: {state.target}")
    if {batch: str(end) for batch, _, end in state.target} != logged:
        raise Broken(f"the log says {logged}, the target has {state.target}")
    if sorted(map(int, state.listed("commits"))) != sorted(logged):
        raise Broken(f"{state.listed('commits')} are committed of {sorted(logged)}")
    # That of a driver that died while it started may be left: the next start removes it.
    left = [driver.number for driver in state.drivers if driver.alive and _is_there(driver, state)]
    if len(left) != 1 or len(state.listed(DIRECTORY)) > 1 + sum(not driver.alive for driver in state.drivers):
        raise Broken(f"the claims are {state.listed(DIRECTORY)}")


def after_all_have_ended(state: State, rules: Rules) -> State:
    """A new driver, alone.

    Raises
    ------
    Broken
        If it does not come to the end of the source.
    """
    number = len(state.drivers)
    state = state._replace(drivers=(*state.drivers, Driver(number)))
    alone = replace(rules, deaths=0, stops=0, can_pause=True)
    while True:
        following = [after for name, after in steps_of(state, alone) if name.startswith(str(number))]
        if not following:
            break
        state = following[-1]
    if rules.next_of(state.drivers[-1])[0] != "idle":
        raise Broken(f"the next driver cannot go on: {rules.next_of(state.drivers[-1])}")
    return state


def explored(drivers: int, rules: Rules) -> int:
    """Go through all states that so many drivers can come to. Returns their number.

    Raises
    ------
    Broken
        With the steps that lead there.
    """
    first = State(tuple(Driver(number) for number in range(drivers)))
    came: dict[State, tuple[State, str] | None] = {first: None}
    todo = [first]
    while todo:
        state = todo.pop()
        try:
            following = list(steps_of(state, rules))
            if not following:
                check_quiet(state, rules)
        except Broken as broken:
            path, at = [], came[state]
            while at is not None:
                path.append(at[1])
                at = came[at[0]]
            raise Broken("\n".join([str(broken), *reversed(path)])) from None
        for name, after in following:
            if after not in came:
                came[after] = state, name
                todo.append(after)
    return len(came)
