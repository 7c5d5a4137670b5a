"""What happens when: six stages, each with faults in an order that follows the seed.

Every kind of fault strikes in turn. A query's driver is killed in two stages of its own and is away for one. In the
other three it lives on, through all other faults, so that its memory can be judged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

CHANGES, RECORDS = QUERIES = ("changes", "records")
STAGES = 6
KILL = "kill of the driver"
WORKER = "kill of a Python worker"
ALTER = "ALTER TABLE"
TRUNCATE = "TRUNCATE"
CUT = "cut of all connections to MySQL"
FAILOVER = "failover of MySQL"
BROKER = "kill of the broker"
FAULTS = (KILL, WORKER, ALTER, TRUNCATE, CUT, FAILOVER, BROKER)

# By stage, from 0 on. Stages begin and end with a comparison.
_KILLED = {CHANGES: (0, 1), RECORDS: (4, 5)}
_AWAY = {CHANGES: 2, RECORDS: 3}
_LONG = {CHANGES: (3, 4, 5), RECORDS: (0, 1, 2)}
_SHORTEST_S, _LONGEST_S = 10.0, 120.0


@dataclass(frozen=True)
class Fault:
    """A fault of a stage.

    Parameters
    ----------
    after_s : float
        Seconds from the stage's beginning.
    kind : str
        One of `FAULTS`.
    query : str
        Whose driver or worker is killed; "" for others.
    """

    after_s: float
    kind: str
    query: str = ""


def is_away(query: str, stage: int) -> bool:
    """Whether the query's driver is stopped during a stage."""
    return _AWAY[query] == stage


def lives_on(query: str, stage: int) -> bool:
    """Whether the query's driver is left alive during a stage."""
    return stage in _LONG[query]


class Faults:
    """Deals the faults of all stages.

    Parameters
    ----------
    seed : int
    stage_s : float
        Seconds of a stage.
    """

    def __init__(self, seed: int, stage_s: float) -> None:
        self._chance = random.Random(seed)
        self._stage_s = stage_s
        self._deck: list[str] = []

    def of(self, stage: int) -> Iterator[Fault]:
        """The faults of a stage in their order. Called once for each stage, in order."""
        killed = [query for query in QUERIES if stage in _KILLED[query]]
        there = [query for query in QUERIES if not is_away(query, stage)]
        gap = max(_SHORTEST_S, min(_LONGEST_S, self._stage_s / 4))
        at = gap * self._chance.uniform(0.3, 0.8)
        while at < self._stage_s - _SHORTEST_S / 2:
            kind = self._next()
            if kind == KILL and not killed:
                kind = WORKER
            of = killed if kind == KILL else there if kind == WORKER else [""]
            yield Fault(at, kind, self._chance.choice(of))
            at += gap * self._chance.uniform(0.7, 1.3)

    def _next(self) -> str:
        if not self._deck:
            self._deck = [KILL, *FAULTS]
            self._chance.shuffle(self._deck)
        return self._deck.pop()
