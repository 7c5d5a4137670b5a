"""Session settings during a backlog batch, and the environment of the sources' processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource

import backlog_spark.spark.jvm.session
from backlog_spark.spark.jvm.session import register_source, session_conf
from backlog_spark.spark.plan.batch_frames import arrow_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})


def through_python(frame: DataFrame) -> DataFrame:
    return frame.mapInArrow(same, frame.schema)


FIXED = "id, cast(id AS decimal(30,2)) AS d, timestamp_seconds(id) AS t, id > 1 AS b, cast(id AS double) AS f"


def test_rows_of_one_width_are_not_weighed(spark: SparkSession) -> None:
    fixed = spark.range(100).selectExpr(*FIXED.split(", "))
    made = through_python(fixed).where("id > 3").selectExpr("id", "repeat('x', 10) AS text")
    settings = arrow_batches(made)
    assert list(settings) == [LIMIT]
    with session_conf(spark, {LIMIT: "1kb"}):
        assert len(fixed.coalesce(1).mapInArrow(sizes, "rows long").collect()) > 1, "a limit that cuts"
        with session_conf(spark, settings):
            found = fixed.coalesce(1).mapInArrow(sizes, "rows long").collect()
    assert [row[0] for row in found] == [100], "and none that Spark takes for no limit"


@pytest.mark.parametrize("kind", ["string", "binary", "array<int>", "map<int, int>", "struct<a: int>"])
def test_values_of_any_length_are(spark: SparkSession, kind: str) -> None:
    frame = spark.range(3).selectExpr("id", f"cast(NULL AS {kind}) AS value")
    assert arrow_batches(through_python(frame)) == {}
    behind = through_python(through_python(spark.range(3).toDF("id"))).selectExpr("id", f"cast(NULL AS {kind}) AS v")
    assert arrow_batches(through_python(behind)) == {}, "further up in the plan"


def test_python_in_any_step_counts(spark: SparkSession) -> None:
    from pyspark.sql.functions import udf

    fixed = through_python(spark.range(3).toDF("id"))
    texts = fixed.selectExpr("id", "repeat('x', 10) AS text")
    assert arrow_batches(texts) != {}
    assert arrow_batches(texts.withColumn("n", udf(len, "int")("text"))) == {}
    assert arrow_batches(texts.groupBy("id").applyInPandas(lambda rows: rows, "id long, text string")) == {}


def test_plans_without_python_are_left_alone(spark: SparkSession) -> None:
    assert arrow_batches(spark.range(3).groupBy("id").count()) == {}


def test_a_source_that_comes_first_starts_fast_too(spark: SparkSession, monkeypatch: Any) -> None:
    """Spark keeps the environment that it had when a source was registered."""

    class Early(DataSource):
        @classmethod
        def name(cls) -> str:
            return "early"

        def schema(self) -> str:
            return "path string"

    environment = spark.sparkContext.environment
    before = environment.pop("PYTHONPATH", None)
    monkeypatch.setattr(backlog_spark.spark.jvm.session, "_sources", {})
    try:
        register_source(spark, Early)
        assert environment["PYTHONPATH"].split(os.pathsep)[-1].endswith("startup")
    finally:
        if before is not None:
            environment["PYTHONPATH"] = before


def test_settings_of_several_threads_end_in_any_order(spark: SparkSession) -> None:
    name = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    assert spark.conf.get(name) == "false"
    first, second = session_conf(spark, {name: "true"}), session_conf(spark, {name: "true"})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert spark.conf.get(name) == "true", "the other one still needs it"
    second.__exit__(None, None, None)
    assert spark.conf.get(name) == "false"
    with session_conf(spark, {name: "true", LIMIT: "1kb"}):
        with session_conf(spark, {LIMIT: "2kb"}):
            assert spark.conf.get(LIMIT) == "2kb"
        assert spark.conf.get(LIMIT) == "1kb"
    assert spark.conf.get(LIMIT) != "1kb"
