"""Decides what a query of Spark's own readers does next (pure): ``availableNow`` rounds in backlog, then a normal run.

Such readers carry no flag, and Spark cannot change a running query's trigger. So the query reads its backlog in rounds
that end by themselves, each with its own rate limit, until the rules say that it is over (FLIP-309, "backlog by lag").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backlog_spark.decide.coordinator import Coordinator

__all__ = ["Round", "after_round", "first_round", "leaves"]

_WORTH_A_RESTART = 2.0
"""A round with another limit costs a restart of some seconds. A batch must become half or twice as large for that."""

_SHORT_ROUND_MS = 10_000
"""A round's figures leave out rows that came while it ran. After a round of this length or less they are few."""


@dataclass(frozen=True)
class Round:
    """The next run, or that none follows.

    Parameters
    ----------
    goes_on : bool
        A run follows.
    in_round : bool
        It ends by itself when it has read everything that is there.
    next_phase : bool
        It reads the next phase of the query.
    is_drained : bool
        Everything has been read, whatever the figures of the last batch were.
    """

    goes_on: bool
    in_round: bool = False
    next_phase: bool = False
    is_drained: bool = False


def first_round(coordinator: Coordinator, *, is_bounded: bool) -> bool:
    """Whether a phase begins with a round. ``is_bounded``: the phase has an end."""
    # Before the first batch nothing is known; a round finds out at little cost.
    return is_bounded or (coordinator.facts.during_backlog_ms is not None and bool(coordinator.rules.needs))


def leaves(coordinator: Coordinator, *, in_round: bool, limit: int, wanted: int) -> bool:
    """Whether the present run is to end at the next batch boundary.

    Parameters
    ----------
    limit, wanted : int
        Rows per batch in this round, and the number that would be right now.
    """
    if not in_round:
        return coordinator.rules.is_backlog and coordinator.facts.during_backlog_ms is not None
    return not 1 / _WORTH_A_RESTART < wanted / limit < _WORTH_A_RESTART


def after_round(
    coordinator: Coordinator,
    *,
    in_round: bool,
    left: bool,
    idle: bool,
    is_bounded: bool,
    next_is_bounded: bool,
    took_ms: float,
) -> Round:
    """Decide what follows a run that ended without an error and was not stopped.

    Parameters
    ----------
    in_round : bool
        It was a round.
    left : bool
        `leaves` ended it.
    idle : bool
        It committed nothing.
    is_bounded, next_is_bounded : bool
        Whether its phase has an end, and whether the next phase has one.
    took_ms : float
    """
    if not in_round:
        return Round(left, in_round=left)
    if left:
        return Round(True, in_round=True)
    if is_bounded:
        return Round(True, first_round(coordinator, is_bounded=next_is_bounded), next_phase=True)
    if idle:
        return Round(True, is_drained=True)
    return Round(True, coordinator.rules.is_backlog or took_ms > max(_SHORT_ROUND_MS, coordinator.facts.interval_ms))
