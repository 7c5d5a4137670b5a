"""Sources are matched by identity in Spark's offset log, which lists each position, and in progress events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from backlog_spark.errors import BacklogError
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.checkpoint.source_layout import DeclaredSources, SourceLayout
from backlog_spark.spi.source_info import SourceInfo
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.api.streams import BacklogStream

KIND = pa.schema([("k", pa.string()), ("v", pa.int64())])


def rows(*pairs: tuple[str, int]) -> pa.Table:
    return pa.table([[k for k, _ in pairs], pa.array([v for _, v in pairs], pa.int64())], schema=KIND)


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of two files, that of 'x' and that of 'y'."""
    (tmp_path / "files").mkdir()
    pq.write_table(rows(("x", 1)), tmp_path / "files" / "x.parquet")
    pq.write_table(rows(("y", 10)), tmp_path / "files" / "y.parquet")
    return spark.readStream.schema("k string, v long").parquet(str(tmp_path / "files"))


def started(spark: SparkSession, tmp_path: Path, stream: BacklogStream, sink: bs.Sink, **more: Any) -> bs.BacklogQuery:
    return (
        stream.write("positions")
        .trigger(processing_time="100 ms", **more)
        .option("checkpointLocation", str(tmp_path / "c"))
        .to(sink)
        .start(spark)
    )


def newest(sink: Collect, *, keyed: bool) -> dict[str, int]:
    """The output for each key: its last result, or the sum of its rows."""
    found: dict[str, int] = {}
    for _, batch in sorted(sink.batches.items()):
        for row in batch:
            found[row[0]] = row[1] + (0 if keyed else found.get(row[0], 0))
    return found


def kept(tmp_path: Path) -> dict[str, Any]:
    (file,) = (tmp_path / "c" / "backlog").glob("sources-*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "plain"])
def test_a_frame_that_occurs_before_and_after_a_source(
    spark: SparkSession, tmp_path: Path, files: DataFrame, keyed: bool
) -> None:
    """Spark's log has an offset for each of the four, its progress one for all of the frame."""
    append(tmp_path / "source", rows(("z", 100)), backlog=True)
    append(tmp_path / "source", rows(("z", 200)), backlog=False)
    a, source = bs.stream(files), bs.source("scripted", name="z", path=tmp_path / "source")
    x, y = a.filter("k = 'x'"), a.filter("k = 'y'")
    both = x.union(a.filter("v < 0")).union(source).union(y).union(a.filter("v < 0"))
    sink = Collect()
    stream = both.key_by("k").sum("v") if keyed else both
    query = started(spark, tmp_path, stream, sink, interval_during_backlog="0")
    try:
        wait(
            lambda: query.mode is Mode.STREAM and newest(sink, keyed=keyed) == {"x": 1, "y": 10, "z": 300},
            query,
        )
        wait(lambda: query.backlogProgress.rows == 4, query)  # all is committed
        assert kept(tmp_path)["positions"] == [2]
        assert [switch.mode for switch in query.history] == [Mode.BACKLOG, Mode.STREAM]
        assert not query.isProcessingBacklog
    finally:
        query.stop()
    log = (tmp_path / "c" / "offsets" / "0").read_text().split("\n")[2:]
    assert ["isProcessingBacklog" in line for line in log[:5]] == [False, False, True, False, False]
    # A driver that starts anew reads the flag from the same position.
    append(tmp_path / "source", rows(("z", 400)), backlog=False)
    again = Collect()
    query = started(spark, tmp_path, stream, again, interval_during_backlog="0")
    try:
        assert [switch.mode for switch in query.history] == [Mode.STREAM]
        wait(lambda: newest(again, keyed=keyed) == {"z": 700 if keyed else 400}, query)
    finally:
        query.stop()


def test_a_declared_source_that_comes_twice_is_read_twice(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "source", rows(("z", 1)), backlog=True)
    append(tmp_path / "source", rows(("z", 2)), backlog=False)
    source = bs.source("scripted", name="z", path=tmp_path / "source")
    sink = Collect()
    stream = source.filter("v > 0").union(source.map("k", "-v AS v"))
    query = started(spark, tmp_path, stream, sink, interval_during_backlog="0")
    try:
        wait(lambda: sum(map(len, sink.batches.values())) == 4, query)
        wait(lambda: query.mode is Mode.STREAM, query)
        assert kept(tmp_path).items() >= {"version": 1, "names": ["z", "z"], "positions": [0, 1]}.items()
    finally:
        query.stop()


def test_a_batch_that_was_never_planned_has_no_flags(spark: SparkSession, tmp_path: Path) -> None:
    source = bs.source("scripted", name="z", path=tmp_path)
    declared = DeclaredSources(
        Checkpoint(spark, str(tmp_path / "none")), source._node, [SourceInfo(starts_in_backlog=True)]
    )
    assert declared.flags_at().in_backlog == [True]
    with pytest.raises(BacklogError, match=r"no batch 0 \(newest: None\)"):
        declared.flags_at(0)


def test_sources_in_another_order_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would continue each one from the offset of the other, and skip rows."""
    append(tmp_path / "a", rows(("a", 1), ("a", 2)), backlog=False)
    append(tmp_path / "a", rows(("a", 3)), backlog=False)
    append(tmp_path / "b", rows(("b", 1)), backlog=False)
    a, b = (bs.source("scripted", name=n, path=tmp_path / n) for n in "ab")
    sink = Collect()
    query = started(spark, tmp_path, a.union(b), sink)
    try:
        wait(lambda: sum(map(len, sink.batches.values())) == 4, query)
    finally:
        query.stop()
    with pytest.raises(bs.BacklogError, match="'a' at position 0, 'b' at position 1; the query has 'b' at position 0"):
        started(spark, tmp_path, b.union(a), Collect())


def test_a_checkpoint_that_does_not_say_which_source_is_which_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "a", rows(("a", 1)), backlog=False)
    stream = bs.source("scripted", name="a", path=tmp_path / "a")
    sink = Collect()
    query = started(spark, tmp_path, stream, sink)
    try:
        wait(lambda: any(sink.batches.values()), query)
    finally:
        query.stop()
    for file in (tmp_path / "c" / "backlog").glob("sources-*.json"):
        file.unlink()
    with pytest.raises(bs.BacklogError, match="no backlog/sources"):
        started(spark, tmp_path, stream, Collect())


def test_a_transform_that_brings_in_another_stream_is_refused(
    spark: SparkSession, tmp_path: Path, files: DataFrame
) -> None:
    append(tmp_path / "a", rows(("a", 1)), backlog=False)
    source = bs.source("scripted", name="a", path=tmp_path / "a")
    with pytest.raises(bs.BacklogError, match="1 more streaming sources than it declares"):
        started(spark, tmp_path, source.transform(lambda df: df.unionByName(files)), Collect())
    with pytest.raises(bs.BacklogError, match="does not read the source 'a'"):
        started(spark, tmp_path, source.transform(lambda df: files), Collect())
    # The rows that it is given may come twice.
    query = started(spark, tmp_path, source.transform(lambda df: df.unionByName(df)), sink := Collect())
    try:
        wait(lambda: sum(map(len, sink.batches.values())) == 2, query)
        wait(lambda: query.backlogProgress.commits_after == 1, query)
    finally:
        query.stop()


def test_renamed_sources_stay_in_their_positions() -> None:
    layout = SourceLayout(("new", "b"), (0, 1), (0, 1), frozenset(), frozenset())
    layout.check({"names": ["old", "b"], "positions": [0, 1]})
    with pytest.raises(bs.BacklogError, match="'old' at position 1, 'b' at position 0"):
        layout.check({"names": ["old", "b"], "positions": [1, 0]})
