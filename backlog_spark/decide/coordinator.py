"""Combines the sources' reports: which mode and commit interval follow (FLIP-309).

No Spark, no clock, no thread: reports go in, decisions come out. The caller serialises the calls.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import StrEnum

from backlog_spark.common.durations import format_duration
from backlog_spark.common.intervals import check_intervals
from backlog_spark.errors import SettingError

__all__ = ["Coordinator", "Decision", "Mode"]


class Mode(StrEnum):
    """What the query should run as: ``BACKLOG`` if the feature is on and a running source reports backlog."""

    BACKLOG = "backlog"
    STREAM = "stream"


@dataclass(frozen=True)
class Decision:
    """The decision from all reports so far.

    Parameters
    ----------
    is_processing_backlog : bool
        True if any running source's last report said so, even if the feature is off.
    mode : Mode
        ``Mode.BACKLOG`` or ``Mode.STREAM``.
    commit_interval_ms : int or None
        Milliseconds between commits from now on; 0: the next batch starts as soon as the last is done. None:
        no commit until the backlog ends (interval during backlog 0).
    switched : bool
        True if the call that returned this decision changed `mode`. Never true twice for one switch.
    """

    is_processing_backlog: bool
    mode: Mode
    commit_interval_ms: int | None
    switched: bool


class Coordinator:
    """The state machine behind FLIP-309's "interval during backlog".

    Sources are any hashable names. A source counts from its first registration or report until it has
    finished.

    Parameters
    ----------
    interval_ms : int
        Normal commit interval in milliseconds, 0 or more.
    during_backlog_ms : int or None, optional
        Commit interval while any running source reports backlog. None (default): feature off. 0: no commit
        until all have left backlog. Else at least `interval_ms`.

    Raises
    ------
    SettingError
        If an interval is negative, or `during_backlog_ms` is neither 0 nor at least `interval_ms`.

    Examples
    --------
    >>> coordinator = Coordinator(interval_ms=30_000, during_backlog_ms=1_800_000)
    >>> coordinator.report("orders", True).commit_interval_ms
    1800000
    >>> decision = coordinator.report("orders", False)
    >>> decision.switched, decision.commit_interval_ms
    (True, 30000)
    """

    def __init__(self, interval_ms: int, during_backlog_ms: int | None = None) -> None:
        for name, value in (("interval", interval_ms), ("interval_during_backlog", during_backlog_ms)):
            if value is not None and value < 0:
                raise SettingError(name, f"{value} ms", "a duration cannot be negative.")
        if during_backlog_ms is not None:
            check_intervals(
                interval_ms,
                during_backlog_ms,
                interval_name="interval",
                interval_value=format_duration(interval_ms),
                during_backlog_name="interval_during_backlog",
                during_backlog_value=format_duration(during_backlog_ms),
            )
        self._interval_ms = interval_ms
        self._during_backlog_ms = during_backlog_ms
        self._flags: dict[Hashable, bool] = {}
        self._finished: set[Hashable] = set()

    def register(self, source: Hashable) -> Decision:
        """Register a source with FLIP-309's default flag, false.

        Called when a source starts, any number of times. A known source keeps its flag, a finished one stays
        finished. A source that registers late gets the present status from the returned decision.

        Returns
        -------
        Decision
            The present decision; `switched` is always false, for a flag that is false changes nothing.
        """
        if source not in self._finished:
            self._flags.setdefault(source, False)
        return self.decision

    def report(self, source: Hashable, is_processing_backlog: bool) -> Decision:
        """Take a source's report; the last one wins.

        The first report of an unknown source registers it. A report of a finished source is ignored, because
        progress events arrive late: one of them must not move the job back into backlog.

        Returns
        -------
        Decision
            The decision after the report.
        """
        before = self.mode
        if source not in self._finished:
            self._flags[source] = is_processing_backlog
        return replace(self.decision, switched=self.mode is not before)

    def finish(self, source: Hashable) -> Decision:
        """Remove a source for good: it no longer runs, so it no longer counts (FLIP-309, FLIP-147).

        Called when a bounded source has emitted its last row. A second call has no effect. An unknown source is
        recorded as finished.

        Returns
        -------
        Decision
            The decision without the source; `switched` if it was the last one in backlog.
        """
        before = self.mode
        self._finished.add(source)
        self._flags.pop(source, None)
        return replace(self.decision, switched=self.mode is not before)

    @property
    def sources(self) -> tuple[Hashable, ...]:
        """The running sources, in the order of their registration."""
        return tuple(self._flags)

    @property
    def flags(self) -> dict[Hashable, bool]:
        """The last report of each running source."""
        return dict(self._flags)

    @property
    def is_processing_backlog(self) -> bool:
        """True if any running source's last report said that it is processing backlog."""
        return any(self._flags.values())

    @property
    def mode(self) -> Mode:
        """The present mode; always ``Mode.STREAM`` when the feature is off."""
        on = self._during_backlog_ms is not None
        return Mode.BACKLOG if on and self.is_processing_backlog else Mode.STREAM

    @property
    def decision(self) -> Decision:
        """The present decision, with `switched` false: reading it does not switch anything."""
        mode = self.mode
        # 0 during backlog means "no commit", whereas a normal interval of 0 means "at once": hence None.
        interval = (self._during_backlog_ms or None) if mode is Mode.BACKLOG else self._interval_ms
        return Decision(
            is_processing_backlog=self.is_processing_backlog,
            mode=mode,
            commit_interval_ms=interval,
            switched=False,
        )
