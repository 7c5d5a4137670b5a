"""Decides whether Kafka is backlog, by the age or number of unread records, with hysteresis (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backlog_spark.spi.options import integer, option

from ..hysteresis import Flag, Thresholds, leave

__all__ = ["Flag", "OffsetThresholds"]


@dataclass(frozen=True)
class OffsetThresholds(Thresholds):
    """Thresholds of a topic."""

    offsets: int | None = integer("backlogOffsetsThreshold", None, 1)
    """The phase enters backlog while more offsets than this are unread, in all partitions together."""
    offsets_leave: int = option(
        "backlogOffsetsLeaveThreshold", leave(lambda given, name: given.integer(name, None, 0)), 0, type="int",
        shown="half of backlogOffsetsThreshold", bounds="0..backlogOffsetsThreshold",
    )  # fmt: skip
    """It leaves backlog when at most this many are unread."""

    def next(self, flag: Flag | None, unread: int, is_unread_older: Callable[[int], bool], now_ms: float) -> Flag:
        """The flag from now on.

        Parameters
        ----------
        flag : Flag or None
            The flag before; None at the very start, when it may change at once.
        unread : int
            Offsets that have not been read.
        is_unread_older : callable
            Whether a record is unread that is older than so many milliseconds. Asked at most once, and only if the
            answer decides.
        now_ms : float
            The time.
        """
        return Flag.next(flag, lambda inside: self._exceeded(inside, unread, is_unread_older), self.min_stay_ms, now_ms)

    def _exceeded(self, inside: bool, unread: int, is_unread_older: Callable[[int], bool]) -> bool:
        if not unread:
            return False
        if self.offsets is not None and unread > (self.offsets_leave if inside else self.offsets):
            return True
        return self.lag_ms is not None and is_unread_older(self.lag_leave_ms if inside else self.lag_ms)
