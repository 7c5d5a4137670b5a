"""Inferred columns against Spark's batch readers, and whole queries over files that get new columns."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError

from .schemas import Landing
from .test_continuous_spark import wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = (
    "1", "-0", "+5", "007", "12.", "1.5", "1e5", "NaN", "Inf", "1d", "0x1p3", " 1", "true", "TRUE", "x", "", '""',
    "2020-01-01", "2020-1-1", "2020", "2020-01", "2020-13-01", "2020-01-01 10:00:00", "2020-01-01T10:00:00Z", "1" * 12,
    "1" * 30, "1" * 39, "2020-01-01x", "12345-01-01", "9223372036854775808", "-2147483649",
)  # fmt: skip


def value(chance: random.Random, depth: int = 2) -> str:
    """A value in JSON."""
    kind = chance.randrange(12 if depth else 9)
    if kind < 9:
        return ("null", "true", '"t"', '""', "1", "-0", "1.50", "1" * 20, "1e400")[kind]
    if kind == 9:
        return f"[{', '.join(value(chance, depth - 1) for _ in range(chance.randrange(3)))}]"
    names = chance.sample("abc", chance.randrange(3))
    return record({name: value(chance, depth - 1) for name in names})


def record(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}"


def test_json_has_the_types_that_spark_infers(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(4)
    for number in range(15):
        root = tmp_path / str(number)
        root.mkdir()
        landing = Landing(root, "json", inferColumnTypes="true", schemaEvolutionMode="none")
        records = [{name: value(chance) for name in chance.sample("bcde", 3)} for _ in range(chance.randint(1, 4))]
        texts = [record({**each, "a": "1"}) for each in records]
        at = chance.randint(1, len(texts))
        landing.add("\n".join(texts[:at]))
        if texts[at:]:
            landing.add("\n".join(texts[at:]))
        found = spark.read.json(str(root / "data")).schema
        assert landing.schema() == found.simpleString()[len("struct<") : -1], texts


def test_csv_has_the_types_that_spark_infers(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(5)
    for number in range(15):
        root = tmp_path / str(number)
        root.mkdir()
        options = {"header": chance.choice(["true", "false"]), "nullValue": chance.choice(["", "x"])}
        landing = Landing(root, "csv", inferColumnTypes="true", schemaEvolutionMode="none", **options)
        pools = [chance.sample(TEXTS, chance.randint(1, 3)) for _ in range(6)]
        rows = [",".join(chance.choice(pool) for pool in pools) for _ in range(chance.randint(1, 5))]
        landing.add("\n".join([*(["a,b,,d,e,f"] if options["header"] == "true" else []), *rows]) + "\n")
        found = spark.read.csv(str(root / "data"), inferSchema=True, **options).schema  # type: ignore[arg-type]
        assert landing.schema() == found.simpleString()[len("struct<") : -1], rows


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.slow
def test_a_query_restarts_by_itself_with_the_new_column(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json")
    landing.add(lines({"a": 1}, {"a": 2}))
    before = spark.conf.get("spark.backlog.restart.delay", "5 seconds")
    spark.conf.set("spark.backlog.restart.delay", "100 ms")
    options = {
        "path": landing.options["path"], "fileFormat": "json", "discovery": "continuous", "inferColumnTypes": "true",
        "discoveryInterval": "100 ms", "discoveryOrder": "name",
    }  # fmt: skip
    source = bs.source("hybrid", name="events", phases="files", options=options)
    query = (
        source.write("events").trigger(processing_time="100 ms").option("checkpointLocation", str(tmp_path / "c"))
        .to(bs.DeltaAppend(str(tmp_path / "t"), merge_schema=True)).start(spark)
    )  # fmt: skip
    target = spark.read.format("delta").load
    try:
        wait(query, lambda: (tmp_path / "t/_delta_log").exists() and target(str(tmp_path / "t")).count() == 2)
        landing.add(lines({"a": 3, "b": {"x": 1}}, {"a": "t"}))
        wait(query, lambda: query.backlogProgress.restarts == 1)
        query.processAllAvailable()
    finally:
        query.stop()
        spark.conf.set("spark.backlog.restart.delay", str(before))
    found = target(str(tmp_path / "t"))
    assert dict(found.dtypes) == {"a": "bigint", "b": "struct<x:bigint>", "_rescued_data": "string"}
    rows = {(row.a, row.b and row.b.x, bool(row._rescued_data)) for row in found.collect()}
    assert rows == {(1, None, False), (2, None, False), (3, 1, False), (None, None, True)}
    assert found.count() == 4
    # The schema is in the checkpoint, because the query keeps the source's files there.
    assert len(list((tmp_path / "c").glob("backlog/sources/*/_schemas/schema-*.json"))) == 2


def test_plain_read_stream_stops_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    bs.register(spark)
    landing = Landing(tmp_path, "json", discovery="continuous", schemaLocation=str(tmp_path / "c"))
    found: list[tuple[Any, ...]] = []

    def run() -> None:
        frame = spark.readStream.format("hybrid").options(**landing.options).load()
        rows = frame.drop("_rescued_data").writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        rows.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()

    landing.add(lines({"a": 1}))
    run()
    landing.add(lines({"a": 2, "b": 1}))
    with pytest.raises(Exception, match=r"has the column b not in the schema\. The new schema is stored"):
        run()
    run()
    assert found == [("1",), ("2", "1")]
    assert (tmp_path / "c/_schemas/schema-00000001.json").exists()
    landing.options["schemaEvolutionMode"] = "failOnNewColumns"
    file = landing.add(lines({"a": 2, "c": 1}))
    with pytest.raises(Exception, match=f"{file} has the column c not in the schema"):
        run()
    # With a declared schema. (Delta's extension refuses a schemaLocation outside of the checkpoint.)
    del landing.options["schemaLocation"]
    for options, problem in (
        ({"schemaEvolutionMode": "addNewColumns"}, "not possible with a declared schema"),
        ({"schemaEvolutionMode": "rescue"}, "rescuedDataColumn"),
    ):
        frame = spark.readStream.format("hybrid").options(**landing.options | options).schema("a INT").load()
        stream = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "d"))
        with pytest.raises(Exception, match=problem):
            stream.start().awaitTermination()


def test_refused_before_start_returns(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path, "json", discovery="continuous")

    def start(**options: str) -> None:
        given = {name: text for name, text in landing.options.items() if name not in ("phases", "metadataLocation")}
        source = bs.source("hybrid", name="n", phases="files", options={**given, **options})
        stream = source.write("n").option("checkpointLocation", str(tmp_path / "c"))
        stream.to(bs.DeltaAppend(str(tmp_path / "target"))).start(spark)

    with pytest.raises(BacklogError, match="no file is there to infer a schema from"):
        start(allowEmpty="true")
    landing.add(lines({"a": 1}))
    with pytest.raises(BacklogError, match=r"schemaHints = .*NUMBER is not a type"):
        start(schemaHints="a NUMBER")
    with pytest.raises(BacklogError, match="schemaEvolutionMode = 'add'"):
        start(schemaEvolutionMode="add")
    (tmp_path / "s/_schemas").mkdir(parents=True)
    (tmp_path / "s/_schemas/schema-00000003.json").write_text("{}")
    with pytest.raises(BacklogError, match=r"schema-00000003\.json is damaged"):
        start(schemaLocation=str(tmp_path / "s"))
