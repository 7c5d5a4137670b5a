"""New files through plain `readStream`, after a Delta phase, and until the present end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 300


def write(directory: Path, *numbers: int) -> None:
    directory.mkdir(exist_ok=True)
    for n in numbers:
        pq.write_table(pa.table({"n": [n]}), directory / f".{n}")
        (directory / f".{n}").rename(directory / f"{n:06d}")


def wait(query: Any, condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.grid
def test_plain_read_stream(spark: SparkSession, tmp_path: Path) -> None:
    bs.register(spark)
    found: list[int] = []
    write(tmp_path / "data", 0, 1)

    def frame() -> Any:
        return (
            spark.readStream.format("hybrid").option("phases", "files").option("path", str(tmp_path / "data"))
            .option("discovery", "continuous").option("discoveryInterval", "100 ms")
            .option("metadataLocation", str(tmp_path / "meta")).schema("n BIGINT").load()
        )  # fmt: skip

    def begun() -> Any:
        return (
            frame().writeStream.foreachBatch(lambda batch, _: found.extend(row.n for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )  # fmt: skip

    query = begun().trigger(processingTime="100 milliseconds").start()
    try:
        wait(query, lambda: len(found) == 2)
        for n in range(2, 5):
            write(tmp_path / "data", n)
            wait(query, lambda n=n: len(found) > n)  # type: ignore[misc]
    finally:
        query.stop()
    write(tmp_path / "data", 5, 6)
    query = begun().trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)
    assert Counter(found) == Counter(range(7))
    write(tmp_path / "data", 3)  # again
    query = begun().trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"data/000003 was found before with another content.*rewrittenFiles=refuse"):
        query.awaitTermination(LIMIT_S)


@pytest.mark.grid
@pytest.mark.parametrize("during", [None, "0"])
def test_keyed_operators_after_a_delta_table(spark: SparkSession, tmp_path: Path, during: str | None) -> None:
    table = str(tmp_path / "table")
    spark.range(100).withColumnRenamed("id", "n").write.format("delta").save(table)
    write(tmp_path / "data", *range(100, 110))
    options = {
        "phase.old.path": table, "phase.live.path": str(tmp_path / "data"), "phase.live.discovery": "continuous",
        "phase.live.discoveryInterval": "100 ms", "phase.live.backlogFilesThreshold": "100",
    }  # fmt: skip
    query = (
        bs.source("hybrid", name="numbers", phases="old:delta, live:files", options=options)
        .map("n", "n % 2 AS half")
        .key_by("half")
        .sum("n")
        .write("sums")
        .trigger(processing_time="200 ms", interval_during_backlog=during)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .to(bs.DeltaUpsert(str(tmp_path / "sums"), keys=["half"]))
        .start(spark)
    )

    def sums() -> list[int]:
        if not (tmp_path / "sums" / "_delta_log").exists():
            return []
        return [row[1] for row in spark.read.format("delta").load(str(tmp_path / "sums")).orderBy("half").collect()]

    try:
        wait(query, lambda: sums() == [sum(range(0, 110, 2)), sum(range(1, 110, 2))])
        wait(query, lambda: not query.isProcessingBacklog)
        write(tmp_path / "data", *range(110, 120))
        wait(query, lambda: sums() == [sum(range(0, 120, 2)), sum(range(1, 120, 2))])
    finally:
        query.stop()


@pytest.mark.grid
def test_wrong_options_and_paths_are_refused_before_start_returns(spark: SparkSession, tmp_path: Path) -> None:
    def start(**options: str) -> None:
        source = bs.source("hybrid", name="n", phases="files", schema="n BIGINT", options=options)
        stream = source.write("n").option("checkpointLocation", str(tmp_path / "checkpoint"))
        stream.to(bs.DeltaAppend(str(tmp_path / "target"))).start(spark)

    with pytest.raises(BacklogError, match="allowEmpty"):
        start(path=str(tmp_path / "gone"), discovery="continuous")
    with pytest.raises(BacklogError, match="sourceArchiveDir"):
        start(path=str(tmp_path), discovery="continuous", cleanSource="archive")
