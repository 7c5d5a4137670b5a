"""Timers, clocks and the context of a user function.

Names and meaning are PyFlink's (``pyflink.datastream.TimerService``).
"""

from __future__ import annotations

from typing import Any

from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import MIN_WATERMARK

__all__ = ["ProcessContext", "TimerService"]


class TimerService:
    """Timers of the present key, and the clocks. Times are milliseconds since 1970 UTC.

    A key has at most one timer of each kind for a time; registering it again has no effect. A timer for a time that has
    passed fires at the next opportunity, not at once.
    """

    def __init__(self) -> None:
        self.watermark = MIN_WATERMARK
        self.processing_time = 0
        self.registered: list[int] = []
        """Times registered since the operator last emptied it."""

    def bind(self, event: list[Any], processing: list[Any], cursor: list[int], *, has_event_time: bool) -> None:
        """Set the keys' timers. Called by the operator, never by a function.

        A key's timers are None, a list from the state, or after a change a dict without values: a key may have a
        million timers, and they are looked up by their time.
        """
        self._event, self._processing, self._cursor = event, processing, cursor
        self._has_event_time = has_event_time

    def current_watermark(self) -> int:
        """The watermark of the batch; ``MIN_WATERMARK`` before the first and during backlog (FLIP-327, Timer Service).

        While event-time timers fire, it is the watermark that they fire for.
        """
        return self.watermark

    def current_processing_time(self) -> int:
        """The time at which the batch is processed."""
        return self.processing_time

    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a call of `KeyedProcessFunction.on_timer` for when the watermark reaches ``timestamp``.

        In backlog this is at the switch, with the greatest watermark of the backlog.
        """
        if not self._has_event_time:
            raise BacklogError(
                "register_event_time_timer was called, but the stream has no watermark: the timer would never fire.",
                'Add .with_watermark("<column>", "<delay>") before key_by, or use processing time.',
            )
        self._add(self._event, timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a call of `KeyedProcessFunction.on_timer` for when the clock reaches it, in backlog too."""
        self._add(self._processing, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it exists."""
        self._remove(self._event, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it exists."""
        self._remove(self._processing, timestamp)

    def _add(self, timers: list[Any], timestamp: int) -> None:
        if type(timestamp) is not int:
            raise BacklogError(
                f"A timer was registered for {timestamp!r}, of type {type(timestamp).__name__}.",
                "Pass milliseconds since 1970 as int, such as ctx.timestamp() + 60_000.",
            )
        self.timers_of(timers)[timestamp] = None
        self.registered.append(timestamp)

    def _remove(self, timers: list[Any], timestamp: int) -> None:
        self.timers_of(timers).pop(timestamp, None)

    def timers_of(self, timers: list[Any]) -> dict[int, None]:
        """The present key's timers of one kind; change them in place."""
        at = self._cursor[0]
        found = timers[at]
        if type(found) is dict:
            return found
        made: dict[int, None] = dict.fromkeys(found or ())
        timers[at] = made
        return made


class ProcessContext:
    """The context of a row or a timer. A function gets the same object at every call."""

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self._keys: list[Any] = []
        self._cursor: list[int] = [0]
        self._times: Any = None
        self._row: list[int] = [0]
        self._domain = ""
        self._fired = 0
        self._left: int | None = None
        self._asked = 0

    def timer_service(self) -> TimerService:
        """The timers of the present key."""
        return self._timers

    def get_current_key(self) -> Any:
        """The key: its value, or a tuple of them if the stream is keyed by several columns."""
        return self._keys[self._cursor[0]]

    def timestamp(self) -> int | None:
        """Event time of the row in milliseconds, or the time that the timer was set for.

        None without a watermark, for a row whose time is NULL, and in `process_batch`, which has the column itself.
        """
        if self._domain:
            return self._fired
        found: int | None = None if self._times is None else self._times[self._row[0]]
        return found

    def is_interrupted(self) -> bool:
        """Whether a long `KeyedProcessFunction.on_timer` should return, so that the batch can commit.

        Ask between two pieces of the work. If the answer is true, keep in the state where the work stands, register the
        same timer again and return: it fires first in the next batch, which starts at once. Each question counts like a
        timer that fires, so that a batch that is repeated gets the same answers. The first question of a call is never
        answered with true. Always false without ``interruptible_timers`` and the setting
        ``spark.backlog.timers.interruptible.enabled``, for rows, in ``on_end``, and while timers of a key with new rows
        fire.

        Source: FLIP-443, ``MailboxExecutor#isInterrupted``.
        """
        if self._left is None:
            return False
        self._asked += 1
        return 1 < self._asked >= self._left

    def time_domain(self) -> str:
        """In `KeyedProcessFunction.on_timer`: ``"event"`` or ``"processing"``; else empty."""
        return self._domain
