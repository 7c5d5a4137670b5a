"""A query with several targets: one read of its sources, each target with its own marks."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.sinks import BatchInfo, Sink, SinkContext
from backlog_spark.sinks.outputs import by_name
from backlog_spark.sinks.small_batches import RowBudget, shared
from tests.integration.test_foreign import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = {"change_type": None, "sequence": None, "metadata_columns": ()}


class Failing(Sink):
    """Fails at chosen batches, before it takes their rows."""

    def __init__(self, fails: set[int]) -> None:
        self.fails, self.rows = fails, dict[int, list[int]]()

    def open(self, context: SinkContext) -> None:
        pass

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        if batch.batch_id in self.fails:
            self.fails.remove(batch.batch_id)
            raise ValueError("no room")
        self.rows[batch.batch_id] = sorted(row.n for row in batch_df.collect())


def stream(spark: SparkSession, root: Path) -> Any:
    reader = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
    return bs.stream(reader.parquet(str(root / "in")))


def run(spark: SparkSession, root: Path, *sinks: Sink) -> bs.BacklogQuery:
    writer = stream(spark, root).write("several").trigger(available_now=True)
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    for sink in sinks:
        writer = writer.to(sink)
    query: bs.BacklogQuery = writer.start(spark)
    with contextlib.suppress(bs.BacklogError):
        query.awaitTermination(120)
    return query


def rows_of(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.n for row in spark.read.format("delta").load(str(path)).collect())


def test_names_of_targets() -> None:
    found = by_name([("", 1), ("late", 2), ("", 3), ("late", 4), ("", 5)])
    assert found == {"": 1, "late": 2, "#2": 3, "late#2": 4, "#3": 5}


def test_targets_collect_a_small_batch_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = spark.range(5).selectExpr("id", "id * 2 AS `a.b`", "'x' AS unused")
    collected, to_arrow = [], type(batch).toArrow

    def counted(rows: DataFrame) -> Any:
        collected.append(rows)
        return to_arrow(rows)

    monkeypatch.setattr(type(batch), "toArrow", counted)
    wide, few = RowBudget(10, 1_000_000, batch.schema.fields), RowBudget(4, 1_000_000, batch.schema.fields)
    with shared(batch) as rows:
        for _ in range(2):
            first, reason = wide.collected(rows, ["a.b", "id"])
            assert first is not None
            assert sorted(map(tuple, first.to_pandas().to_numpy().tolist())) == [(2 * n, n) for n in range(5)], reason
        assert few.collected(rows, ["id"]) == (None, "it has more than 4 rows")
        assert len(collected) == 1
    with shared(batch) as rows:  # the first one did not ask for all rows
        assert few.collected(rows, ["id"])[0] is None
        assert wide.collected(rows, ["id"])[0].num_rows == 5  # type: ignore[union-attr]
    assert wide.collected(batch, ["id"])[0].column_names == ["id"]  # type: ignore[union-attr]
    # A batch may be narrower than was assumed, and then has room for more rows: it is looked at again.
    narrow, wide = RowBudget(10, 4_000, batch.schema.fields), RowBudget(10, 4_000, batch.schema.fields)
    long = spark.range(5).selectExpr("id", "id * 2 AS `a.b`", "repeat('x', 3000) AS unused")
    for budget, rows, least in ((narrow, batch, 5), (wide, long, 0)):
        assert budget.rows == 3
        with shared(rows) as kept:
            found = budget.collected(kept, rows.columns)[0]
            assert (0 if found is None else found.num_rows) == least


@pytest.mark.parametrize("seed", range(2))
def test_the_driver_collects_no_more_than_it_has_room_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Rows that are at most four times as wide as those before."""
    drawn, collected = random.Random(seed), list[int]()

    batch = spark.range(1).selectExpr("id", "'' AS text")
    to_arrow = type(batch).toArrow

    def counted(rows: DataFrame) -> Any:
        found = to_arrow(rows)
        collected.append(found.nbytes)
        return found

    monkeypatch.setattr(type(batch), "toArrow", counted)
    budget, width = RowBudget(5_000, 400_000, batch.schema.fields), drawn.choice([1, 200])
    for _ in range(12):
        width = max(1, min(1_000, int(width * drawn.choice([0.01, 0.3, 1, 2, 3]))))
        rows = spark.range(drawn.choice([0, 1, 900, 1_001, 2_000, 6_000])).selectExpr(
            "id", f"repeat('x', {width}) AS text"
        )
        found, reason = budget.collected(rows, ["id", "text"])
        assert (found is None) == bool(reason)
        assert found is None or found.num_rows == rows.count()
    assert max(collected) <= 1.2 * max(budget.most_bytes, 1_001 * 1_000)
    assert RowBudget(0, 400_000, batch.schema.fields).collected(batch, ["id"])[0] is None
    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]
    assert RowBudget.of_driver(SinkContext(spark, "app", batch.schema, False), 10, 1 << 50).most_bytes <= heap // 8


@pytest.mark.parametrize("seed", range(2))
def test_a_target_that_fails_stops_all_and_catches_up(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    files(tmp_path / "in", 0, 4, rows=3)
    failing = Failing({drawn.randrange(4)})
    sinks: list[Sink] = [bs.DeltaAppend(tmp_path / "log"), bs.DeltaUpsert(tmp_path / "table", ["n"], **ROWS), failing]
    drawn.shuffle(sinks)
    spark.conf.set("spark.backlog.restart.maxAttempts", "0")
    try:
        first = run(spark, tmp_path, *sinks)
        assert re.search(r"Target Failing: no room", str(first.exception()))
        second = run(spark, tmp_path, *sinks)
    finally:
        spark.conf.unset("spark.backlog.restart.maxAttempts")
    assert second.exception() is None
    wanted = sorted(row.n for row in spark.read.parquet(str(tmp_path / "in")).collect())
    assert rows_of(spark, tmp_path / "log") == rows_of(spark, tmp_path / "table") == wanted
    assert sorted(n for rows in failing.rows.values() for n in rows) == wanted


def test_the_batch_is_computed_once(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "in", 0, 1, rows=5)
    counted = spark.sparkContext.accumulator(0)

    def count(frame: DataFrame) -> DataFrame:
        def each(batches: Any) -> Any:
            for batch in batches:
                counted.add(batch.num_rows)
                yield batch

        return frame.mapInArrow(each, frame.schema)

    writer = stream(spark, tmp_path).transform(count).write("once").trigger(available_now=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for name in ("one", "two"):
        writer = writer.to(bs.DeltaAppend(tmp_path / name))
    query = writer.start(spark)
    query.awaitTermination(120)
    assert query.exception() is None
    assert rows_of(spark, tmp_path / "one") == rows_of(spark, tmp_path / "two")
    assert counted.value == 5


def test_targets_cannot_share_a_place_or_change_theirs(spark: SparkSession, tmp_path: Path) -> None:
    files(tmp_path / "in", 0, 1)
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    with pytest.raises(bs.SettingError, match=r"path = .*one.*the place of two targets"):
        run(spark, tmp_path, bs.DeltaAppend(one), bs.DeltaAppend(f"file:{one}"))
    run(spark, tmp_path, bs.DeltaAppend(one), bs.DeltaAppend(two))
    with pytest.raises(bs.SettingError, match=r"DeltaAppend path of target 2 = .*three.*was made with .*two"):
        run(spark, tmp_path, bs.DeltaAppend(one), bs.DeltaAppend(three))
    with pytest.raises(bs.BacklogError, match="three"):
        run(spark, tmp_path, bs.DeltaAppend(one), bs.DeltaAppend(two), bs.DeltaAppend(three))
    assert run(spark, tmp_path, bs.DeltaAppend(one)).exception() is None
