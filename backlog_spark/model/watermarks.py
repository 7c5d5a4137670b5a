"""Watermarks, how those of several channels and inputs combine, and which column is event time (pure).

Spark's own watermark drops rows before user code sees them, cannot be held back during backlog, and waits for ever for
a finished source. So these watermarks replace it. They can also say that event time follows the clock.

Source: FLIP-326; Flink's ``WatermarkToDataOutput``, ``StatusWatermarkValve`` and ``IndexedCombinedWatermarkStatus``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "END_OF_TIME",
    "EVENT_TIME",
    "MIN_WATERMARK",
    "PROCESSING_TIME",
    "CombinedWatermarkStatus",
    "Watermark",
    "WatermarkOutput",
    "WatermarkValve",
    "event_time_of",
    "micros_until",
    "observation_name",
]

PROCESSING_TIME: Final = "backlog_spark.processingTime"
"""Key in the metadata of a column with the time at which its row is processed."""

EVENT_TIME: Final = "backlog_spark.eventTime"
"""Key in a column's metadata that marks it as the event time. The value is the name in its declaration."""

MIN_WATERMARK: Final = -(2**63)
"""The watermark before the first one."""

END_OF_TIME: Final = 2**63 - 1
"""The watermark of an input that has ended (FLIP-147): everything that waits for a time is due."""


def micros_until(milliseconds: int) -> int:
    """The last microsecond of a millisecond since 1970, within 64 bits.

    A time in microseconds is at most this if and only if, rounded down to milliseconds, it is at most the given one.
    """
    return min(max(milliseconds * 1_000 + 999, MIN_WATERMARK), END_OF_TIME)


def event_time_of(schema: StructType) -> str | None:
    """The event-time column of a stream's rows, or None.

    Raises
    ------
    BacklogError
        If the mark is on several columns and none of them has the declared name.
    """
    marked = [field for field in schema if EVENT_TIME in field.metadata]
    named = [field.name for field in marked if field.name == field.metadata[EVENT_TIME]]
    if len(marked) > 1 and len(named) != 1:
        raise BacklogError(
            f"Columns {', '.join(f.name for f in marked)} are all the event time {marked[0].metadata[EVENT_TIME]}.",
            "Keep one of them, or keep the declared name.",
        )
    found = named or [field.name for field in marked]
    return found[0] if found else None


_OBSERVED: Final = "backlog_spark_event_time_"


def observation_name(number: int) -> str:
    """The name of the observation of an input's greatest event time."""
    return f"{_OBSERVED}{number}"


def observed_input(name: str) -> int | None:
    """The number in such a name; None for another name."""
    number = name.removeprefix(_OBSERVED)
    return int(number) if number != name and number.isdecimal() else None


@checked_arguments
@dataclass(frozen=True)
class Watermark:
    """The progress of a stream's event time.

    Parameters
    ----------
    timestamp : int
        Milliseconds since 1970. No row of this time or an earlier one is expected any more. With
        ``use_processing_time`` it is the last such time.
    use_processing_time : bool
        From now on event time follows the system time. No watermark without it may follow. Default false.

    Examples
    --------
    >>> output = WatermarkOutput(clock=lambda: 1_000)
    >>> output.emit(Watermark(500)), output.emit(Watermark(400))
    (Watermark(timestamp=500, use_processing_time=False), None)
    >>> output.emit(Watermark(900, use_processing_time=True))
    Watermark(timestamp=900, use_processing_time=True)
    """

    timestamp: int
    use_processing_time: bool = False

    def at(self, now: int) -> int:
        """The event time at the system time ``now``."""
        return max(self.timestamp, now) if self.use_processing_time else self.timestamp


class WatermarkOutput:
    """The output of one source: watermarks that never go back (FLIP-326, ``WatermarkToDataOutput``).

    Parameters
    ----------
    clock : callable
        The system time in milliseconds since 1970.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last: Watermark | None = None

    @property
    def last(self) -> Watermark | None:
        """The last watermark that was sent; None before the first."""
        return self._last

    def emit(self, watermark: Watermark) -> Watermark | None:
        """Send a watermark on; return it, or None if it brings nothing new.

        Raises
        ------
        BacklogError
            For a change back from processing time to event time. For processing time with a timestamp that is not
            before the system time, or after an event time beyond the system time.
        """
        last = self._last
        if last is not None and last.use_processing_time and not watermark.use_processing_time:
            raise BacklogError(
                f"A watermark of event time {watermark.timestamp} came after one of processing time.",
                "After the first watermark of processing time, send only such watermarks.",
            )
        if watermark.use_processing_time:
            now = self._clock()
            if watermark.timestamp >= now:
                raise BacklogError(
                    f"A watermark of processing time has the timestamp {watermark.timestamp}, and it is {now} now.",
                    "Give a timestamp before the system time.",
                )
            if last is not None and now < last.timestamp:
                raise BacklogError(
                    f"A watermark of processing time came at {now}, but one of event time {last.timestamp} had been "
                    "sent: time would go back.",
                    "Change to processing time when the system time has passed the event time.",
                )
        elif last is not None and watermark.timestamp <= last.timestamp:
            return None
        self._last = watermark
        return watermark


@dataclass
class _Channel:
    timestamp: int = MIN_WATERMARK
    use_processing_time: bool = False
    idle: bool = False
    aligned: bool = True
    finished: bool = False

    @property
    def active(self) -> bool:
        """A channel with processing time is always active until it ends."""
        return not self.finished and (self.use_processing_time or not self.idle)

    def take(self, watermark: Watermark) -> None:
        """Take a watermark: the greatest timestamp counts, and processing time stays."""
        self.timestamp = max(self.timestamp, watermark.timestamp)
        self.use_processing_time |= watermark.use_processing_time


class WatermarkValve:
    """The watermark of one input with several channels, such as a union (FLIP-326, ``StatusWatermarkValve``).

    A channel counts while it is aligned: active, and not before the input's watermark. So a channel that wakes does not
    hold the input back before it has caught up. Channels of processing time do not hold back others.

    Parameters
    ----------
    channels : int
        1 or more.
    """

    def __init__(self, channels: int) -> None:
        self._channels = [_Channel() for _ in range(channels)]
        self._last = Watermark(MIN_WATERMARK)
        self._idle = False

    @property
    def watermark(self) -> Watermark:
        """The input's watermark."""
        return self._last

    @property
    def is_idle(self) -> bool:
        """Whether all channels are idle."""
        return self._idle

    def input_watermark(self, channel: int, watermark: Watermark) -> Watermark | None:
        """Take a channel's watermark; return the input's new one, or None if it stays.

        An idle channel's watermark is ignored, except one of processing time, which makes the channel active.
        """
        at = self._channels[channel]
        if at.idle and not watermark.use_processing_time:
            return None
        at.take(watermark)
        if watermark.use_processing_time:
            at.idle = self._idle = False
        self._realign(at)
        return self._move()

    def input_status(self, channel: int, *, idle: bool) -> Watermark | None:
        """Take a channel's change to idle or active; return the input's new watermark, or None if it stays."""
        at = self._channels[channel]
        if at.use_processing_time or at.idle == idle:
            return None
        at.idle = idle
        if not idle:
            self._idle = False
            self._realign(at)
            return None
        at.aligned = False
        if any(each.active for each in self._channels):
            return self._move()
        self._idle = True
        # Nothing holds the watermark back any more, so the greatest one of all channels counts.
        return self._to(Watermark(max(each.timestamp for each in self._channels)))

    def finish(self, channel: int) -> Watermark | None:
        """Take the end of a channel, which no longer counts (FLIP-147); return the new watermark, or None."""
        at = self._channels[channel]
        if at.finished:
            return None
        at.finished, at.aligned = True, False
        self._idle = not any(each.active for each in self._channels)
        return self._move()

    def _realign(self, at: _Channel) -> None:
        if self._last.use_processing_time:
            at.aligned = at.use_processing_time
        elif at.use_processing_time or (at.active and at.timestamp >= self._last.timestamp):
            at.aligned = True

    def _move(self) -> Watermark | None:
        aligned = [each for each in self._channels if each.active and each.aligned]
        if not aligned:
            return None
        if all(each.use_processing_time for each in aligned):
            return self._to(Watermark(min(each.timestamp for each in aligned), use_processing_time=True))
        return self._to(Watermark(min(each.timestamp for each in aligned if not each.use_processing_time)))

    def _to(self, watermark: Watermark) -> Watermark | None:
        last = self._last
        if watermark.use_processing_time == last.use_processing_time and watermark.timestamp <= last.timestamp:
            return None
        if last.use_processing_time and not watermark.use_processing_time:
            return None
        self._last = watermark
        if watermark.use_processing_time:
            for each in self._channels:
                each.aligned = each.use_processing_time
        return watermark


class CombinedWatermarkStatus:
    """The event time of an operator with several inputs (FLIP-326, ``IndexedCombinedWatermarkStatus``).

    It is the least of the active inputs. Inputs of processing time are at the system time.

    Parameters
    ----------
    inputs : int
        1 or more.
    """

    def __init__(self, inputs: int) -> None:
        self._inputs = [_Channel() for _ in range(inputs)]
        self._reached = MIN_WATERMARK

    def update(self, number: int, watermark: Watermark) -> None:
        """Take an input's watermark; the input is active from then on."""
        self._inputs[number].take(watermark)
        self._inputs[number].idle = False

    def update_status(self, number: int, *, idle: bool) -> None:
        """Take an input's change to idle or active."""
        self._inputs[number].idle = idle

    def finish(self, number: int) -> None:
        """Take the end of an input, which no longer counts (FLIP-147)."""
        self._inputs[number].finished = True

    @property
    def is_idle(self) -> bool:
        """Whether all inputs are idle."""
        return not any(each.active for each in self._inputs)

    def watermark(self, now: int) -> Watermark:
        """The operator's watermark at a system time in milliseconds since 1970. Its event time never goes back."""
        active = [each for each in self._inputs if each.active]
        if active and all(each.use_processing_time for each in active):
            return Watermark(max(self._reached, min(each.timestamp for each in active)), use_processing_time=True)
        if active:
            each_at = [Watermark(each.timestamp, each.use_processing_time).at(now) for each in active]
            self._reached = max(self._reached, min(each_at))
        return Watermark(self._reached)
