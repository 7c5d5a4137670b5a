"""Batch state: each key is read and written once per batch, and a replayed batch uses the existing version."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import LongType, StructType

import backlog_spark as bs
from backlog_spark.handover.versions import BatchState
from backlog_spark.operators.aggregates import Sum
from backlog_spark.operators.aggregates.reduce import ReduceFold
from backlog_spark.operators.fold import Fold
from backlog_spark.operators.merge import AggregateFold
from backlog_spark.operators.process.fold import ProcessFold
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.state.seeds import ALL_OF_THEM, seeds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType().add("k", LongType()).add("v", LongType())


class Total(bs.KeyedProcessFunction):
    output = StructType().add("k", LongType()).add("total", LongType())
    total = bs.ValueState(LongType(), default=0)

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() + row.v)
        yield row.k, self.total.value()


FOLDS = {
    "aggregate": lambda: AggregateFold(["k"], [Sum("v", name="total")], SCHEMA, 8),
    "reduce": lambda: ReduceFold(["k"], lambda a, b: a._replace(v=a.v + b.v), SCHEMA, 8),
    "process": lambda: ProcessFold(["k"], Total(), SCHEMA, 8),
}


class Recorded(BatchState):
    """Keeps the plan by which each version is made."""

    plans: list[str]

    def write(self, fold: Fold, rows: DataFrame, batch_id: int) -> DataFrame:
        before = self.newest(below=batch_id)
        base = None if before is None else fold.state_of(self.read(rows.sparkSession, fold, before))
        self.plans.append(fold.fold(rows, base)._jdf.queryExecution().sparkPlan().toString())
        return super().write(fold, rows, batch_id)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(FOLDS))
def test_one_read_and_one_write_a_batch(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    fold = FOLDS[kind]()
    state = Recorded(Checkpoint(spark, str(tmp_path)), "op", 0)
    state.plans = []
    expected: Counter[int] = Counter()
    for batch in range(3):
        rows = [(n % 50, n + batch) for n in range(batch * 10, 200)]
        for key, value in rows:
            expected[key] += value
        version = state.write(fold, spark.createDataFrame(rows, SCHEMA), batch)
        kept = fold.state_of(version).select("k0", fold.state.slot_names[-1]).collect()
        assert sorted(kept) == sorted(expected.items()), "one row a key"
    # The state is scanned once for each batch that has one before it.
    assert [plan.count("FileScan parquet") for plan in state.plans] == [0, 1, 1]
    other = spark.createDataFrame([(1, 10**9)], SCHEMA)
    again = fold.state_of(state.write(fold, other, 2)).select("k0", fold.state.slot_names[-1]).collect()
    assert sorted(again) == sorted(expected.items()), "a valid version stays as it is"
    state.drop_below(2)
    assert [p.name[:3] for p in (tmp_path / "backlog/state/op/epoch=0").glob("v*.json")] == ["v2."]


def test_a_damaged_file_is_no_file_to_be_left_out(spark: SparkSession, tmp_path: Path) -> None:
    fold = FOLDS["aggregate"]()
    state = BatchState(Checkpoint(spark, str(tmp_path)), "op", 0)
    version = state.write(fold, spark.createDataFrame([(n, n) for n in range(50)], SCHEMA), 0)
    assert version.count() == 50
    damaged, *_ = (tmp_path / "backlog/state/op/epoch=0").glob("v0-*/part-*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    damaged.with_name(f".{damaged.name}.crc").unlink()
    (tmp_path / seeds_of("op")).mkdir(parents=True)
    conf = {"spark.sql.files.ignoreCorruptFiles": "true", "spark.sql.files.ignoreMissingFiles": "true"}
    seeds = spark.readStream.schema(fold.version_schema()).options(**ALL_OF_THEM).format("parquet")
    with session_conf(spark, conf):
        with pytest.raises(Py4JJavaError, match="FAILED_READ_FILE"):
            state.read(spark, fold, 0).collect()
        state.publish()
        query = seeds.load(str(tmp_path / seeds_of("op"))).writeStream.format("noop")
        query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match="FAILED_READ_FILE"):
            query.awaitTermination()
