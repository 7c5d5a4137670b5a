"""Rules for the declared sources (pure): whether what such a source has not read yet is backlog.

A source knows what it has not read, but neither the watermark of its rows nor the user's own rule. So it asks: while
rows are unread after a batch, the answer for its name counts beside its own thresholds, and goes into its offset.

Source: FLIP-309, "current_system_time - watermark > threshold"; FLIP-328.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from backlog_spark.decide.reports import ProgressReport
from backlog_spark.decide.rules import Figures, Judge, Rule, UserRule

__all__ = ["WATERMARK_LAG", "SourceRules", "TimedInput"]

WATERMARK_LAG = "watermarkLag"


@dataclass(frozen=True)
class TimedInput:
    """An input with an event time: the names of its sources, and the delay of its watermark in milliseconds."""

    sources: frozenset[str]
    delay_ms: int


class SourceRules:
    """Follows the reports of one query. The caller gives the time.

    Parameters
    ----------
    names : collection of str
        The declared sources.
    inputs : sequence of TimedInput
        In plan order; their numbers are those of `ProgressReport.event_times`.
    rules : sequence of Rule
        Of these, `WATERMARK_LAG` applies, to sources with an event time.
    min_stay_ms : int
        Least time between two changes of an answer.
    own : callable, optional
        A rule of the user's own, for all sources.
    """

    def __init__(
        self,
        names: Collection[str] = (),
        inputs: Sequence[TimedInput] = (),
        rules: Sequence[Rule] = (),
        min_stay_ms: int = 0,
        own: UserRule | None = None,
    ) -> None:
        lag = [rule for rule in rules if rule.name == WATERMARK_LAG]
        self._inputs = inputs
        self._greatest: dict[int, int] = {}
        self._own = None if own is None else Judge((), min_stay_ms, own)
        self._judges = {
            name: Judge(lag, min_stay_ms) for name in names if lag and any(name in each.sources for each in inputs)
        }
        self._ruled = frozenset(names if own is not None else self._judges)
        self._in_backlog: frozenset[str] = frozenset()  # replaced, never changed: other threads read it

    def rule(self, name: str) -> bool:
        """Whether any rule applies to a source."""
        return name in self._ruled

    def says_backlog(self, name: str) -> bool:
        """Whether a source's unread rows are backlog, as of the newest report. Any thread may ask."""
        return name in self._in_backlog

    def take(self, report: ProgressReport, names: Mapping[int, str], now_ms: float, stopwatch_ms: float) -> None:
        """Take the report of a committed batch.

        Parameters
        ----------
        names : mapping of int to str
            The declared sources, by Spark's number.
        now_ms : float
            Milliseconds since 1970.
        stopwatch_ms : float
            Milliseconds of any clock that only goes forward.

        Raises
        ------
        BacklogError
            The user's own rule has failed.
        """
        if not self._ruled:
            return
        for number, at in report.event_times.items():
            self._greatest[number] = max(at, self._greatest.get(number, at))
        for source in report.sources:
            name = names.get(source.index, "")
            # Without rows the watermark stands still, however old it grows. Rows may be filtered before they have one.
            moved = any(name in self._inputs[number].sources for number in report.event_times)
            if name in self._judges and source.num_input_rows and moved:
                self._judges[name].take(self._figures(name, now_ms), stopwatch_ms)
        found = {name for name, judge in self._judges.items() if judge.is_backlog}
        if self._own is not None and self._own.take(Figures({}), stopwatch_ms, report):
            found |= self._ruled
        self._in_backlog = frozenset(found)

    def _figures(self, name: str, now_ms: float) -> Figures:
        """The lag of the source's slowest watermark, if it is known."""
        known = [
            now_ms - (self._greatest[number] - each.delay_ms - 1)
            for number, each in enumerate(self._inputs)
            if name in each.sources and number in self._greatest
        ]
        return Figures({WATERMARK_LAG: max(0.0, *known)} if known else {})
