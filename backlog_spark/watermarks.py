"""Event time: which column it is, and the watermark that a query's inputs give together (pure).

Spark's own watermark drops rows before user code sees them, cannot be held back during backlog, and waits for ever for
a source that has finished. So the mark is ours: each input's greatest event time is observed batch by batch, and what
follows from it reaches the operators through the control source.

Source: Flink's ``BoundedOutOfOrdernessWatermarks``; FLIP-327, section "Watermark strategy".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["END_OF_TIME", "EVENT_TIME", "Watermarks", "event_time_of", "observation_name"]

EVENT_TIME: Final = "backlog_spark.eventTime"
"""Key in a column's metadata that marks it as the event time; the value is the name that it was declared with."""


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


def observation_name(number: int) -> str:
    """Under which the greatest event time of an input is observed."""
    return f"backlog_spark_event_time_{number}"


END_OF_TIME: Final = 2**63 - 1
"""The watermark of inputs that have all come to their end (FLIP-147): whatever waits for a time is due."""


class Watermarks:
    """The watermark of several inputs: the least of theirs.

    Parameters
    ----------
    delays_ms : sequence of int
        How much later than a row of a later time a row may come, for each input.
    """

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self._delays = tuple(delays_ms)
        self._greatest: list[int | None] = [None] * len(self._delays)
        self._finished: set[int] = set()

    @property
    def greatest(self) -> list[int | None]:
        """Greatest event time of each input so far, in milliseconds since 1970; None before the first."""
        return list(self._greatest)

    def take(self, greatest: Sequence[int | None]) -> bool:
        """Take the greatest event times of a batch; whether any was new."""
        before = list(self._greatest)
        for at, time in enumerate(greatest):
            known = self._greatest[at]
            if time is not None and (known is None or time > known):
                self._greatest[at] = time
        return self._greatest != before

    def finish(self, number: int) -> None:
        """An input has come to its end and holds nothing back any more (FLIP-147)."""
        self._finished.add(number)

    @property
    def current(self) -> int | None:
        """Rows at or before it, in milliseconds since 1970, are late. None before every running input has had a row.

        With all inputs finished it is that of the greatest of them.
        """
        marks = [
            None if greatest is None else greatest - delay - 1
            for greatest, delay in zip(self._greatest, self._delays, strict=True)
        ]
        running = [mark for at, mark in enumerate(marks) if at not in self._finished]
        if not running:
            return max((mark for mark in marks if mark is not None), default=None)
        return None if None in running else min(mark for mark in running if mark is not None)
