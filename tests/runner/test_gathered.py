"""The last batch of a stay for waiting operators: executed once, without writing a version."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.handover.versions import BatchState
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators.fold import Fold
from backlog_spark.operators.joins import temporal as temporal_join
from backlog_spark.operators.joins.cogroup import WindowRowsFold
from backlog_spark.operators.joins.interval import IntervalJoinFold
from backlog_spark.operators.joins.regular import JoinFold
from backlog_spark.operators.joins.temporal import TemporalJoinFold
from backlog_spark.operators.over.fold import OverFold
from backlog_spark.operators.over.select_list import parse_over
from backlog_spark.operators.sides import tagged
from backlog_spark.operators.waiting_fold import Gathered, StayEnd
from backlog_spark.operators.windows.fold import WindowOptions
from backlog_spark.runner import sorted_batch as backlogbatches
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm import shuffle_once as exchange
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.spark.jvm.shuffle_once import exchanged
from backlog_spark.spark.plan.batch_frames import is_repeatable
from backlog_spark.spi import registry
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType().add("k", LongType()).add("v", LongType()).add("ts", TimestampType(), True, {EVENT_TIME: "ts"})
KEYS = 50
WINDOW_S = 10
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Total(bs.WindowFunction):
    output = "k long, total long"

    def apply(self, key: Any, window: Any, rows: Any) -> Any:
        yield key, sum(row.v for row in rows)


def fold() -> WindowRowsFold:
    windows = WindowOptions(bs.TumblingEventTimeWindows.of(f"{WINDOW_S} seconds"))
    return WindowRowsFold(Total(), SCHEMA, ["k"], None, 8, windows)


def rows(spark: SparkSession, first: int, count: int, seen: Accumulator[int] | None = None) -> DataFrame:
    """A row a second; ``seen`` counts how often they are made."""
    made = [(n % KEYS, n, START + dt.timedelta(seconds=n)) for n in range(first, first + count)]
    frame = spark.createDataFrame(made, SCHEMA)
    if seen is None:
        return frame

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    return frame.mapInArrow(counted, SCHEMA)


def ends_at(second: int) -> StayEnd:
    return StayEnd(int(START.timestamp() * 1000) + second * 1000 - 1)


def totals(numbers: range) -> Counter[tuple[int, int]]:
    """The totals of each window and key, each as often as it is emitted."""
    by_window: Counter[tuple[int, int]] = Counter()
    for n in numbers:
        by_window[n // WINDOW_S, n % KEYS] += n
    return Counter((key, total) for (_, key), total in by_window.items())


def put_out(gathered: Gathered, end: StayEnd) -> Counter[tuple[int, int]]:
    return Counter((r.k, r.total) for r in gathered.output(gathered, end).collect())


def test_it_is_executed_once_and_can_be_read_repeatedly(spark: SparkSession, tmp_path: Path) -> None:
    operator, state = fold(), BatchState(Checkpoint(spark, str(tmp_path)), "op", 0)
    seen = spark.sparkContext.accumulator(0)
    state.write(operator, rows(spark, 0, 300), 0)
    gathered = state.gather(operator, rows(spark, 300, 700, seen), 1)
    assert gathered is not None
    assert seen.value == 700, "the exchange has been run: the event times of the batch are known now"
    end = ends_at(800)
    left = gathered.left(gathered.rows, end)
    state.write_handed_over(lambda: left, 1)
    kept = state.read_handed_over(spark, left.schema, 1)
    assert sorted(r["r1"] for r in kept.collect()) == list(range(800, 1000))
    assert put_out(gathered, end) == put_out(gathered, end) == totals(range(800)), "of the version before it too"
    assert seen.value == 700
    assert (state.newest(), state.handed_over()) == (0, 1)

    state.publish()
    seeds = spark.read.parquet(str(tmp_path / "backlog/seed/op"))
    assert sorted(r["r1"] for r in seeds.collect()) == list(range(800, 1000)), "what is left, not the older version"


def test_it_equals_the_result_of_a_version(spark: SparkSession, tmp_path: Path) -> None:
    operator = fold()
    one, other = (BatchState(Checkpoint(spark, str(tmp_path / n)), "op", 0) for n in "ab")
    gathered, end = one.gather(operator, rows(spark, 0, 500), 0), ends_at(200)
    assert gathered is not None
    version = other.write(operator, rows(spark, 0, 500), 0)
    assert put_out(gathered, end) == Counter((r.k, r.total) for r in operator.output_at_end(version, end).collect())
    left = [gathered.left(gathered.rows, end), operator.handed_over(version, end)]
    assert left[0].schema == left[1].schema
    assert sorted(left[0].collect()) == sorted(left[1].collect())


def test_an_existing_version_is_used(spark: SparkSession, tmp_path: Path) -> None:
    operator, state = fold(), BatchState(Checkpoint(spark, str(tmp_path)), "op", 0)
    state.write(operator, rows(spark, 0, 10), 0)
    assert state.gather(operator, rows(spark, 0, 20), 0) is None


OVER = ("sum(v) AS total", "row_number() AS number")
JOINS = {
    "join": lambda schema: JoinFold(schema, ["k"], ["k"], 8),
    "temporal_join": lambda schema: TemporalJoinFold(schema, ["k"], ["k"], 8, order="at"),
    "interval_join": lambda schema: IntervalJoinFold(schema, ["k"], ["k"], -5_000, 5_000, 8),
    "left interval_join": lambda schema: IntervalJoinFold(schema, ["k"], ["k"], -5_000, 5_000, 8, how="left"),
    "right interval_join": lambda schema: IntervalJoinFold(schema, ["k"], ["k"], -5_000, 5_000, 8, how="right"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["over", *JOINS])
def test_spark_knows_that_rows_are_together(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Its windows and joins need no other exchange, and the results equal those of a version."""
    given = rows(spark, 0, 3_000)
    operator: Fold
    if kind == "over":
        operator = OverFold(["k"], parse_over(*OVER), SCHEMA, 8, preceding=3, unit="rows")
    else:
        right = given.withColumnsRenamed({"v": "w", "ts": "at"}).withMetadata("at", {EVENT_TIME: "at"})
        schemas = given.schema, right.schema
        left, other = tagged(given, right, schemas)
        given = left.unionByName(other)
        operator = JOINS[kind](given.schema)
    one, another = (BatchState(Checkpoint(spark, str(tmp_path / n)), "op", 0) for n in "ab")
    gathered, end = one.gather(operator, given, 0), ends_at(2_500)
    assert gathered is not None
    results = gathered.output(gathered, end)
    assert "Exchange" not in results._jdf.queryExecution().executedPlan().toString()
    version = another.write(operator, given, 0)
    expected = operator.output_at_end(version, end)
    assert results.schema == expected.schema
    found = Counter(map(tuple, results.collect()))
    assert found == Counter(map(tuple, expected.collect()))
    assert found.total() >= 2_500
    left = gathered.left(gathered.rows, end)
    assert Counter(map(tuple, left.collect())) == Counter(map(tuple, operator.handed_over(version, end).collect()))


@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_small_build_side_is_a_hash_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """In both cases the newest build row is joined, and of equal ones always the same."""
    given = rows(spark, 0, 3_000).withColumn("k", F.expr("nullif(k, 3)"))
    right = given.where("k <> 5").selectExpr("k", "v AS w", "date_trunc('MINUTE', ts) AS at")
    schemas = given.schema, right.schema
    left, other = tagged(given, right, schemas)
    both = left.unionByName(other)
    operator = TemporalJoinFold(both.schema, ["k"], ["k"], 8, how=how, order="at")
    found = []
    for number, (most, join) in enumerate([(1 << 20, "ShuffledHashJoin"), (-1, "SortMergeJoin")]):
        monkeypatch.setattr(temporal_join, "_HASHED_BYTES", most)
        gathered = BatchState(Checkpoint(spark, str(tmp_path / str(number))), "op", 0).gather(operator, both, 0)
        assert gathered is not None
        results = gathered.output(gathered, ends_at(4_000))
        plan = results._jdf.queryExecution().executedPlan().toString()
        assert join in plan
        assert "Exchange" not in plan
        found.append(Counter(map(tuple, results.collect())))
    assert found[0] == found[1]
    # Each row once; those of no key, or of one that the build side has not, only where the join is a left one.
    missing = 3_000 // KEYS * 2 if how == "inner" else 0
    assert abs(found[0].total() - (3_000 - missing)) <= 2
    newest = {row[0]: row[3:] for row in found[0]}
    assert all(row[3:] == newest[row[0]] for row in found[0])


@pytest.mark.slow
@pytest.mark.parametrize("coalesces", ["true", "false"])
def test_the_exchange_of_many_rows_is_sorted_in_pieces(spark: SparkSession, coalesces: str) -> None:
    with session_conf(spark, {"spark.sql.adaptive.coalescePartitions.enabled": coalesces}):
        small = exchanged(spark.range(1_000), ["id"])
        large = exchanged(spark.range(8_000_000), ["id"])
    assert small is not None
    assert large is not None
    assert large.rows.count() == 8_000_000
    if coalesces == "true":
        assert small.rows.rdd.getNumPartitions() == 1
        assert large.rows.rdd.getNumPartitions() > int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    else:
        assert small.rows.rdd.getNumPartitions() == int(str(spark.conf.get("spark.sql.shuffle.partitions")))


def test_without_adaptive_execution_nothing_is_run(spark: SparkSession, tmp_path: Path) -> None:
    seen = spark.sparkContext.accumulator(0)
    state = BatchState(Checkpoint(spark, str(tmp_path)), "op", 0)
    with session_conf(spark, {"spark.sql.adaptive.enabled": "false"}):
        assert state.gather(fold(), rows(spark, 0, 100, seen), 0) is None
    assert seen.value == 0


@pytest.mark.parametrize("columns", ["1 AS one, id % 7 AS k", "id % 7 AS k, id % 7 AS one"], ids=["constant", "equal"])
def test_spark_knows_it_whatever_it_makes_of_the_keys(spark: SparkSession, columns: str) -> None:
    """The exchange uses the expression with which the optimiser replaced a column."""
    there = exchanged(spark.range(100).selectExpr(*columns.split(", ")), ["one", "k"])
    assert there is not None
    made = there.rows
    counted = made.groupBy("one", "k").count()
    assert "Exchange" not in counted._jdf.queryExecution().executedPlan().toString()
    assert sorted(row[-1] for row in counted.collect()) == [14] * 5 + [15] * 2
    assert len({tuple(row)[:2] for row in counted.collect()}) == 7


@pytest.mark.slow
@pytest.mark.parametrize("key", ["id % 100", "nullif(id % 5, 0)", "collate(chr(65 + id % 60), 'UTF8_LCASE')"])
def test_each_of_two_sides_is_read_alone(spark: SparkSession, key: str) -> None:
    """Each side is joined without another exchange, except for collated texts, which Spark compares by another key."""
    given = spark.range(2_000).selectExpr("id AS v", f"{key} AS k", "CAST(id % 3 = 0 AS INT) AS side")
    there = exchanged(given, ["k"], sides="side")
    assert there is not None
    made = there.rows
    assert made.schema.names == given.schema.names
    assert sorted(made.collect()) == sorted(given.collect())
    left, right = (made.where(f"side = {n}") for n in (0, 1))
    for side in (left, right):
        assert "Union" not in side._jdf.queryExecution().optimizedPlan().toString()
        assert side.rdd.getNumPartitions() == 8 * spark.sparkContext.defaultParallelism

    def joined(left: DataFrame, right: DataFrame) -> DataFrame:
        return left.select("k", "v").join(right.selectExpr("k", "v AS w"), "k", "full").select("v", "w")

    found = joined(left, right)
    if "collate" not in key:
        assert "Exchange" not in found._jdf.queryExecution().executedPlan().toString()
    expected = joined(given.where("side = 0"), given.where("side = 1"))
    assert Counter(map(tuple, found.collect())) == Counter(map(tuple, expected.collect()))


def test_a_plug_in_may_have_an_exchange_of_its_own(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then Spark shuffles again for the join."""
    monkeypatch.setattr(exchange, "_exchange_of", lambda *_: None)
    given = spark.range(100).selectExpr("id AS v", "id % 10 AS k", "CAST(id < 50 AS INT) AS side")
    there = exchange.exchanged(given, ["k"], sides="side")
    assert there is not None
    assert there.sizes is None
    made = there.rows
    assert sorted(made.collect()) == sorted(given.collect())
    left, right = (made.where(f"side = {n}").select("k", "v") for n in (0, 1))
    assert left.join(right, "k").count() == 10 * 5 * 5


def test_a_join_has_as_many_partitions_as_are_asked_for(spark: SparkSession) -> None:
    with session_conf(spark, {"spark.sql.shuffle.partitions": "70"}):
        there = exchanged(spark.range(10).selectExpr("id", "1 AS side"), ["id"], sides="side")
    assert there is not None
    made = there.rows
    assert made.where("side = 1").rdd.getNumPartitions() == 70
    assert made.where("side = 0").count() == 0


def test_the_largest_partition_of_each_side_is_reported(spark: SparkSession) -> None:
    """Approximately: 400 bytes per row on one side, little more than 16 on the other, all of the same key."""
    given = spark.range(20_000).selectExpr(
        "IF(id % 2 = 0, id, 7) AS k",
        "IF(id % 2 = 0, left(sha2(CAST(id AS STRING), 512) || sha2(CAST(-id AS STRING), 512), 200), '') AS v",
        "CAST(id % 2 AS INT) AS side",
    )
    there = exchanged(given, ["k"], sides="side")
    assert there is not None
    assert there.sizes is not None
    partitions = 8 * spark.sparkContext.defaultParallelism
    assert 10_000 * 200 / partitions < there.sizes[0] < 3 * 10_000 * 250 / partitions
    assert there.sizes[1] < 10_000 * 100
    nothing = exchanged(given.where("k < 0"), ["k"], sides="side")
    assert nothing is not None
    assert nothing.sizes in (None, (0, 0))


def test_what_is_made_row_by_row_comes_again(spark: SparkSession) -> None:
    rows = spark.range(10).withColumn("k", F.col("id") % 3)
    same = [
        rows.filter("k > 1").selectExpr("*", "explode(sequence(0, k)) AS n"),
        rows.repartition(3).alias("r").select("r.*"),
        rows.withColumn("v", F.udf(lambda k: k + 1, "long")("k")),
    ]
    spark.range(5).createOrReplaceTempView("gathered_table")
    other = [
        rows.filter("k IN (SELECT id FROM gathered_table)"),
        rows.withColumn("n", F.expr("(SELECT count(*) FROM gathered_table)")),
        rows.join(spark.range(3), "id"),
        rows.unionByName(rows),
        rows.dropDuplicates(["k"]),
        rows.limit(3),
        rows.groupBy("k").agg(F.first("id")),
        rows.selectExpr("id", "row_number() OVER (PARTITION BY k ORDER BY k) AS n"),
        rows.withColumn("n", F.rand()),
        rows.withColumn("n", F.current_timestamp()),
        rows.withColumn("v", F.udf(lambda k: k + 1, "long").asNondeterministic()("k")),
        rows.mapInArrow(lambda batches: batches, rows.schema),
        rows.mapInPandas(lambda batches: batches, rows.schema),
    ]
    assert [is_repeatable(each, of_batch=True) for each in same] == [True] * len(same)
    assert [is_repeatable(each, of_batch=True) for each in other] == [False] * len(other)


class Newest(bs.WindowFunction):
    output = "k long, newest long"

    def apply(self, key: Any, window: Any, rows: Any) -> Any:
        yield key, max(row.v for row in rows)


CLOCK = "ts < current_timestamp() AND window_end > current_timestamp() - INTERVAL 100 YEARS"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "written"),
    [
        ("join", ["joined h0"]),
        pytest.param("join of random rows", ["joined v0", "joined h0"], marks=pytest.mark.grid),
        pytest.param("join of rows in a table", ["joined v0", "joined h0"], marks=pytest.mark.grid),
        pytest.param("join of a table's rows", ["joined v0", "joined h0"], marks=pytest.mark.grid),
        pytest.param("join of windows", ["windows_window v0", "joined h0"], marks=pytest.mark.grid),
        pytest.param(
            "join of large windows", ["windows_window v0", "windows_window h0", "joined h0"], marks=pytest.mark.grid
        ),
        pytest.param(
            "join of windows by the clock", ["windows_window v0", "joined v0", "joined h0"], marks=pytest.mark.grid
        ),
        pytest.param(
            "join of windows with a function", ["joined v0", "windows h0", "joined h0"], marks=pytest.mark.grid
        ),
    ],
)
def test_rows_that_a_replay_may_not_give_again_are_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, written: list[str]
) -> None:
    """Otherwise the state saved before a crash and the results written after it could come from different rows."""
    seen: list[str] = []
    save = BatchState._save

    def watched(self: BatchState, frame: DataFrame, name: str) -> str:
        seen.append(f"{self._operator} {name}")
        return save(self, frame, name)

    monkeypatch.setattr(BatchState, "_save", watched)
    monkeypatch.setitem(registry.CONNECTORS, "scripted", ("tests.operators.scripted", "ScriptedDataSource"))
    if "large" in shape:
        monkeypatch.setattr(backlogbatches, "_LARGEST_MOVED", 0)
    table = pa.table({"k": [1, 2, 2], "v": [5, 6, 7], "ts": [START + dt.timedelta(seconds=n) for n in range(3)]})
    for name in ("left", "right"):
        append(tmp_path / name, table, backlog=True)
        # The other one ends all windows before it.
        live = {"k": [9, 10], "v": [7, 8], "ts": [START + dt.timedelta(seconds=s) for s in (2, 60)]}
        append(tmp_path / name, pa.table(live), backlog=False)
    left, right = (bs.source("scripted", name=n, path=tmp_path / n) for n in ("left", "right"))
    if "random" in shape:
        left = left.map("*", "rand() AS chance")
    if "in a table" in shape:
        spark.range(10).createOrReplaceTempView("gathered_keys")
        left = left.filter("k IN (SELECT id FROM gathered_keys)")
    elif "table" in shape:
        left = left.transform(lambda rows: rows.join(spark.range(3).withColumnRenamed("id", "k"), "k", "left"))
    if "windows" in shape:
        left, right = (each.with_watermark("ts", "0 seconds") for each in (left, right))
        windows = left.key_by("k").window(bs.TumblingEventTimeWindows.of("1 second"))
        left = (
            windows.apply(Newest(), name="windows")
            if "function" in shape
            else windows.aggregate("max(v) AS v", name="windows")
        )
    if "clock" in shape:
        left = left.map("*", "window_time AS ts").filter(CLOCK)
    joined = left.key_by("k").join(right.map("k", "v AS w").key_by("k"), name="joined").map("k", "w")
    sink = Collect()
    trigger = joined.write("kept").trigger(processing_time="100 ms", interval_during_backlog=0)
    query = trigger.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
    try:
        wait(lambda: (9, 7) in {tuple(row) for rows in sink.batches.values() for row in rows}, query)
    finally:
        query.stop()
    assert seen == written
    pairs = Counter(tuple(row) for rows in sink.batches.values() for row in rows if row["k"] < 10)
    assert pairs == Counter({(1, 5): 1, (2, 6): 2, (2, 7): 2, (9, 7): 1})
