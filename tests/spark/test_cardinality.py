"""Backlog with many keys is shuffled by key before it is aggregated, and nothing else changes."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import backlog_spark as bs
from backlog_spark.handover import versions
from backlog_spark.spark.plan import cardinality
from backlog_spark.spark.plan.cardinality import estimated_distinct
from tests.operators.conftest import Collect, plain, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, FILES = 6_000, 3
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SMALL = {"_WORTH_IT_BYTES": 0, "_SAMPLED_ROWS": 500, "_MANY_KEYS": 300, "_KEYS_A_PARTITION": 200}
FLOATS = (0.0, -0.0, float("nan"), float("inf"))


@pytest.mark.parametrize("keys", [50_000, 200_000, 350_000, 2_000_000])
def test_keys_are_estimated(keys: int) -> None:
    for seed in range(5):
        hashes = np.random.default_rng(seed).integers(0, keys, 20_000)
        found = estimated_distinct(hashes)
        assert found is not None
        assert abs(found / keys - 1) < 0.3


def test_the_estimate_predicts_the_rows_after_partial_aggregation() -> None:
    chance = np.random.default_rng(1)
    unique = estimated_distinct(np.arange(20_000))
    assert unique is not None
    assert unique > 10**8
    hot = np.where(chance.random(20_000) < 0.5, 7, chance.integers(0, 2**60, 20_000))
    runs = np.repeat(np.arange(2_000), 10)
    for hashes in (hot, runs):
        found = estimated_distinct(hashes)
        assert found is not None
        assert found < 30_000, "though there are more keys, most rows go into few of them"
    assert estimated_distinct(np.arange(1_999)) is None, "too few to tell"


def table(number: int, keys: int) -> pa.Table:
    chance = random.Random(number)
    made: dict[str, list[Any]] = {
        "k": [chance.choice([None, *range(9)]) if not n % 50 else chance.randrange(keys) for n in range(ROWS)],
        "d": [chance.choice(FLOATS) if not n % 50 else float(chance.randrange(keys)) for n in range(ROWS)],
        "s": [chance.choice("xyz") for _ in range(ROWS)],
        "v": [chance.randrange(-(10**12), 10**12) for _ in range(ROWS)],
        "_change_type": [chance.choice(["insert", "insert", "delete"]) for _ in range(ROWS)],
        "ts": [START + dt.timedelta(seconds=number * ROWS + n) for n in range(ROWS)],
    }
    types = [pa.int64(), pa.float64(), pa.string(), pa.int64(), pa.string(), pa.timestamp("us", "UTC")]
    return pa.table(list(made.values()), schema=pa.schema(list(zip(made, types, strict=True))))


def aggregated(rows: bs.BacklogStream, *keys: str) -> bs.BacklogStream:
    return rows.map(*keys, "v").key_by(*keys).aggregate("sum(v) AS v, count(*) AS n, min(v) AS low")


def windowed(rows: bs.BacklogStream) -> bs.BacklogStream:
    windows = bs.SlidingEventTimeWindows.of("20 seconds", "10 seconds")
    return rows.map("k", "v", "ts").key_by("k").window(windows).aggregate("sum(v) AS v").map("k", "window_start", "v")


def taken_back(rows: bs.BacklogStream) -> bs.BacklogStream:
    return rows.map("k", "v", "_change_type").key_by("k").aggregate("sum(v) AS v, count(*) AS n")


def one_more_step(rows: bs.BacklogStream) -> bs.BacklogStream:
    return rows.transform(lambda frame: frame.select("k", "v").mapInArrow(lambda batches: batches, "k long, v long"))


QUERIES = {
    "key": (lambda rows: aggregated(rows, "k"), "SELECT k, sum(v), count(*), min(v) FROM given GROUP BY k", 1),
    "float": (lambda rows: aggregated(rows, "d"), "SELECT d, sum(v), count(*), min(v) FROM given GROUP BY d", 1),
    "keys": (
        lambda rows: aggregated(rows.filter("s <> 'x'"), "s", "k"),
        "SELECT s, k, sum(v), count(*), min(v) FROM given WHERE s <> 'x' GROUP BY s, k",
        2,
    ),
    "windows": (
        windowed,
        "SELECT k, window.start, sum(v) FROM given GROUP BY k, window(ts, '20 seconds', '10 seconds')",
        2,
    ),
    "changes": (
        taken_back,
        """SELECT k, sum(v * sign), sum(sign) FROM
           (SELECT *, IF(_change_type = 'insert', 1, -1) AS sign FROM given) GROUP BY k HAVING sum(sign) > 0""",
        1,
    ),
    "python": (
        lambda rows: one_more_step(rows).key_by("k").sum("v"),
        "SELECT k, sum(v) FROM given GROUP BY k",
        1,
    ),
    "few keys": (lambda rows: aggregated(rows, "s"), "SELECT s, sum(v), count(*), min(v) FROM given GROUP BY s", 1),
}
TOGETHER = {"key": True, "float": True, "keys": True, "windows": True, "changes": True, "few keys": False}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.grid] * (n != "float")) for n in QUERIES])
def test_the_result_is_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for constant, value in SMALL.items():
        monkeypatch.setattr(cardinality, constant, value)
    told: list[bool] = []
    bring = cardinality.shuffled_by_key

    def watched(rows: DataFrame, sample: DataFrame | None, by: Any) -> Any:
        found = bring(rows, sample, by)
        if sample is not None:
            told.append(found is not None)
        return found

    monkeypatch.setattr(versions, "shuffled_by_key", watched)
    given_query: tuple[Callable[[bs.BacklogStream], bs.BacklogStream], str, int] = QUERIES[name]
    build, query, keys = given_query
    tables = [table(number, 3_000) for number in range(FILES + 2)]
    (tmp_path / "files").mkdir()
    for number, each in enumerate(tables[:FILES]):
        pq.write_table(each, tmp_path / "files" / f"{number}.parquet")
    append(tmp_path / "s", tables[FILES], backlog=True)
    schema = spark.createDataFrame(tables[0].slice(0, 1)).schema
    files = bs.stream(spark.readStream.schema(schema).parquet(str(tmp_path / "files")))
    others = bs.source("scripted", name="s", path=tmp_path / "s")
    if name == "windows":
        files, others = (each.with_watermark("ts", "0 seconds") for each in (files, others))
    sink = Collect()
    writer = build(files.union(others)).write("many")
    writer = writer.trigger(processing_time="100 ms", interval_during_backlog=0)
    running = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
    try:
        wait(lambda: len(sink.batches) > 0, running)
        append(tmp_path / "s", tables[-1], backlog=False)
        given = (FILES + 2) * ROWS
        wait(lambda: running.backlogProgress.rows >= given, running)
        running.processAllAvailable()
        assert running.backlogProgress.rows == given, "the sample's rows are not counted"
    finally:
        running.stop()
    assert told == ([TOGETHER[name]] if name in TOGETHER else []), "once, in the batch of the backlog"
    spark.createDataFrame(pa.concat_tables(tables)).createOrReplaceTempView("given")
    expected = {plain(tuple(r)[:keys]): plain(tuple(r)[keys:]) for r in spark.sql(query).collect()}
    found = sink.newest(keys)
    if name == "windows":
        # Of those that are not over nothing is put out, by the watermark of the input that is behind.
        last = START + dt.timedelta(seconds=FILES * ROWS - 1)
        expected = {key: v for key, v in expected.items() if utc(key[1]) + dt.timedelta(seconds=20) <= last}
    assert Counter(found.items()) == Counter(expected.items())


def utc(time: dt.datetime) -> dt.datetime:
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time
