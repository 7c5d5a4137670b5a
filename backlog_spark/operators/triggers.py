"""When a window of all rows of a key is put out: after every so many rows (pure).

Source: Flink's ``GlobalWindows``, ``CountTrigger``, ``PurgingTrigger`` and ``CountEvictor``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from backlog_spark.errors import BacklogError, SettingError

__all__ = ["CountTrigger", "CountedRows", "PurgingTrigger", "whole_number"]


def whole_number(value: object, setting: str) -> int:
    """A number of rows.

    Raises
    ------
    SettingError
        For what is no int of 1 or more.
    """
    if type(value) is not int or value < 1:
        raise SettingError(setting, value, "is no number of rows.", "Give an int of 1 or more.")
    return value


@dataclass(frozen=True)
class CountedRows:
    """Windows that a number of rows ends.

    Parameters
    ----------
    every : int
        A window is put out at each row of a key whose number this divides; the first row has the number 1.
    last : int or None
        How many of the last rows are in it, fewer if there are not so many yet; None for all.
    """

    every: int
    last: int | None

    def describe(self) -> str:
        """As kept in the checkpoint."""
        return f"the last {'rows' if self.last is None else self.last} at every {self.every}"


@dataclass(frozen=True)
class CountTrigger:
    """Puts a window out at every so many rows of a key, and keeps its rows: the next one has them too."""

    count: int

    @classmethod
    def of(cls, count: int) -> Self:
        """At every ``count`` rows.

        Raises
        ------
        SettingError
            For what is no int of 1 or more.
        """
        return cls(whole_number(count, "CountTrigger count"))

    def rows(self) -> CountedRows:
        """Which rows are put out, and when."""
        return CountedRows(self.count, None)


@dataclass(frozen=True)
class PurgingTrigger:
    """As the trigger that it is made of, but a row is put out once: the next window begins behind it."""

    trigger: CountTrigger

    @classmethod
    def of(cls, trigger: CountTrigger) -> Self:
        """The trigger with its rows forgotten whenever it has put them out.

        Raises
        ------
        BacklogError
            For another trigger than a `CountTrigger`.
        """
        if not isinstance(trigger, CountTrigger):
            raise BacklogError(f"PurgingTrigger was given {trigger!r:.100}.", "Pass bs.CountTrigger.of(100).")
        return cls(trigger)

    def rows(self) -> CountedRows:
        """Which rows are put out, and when."""
        return CountedRows(self.trigger.count, self.trigger.count)
