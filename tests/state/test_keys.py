"""How keys are sorted, and where Spark puts key groups."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backlog_spark as bs
from backlog_spark.state.keys import even_labels, labelled, order_of
from tests.operators.conftest import Collect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = 32
LONG = st.integers(-(2**63), 2**63 - 1)


@given(st.one_of(st.lists(LONG, max_size=200), st.lists(st.sampled_from([-(2**63), -1, 0, 70_000, 2**63 - 1]))))
def test_equal_numbers_are_sorted_as_they_stand(numbers: list[int]) -> None:
    given_numbers = np.array(numbers, dtype=np.int64)
    assert order_of(given_numbers).tolist() == np.argsort(given_numbers, kind="stable").tolist()


@pytest.mark.parametrize("distinct", [2, 300, 60_000, 10**6])
@pytest.mark.parametrize("apart", [1, 2**40])
def test_many_numbers_are_sorted_as_they_stand(distinct: int, apart: int) -> None:
    """As many as are sorted by vector instructions."""
    numbers = np.random.default_rng(distinct).integers(-distinct // 2, distinct // 2, 100_000) * apart
    assert (order_of(numbers) == np.argsort(numbers, kind="stable")).all()


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
    """The counts of the keys among what is new in the folder."""
    rows = bs.stream(spark.readStream.schema("k long").parquet(str(root / "rows")))
    sink = Collect()
    writer = rows.key_by("k").count().write("q").trigger(available_now=True).to(sink)
    query = writer.option("checkpointLocation", str(root / "check")).start(spark)
    assert query.awaitTermination(120)
    assert query.exception() is None
    return sink


@pytest.mark.parametrize("is_even", [True, False])
def test_key_groups_stay_where_a_checkpoint_has_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_even: bool
) -> None:
    """One that was begun before key groups were spread evenly goes on as it is."""
    spark.conf.set("spark.backlog.keyGroups", str(GROUPS))
    try:
        for life in range(2):
            rows = spark.range(1_000).selectExpr("id % 500 AS k")
            rows.write.mode("append").parquet(str(tmp_path / "rows"))
            with monkeypatch.context() as patch:
                if not is_even and not life:
                    patch.setattr("backlog_spark.keyed.even_labels", lambda *_: None)
                sink = run(spark, tmp_path)
            newest = {row[0]: row[1] for _, batch in sorted(sink.batches.items()) for row in batch}
            assert newest == dict.fromkeys(range(500), 2 * (life + 1))
            plans = list((tmp_path / "check" / "backlog").glob("plan-*.json"))
            assert plans
            if not is_even and not life:
                for plan in plans:
                    found = json.loads(plan.read_text())
                    assert found.pop("even") is True
                    plan.write_text(json.dumps(found))
                    plan.with_name(f".{plan.name}.crc").unlink(missing_ok=True)
    finally:
        spark.conf.unset("spark.backlog.keyGroups")
    placed = partitions_of(spark, tmp_path / "check")
    partitions = len(placed)
    assert placed.total() == GROUPS
    assert (max(placed.values()) - min(placed.values()) <= 1) == (is_even or partitions == 1)
