"""Triggers of a global window: after a number of rows, or the user's own (pure).

Source: Flink's ``GlobalWindows``, ``CountTrigger``, ``PurgingTrigger`` and ``CountEvictor``; PyFlink's ``Trigger``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.operators.lifecycle import TaskFunction
from backlog_spark.operators.process.functions import State, declared_in
from backlog_spark.operators.timers import ProcessContext

if TYPE_CHECKING:
    from typing import Self

    from backlog_spark.operators.windows.functions import TimeWindow

__all__ = [
    "CountTrigger",
    "CountedRows",
    "PurgingTrigger",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "whole_number",
]


def whole_number(value: object, setting: str) -> int:
    """Check a number of rows.

    Raises
    ------
    SettingError
        If it is not an int from 1 to 2^63 - 1.
    """
    if type(value) is not int or not 1 <= value < 2**63:
        raise SettingError(setting, value, "is not a number of rows.", "Give an int from 1 to 2^63 - 1.")
    return value


@dataclass(frozen=True)
class CountedRows:
    """Windows that end after a number of rows.

    Parameters
    ----------
    every : int
        A window is emitted at each row whose number within its key is a multiple of this. The first row has number 1.
    last : int or None
        The window has this many of the last rows, at first fewer; None for all rows.
    """

    every: int
    last: int | None

    def describe(self) -> str:
        """The text in the checkpoint."""
        return f"the last {'rows' if self.last is None else self.last} at every {self.every}"


@dataclass(frozen=True)
class CountTrigger:
    """Emits a window at every ``count``-th row of a key and keeps its rows: the next window has them too."""

    count: int

    @classmethod
    def of(cls, count: int) -> Self:
        """At every ``count`` rows.

        Raises
        ------
        SettingError
            If it is not an int from 1 to 2^63 - 1.
        """
        return cls(whole_number(count, "CountTrigger count"))

    def _rows(self) -> CountedRows:
        """Which rows are emitted, and when."""
        return CountedRows(self.count, None)


@dataclass(frozen=True)
class PurgingTrigger:
    """Like the trigger inside, but emits each row once: the next window begins after it."""

    trigger: CountTrigger

    @classmethod
    def of(cls, trigger: CountTrigger) -> Self:
        """Make the trigger drop its rows whenever it has emitted them.

        Raises
        ------
        BacklogError
            For another trigger than a `CountTrigger`.
        """
        if not isinstance(trigger, CountTrigger):
            raise BacklogError(f"PurgingTrigger was given {trigger!r:.100}.", "Pass bs.CountTrigger.of(100).")
        return cls(trigger)

    def _rows(self) -> CountedRows:
        """Which rows are emitted, and when."""
        return CountedRows(self.trigger.count, self.trigger.count)


class TriggerResult(Enum):
    """What happens to a window (PyFlink's ``TriggerResult``)."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    """Emit it, and keep its rows."""
    PURGE = (False, True)
    """Forget its rows."""
    FIRE_AND_PURGE = (True, True)

    def is_fire(self) -> bool:
        """Whether the window is emitted."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Whether its rows are dropped."""
        return self.value[1]


class TriggerContext:
    """Clocks and timers of the present key's window, for a `Trigger`. Times are milliseconds since 1970 UTC."""

    def __init__(self, context: ProcessContext) -> None:
        timers = context.timer_service()
        self.get_current_watermark = timers.current_watermark
        self.get_current_processing_time = timers.current_processing_time
        self.register_event_time_timer = timers.register_event_time_timer
        self.register_processing_time_timer = timers.register_processing_time_timer
        self.delete_event_time_timer = timers.delete_event_time_timer
        self.delete_processing_time_timer = timers.delete_processing_time_timer

    def get_partitioned_state(self, descriptor: object) -> Any:
        """Refused: state is declared.

        Raises
        ------
        BacklogError
        """
        raise BacklogError(
            "A trigger called get_partitioned_state. State is declared in the class, because its columns must be known "
            "before a task starts.",
            'Write it as an attribute of the trigger, such as count = bs.ValueState("long", default=0).',
        )


class Trigger(TaskFunction):
    """Decides when the window of a key is emitted, for `GlobalWindows`; subclass it.

    Declare its state as in a `KeyedProcessFunction`; each key has its own. Timers fire as there: in backlog event-time
    timers wait for the switch. PyFlink's ``clear`` and ``on_merge`` are not called, because these windows never end and
    never merge.

    Examples
    --------
    >>> import backlog_spark as bs
    >>> class Until(bs.Trigger):
    ...     total = bs.ValueState("long", default=0)
    ...
    ...     def on_element(self, row, timestamp, window, ctx):
    ...         self.total.update(self.total.value() + row.amount)
    ...         if self.total.value() < 100:
    ...             return bs.TriggerResult.CONTINUE
    ...         self.total.clear()
    ...         return bs.TriggerResult.FIRE_AND_PURGE
    """

    def on_element(self, row: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Called for each row, after it is in the window.

        Parameters
        ----------
        row : named tuple
        timestamp : int or None
            Its event time; None without a watermark.
        window : TimeWindow
            The only window; it has no start and no end.
        ctx : TriggerContext
        """
        raise BacklogError(f"{type(self).__name__} has no on_element.", "Define it.")

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Called when the watermark has reached a timer of the window."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Called when the clock has reached a timer of the window."""
        return TriggerResult.CONTINUE

    def _declared_states(self) -> dict[str, State]:
        """The declared state by name, in the order of declaration."""
        return declared_in(self, State)
