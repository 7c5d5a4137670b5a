"""Decides whether Kafka is backlog, by the age or number of unread records, with hysteresis (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Thresholds:
    """When the flag changes (FLIP-309: a source may decide by the lag of its records).

    Parameters
    ----------
    lag_ms : int or None
        Enter backlog when an unread record is older than this.
    lag_leave_ms : int
        Leave backlog when no unread record is older than this; at most ``lag_ms``.
    offsets : int or None
        Enter backlog when more offsets than this are unread.
    offsets_leave : int
        Leave backlog when no more offsets than this are unread; at most ``offsets``.
    min_stay_ms : int
        Shortest time between two changes of the flag.

    With neither ``lag_ms`` nor ``offsets`` it is never backlog.
    """

    lag_ms: int | None = None
    lag_leave_ms: int = 0
    offsets: int | None = None
    offsets_leave: int = 0
    min_stay_ms: int = 0

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
