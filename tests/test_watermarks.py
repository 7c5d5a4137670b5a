"""The watermark of several inputs, and which column is the event time."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from backlog_spark.errors import BacklogError
from backlog_spark.watermarks import EVENT_TIME, Watermarks, event_time_of


@pytest.mark.parametrize(
    ("greatest", "finished", "current"),
    [
        ([None, None], [], None),
        ([100, None], [], None),  # nothing is known of the other
        ([100, 500], [], 89),  # greatest - delay - 1
        ([1_000, 500], [], 399),
        ([100, 500], [0], 399),  # a finished input holds nothing back
        ([None, 500], [0], 399),
        ([100, 500], [0, 1], 399),
        ([None, None], [0, 1], None),
    ],
)
def test_the_least_of_those_that_run(greatest: list[int | None], finished: list[int], current: int | None) -> None:
    marks = Watermarks([10, 100])
    marks.take(greatest)
    for number in finished:
        marks.finish(number)
    assert marks.current == current


def test_it_never_goes_back() -> None:
    marks = Watermarks([0])
    assert marks.take([10])
    assert not marks.take([5])
    assert not marks.take([None])
    assert (marks.current, marks.greatest) == (9, [10])
    assert marks.take([11])


def test_event_time_column() -> None:
    mark = {EVENT_TIME: "ts"}
    assert event_time_of(StructType().add("ts", "timestamp")) is None
    assert event_time_of(StructType().add("renamed", "timestamp", metadata=mark)) == "renamed"
    both = StructType().add("copy", "timestamp", metadata=mark)
    assert event_time_of(both.add("ts", "timestamp", metadata=mark)) == "ts"
    with pytest.raises(BacklogError, match="Columns a, b are all the event time ts"):
        event_time_of(StructType().add("a", "timestamp", metadata=mark).add("b", "timestamp", metadata=mark))
