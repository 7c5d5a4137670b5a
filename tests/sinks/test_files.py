"""The sink `FilesSink`: Spark's log of files makes a batch visible, once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo, SinkContext
from tests.sinks.files_job import POINTS, ROWS, SCHEMA, batch, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of(spark: SparkSession, path: Path) -> Counter[int]:
    return Counter(row.id for row in spark.read.parquet(str(path)).collect())


def open_at(
    spark: SparkSession, path: Path, planned: int | None, committed: int | None, *, query: str = "app", **more: Any
) -> bs.FilesSink:
    sink = bs.FilesSink(path, **more).for_output()
    sink.open(SinkContext(spark, query, SCHEMA, False, planned, committed))
    return sink


@pytest.mark.parametrize("points", [["in"], pytest.param(POINTS, marks=pytest.mark.grid, id="all")])
def test_a_driver_is_killed_around_a_batch(spark: SparkSession, tmp_path: Path, points: list[str]) -> None:
    path, noted, log = tmp_path / "a b", tmp_path / "noted", tmp_path / "log"
    for point in points:
        with log.open("wb") as out:
            killed = subprocess.run(
                [sys.executable, "-m", "tests.sinks.files_job", str(path), str(noted), point],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True, timeout=300, check=False,
            )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, log.read_text()
        committed = int(noted.read_text())
        assert rows_of(spark, path) == Counter(range(ROWS * (committed + 1 + (point == "after"))))
        for writer in ("spark" if point != "after" else "none", "none"):
            sink, number = opened(spark, str(path), noted)
            sink.write(batch(spark, number), BatchInfo(number, True))
            assert sink.written is not None
            assert sink.written.writer == writer
        noted.write_text(str(number))
    assert rows_of(spark, path) == Counter(range(ROWS * (int(noted.read_text()) + 1)))


def test_a_query_that_died_before_sparks_commit_adds_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    target, given, checkpoint = tmp_path / "t", tmp_path / "in", tmp_path / "c"
    given.mkdir()
    for number in range(2):
        (given / f"{number}.json").write_text(f'{{"id": {number}, "at": "2024-01-01 10:00:00", "odd": "{number}/a"}}\n')
    sink = bs.FilesSink(target, "csv", partition_by=["odd"], options={"header": "true", "compression": "gzip"})

    def run() -> None:
        schema = "id BIGINT, at TIMESTAMP, odd STRING"
        frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(given))
        writer = bs.stream(frame).write("rows").trigger(available_now=True).to(sink)
        assert writer.option("checkpointLocation", str(checkpoint)).start(spark).awaitTermination(300)

    run()
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    (given / "2.json").write_text('{"id": 2, "at": null, "odd": null}\n')
    run()
    found = spark.read.csv(str(target), header=True, schema="id BIGINT, at TIMESTAMP, odd STRING").collect()
    assert Counter((row.id, str(row.at), row.odd) for row in found) == Counter(
        [(0, "2024-01-01 10:00:00", "0/a"), (1, "2024-01-01 10:00:00", "1/a"), (2, "None", None)]
    )
    assert len(list(target.glob("odd=*/*.csv.gz"))) == 3


def test_a_path_and_a_checkpoint_that_contradict_each_other(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    open_at(spark, path, None, None).write(spark.range(1), BatchInfo(0, False))
    for planned, committed in ((1, 1), (None, None)):
        with pytest.raises(BacklogError, match="has batches of this query up to 0; its checkpoint"):
            open_at(spark, path, planned, committed)
    open_at(spark, path, 1, 0)
    with pytest.raises(BacklogError, match="has the files of another query"):
        open_at(spark, path, None, None, query="other")
    assert bs.FilesSink(path).has_rows_of(spark, "app")
    assert not bs.FilesSink(path).has_rows_of(spark, "other")
    spark.range(3).write.parquet(str(tmp_path / "old"))
    with pytest.raises(BacklogError, match=r"has files that this query did not write, such as .*Name an empty"):
        open_at(spark, tmp_path / "old", None, None)
    assert rows_of(spark, tmp_path / "old") == Counter(range(3))


def test_settings_that_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    for more, told in (
        ({"format": "xml"}, "format.*must be one of parquet"),
        ({"partition_by": ["none"]}, "partition_by.*none"),
        ({"partition_by": ["id"]}, "partition_by.*leaves no column"),
        ({"format": "text"}, "format.*Spark cannot write it: .*id"),
    ):
        with pytest.raises(SettingError, match=told):
            open_at(spark, tmp_path / "t", None, None, **more)
    assert not (tmp_path / "t").exists()
    assert isinstance(bs.ParquetSink(tmp_path, partition_by=["a"]), bs.FilesSink)
