"""Computes the watermark of each keyed operator from a query's inputs (pure; the caller gives the time).

The tree has the shape of the query. An input sends watermarks of its rows' greatest event time, or one of processing
time when its source has left backlog. A union is a valve over its channels. An operator with two inputs combines both.

Source: FLIP-326, sections "StatusWatermarkValve" and "IndexedCombinedWatermarkStatus"; FLIP-147 for finished inputs;
Flink's ``BoundedOutOfOrdernessWatermarks`` and ``WatermarksWithIdleness``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from backlog_spark.model.nodes import (
    FrameNode,
    KeyedNode,
    Node,
    PairNode,
    SourceNode,
    UnionNode,
    WatermarkNode,
)
from backlog_spark.model.trees import uses_processing_time
from backlog_spark.model.watermarks import (
    END_OF_TIME,
    MIN_WATERMARK,
    CombinedWatermarkStatus,
    Watermark,
    WatermarkOutput,
    WatermarkValve,
)

__all__ = ["WatermarkTree"]


class _Status(NamedTuple):
    """The state of a part of the tree. Without event time it has no watermark; an ended part holds nothing back."""

    watermark: Watermark | None
    idle: bool = False
    ended: bool = False

    @property
    def order(self) -> int:
        return MIN_WATERMARK if self.watermark is None else self.watermark.timestamp

    @property
    def by_clock(self) -> bool:
        return self.watermark is not None and self.watermark.use_processing_time


_ENDED = _Status(Watermark(END_OF_TIME), ended=True)
_Part = Callable[[int], _Status]


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
        self._firing: Collection[str] = ()
        self._root = self._part(root)

    # -- reports --------------------------------------------------------------------------------------------

    @property
    def greatest(self) -> list[int | None]:
        """Greatest event time of each input so far, in milliseconds since 1970; None before the first."""
        return list(self._greatest)

    def take(self, greatest: Sequence[int | None]) -> bool:
        """Take the greatest event times of a batch; return whether any was new."""
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
        """Take for each declared source, in plan order, whether it is in backlog and whether it has finished."""
        self._in_backlog, self._finished = list(in_backlog), list(finished)

    # -- results --------------------------------------------------------------------------------------------

    def watermarks(
        self, passed: Mapping[str, int | None] | None = None, firing: Collection[str] = ()
    ) -> dict[str, Watermark]:
        """The watermark of each keyed operator whose inputs give one, by name.

        Parameters
        ----------
        passed : mapping of str to int or None, optional
            For operators whose timers may fire in several batches: all timers up to this watermark have fired. The next
            operators get no later watermark.
        firing : collection of str, optional
            Operators with timers left to fire. After them time does not follow the clock either.
        """
        self._passed, self._firing = passed or {}, firing
        self._found = {}
        self._root(self._clock())
        return self._found

    def least(self) -> int | None:
        """The least watermark of all operators, in milliseconds since 1970; None if one of them has none yet."""
        now = self._clock()
        least = min((each.at(now) for each in self.watermarks().values()), default=MIN_WATERMARK)
        return None if least == MIN_WATERMARK else least

    # -- the tree -------------------------------------------------------------------------------------------

    def _part(self, node: Node) -> _Part:
        if isinstance(node, SourceNode):
            number = len(self._in_backlog)
            self._in_backlog.append(True)
            self._finished.append(False)
            return self._clocked(number) if uses_processing_time(node) else self._timeless(number)
        if isinstance(node, FrameNode):
            # Its end never becomes known.
            return self._clocked(None) if uses_processing_time(node) else self._timeless(None)
        below = [self._part(parent) for parent in node.parents]
        if isinstance(node, WatermarkNode):
            return self._timed(node, below[0])
        if isinstance(node, UnionNode):
            return self._union(below)
        if isinstance(node, PairNode):
            return self._pair(below)
        return self._operator(node.name, below[0]) if isinstance(node, KeyedNode) else below[0]

    def _timeless(self, source: int | None) -> _Part:
        return lambda now: _Status(None, ended=source is not None and self._finished[source])

    def _clocked(self, source: int | None) -> _Part:
        output = WatermarkOutput(self._clock)

        def status(now: int) -> _Status:
            if output.last is None and (source is None or not self._in_backlog[source]):
                output.emit(Watermark(now - 1, use_processing_time=True))
            ended = source is not None and self._finished[source]
            return _Status(output.last or Watermark(MIN_WATERMARK), ended=ended)

        return status

    def _timed(self, node: WatermarkNode, below: _Part) -> _Part:
        number = len(self._greatest)
        self._greatest.append(None)
        self._moved.append(self._clock())
        output = WatermarkOutput(self._clock)

        def status(now: int) -> _Status:
            greatest = self._greatest[number]
            if greatest is not None:
                output.emit(Watermark(greatest - node.delay_ms - 1))
            idle = node.idle_ms is not None and now - self._moved[number] > node.idle_ms
            return _Status(output.last or Watermark(MIN_WATERMARK), idle, below(now).ended)

        return status

    def _union(self, below: Sequence[_Part]) -> _Part:
        valve = WatermarkValve(len(below))

        def status(now: int) -> _Status:
            channels = list(enumerate(each(now) for each in below))
            # In order of their times: a channel that catches up must count before another one moves ahead.
            for number, each in sorted(channels, key=lambda channel: channel[1].order):
                if each.ended:
                    valve.finish(number)
                    continue
                valve.input_status(number, idle=each.idle or each.watermark is None)
                if each.watermark is not None:
                    valve.input_watermark(number, each.watermark)
            return _together([each for _, each in channels], valve.watermark, idle=valve.is_idle)

        return status

    def _pair(self, below: Sequence[_Part]) -> _Part:
        combined = CombinedWatermarkStatus(len(below))

        def status(now: int) -> _Status:
            inputs = [each(now) for each in below]
            for number, each in enumerate(inputs):
                if each.ended:
                    combined.finish(number)
                    continue
                if each.watermark is not None:
                    combined.update(number, each.watermark)
                combined.update_status(number, idle=each.idle or each.watermark is None)
            found = combined.watermark(now)
            if found.timestamp == now and any(each.by_clock for each in inputs):
                # The other input is ahead of the clock. Until then the clock decides.
                found = Watermark(now, use_processing_time=True)
            return _together(inputs, found, idle=combined.is_idle)

        return status

    def _operator(self, name: str, below: _Part) -> _Part:
        def status(now: int) -> _Status:
            found = below(now)
            if found.ended:
                # Even without event time.
                found = _ENDED
            if found.watermark is None:
                return found
            self._found[name] = found.watermark
            if name not in self._passed:
                return found
            passed = self._passed[name]
            if found.by_clock and passed is not None and name not in self._firing:
                return found
            until = MIN_WATERMARK if passed is None else min(passed, found.watermark.at(now))
            return _Status(Watermark(until), found.idle, found.ended and until == END_OF_TIME)

        return status


def _together(parts: Sequence[_Status], watermark: Watermark, *, idle: bool) -> _Status:
    """The status of several parts combined."""
    if all(each.ended for each in parts):
        return _ENDED
    return _Status(None if all(each.watermark is None for each in parts) else watermark, idle)
