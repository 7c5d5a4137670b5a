"""The source ``datagen``: rows become due by the clock, and keep their times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.connectors.datagen import DatagenReader, Options, check_options, inspect
from backlog_spark.errors import SettingError
from backlog_spark.spi.read_limits import ReadAllAvailable

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def rows_of(reader: DatagenReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def test_rows_become_due_at_the_rate_up_to_the_end() -> None:
    clock = Clock()
    reader = DatagenReader(Options.parse({"rowsPerSecond": "4", "numberOfRows": "10"}), clock)
    first = reader.initialOffset()
    assert first == {"version": 1, "row": 0, "beganMs": 1_000_000, "isProcessingBacklog": False, "isBacklog": False}
    assert reader.latestOffset(first, ReadAllAvailable()) is first
    clock.now += 1.3
    second = reader.latestOffset(first, ReadAllAvailable())
    assert second["row"] == 5
    clock.now += 100
    last = reader.latestOffset(second, ReadAllAvailable())
    assert (last["row"], last["isFinished"]) == (10, True)
    assert reader.latestOffset(last, ReadAllAvailable()) is last
    rows = rows_of(reader, second, last)
    assert [row["value"] for row in rows] == [5, 6, 7, 8, 9]
    assert [row["timestamp"] for row in rows[:2]] == [
        datetime(1970, 1, 1, 0, 16, 41, 250_000, UTC), datetime(1970, 1, 1, 0, 16, 41, 500_000, UTC)
    ]  # fmt: skip
    assert rows_of(DatagenReader(Options.parse({"rowsPerSecond": "4"})), second, last) == rows


def test_batches_begin_at_the_interval() -> None:
    clock = Clock()
    reader = DatagenReader(Options.parse({"interval": "10 s"}), clock)
    clock.now += 1
    second = reader.latestOffset(reader.initialOffset() | {"beganMs": 1_000_000}, ReadAllAvailable())
    assert second["row"] == 10_000
    clock.now += 5
    assert reader.latestOffset(second, ReadAllAvailable()) is second
    clock.now += 5
    assert reader.latestOffset(second, ReadAllAvailable())["row"] == 110_000


@pytest.mark.parametrize(("target", "row"), [("latest", 10_000), ("backlogEnd", 0), ("none", 0)])
def test_available_now_ends_with_the_rows_that_are_due_at_the_start(target: str, row: int) -> None:
    clock = Clock()
    reader = DatagenReader(Options.parse({"availableNowTarget": target}), clock)
    first = reader.initialOffset()
    clock.now += 1
    reader.prepareForTriggerAvailableNow()
    clock.now += 1
    found = reader.latestOffset(first, ReadAllAvailable())
    assert found["row"] == row
    assert reader.latestOffset(found, ReadAllAvailable()) is found


def test_options() -> None:
    with pytest.raises(SettingError, match=r"rowsPerSecnd.*datagen has no such option\. Did you mean rowsPerSecond\?"):
        check_options({"rowsPerSecnd": "1"})
    with pytest.raises(SettingError, match="numberOfRows = '0': is not an integer >= 1"):
        inspect({"numberOfRows": "0"})


def test_rows_are_counted_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """Many tasks and Arrow batches; the target has each row once, and two rows in each microsecond."""
    made = bs.source("datagen", name="made", rowsPerSecond=2_000_000, numberOfRows=1_200_000)

    def start() -> bs.BacklogQuery:
        writer = made.write("made").trigger(processing_time="100 ms").option("checkpointLocation", str(tmp_path / "c"))
        return writer.to(bs.DeltaAppend(str(tmp_path / "t"))).start(spark)

    query = start()
    query.stop(after_batch=True)
    query.awaitTermination()
    query = start()
    assert query.awaitTermination(300)
    assert query.jobStatus is bs.JobStatus.FINISHED
    found = spark.read.format("delta").load(str(tmp_path / "t"))
    counts = found.selectExpr("count(*)", "count(DISTINCT value)", "max(value)", "count(DISTINCT timestamp)").first()
    assert counts is not None
    assert tuple(counts) == (1_200_000, 1_200_000, 1_199_999, 600_000)
