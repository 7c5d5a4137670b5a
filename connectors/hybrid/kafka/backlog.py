"""Decides whether Kafka is backlog, by the age or number of unread records, with hysteresis (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import duration, integer, option
from backlog_spark.spi.user_options import UserOptions

__all__ = ["Flag", "Thresholds"]


@dataclass(frozen=True)
class Flag:
    """``isProcessingBacklog`` of the phase.

    Parameters
    ----------
    is_backlog : bool
    since_ms : int
        When the flag last changed, milliseconds since 1970.
    """

    is_backlog: bool = False
    since_ms: int = 0


def _leave(read: Callable[[UserOptions, str], int | None]) -> Callable[[UserOptions, str], int]:
    """Parses a threshold that ends backlog. By default it is half of the one that begins backlog."""

    def parse(given: UserOptions, name: str) -> int:
        enter_name = name.replace("Leave", "")
        enter, leave = read(given, enter_name), read(given, name)
        if leave is None:
            return (enter or 0) // 2
        if enter is None or leave > enter:
            problem = f"has no meaning without {enter_name}." if enter is None else f"is above {enter_name}."
            raise SettingError(name, given.text(name), problem, f"Set {enter_name}, and this to at most that.")
        return leave

    return parse


@dataclass(frozen=True)
class Thresholds:
    """When the flag changes (FLIP-309: a source may decide by the lag of its records).

    With neither ``backlogLagThreshold`` nor ``backlogOffsetsThreshold`` it is never backlog.
    """

    lag_ms: int | None = duration("backlogLagThreshold", None, 1)
    """The phase enters backlog while an unread record is older than this, by the records' timestamps (FLIP-309)."""
    lag_leave_ms: int = option(
        "backlogLagLeaveThreshold", _leave(lambda given, name: given.duration(name, None)), 0, type="duration",
        shown="half of backlogLagThreshold", bounds="0..backlogLagThreshold",
    )  # fmt: skip
    """It leaves backlog when no unread record is older than this."""
    offsets: int | None = integer("backlogOffsetsThreshold", None, 1)
    """The phase enters backlog while more offsets than this are unread, in all partitions together."""
    offsets_leave: int = option(
        "backlogOffsetsLeaveThreshold", _leave(lambda given, name: given.integer(name, None, 0)), 0, type="int",
        shown="half of backlogOffsetsThreshold", bounds="0..backlogOffsetsThreshold",
    )  # fmt: skip
    """It leaves backlog when at most this many are unread."""
    min_stay_ms: int = duration("backlogMinStay", 0)
    """Least time in or out of backlog before that changes."""

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
        if flag is not None and self.min_stay_ms and now_ms - flag.since_ms < self.min_stay_ms:
            return flag
        inside = flag is not None and flag.is_backlog
        found = self._exceeded(inside, unread, is_unread_older)
        return flag if flag is not None and found == inside else Flag(found, int(now_ms))

    def _exceeded(self, inside: bool, unread: int, is_unread_older: Callable[[int], bool]) -> bool:
        if not unread:
            return False
        if self.offsets is not None and unread > (self.offsets_leave if inside else self.offsets):
            return True
        return self.lag_ms is not None and is_unread_older(self.lag_leave_ms if inside else self.lag_ms)
