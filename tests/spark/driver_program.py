"""What a driver on a checkpoint does, step by step: `DriverClaim` itself, with what Spark and a sink do around it.

A driver's program is deterministic in the answers that it has got. So a driver is its answers so far: its next step is
found by running the program from the start, until it asks for more. Nothing here waits or has a thread.

What the program does of Spark: a batch is logged before it runs and committed after it, and a driver that finds another
one's entry fails. What it does of a sink: a batch that the target has is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from backlog_spark.errors import BacklogError
from backlog_spark.spark.checkpoint import driver_claim
from backlog_spark.spark.checkpoint.driver_claim import DriverClaim, NewerDriver

__all__ = ["LOOKED", "Answers", "Program", "Step", "next_step"]

LOOKED = "looked"
"""The answer to a step at which the query is stopped, as there is a newer driver."""

_MORE_RUNS = 4

Step = tuple[Any, ...]
Answers = tuple[Any, ...]


class _Asks(BaseException):
    """The program has come to a step without an answer."""

    def __init__(self, step: Step) -> None:
        self.step = step


class _Looked(Exception):
    """The thread that looks every three seconds has found a newer driver, and stops the query where it is."""


class _ByAnother(Exception):
    """Spark's error if an entry of its logs is there already."""


class Steps:
    """What a program asks for."""

    def __init__(self, number: int, answers: Answers) -> None:
        self.number = number
        self._answers = iter(answers)
        self._asked: Step | None = None

    def ask(self, *step: Any) -> Any:
        """The answer, or the end of this attempt."""
        try:
            found = next(self._answers)
        except StopIteration:
            self._asked = self._asked or step  # what is asked while the attempt unwinds does not count
            raise _Asks(self._asked) from None
        if found == LOOKED:
            raise _Looked
        return found


class Store:
    """What `DriverClaim` uses of a checkpoint."""

    location = "checkpoint"

    def __init__(self, steps: Steps) -> None:
        self._ask = steps.ask

    def make_directory(self, name: str) -> None:
        """No step: nobody asks whether it is there."""

    def names_in(self, name: str) -> list[str]:
        return list(self._ask("list", name))

    def write_metadata(self, name: str, value: dict[str, Any]) -> bool:
        return bool(self._ask("create", f"backlog/{name}.json", json.dumps(value)))

    def read_metadata(self, name: str) -> dict[str, Any] | None:
        text = self._ask("read", f"backlog/{name}.json")
        return None if text is None else dict(json.loads(text))

    def delete(self, name: str) -> None:
        self._ask("delete", name)


@dataclass(frozen=True)
class Program:
    """What a driver does.

    Parameters
    ----------
    claim : type
        `DriverClaim`, or one that is broken.
    is_atomic : bool
        Whether an entry of Spark's logs is looked for and written in one step, as on HDFS.
    checks : str
        ``before the write``: as in the product. ``before the plan``, ``after the write``: broken.
    rows : int
        Those of the source. Driver n puts n + 1 of them into a batch that it plans: no two plan the same.
    """

    claim: type[DriverClaim] = DriverClaim
    is_atomic: bool = True
    checks: str = "before the write"
    rows: int = 2

    def run(self, steps: Steps) -> None:
        """Claim the checkpoint and copy the source until another driver takes over. As `QueryRuns` does."""
        claim = self.claim(Store(steps))  # type: ignore[arg-type]  # it has what is used
        try:
            claim.take()
            for _ in range(_MORE_RUNS):
                try:
                    self._spark(steps, claim)
                    return
                except (_Looked, _ByAnother, BacklogError) as error:
                    failure: Exception = error
                    claim.check()
                    if isinstance(error, NewerDriver):
                        raise
                    if isinstance(error, _Looked):
                        raise AssertionError("it does not see that it is fenced") from None
            raise failure
        finally:
            claim.release()

    def _spark(self, steps: Steps, claim: DriverClaim) -> None:
        """One run: the runner decides for its first batch, Spark reads its logs, and runs batches."""
        first = max(map(int, steps.ask("list", "commits")), default=-1) + 1
        claim.run_begins(first)
        batch, start, end = steps.ask("spark starts")
        while True:
            if end is None:
                if start == self.rows:
                    steps.ask("idle")
                    return
                if self.checks == "before the plan":
                    claim.check_batch(batch)
                end = min(start + steps.number + 1, self.rows)
                self._log(steps, f"offsets/{batch}", end)
            if self.checks == "before the write":
                claim.check_batch(batch)
            steps.ask("write", batch, start, end, first)
            if self.checks == "after the write":
                claim.check_batch(batch)
            self._log(steps, f"commits/{batch}", 0)
            batch, start, end = batch + 1, end, None
            first = batch

    def _log(self, steps: Steps, name: str, value: int) -> None:
        if self.is_atomic:
            if not steps.ask("create", name, str(value)):
                raise _ByAnother
        else:
            if steps.ask("exists", name):
                raise _ByAnother
            steps.ask("rename", name, str(value))


@contextmanager
def _patched(steps: Steps) -> Iterator[None]:
    """Time, processes and chance of `driver_claim` are the model's. Driver 0 has the greatest UUID."""
    number, machine = steps.number, "machine"
    who = {"version": 1, "pid": number, "host": "host", "machine": machine, "at": "now"}
    begins = [0.0]  # the first call begins the wait

    def clock() -> float:
        return begins.pop() if begins else 1000.0 * steps.ask("is it over")

    replaced = {
        "uuid": SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{15 - number:x}" * 32)),
        "os": SimpleNamespace(getpid=lambda: number),
        "_who": lambda: who,
        "_machine": lambda: machine,
        "_runs": lambda pid: steps.ask("runs", pid),
        "monotonic": clock,
        "sleep": lambda _: steps.ask("sleep"),
    }
    with patch.multiple(driver_claim, **replaced):
        yield


_KNOWN: dict[tuple[Program, int, Answers], Step] = {}


def next_step(program: Program, number: int, answers: Answers) -> Step:
    """What a driver asks for next: a step and what belongs to it; or ``ended`` and its error."""
    key = (program, number, answers)
    if key not in _KNOWN:
        steps = Steps(number, answers)
        with _patched(steps):
            try:
                program.run(steps)
                _KNOWN[key] = ("ended", None)
            except _Asks as asked:
                _KNOWN[key] = asked.step
            except Exception as error:
                _KNOWN[key] = ("ended", error)
    return _KNOWN[key]
