"""The cells of the grid: which faults there are, in which phases they strike, and which combinations do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .operators import OPERATORS

__all__ = ["FAULTS", "PHASES", "SOURCES", "Cell", "Fault", "Run", "cells_of", "excluded", "runs"]

SOURCES = ("mysql_cdc", "hybrid", "spark")
"""The last one is Spark's own reader of Kafka, in a declared query."""


class Phase(NamedTuple):
    """A phase of a query. ``points``: where a fault strikes in it, by `Rule`. ``begins``: where its batch begins."""

    points: tuple[str, ...]
    begins: tuple[str, ...]


PHASES = {
    "backlog": Phase(("backlog|switch", "sink.write"), ("backlog|switch",)),
    "switch": Phase(("switch", "sink.written"), ("switch",)),
    "hand-over": Phase(("handover.operator",), ("handover.publish",)),
    "first live batch": Phase(("live", "sink.commit"), ("live",)),
    "live": Phase(("live", "sink.written"), ("live",)),
    "back into backlog": Phase(("backlog|switch", "sink.written"), ("backlog|switch",)),
    "finishing": Phase(("ended",), ("backlog|switch",)),
}
"""In the order in which a query goes through them."""
STARTING = ("backlog", "switch", "hand-over")
"""Those that a query goes through without more rows."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Parameters
    ----------
    does : str
        The action at the point.
    of : str
        The source that has what fails; empty: all.
    ends_life : bool
        Whether the driver does not survive it.
    at_begin : bool
        Whether it strikes when the phase's batch begins.
    at_commit : bool
        Whether it strikes at the target.
    """

    does: str
    of: tuple[str, ...] = SOURCES
    ends_life: bool = False
    at_begin: bool = False
    at_commit: bool = False


FAULTS = {
    "driver SIGKILL": Fault("kill", ends_life=True),
    "worker SIGKILL": Fault("worker", at_begin=True),
    "MySQL restart": Fault("pause", of=("mysql_cdc",), at_begin=True),
    "MySQL crash": Fault("pause", of=("mysql_cdc",), at_begin=True),
    "broker restart": Fault("pause", of=("hybrid", "spark"), at_begin=True),
    "cut packet": Fault("pause", at_begin=True),
    "disk full": Fault("fill"),
    "disk full once": Fault("fill"),
    "target fails once": Fault("fail", at_commit=True),
    "clock back": Fault("back"),
    "SIGSTOP": Fault("stop", ends_life=True),
}


class Cell(NamedTuple):
    """One cell."""

    source: str
    operator: str
    fault: str
    phase: str

    def __str__(self) -> str:
        return f"{self.source} and {self.operator}: {self.fault}, {self.phase}"


class Run(NamedTuple):
    """Cells of one query that goes through all of these phases, with the same fault in each."""

    source: str
    operator: str
    fault: str
    phases: tuple[str, ...]

    @property
    def name(self) -> str:
        """For pytest's ``-k``."""
        which = self.phases[0] if len(self.phases) == 1 else "all"
        return "-".join([self.source, self.operator, self.fault, which]).replace(" ", "_")


def excluded(cell: Cell) -> str:
    """Why a cell does not exist; empty if it does."""
    source, operator, fault, phase = cell
    if source not in FAULTS[fault].of:
        return "the source does not use that server"
    if phase == "hand-over" and not OPERATORS[operator].is_keyed:
        return "no state is handed over"
    if phase == "hand-over" and fault == "target fails once":
        return "nothing is written to the target between two runs"
    if phase == "hand-over" and fault == "worker SIGKILL":
        return "no task runs between two runs"
    if phase == "switch" and source == "spark":
        return "a rule answers after a batch: no batch is known to be the last one"
    if phase == "finishing" and source == "spark":
        return "Spark's reader of Kafka has no end"
    if phase == "finishing" and fault == "SIGSTOP":
        return "the query has nothing left to write"
    if fault == "worker SIGKILL" and source == "spark" and operator == "stateless":
        return "no Python worker reads or computes"
    return ""


def cells_of(run: Run) -> list[Cell]:
    """The cells that a run goes through."""
    return [Cell(run.source, run.operator, run.fault, phase) for phase in run.phases]


def runs() -> Iterator[Run]:
    """All runs, the most telling first. Finishing needs sources with an end, so it is a run of its own."""
    for fault in FAULTS:
        for source in SOURCES:
            for operator in OPERATORS:
                there = [p for p in PHASES if not excluded(Cell(source, operator, fault, p))]
                for phases in ([p for p in there if p != "finishing"], [p for p in there if p == "finishing"]):
                    if phases:
                        yield Run(source, operator, fault, tuple(phases))
