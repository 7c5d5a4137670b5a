"""The flag of a phase without an end: it begins above a threshold and ends at a lower one (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import duration, option
from backlog_spark.spi.user_options import UserOptions

__all__ = ["Flag", "Thresholds", "leave"]


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

    @staticmethod
    def next(flag: Flag | None, exceeded: Callable[[bool], bool], min_stay_ms: int, now_ms: float) -> Flag:
        """The flag from now on.

        Parameters
        ----------
        flag : Flag or None
            The flag before; None at the very start, when it may change at once.
        exceeded : callable
            Whether a threshold is exceeded: the lower one if the argument is true. Asked at most once.
        min_stay_ms : int
            Least time before a change.
        now_ms : float
        """
        if flag is not None and min_stay_ms and now_ms - flag.since_ms < min_stay_ms:
            return flag
        inside = flag is not None and flag.is_backlog
        found = exceeded(inside)
        return flag if flag is not None and found == inside else Flag(found, int(now_ms))


def leave(read: Callable[[UserOptions, str], int | None]) -> Callable[[UserOptions, str], int]:
    """Parses a threshold that ends backlog. By default it is half of the one that begins backlog."""

    def parse(given: UserOptions, name: str) -> int:
        enter_name = name.replace("Leave", "")
        enter, found = read(given, enter_name), read(given, name)
        if found is None:
            return (enter or 0) // 2
        if enter is None or found > enter:
            problem = f"has no meaning without {enter_name}." if enter is None else f"is above {enter_name}."
            raise SettingError(name, given.text(name), problem, f"Set {enter_name}, and this to at most that.")
        return found

    return parse


@dataclass(frozen=True)
class Thresholds:
    """When the flag changes (FLIP-309: a source may decide by the lag of its records).

    Without ``backlogLagThreshold``, or a threshold that a phase adds, it is never backlog.
    """

    lag_ms: int | None = duration("backlogLagThreshold", None, 1)
    """The phase enters backlog while an unread record is older than this, by its timestamp, or an unread file, by its
    time of change (FLIP-309)."""
    lag_leave_ms: int = option(
        "backlogLagLeaveThreshold", leave(lambda given, name: given.duration(name, None)), 0, type="duration",
        shown="half of backlogLagThreshold", bounds="0..backlogLagThreshold",
    )  # fmt: skip
    """It leaves backlog when no unread one is older than this."""
    min_stay_ms: int = duration("backlogMinStay", 0)
    """Least time in or out of backlog before that changes."""
