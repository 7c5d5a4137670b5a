"""Hot keys and large key groups: memory is bounded, however many rows a key has."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from benchmarks.flag import add_flag_connector

from .conftest import Collect, wait
from .scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEGABYTE = 1 << 20


class Count(bs.KeyedProcessFunction):
    output = "k long, n long"
    n = bs.ValueState("long", default=0)
    last = bs.ListState("long")

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        if self.n.value() % 1_000_000 == 0:
            yield row.k, self.n.value()


@contextlib.contextmanager
def peak_of_workers() -> Iterator[list[int]]:
    """Most resident bytes of any Python worker meanwhile."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for status in Path("/proc").glob("[0-9]*/status"):
                with contextlib.suppress(OSError, IndexError, ValueError):
                    if b"pyspark.daemon" in (status.parent / "cmdline").read_bytes():
                        line = next(n for n in status.read_text().splitlines() if n.startswith("VmHWM"))
                        peak[0] = max(peak[0], int(line.split()[1]) * 1024)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def start(spark: SparkSession, root: Path, stream: bs.BacklogStream, sink: bs.Sink) -> bs.BacklogQuery:
    writer = stream.write("large").trigger(processing_time="100 ms", interval_during_backlog=0)
    return writer.option("checkpointLocation", str(root / "c")).to(sink).start(spark)


def source(spark: SparkSession, root: Path, ddl: str) -> bs.BacklogStream:
    add_flag_connector()
    return bs.stream(spark.readStream.schema(ddl).parquet(str(root / "in"))).union(
        bs.source("backlog_flag", name="flag", ddl=ddl)
    )


@pytest.mark.grid
@pytest.mark.parametrize("operator", ["aggregate", "reduce", "process"])
def test_a_key_with_half_of_all_rows(spark: SparkSession, tmp_path: Path, operator: str) -> None:
    rows = 10_000_000
    made = spark.range(0, rows, 1, 20).selectExpr("IF(id % 2 = 0, -1, id % 100000) AS k", "id AS v")
    made.write.parquet(str(tmp_path / "in"))
    keyed = source(spark, tmp_path, "k long, v long").key_by("k")
    stream = {
        "aggregate": lambda: keyed.aggregate("count(*) AS n, max(v) AS v"),
        "reduce": lambda: keyed.reduce(lambda a, b: a if a.v > b.v else b),
        "process": lambda: keyed.process(Count(), name="counts"),
    }[operator]()
    sink = Collect()
    with peak_of_workers() as peak:
        query = start(spark, tmp_path, stream, sink)
        try:
            wait(lambda: query.mode == "stream", query, 600)
            query.processAllAvailable()
            state = {r["k"]: r for r in query.state("counts").collect()} if operator == "process" else {}
        finally:
            query.stop()
    assert query.exception() is None
    found = {row["k"]: row for row in next(batch for batch in sink.batches.values() if batch)}
    if operator == "process":
        assert len(state) == 50_001
        assert state[-1]["n"] == rows // 2
        assert found[-1]["n"] == rows // 2
    else:
        assert len(found) == 50_001
        assert found[-1]["v"] == rows - 2
    # 5 million rows of 16 bytes are 80 MB as Arrow and over a gigabyte as Python values.
    assert peak[0] < 600 * MEGABYTE, f"{peak[0] / MEGABYTE:.0f} MB"


@pytest.mark.grid
def test_a_key_group_of_100_megabytes(spark: SparkSession, tmp_path: Path) -> None:
    keys = 1_000_000
    made = spark.range(0, keys, 1, 8).selectExpr("id AS k", "repeat(cast(id % 10 as string), 100) AS text")
    made.write.parquet(str(tmp_path / "in"))
    stream = source(spark, tmp_path, "k long, text string").key_by("k").aggregate("max(text) AS text, count(*) AS n")
    sink = Collect()
    spark.conf.set("spark.backlog.keyGroups", "1")
    try:
        query = start(spark, tmp_path, stream, sink)
    finally:
        spark.conf.unset("spark.backlog.keyGroups")
    try:
        wait(lambda: query.mode == "stream", query, 600)
        spark.range(0, 1_000).selectExpr("id * 1000 AS k", "'x' AS text").coalesce(1).write.mode("append").parquet(
            str(tmp_path / "in")
        )
        wait(lambda: sum(map(len, sink.batches.values())) == keys + 1_000, query, 600)
    finally:
        query.stop()
    assert query.exception() is None
    live = [row for batch in list(sink.batches.values())[1:] for row in batch]
    assert {(row["k"], row["text"], row["n"]) for row in live} == {(n * 1000, "x", 2) for n in range(1_000)}


class Sums(bs.Sink):
    """How many rows there were, and what they add up to."""

    def __init__(self) -> None:
        self.rows = self.joined = self.total = 0

    def open(self, context: Any) -> None:
        pass

    def write(self, batch_df: Any, batch: Any) -> None:
        found = batch_df.selectExpr("count(*) AS n", "count(name) AS joined", "sum(click) AS total").first()
        self.rows, self.joined = self.rows + found["n"], self.joined + found["joined"]
        self.total += found["total"] or 0


@pytest.mark.grid
@pytest.mark.parametrize("during", [0, "1 hour"])
def test_ten_million_rows_wait_for_the_build_side(spark: SparkSession, tmp_path: Path, during: Any) -> None:
    """At an interval of 0 as files, above it in the state; neither the driver nor a worker holds them."""
    rows, users = 10_000_000, 1_000
    made = spark.range(0, rows, 1, 40).selectExpr("id % 2000 AS k", "id AS click")
    made.write.parquet(str(tmp_path / "in"))
    names = pa.table({"k": list(range(users)), "name": [f"user {n}" for n in range(users)], "at": [0] * users})
    append(tmp_path / "u", names, backlog=True)
    reader = spark.readStream.schema("k long, click long").option("maxFilesPerTrigger", 10)
    clicks = bs.stream(reader.parquet(str(tmp_path / "in")), use_processing_time=True)
    stream = clicks.temporal_join(bs.source("scripted", name="u", path=tmp_path / "u"), on="k", order="at")
    sink = Sums()
    writer = stream.write("large").trigger(processing_time="100 ms", interval_during_backlog=during).to(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(spark)
    with peak_of_workers() as peak:
        try:
            if during:
                wait(lambda: query.backlogProgress.rows >= rows, query, 900)
                assert not sink.rows
            append(tmp_path / "u", names.slice(0, 0), backlog=False)
            wait(lambda: sink.rows >= rows, query, 900)
            query.processAllAvailable()
        finally:
            query.stop()
    assert query.exception() is None
    assert (sink.rows, sink.joined, sink.total) == (rows, rows // 2, rows * (rows - 1) // 2)
    # In the state a worker holds a key group's rows, one in 32 of all, with what is put out of them.
    assert peak[0] < 1_500 * MEGABYTE, f"{peak[0] / MEGABYTE:.0f} MB"
