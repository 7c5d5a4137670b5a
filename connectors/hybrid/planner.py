"""Decides where the next batch of a hybrid source ends: within a phase, or in a later one (pure).

A batch may hold the rest of one bounded phase and the beginning of the next. It never extends past the end of the
backlog, which is known beforehand: the batch that reaches it is the last one of the backlog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from backlog_spark.errors import BacklogError

from .offsets import HybridOffset
from .phases import Limit, Phase, Position

__all__ = ["HybridPlanner", "Span"]


@dataclass(frozen=True)
class Span:
    """The part of a batch that is in one phase."""

    phase: int
    start: Position
    end: Position


class HybridPlanner:
    """Plans over phases.

    Parameters
    ----------
    phases : sequence of Phase
        At least one. All but the last are bounded.
    kinds : sequence of str
        The phases as ``name:kind``, as in the offsets.
    by_rules : callable, optional
        Whether a rule of the query says that data that are not read yet are backlog, `QueryBacklog.by_rules`.
    """

    def __init__(
        self, phases: Sequence[Phase], kinds: Sequence[str], by_rules: Callable[[], bool] = lambda: False
    ) -> None:
        self._phases = phases
        self._by_rules = by_rules
        self._kinds = tuple(kinds)
        self._targets: dict[int, Position] | None = None

    def first(self) -> HybridOffset:
        """The offset before everything. The first batch decides where the first phase begins, and logs it."""
        return HybridOffset(
            self._kinds, is_processing_backlog=len(self._phases) > 1 or self._phases[0].starts_in_backlog
        )

    def begun(self, start: HybridOffset) -> HybridOffset:
        """Add the position where the first phase begins. Called only if there is none yet."""
        # The last phase is pinned first: rows that arrive meanwhile, or move from one phase to another, are read twice
        # at worst, and never missed.
        later = [(str(i), phase.pin()) for i, phase in list(enumerate(self._phases))[:0:-1]]
        pinned = {i: pin for i, pin in later if pin is not None}
        began = self._phases[0].begin({})
        fixed_ms = int(time.time() * 1000) if pinned else None
        is_backlog = self._is_backlog(0, self._phases[0].is_backlog(began))
        return replace(
            start,
            position=began,
            is_processing_backlog=is_backlog,
            pinned=pinned,
            fixed_ms=fixed_ms,
            no_rows_yet=self._phases[0].may_lag,
        )

    def finds_out(self, start: HybridOffset) -> bool:
        """Whether the next batch only finds out whether the source is in backlog. The rows come after that."""
        return start.position is None and self._phases[0].may_lag

    def _is_backlog(self, phase: int, is_reported: bool) -> bool:
        """The source's flag, from that of its phase.

        With N >= 2 phases it is false from the beginning of the last one (FLIP-309, "Update HybridSource"), unless an
        unbounded phase reports backlog by its thresholds. A single bounded phase is backlog up to its end.
        """
        is_last = phase == len(self._phases) - 1
        return is_reported and not (is_last and phase > 0 and self._phases[phase].is_bounded)

    def check(self, start: HybridOffset) -> None:
        """Refuse a checkpoint with other phases.

        Raises
        ------
        BacklogError
        """
        if start.phases != self._kinds:
            raise BacklogError(
                f"The checkpoint is about phases {', '.join(start.phases)}; the query has {', '.join(self._kinds)}.",
                "Use the phases that the query was started with, or a new checkpoint.",
            )

    def until_now(self, start: HybridOffset) -> None:
        """From now on plan only up to the data present now (``availableNow``)."""
        self._targets = {}
        if start.position is not None:
            self._target_of(start.phase, start.position)

    def _target_of(self, phase: int, position: Position) -> Position | None:
        """Where the phase ends for ``availableNow``; None: at its end as of its beginning."""
        if self._targets is None:
            return None
        if phase not in self._targets:
            found = self._phases[phase].target(position)
            if found is None:
                return None
            self._targets[phase] = found
        return self._targets[phase]

    def next(self, start: HybridOffset, limit: Limit, now_ms: float, *, whole_backlog: bool = False) -> HybridOffset:
        """The end of the next batch; ``start`` itself if there is nothing to read and nothing to report.

        Parameters
        ----------
        limit : Limit
        now_ms : float
            Milliseconds since 1970.
        whole_backlog : bool
            Take the whole rest of the backlog, whatever the limit.
        """
        if start.is_finished:
            return start
        at = start
        if at.position is None:
            at = self.begun(at)
        flag = at.is_processing_backlog
        if whole_backlog and flag:
            limit = Limit()
        while not at.is_finished:
            before = at
            at = self._step(at, limit, now_ms)
            read = at.rows - before.rows
            if limit.rows is not None:
                limit = replace(limit, rows=limit.rows - read)
            # All rows of a batch must have the same flag.
            is_full = limit.rows is not None and limit.rows <= 0
            if at.phase == before.phase or at.is_processing_backlog != flag or is_full:
                break
        return start if replace(at, is_backlog=start.is_backlog) == start else replace(at, is_backlog=flag)

    def _step(self, at: HybridOffset, limit: Limit, now_ms: float) -> HybridOffset:
        """Advance within one phase, and into the next one if it ends."""
        phase, position = self._phases[at.phase], at.position
        assert position is not None
        target = self._target_of(at.phase, position)
        step = (
            phase.next(position, limit, now_ms) if target is None else phase.next_until(position, target, limit, now_ms)
        )
        is_last = at.phase == len(self._phases) - 1
        is_finished = step.is_finished and phase.is_bounded
        is_backlog = step.is_backlog or (step.is_behind and self._by_rules())
        there = replace(
            at,
            position=step.position,
            is_processing_backlog=self._is_backlog(at.phase, is_backlog) and not (is_last and is_finished),
            is_finished=is_last and is_finished,
            rows=at.rows + step.rows,
            no_rows_yet=at.no_rows_yet and not step.rows,
            total=at.total if step.total is None else at.rows_before + step.total,
        )
        if is_last or not is_finished:
            return there
        pinned = dict(at.pinned)
        pin = pinned.pop(str(at.phase + 1), None)
        then = {"pinned": pin, "fixedAt": at.fixed_ms} if pin else {}
        began = self._phases[at.phase + 1].begin({**phase.ended(step.position), **then})
        return replace(
            there,
            phase=at.phase + 1,
            position=began,
            ended=(*at.ended, step.position),
            is_processing_backlog=self._is_backlog(at.phase + 1, self._phases[at.phase + 1].is_backlog(began)),
            rows_before=there.rows,
            total=there.rows,
            pinned=pinned,
            fixed_ms=at.fixed_ms if pinned else None,
        )

    def committed(self, end: HybridOffset) -> None:
        """Tell the phase that all rows up to an offset are committed."""
        if end.position is not None:
            self._phases[end.phase].committed(end.position)

    def spans(self, start: HybridOffset, end: HybridOffset) -> list[Span]:
        """The parts of a batch, by phase. Always the same for the same offsets."""
        found = []
        for index in range(start.phase, end.phase + 1):
            last = end.last_of(index)
            # Spark logs no start of the very first batch.
            known = start.position if index == start.phase else None
            first = self._phases[index].first(last) if known is None else known
            if first != last:
                found.append(Span(index, first, last))
        return found
