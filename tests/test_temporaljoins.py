"""The planner's rules of FLIP-326, as a table."""

from __future__ import annotations

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.temporaljoins import TemporalJoinKind, choose_temporal_join
from backlog_spark.watermarks import WatermarkCharacteristic

ANY, UNDEFINED = WatermarkCharacteristic.ANY_WATERMARK, WatermarkCharacteristic.UNDEFINED
EVENT_TIME, WAITING, AT_ONCE = TemporalJoinKind


@pytest.mark.parametrize(
    ("probe", "build", "event_time", "wait", "expected"),
    [
        (ANY, ANY, True, True, EVENT_TIME),
        (ANY, UNDEFINED, True, True, EVENT_TIME),
        (UNDEFINED, UNDEFINED, True, False, EVENT_TIME),
        (ANY, ANY, False, True, WAITING),
        (ANY, UNDEFINED, False, True, None),
        (UNDEFINED, ANY, False, True, None),
        (UNDEFINED, UNDEFINED, False, True, None),
        (ANY, ANY, False, False, AT_ONCE),
        (UNDEFINED, ANY, False, False, AT_ONCE),
        (UNDEFINED, UNDEFINED, False, False, AT_ONCE),
    ],
)
def test_the_choice(
    probe: WatermarkCharacteristic,
    build: WatermarkCharacteristic,
    event_time: bool,
    wait: bool,
    expected: TemporalJoinKind | None,
) -> None:
    given = {"clicks": probe, "users": build}
    if expected is not None:
        assert choose_temporal_join(given, event_time=event_time, wait=wait) is expected
        return
    named = ", ".join(name for name, each in given.items() if each is UNDEFINED)
    with pytest.raises(BacklogError, match=f"characteristic of {named} is UNDEFINED.*use_processing_time=True"):
        choose_temporal_join(given, event_time=event_time, wait=wait)
