"""Chooses the temporal join of a query, by its time and its sources' characteristics (pure).

Source: FLIP-326, section "Flink SQL Planner".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from backlog_spark.errors import BacklogError
from backlog_spark.spi.source_info import WatermarkCharacteristic

__all__ = ["TemporalJoinKind", "choose_temporal_join"]


class TemporalJoinKind(StrEnum):
    """How rows of the probe side match rows of the build side."""

    EVENT_TIME = "event time"
    """The version that was valid at the row's own time."""
    WAITING = "processing time, waiting"
    """The newest version, once the build side has left backlog."""
    AT_ONCE = "processing time, at once"
    """The newest version that has been read so far (Flink's ``TemporalProcessTimeJoinOperator``)."""


def choose_temporal_join(
    characteristics: Mapping[str, WatermarkCharacteristic], *, event_time: bool, wait: bool
) -> TemporalJoinKind:
    """Choose the join of a query.

    Parameters
    ----------
    characteristics : mapping of str to WatermarkCharacteristic
        The characteristics of all sources of both sides, by a name for messages.
    event_time : bool
        Whether the join uses the rows' event time.
    wait : bool
        False: the join does not wait for the build side, like Flink's temporal table functions.

    Raises
    ------
    BacklogError
        If the join must wait and a source cannot report that it has left backlog.
    """
    if event_time:
        return TemporalJoinKind.EVENT_TIME
    if not wait:
        return TemporalJoinKind.AT_ONCE
    unknown = [name for name, each in characteristics.items() if each is WatermarkCharacteristic.UNDEFINED]
    if unknown:
        raise BacklogError(
            f"temporal_join: the watermark characteristic of {', '.join(unknown)} is UNDEFINED. Nothing shows when it "
            "has left backlog, so rows might be joined before the build side is complete.",
            "Read it with a connector whose SourceInfo says ANY_WATERMARK (mysql_cdc, hybrid), wrap a DataFrame of "
            "live rows with bs.stream(frame, use_processing_time=True), or join without waiting with wait=False.",
        )
    return TemporalJoinKind.WAITING
