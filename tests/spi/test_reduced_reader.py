"""The position of a source that Spark 4.0 and 4.1 do not tell (pure)."""

from __future__ import annotations

from typing import Any

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.spi.reduced_reader import ReducedReader, for_this_spark


class Numbers:
    """Gives two numbers a batch, up to ten. Offsets have a tuple, which Spark gives back as a list."""

    def initialOffset(self) -> dict[str, Any]:
        return {"at": (0,)}

    def getDefaultReadLimit(self) -> int:
        return 2

    def latestOffset(self, start: dict[str, Any], limit: int) -> dict[str, Any]:
        return start if start["at"][0] == 10 else {"at": (start["at"][0] + limit,)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        return list(range(start["at"][0], end["at"][0]))


def at(number: int) -> dict[str, Any]:
    return {"at": [number]}


def planned(reader: ReducedReader, start: dict[str, Any]) -> list[int]:
    """What Spark does with a trigger: the next batch."""
    end = at(reader.latestOffset()["at"][0])
    return [] if end == start else reader.partitions(start, end)  # type: ignore[return-value]


def test_a_new_query_reads_everything_in_order() -> None:
    reader = ReducedReader(Numbers())
    end = reader.latestOffset()
    assert reader.initialOffset() == at(0)
    assert reader.partitions(at(0), at(end["at"][0])) == [0, 1]
    found = [planned(reader, at(start)) for start in (2, 4, 6, 8, 10, 10)]
    assert found == [[2, 3], [4, 5], [6, 7], [8, 9], [], []]


def test_a_restarted_query_is_told_its_position() -> None:
    reader = ReducedReader(Numbers())
    assert reader.partitions(at(6), at(6)) == []
    assert planned(reader, at(6)) == [6, 7]


def test_a_repeated_batch_tells_its_end() -> None:
    reader = ReducedReader(Numbers())
    assert reader.partitions(at(4), at(4)) == []
    assert reader.partitions(at(4), at(6)) == [4, 5]
    assert reader.partitions(at(4), at(6)) == [4, 5]
    assert planned(reader, at(6)) == [6, 7]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(6, 6, id="the position comes too late"),
        pytest.param(6, 2, id="the position never comes"),
        pytest.param(0, 4, id="another end"),
    ],
)
def test_another_batch_than_the_one_given_is_refused(start: int, end: int) -> None:
    reader = ReducedReader(Numbers())
    reader.latestOffset()
    with pytest.raises(BacklogError, match="the position of the source is unknown"):
        reader.partitions(at(start), at(end))


def test_a_batch_that_is_never_planned_is_refused() -> None:
    reader = ReducedReader(Numbers())
    reader.latestOffset()
    with pytest.raises(BacklogError, match="the position of the source is unknown"):
        reader.latestOffset()


def test_spark_4_2_gets_the_reader_itself() -> None:
    reader: Any = Numbers()
    assert for_this_spark(reader) is reader
