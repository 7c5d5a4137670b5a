"""How keys are sorted, and in which partition Spark puts key groups."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backlog_spark as bs
from backlog_spark.state.keys import distinct, even_labels, is_in, labelled, order_of
from tests.operators.conftest import Collect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = 32
LONG = st.integers(-(2**63), 2**63 - 1)


@given(st.one_of(st.lists(LONG, max_size=200), st.lists(st.sampled_from([-(2**63), -1, 0, 70_000, 2**63 - 1]))))
def test_equal_numbers_keep_their_order(numbers: list[int]) -> None:
    given_numbers = np.array(numbers, dtype=np.int64)
    assert order_of(given_numbers).tolist() == np.argsort(given_numbers, kind="stable").tolist()


@pytest.mark.parametrize("different", [2, 300, 60_000, 10**6])
@pytest.mark.parametrize("apart", [1, 2**40])
def test_many_equal_numbers_keep_their_order(different: int, apart: int) -> None:
    """As many as are sorted by vector instructions."""
    numbers = np.random.default_rng(different).integers(-different // 2, different // 2, 100_000) * apart
    assert (order_of(numbers) == np.argsort(numbers, kind="stable")).all()


@given(st.lists(LONG))
def test_distinct_numbers_ascend(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, dtype=np.int64)).tolist() == sorted(set(numbers))


@given(st.lists(st.integers(-5, 5)), st.sets(st.integers(-5, 5)))
def test_membership(numbers: list[int], members: set[int]) -> None:
    found = is_in(np.array(numbers, dtype=np.int64), np.array(sorted(members), dtype=np.int64))
    assert found.tolist() == [number in members for number in numbers]


@pytest.mark.parametrize(("key_groups", "partitions"), [(1, 1), (2, 2), (32, 2), (128, 5), (7, 7), (1000, 24)])
def test_each_partition_has_as_many_key_groups(spark: SparkSession, key_groups: int, partitions: int) -> None:
    labels = even_labels(key_groups, partitions)
    assert len(set(labels)) == key_groups
    groups = spark.range(key_groups).selectExpr("CAST(id AS int) AS g")
    label = labelled("g", labels)
    placed = groups.select("g", label.alias("label")).selectExpr("g", "label", f"pmod(hash(label), {partitions}) AS p")
    found = placed.collect()
    assert {row["g"]: row["label"] for row in found} == dict(enumerate(labels))
    assert all(row["p"] == row["g"] % partitions for row in found), "as a shuffle of Spark's places them"


def partitions_of(spark: SparkSession, checkpoint: Path) -> Counter[int]:
    """How many key groups each partition of the state has."""
    state = spark.read.format("statestore").option("stateVarName", "head").load(str(checkpoint))
    return Counter(row["partition_id"] for row in state.select("partition_id").collect())


def run(spark: SparkSession, root: Path) -> Collect:
    """The counts of keys in the folder's new files."""
    rows = bs.stream(spark.readStream.schema("k long").parquet(str(root / "rows")))
    sink = Collect()
    writer = rows.key_by("k").count().write("q").trigger(available_now=True).to(sink)
    query = writer.option("checkpointLocation", str(root / "check")).start(spark)
    assert query.awaitTermination(120)
    assert query.exception() is None
    return sink


def test_key_groups_are_placed_evenly_and_stay(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.backlog.keyGroups", str(GROUPS))
    try:
        for life in range(2):
            rows = spark.range(1_000).selectExpr("id % 500 AS k")
            rows.write.mode("append").parquet(str(tmp_path / "rows"))
            sink = run(spark, tmp_path)
            newest = {row[0]: row[1] for _, batch in sorted(sink.batches.items()) for row in batch}
            assert newest == dict.fromkeys(range(500), 2 * (life + 1))
    finally:
        spark.conf.unset("spark.backlog.keyGroups")
    placed = partitions_of(spark, tmp_path / "check")
    assert placed.total() == GROUPS
    assert max(placed.values()) - min(placed.values()) <= 1
