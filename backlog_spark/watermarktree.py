"""The watermark of each keyed operator, out of what a query's inputs give (pure; the caller brings the clock).

The tree has the shape of the query: an input sends watermarks of its rows' greatest event time, or one of processing
time when its source has left backlog; a union is a valve over its channels; an operator with two inputs combines both.

Source: FLIP-326, sections "StatusWatermarkValve" and "IndexedCombinedWatermarkStatus"; FLIP-147 for finished inputs;
Flink's ``BoundedOutOfOrdernessWatermarks`` and ``WatermarksWithIdleness``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from backlog_spark.plan import (
    FrameNode,
    KeyedNode,
    Node,
    PairNode,
    SourceNode,
    UnionNode,
    WatermarkNode,
    uses_processing_time,
)
from backlog_spark.watermarks import (
    END_OF_TIME,
    MIN_WATERMARK,
    CombinedWatermarkStatus,
    Watermark,
    WatermarkOutput,
    WatermarkValve,
)

__all__ = ["WatermarkTree"]


class _Status(NamedTuple):
    watermark: Watermark
    idle: bool = False


_Part = Callable[[int], _Status | None]


class WatermarkTree:
    """Follows the inputs of one query.

    Parameters
    ----------
    root : Node
    clock : callable
        The system time in milliseconds since 1970.
    """

    def __init__(self, root: Node, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._greatest: list[int | None] = []
        self._moved: list[int] = []
        self._in_backlog: list[bool] = []
        self._finished: list[bool] = []
        self._found: dict[str, Watermark] = {}
        self._passed: Mapping[str, int | None] = {}
        self._root = self._part(root)

    # -- what is told ---------------------------------------------------------------------------------------

    @property
    def greatest(self) -> list[int | None]:
        """Greatest event time of each input so far, in milliseconds since 1970; None before the first."""
        return list(self._greatest)

    def take(self, greatest: Sequence[int | None]) -> bool:
        """Take the greatest event times of a batch; whether any was new."""
        before = list(self._greatest)
        for at, time in enumerate(greatest):
            known = self._greatest[at]
            if time is None:
                continue
            self._moved[at] = self._clock()
            if known is None or time > known:
                self._greatest[at] = time
        return self._greatest != before

    def follow(self, in_backlog: Sequence[bool], finished: Sequence[bool]) -> None:
        """Of each declared source, in the order of the plan: whether it is in backlog, and whether it has finished."""
        self._in_backlog, self._finished = list(in_backlog), list(finished)

    # -- what follows from it -------------------------------------------------------------------------------

    def watermarks(self, passed: Mapping[str, int | None] | None = None) -> dict[str, Watermark]:
        """The watermark of each keyed operator whose inputs give one, by name.

        Parameters
        ----------
        passed : mapping of str to int or None, optional
            Of operators whose timers may fire in several batches: the watermark of which the last timer has fired.
            The operators behind them are given no later one.
        """
        self._passed = passed or {}
        self._found = {}
        self._root(self._clock())
        return self._found

    def least(self) -> int | None:
        """What holds for all operators, in milliseconds since 1970; None if one of them knows nothing yet."""
        now = self._clock()
        least = min((each.at(now) for each in self.watermarks().values()), default=MIN_WATERMARK)
        return None if least == MIN_WATERMARK else least

    # -- the tree -------------------------------------------------------------------------------------------

    def _part(self, node: Node) -> _Part:
        if isinstance(node, SourceNode):
            number = len(self._in_backlog)
            self._in_backlog.append(True)
            self._finished.append(False)
            return self._clocked(range(number, number + 1)) if uses_processing_time(node) else _nothing
        if isinstance(node, FrameNode):
            return self._clocked(range(0)) if uses_processing_time(node) else _nothing
        if isinstance(node, WatermarkNode):
            first = len(self._in_backlog)
            self._part(node.parent)
            return self._timed(node, self._sources_of(node, first))
        first = len(self._in_backlog)
        below = [self._part(parent) for parent in node.parents]
        if isinstance(node, UnionNode):
            return self._union(below)
        if isinstance(node, PairNode):
            return self._pair(below)
        if isinstance(node, KeyedNode):
            return self._operator(node.name, below[0], self._sources_of(node, first))
        return below[0]

    def _sources_of(self, node: Node, first: int) -> range:
        """The sources that have to finish for a node to end, the first of which has this number; none of them can if
        there are streaming DataFrames among them."""
        foreign = any(isinstance(each, FrameNode) for each in node.walk())
        return range(0) if foreign else range(first, len(self._in_backlog))

    def _has_ended(self, sources: range) -> bool:
        return bool(sources) and all(self._finished[each] for each in sources)

    def _timed(self, node: WatermarkNode, sources: range) -> _Part:
        number = len(self._greatest)
        self._greatest.append(None)
        self._moved.append(self._clock())
        output = WatermarkOutput(self._clock)

        def status(now: int) -> _Status:
            if self._has_ended(sources):
                return _Status(Watermark(END_OF_TIME))
            greatest = self._greatest[number]
            if greatest is not None:
                output.emit(Watermark(greatest - node.delay_ms - 1))
            idle = node.idle_ms is not None and now - self._moved[number] > node.idle_ms
            return _Status(output.last or Watermark(MIN_WATERMARK), idle)

        return status

    def _clocked(self, sources: range) -> _Part:
        output = WatermarkOutput(self._clock)

        def status(now: int) -> _Status:
            if self._has_ended(sources):
                return _Status(Watermark(END_OF_TIME, use_processing_time=True))
            if output.last is None and not any(self._in_backlog[each] for each in sources):
                output.emit(Watermark(now - 1, use_processing_time=True))
            return _Status(output.last or Watermark(MIN_WATERMARK))

        return status

    def _union(self, below: Sequence[_Part]) -> _Part:
        valve: WatermarkValve | None = None

        def status(now: int) -> _Status | None:
            nonlocal valve
            channels = [found for each in below if (found := each(now)) is not None]
            if not channels:
                return None
            valve = valve or WatermarkValve(len(channels))
            # They move together: one that catches up counts before another one has gone ahead.
            for number, each in sorted(enumerate(channels), key=lambda channel: channel[1].watermark.timestamp):
                valve.input_status(number, idle=each.idle)
                valve.input_watermark(number, each.watermark)
            return _Status(valve.watermark, valve.is_idle)

        return status

    def _pair(self, below: Sequence[_Part]) -> _Part:
        combined: CombinedWatermarkStatus | None = None

        def status(now: int) -> _Status | None:
            nonlocal combined
            inputs = [found for each in below if (found := each(now)) is not None]
            if not inputs:
                return None
            combined = combined or CombinedWatermarkStatus(len(inputs))
            for number, each in enumerate(inputs):
                combined.update(number, each.watermark)
                combined.update_status(number, idle=each.idle)
            return _Status(combined.watermark(now), combined.is_idle)

        return status

    def _operator(self, name: str, below: _Part, sources: range) -> _Part:
        def status(now: int) -> _Status | None:
            found = below(now)
            if found is None:
                # Without any time of its own it is told of the end all the same.
                if not self._has_ended(sources):
                    return None
                found = _Status(Watermark(END_OF_TIME))
            self._found[name] = found.watermark
            if name not in self._passed:
                return found
            passed = self._passed[name]
            at = MIN_WATERMARK if passed is None else min(passed, found.watermark.at(now))
            is_through = found.watermark.use_processing_time and passed is not None
            return found if is_through else found._replace(watermark=Watermark(at))

        return status


def _nothing(now: int) -> None:
    return None
