"""The columns of a source that a query reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import backlog_spark as bs
from backlog_spark.model.nodes import KeyedNode, SourceNode
from backlog_spark.model.trees import unobserved
from backlog_spark.spark.plan import columns_read as module
from backlog_spark.spark.plan.bound_folds import bound
from backlog_spark.spark.plan.columns_read import blanked, columns_read, restored, with_paths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL = (
    "id BIGINT, at TIMESTAMP, name STRING, place STRUCT<city: STRING, deep: STRUCT<x: INT, `y.z`: INT>>, "
    "tags ARRAY<STRING>"
)


def read(spark: SparkSession, stream: bs.BacklogStream, number: int = 0) -> list[str] | None:
    """The paths for one of the sources of a stream."""
    nodes = {node.spec.name: node for node in stream._node.walk() if isinstance(node, SourceNode)}
    spec = list(nodes.values())[number].spec
    schema = StructType.fromDDL(DDL)
    assert isinstance(schema, StructType)
    found = columns_read(spark, stream._node, spec, schema)
    return None if found is None else ["/".join(path) for path in found]


@pytest.fixture
def rows() -> bs.BacklogStream:
    return bs.source("hybrid", name="rows", schema=DDL, options={"path": "/none", "phases": "files"})


def test_steps(spark: SparkSession, rows: bs.BacklogStream) -> None:
    assert read(spark, rows) is None
    assert read(spark, rows.filter("id > 3")) is None
    assert read(spark, rows.map("*")) is None
    assert read(spark, rows.map("id")) == ["id"]
    assert read(spark, rows.map("id + 1 AS n").filter("n > 3").map("n", "n * 2 AS m")) == ["id"]
    assert read(spark, rows.filter("name = 'a'").map("id")) == ["id", "name"]
    assert read(spark, rows.map("place.deep.x AS x", "upper(place.city) AS c")) == ["place/city", "place/deep/x"]
    assert read(spark, rows.map("place.deep.`y.z` AS z")) == ["place/deep/y.z"]
    assert read(spark, rows.map("place.deep.x AS x", "place.deep AS d")) == ["place/deep"]
    assert read(spark, rows.map("place IS NULL AS no")) == ["place"]
    assert read(spark, rows.map("ID", "Place.City AS c")) == ["id", "place/city"]
    assert read(spark, rows.map("1 AS one")) == []
    timed = rows.with_watermark("at", "1 second").map("id")
    assert read(spark, timed) == ["at", "id"]
    assert read(spark, bs.BacklogStream(unobserved(timed._node))) == ["id"]
    with_nulls = StructType.fromDDL("id BIGINT NOT NULL, v INT")
    spec = rows.sources[0]
    found = columns_read(spark, rows.filter("id IS NOT NULL").map("v")._node, spec, with_nulls)  # type: ignore[arg-type]
    assert found == [("id",), ("v",)]
    assert read(spark, rows.map("explode(tags) AS tag", "id")) == ["id", "tags"]
    assert read(spark, rows.map(F.udf(len, "int")("name").alias("n"))) == ["name"]


def test_a_watermark_reads_its_column(spark: SparkSession, rows: bs.BacklogStream) -> None:
    timed = rows.with_watermark("at", "5 seconds")
    assert read(spark, timed.map("place.deep.x AS x")) == ["at", "place/deep/x"]
    moved = rows.map("id", "name", "at + INTERVAL '1' HOUR AS later").with_watermark("later", "5 seconds").map("id")
    assert read(spark, moved) == ["at", "id"]


def test_what_operators_read(spark: SparkSession, rows: bs.BacklogStream) -> None:
    assert read(spark, rows.key_by("id").aggregate("count(*) AS n")) == ["id"]
    assert read(spark, rows.key_by("name").aggregate("max_by(place, at) AS x")) == ["at", "name", "place"]
    assert read(spark, rows.key_by("name").min_by("at")) is None
    assert read(spark, rows.map("id", "name", "tags").key_by("name").sum("id")) == ["id", "name"]
    timed = rows.with_watermark("at", "1 second").key_by("id")
    tumbling = bs.TumblingEventTimeWindows.of("1 minute")
    assert read(spark, timed.window(tumbling).aggregate("count(*) AS n")) == ["at", "id"]
    hopping = bs.SlidingEventTimeWindows.of("3 minutes", "1 minute")
    assert read(spark, timed.window(hopping).aggregate("sum(place.deep.x) AS x")) == ["at", "id", "place"]
    late = timed.window(tumbling).side_output_late_data("late").aggregate("count(*) AS n")
    assert read(spark, late) == ["at", "id", "name", "place", "tags"]
    twice = rows.key_by("id").aggregate("count(*) AS n").key_by("n").aggregate("count(*) AS m")
    assert read(spark, twice) == ["id"]
    assert read(spark, rows.union(rows).key_by("id").aggregate("count(*) AS n")) is None
    assert read(spark, rows.map("id").union(rows.map("place.deep.x AS id"))) == ["id", "place/deep/x"]
    other = bs.source("hybrid", name="other", schema=DDL, options={"path": "/none", "phases": "files"})
    joined = rows.map("id", "name").key_by("id").join(other.map("id", "tags").key_by("id"))
    assert read(spark, joined.map("name") if hasattr(joined, "map") else joined) == ["id", "name"]
    assert read(spark, joined, 1) == ["id", "tags"]


def test_what_is_not_known_is_all(spark: SparkSession, rows: bs.BacklogStream, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_python(frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(lambda batches: batches, frame.schema)

    def twice(frame: DataFrame) -> DataFrame:
        return frame.join(frame.select("id"), "id").select("id")

    for function in (in_python, twice, lambda frame: frame.select("id")):
        assert read(spark, rows.transform(function)) is None
    monkeypatch.setattr(module, "is_usable", lambda name: name != "columns read")
    assert read(spark, rows.map("id")) is None


def test_missing_columns_come_again_as_null(spark: SparkSession) -> None:
    schema = StructType.fromDDL(DDL)
    assert isinstance(schema, StructType)
    narrow = with_paths(schema, [("id",), ("place", "deep", "y.z"), ("place", "city")])
    assert narrow.simpleString() == "struct<id:bigint,place:struct<city:string,deep:struct<y.z:int>>>"
    frame = spark.createDataFrame([(1, ("c", (5,))), (2, None)], narrow)
    (one, two) = restored(frame, schema).orderBy("id").collect()
    assert restored(frame, schema).schema.simpleString() == schema.simpleString()
    assert (one.id, one.at, one.name, one.tags, one.place.city, one.place.deep.x, one.place.deep["y.z"]) == (
        1, None, None, None, "c", None, 5
    )  # fmt: skip
    assert (two.id, two.place.city, two.place.deep["y.z"]) == (2, None, None)


FOLDED = {
    "count(*) AS n": {"id"},
    "max_by(`a.b``c`, at) FILTER (WHERE size(tags) > 1) AS y": {"id", "at", "tags", "a.b`c"},
    "first(place) AS p, collect_set(NAME) AS names, avg(place.deep.x) AS mean": {"id", "at", "name", "place"},
}


@pytest.mark.parametrize("aggregates", FOLDED)
def test_folds_do_not_miss_blanked_columns(spark: SparkSession, rows: bs.BacklogStream, aggregates: str) -> None:
    deep = "named_struct('x', INT(id), 'y.z', 7)"
    frame = spark.range(60).selectExpr(
        "id % 3 AS id", "timestamp_seconds(id) AS at", "string(id % 5) AS name",
        f"named_struct('city', 'c', 'deep', IF(id % 4 = 0, NULL, {deep})) AS place",
        "array_repeat('t', INT(id % 3)) AS tags", "id * 2 AS `a.b``c`", "id AS twice", "-id AS TWICE",
    )  # fmt: skip
    node = rows.key_by("id", order="at").aggregate(aggregates)._node
    assert isinstance(node, KeyedNode)
    fold = bound(node, frame.schema)
    found = blanked(frame, [fold])
    assert found.schema.simpleString() == frame.schema.simpleString()
    names = frame.columns[:6]
    counts = found.toDF(*(f"r{i}" for i in range(8))).agg(*(F.count(f"r{i}") for i in range(8))).first()
    assert counts is not None
    assert {name for name, count in zip(names, counts, strict=False) if count} == FOLDED[aggregates]
    assert tuple(counts)[6:] == (0, 0)

    def folded(given: DataFrame) -> list[str]:
        return sorted(str(row) for row in fold.fold(given, None).collect())

    assert len(folded(frame)) == 3
    assert folded(found) == folded(frame)
