"""Assigns rows to windows: PyFlink's assigners, by event time and by processing time (pure except expressions).

A window is a span of time, ``[start, end)``, in milliseconds since 1970. Sessions begin with a row, so they are in
microseconds, like Spark's timestamps. A window fires when the watermark or the clock has reached its last millisecond.

Source: PyFlink's ``pyflink.datastream.window``; Flink's ``CumulativeWindowAssigner`` for ``CUMULATE``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.errors import SettingError

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "CumulativeEventTimeWindows",
    "EndOfStreamWindows",
    "EventTimeSessionWindows",
    "GlobalWindows",
    "ProcessingTimeSessionWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
]

FOREVER: Final = 2**63 - 1
"""The end of a window that ends with the input."""

Duration = str | timedelta


@dataclass(frozen=True)
class WindowAssigner:
    """Windows of one kind; the classes below make it.

    Parameters
    ----------
    size_ms : int
        Length of a window. For sessions the gap that ends one. 0: one window that ends with the input.
    step_ms : int
        From one window's start to the next; for cumulative windows from one end to the next. Equal to the size for
        tumbling windows.
    offset_ms : int
        Shift of the windows from 1970-01-01 UTC.
    """

    size_ms: int
    step_ms: int
    offset_ms: int = 0

    is_event_time = True
    is_session = False
    is_cumulative = False
    is_global = False

    @property
    def micros_a_unit(self) -> int:
        """Length of the unit of `window_of` and `assign` in microseconds.

        The bounds of other windows than sessions are whole milliseconds. So a row's time may be rounded down for them.
        """
        return 1 if self.is_session else 1_000

    @property
    def is_unbounded(self) -> bool:
        """Whether it is one window that ends with the input."""
        return self.size_ms == 0

    def describe(self) -> str:
        """The form in the checkpoint."""
        return f"{type(self).__name__}({self.size_ms}, {self.step_ms}, {self.offset_ms})"

    @property
    def windows_a_row(self) -> int:
        """The largest number of windows of a row."""
        if self.is_unbounded or self.is_session:
            return 1
        return self.size_ms // self.step_ms if self.is_cumulative else -(-self.size_ms // self.step_ms)

    def window_of(self, time: Column, number: Column | int) -> tuple[Column, Column, Column]:
        """A window of a row as Spark expressions: start, end, and whether the row is in it.

        Parameters
        ----------
        time : Column
            Units of `micros_a_unit` since 1970.
        number : Column or int
            From 0 to below `windows_a_row`. The window that ends last is the first, and every row is in it.
        """
        from pyspark.sql import functions as F

        if self.is_unbounded:
            return F.lit(-FOREVER), F.lit(FOREVER), F.lit(True)
        if self.is_session:
            return time, time + self.size_ms * 1_000, F.lit(True)
        if self.is_cumulative:
            start = time - F.pmod(time - self.offset_ms, F.lit(self.size_ms))
            # Of the windows with one start, those that end after the row.
            end = start + (self.windows_a_row - F.lit(number).cast("long")) * self.step_ms
            return start, end, time < end
        start = time - F.pmod(time - self.offset_ms, F.lit(self.step_ms)) - F.lit(number).cast("long") * self.step_ms
        return start, start + self.size_ms, time < start + self.size_ms

    def assign(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same in a worker.

        Parameters
        ----------
        times : numpy.ndarray of int64

        Returns
        -------
        (numpy.ndarray, numpy.ndarray, numpy.ndarray)
            Index of the row, start and end of each window of each row; the window that ends last first.
        """
        rows = np.arange(len(times))
        if self.is_unbounded:
            return rows, np.full(len(times), -FOREVER), np.full(len(times), FOREVER)
        if self.is_session:
            return rows, times, times + self.size_ms * 1_000
        last = times - np.mod(times - self.offset_ms, self.size_ms if self.is_cumulative else self.step_ms)
        found = []
        for k in range(-(-self.size_ms // self.step_ms)):
            start = last if self.is_cumulative else last - k * self.step_ms
            end = start + self.size_ms - (k * self.step_ms if self.is_cumulative else 0)
            inside = times < end
            found.append((rows[inside], start[inside], end[inside]))
        index, starts, ends = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return index, starts, ends


def _positive(value: Duration, what: str) -> int:
    found = parse_duration(value, what)
    if found <= 0:
        raise SettingError(what, value, "must be longer than 0.", 'For example "1 minute".')
    return found


class _Tumbling(WindowAssigner):
    @classmethod
    @checked_arguments
    def of(cls, size: Duration, offset: Duration = "0 seconds") -> Self:
        """Windows of ``size``, one after another.

        Raises
        ------
        SettingError
            For a value that is not a duration above 0.
        """
        length = _positive(size, "window size")
        return cls(length, length, parse_duration(offset, "window offset"))


class _Sliding(WindowAssigner):
    @classmethod
    @checked_arguments
    def of(cls, size: Duration, slide: Duration, offset: Duration = "0 seconds") -> Self:
        """Windows of ``size`` that begin every ``slide``, which is at most the size.

        Raises
        ------
        SettingError
            For a value that is not a duration above 0, and for a slide longer than the size.
        """
        length, step = _positive(size, "window size"), _positive(slide, "window slide")
        if step > length:
            raise SettingError(
                "window slide", slide, f"is longer than the size {size}: rows between windows would be lost.",
                "Use a slide of at most the size.",
            )  # fmt: skip
        return cls(length, step, parse_duration(offset, "window offset"))


class _Session(WindowAssigner):
    is_session = True

    @classmethod
    @checked_arguments
    def with_gap(cls, gap: Duration) -> Self:
        """Windows that end when no row has come for ``gap``. Rows exactly that far apart share one, as in Flink.

        Raises
        ------
        SettingError
            For a value that is not a duration above 0.
        """
        length = _positive(gap, "session gap")
        return cls(length, length)


class TumblingEventTimeWindows(_Tumbling):
    """Windows of a fixed size, by event time."""


class TumblingProcessingTimeWindows(_Tumbling):
    """Windows of a fixed size, by the clock."""

    is_event_time = False


class SlidingEventTimeWindows(_Sliding):
    """Windows of a fixed size that overlap, by event time."""


class SlidingProcessingTimeWindows(_Sliding):
    """Windows of a fixed size that overlap, by the clock."""

    is_event_time = False


class EventTimeSessionWindows(_Session):
    """Windows that a pause ends, by event time."""


class ProcessingTimeSessionWindows(_Session):
    """Windows that a pause ends, by the clock."""

    is_event_time = False


class CumulativeEventTimeWindows(WindowAssigner):
    """Windows that begin together and grow by a step until the largest: SQL's ``CUMULATE``."""

    is_cumulative = True

    @classmethod
    @checked_arguments
    def of(cls, max_size: Duration, step: Duration, offset: Duration = "0 seconds") -> Self:
        """Windows of ``step``, 2 x ``step`` … ``max_size`` from one start.

        Raises
        ------
        SettingError
            For a value that is not a duration above 0, and for a size that is not a multiple of the step.
        """
        length, each = _positive(max_size, "window size"), _positive(step, "window step")
        if length % each:
            raise SettingError(
                "window step", step, f"does not divide the size {max_size}.", "Use a step that divides it."
            )
        return cls(length, each, parse_duration(offset, "window offset"))


class EndOfStreamWindows(WindowAssigner):
    """One window per key, which ends when all inputs have finished (FLIP-327; Flink's ``EndOfStreamWindows``)."""

    @classmethod
    def get(cls) -> Self:
        """The assigner."""
        return cls(0, 0)


class GlobalWindows(WindowAssigner):
    """One window per key that never ends. A trigger emits its rows (Flink's ``GlobalWindows``)."""

    is_global = True

    @classmethod
    def create(cls) -> Self:
        """The assigner."""
        return cls(0, 0)
