"""A new checkpoint on a target that has rows already, on a real server: afterwards the target equals the source."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import backlog_spark as bs
from tests.connectors.mysql_cdc.replay import options

from .test_main_job import wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from servers.mysql import MySQLServer

LIMIT = 40


def rows_of(chance: random.Random, text: str) -> str:
    keys = chance.sample(range(LIMIT), chance.randrange(1, LIMIT))
    return ", ".join(f"({key}, {chance.randrange(9)}, '{text}')" for key in keys)


def create(server: MySQLServer, *names: str) -> None:
    server.execute("DROP DATABASE IF EXISTS existing")
    server.execute("CREATE DATABASE existing")
    for name in names:
        server.execute(f"CREATE TABLE existing.{name} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")


def followed(
    spark: SparkSession, made: Any, checkpoint: Path, during: str, *, stops: int = 0, change: Callable[[], object]
) -> None:
    """Run a query to the end of the backlog, with some restarts on the way, then a change."""
    made = made.option("checkpointLocation", str(checkpoint)).trigger(
        processing_time="200 ms", interval_during_backlog=during
    )
    for _ in range(stops):
        query = made.start(spark)
        try:
            wait(lambda: (query.lastProgress or {"batchId": -1})["batchId"] >= 0, query)  # noqa: B023
        finally:
            query.stop()
    query = made.start(spark)
    try:
        wait(lambda: not query.isProcessingBacklog and (checkpoint / "commits" / "0").exists(), query)
        change()
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None


def contents(spark: SparkSession, path: Path) -> Counter[Any]:
    return Counter(tuple(row) for row in spark.read.format("delta").load(str(path)).collect())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "during"),
    [(1, "0"), *(pytest.param(n, "0" if n % 2 else "1 s", marks=pytest.mark.grid) for n in range(2, 9))],
)
def test_one_table(spark: SparkSession, mysql: MySQLServer, tmp_path: Path, seed: int, during: str) -> None:
    chance = random.Random(seed)
    create(mysql, "t")
    if chance.random() < 0.8:
        mysql.execute(f"INSERT INTO existing.t VALUES {rows_of(chance, 'new')}")
    old = f"SELECT CAST(id AS INT) id, CAST(n AS INT) n, v FROM VALUES {rows_of(chance, 'old')} AS t(id, n, v)"
    spark.sql(old).write.format("delta").save(str(tmp_path / "t"))

    def change() -> None:
        mysql.execute(f"DELETE FROM existing.t WHERE id % 3 = {chance.randrange(3)}")
        mysql.execute(f"INSERT IGNORE INTO existing.t VALUES {rows_of(chance, 'log')}")

    kept = chance.choice(["TRUE", "id % 2 = 0"])
    rows = bs.source("mysql_cdc", name="t", options=options(mysql, "existing.t", chunkSize=5, maxRowsPerBatch=8))
    sink = bs.DeltaUpsert(str(tmp_path / "t"), keys=["id"])
    made = rows.transform(lambda frame: frame.where(kept)).write("existing").to(sink)
    followed(spark, made, tmp_path / "c", during, stops=2, change=change)
    assert contents(spark, tmp_path / "t") == Counter(mysql.execute(f"SELECT * FROM existing.t WHERE {kept}"))
    assert not (tmp_path / "c" / "backlog" / "sink" / "keys").exists()


@pytest.mark.grid
@pytest.mark.parametrize("during", ["1 s", pytest.param("0", marks=pytest.mark.grid)])
def test_each_table_of_a_database(spark: SparkSession, mysql: MySQLServer, tmp_path: Path, during: str) -> None:
    """One has other rows now, one has none, one is new, and one is gone: that one keeps its rows."""
    create(mysql, "changed", "empty", "gone")
    chance = random.Random(3)
    for name in ("changed", "empty", "gone"):
        mysql.execute(f"INSERT INTO existing.{name} VALUES {rows_of(chance, 'old')}")
    given = options(mysql, "", chunkSize=10)
    columns = "_change_type,_commit_timestamp,_commit_seq,_database,_table,_columns"
    more = {"format": "debezium", "metadataColumns": columns, "maxRowsPerBatch": "20"}

    def run(checkpoint: str, tables: list[str], during: str, change: Callable[[], object]) -> None:
        read = {**given, "table": ",".join(f"existing.{name}" for name in tables), **more}
        rows = bs.source("mysql_cdc", name="all", options=read)
        made = rows.write("existing").to(bs.DeltaTables(str(tmp_path / "lake")))
        followed(spark, made, tmp_path / checkpoint, during, change=change)

    run("first", ["changed", "empty", "gone"], "0", lambda: None)
    lost = contents(spark, tmp_path / "lake" / "existing" / "gone")
    mysql.execute("DELETE FROM existing.changed WHERE id % 2 = 0")
    mysql.execute(f"INSERT IGNORE INTO existing.changed VALUES {rows_of(chance, 'new')}")
    mysql.execute("DELETE FROM existing.empty")
    mysql.execute("DROP TABLE existing.gone")
    mysql.execute("CREATE TABLE existing.fresh LIKE existing.changed")
    mysql.execute(f"INSERT INTO existing.fresh VALUES {rows_of(chance, 'new')}")

    def change() -> None:
        mysql.execute("INSERT INTO existing.empty VALUES (7, 7, 'log')")
        mysql.execute("DELETE FROM existing.changed WHERE id < 5")

    run("second", ["changed", "empty", "fresh"], during, change)
    for name in ("changed", "empty", "fresh"):
        found = contents(spark, tmp_path / "lake" / "existing" / name)
        assert found == Counter(mysql.execute(f"SELECT * FROM existing.{name}")), name
    assert contents(spark, tmp_path / "lake" / "existing" / "gone") == lost


@pytest.mark.grid
@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.grid)])
def test_two_sources_in_one_query(spark: SparkSession, mysql: MySQLServer, tmp_path: Path, named: bool) -> None:
    """The rows of both tables are replaced, and those of a third one stay. Without the names all stay."""
    create(mysql, "a", "b")
    chance = random.Random(5)
    for name in "ab":
        mysql.execute(f"INSERT INTO existing.{name} VALUES {rows_of(chance, 'new')}")
    metadata = "_change_type,_commit_timestamp,_commit_seq,_database,_table"
    streams = [
        bs.source(
            "mysql_cdc", name=name,
            options=options(mysql, f"existing.{name}", chunkSize=5, maxRowsPerBatch=limit, metadataColumns=metadata),
        )
        for name, limit in (("a", 4), ("b", 20))
    ]  # fmt: skip

    def made(frame: DataFrame) -> DataFrame:
        return frame if named else frame.drop("_database").withColumn("id", F.concat("_table", "id")).drop("_table")

    old: Any = [("existing", name, key, 0, "old") for name in "abc" for key in range(LIMIT)]
    frame = made(spark.createDataFrame(old, "_database string, _table string, id int, n int, v string"))
    columns = ["id", "n", "v", *(["_database", "_table"] if named else [])]
    frame.select(*columns).write.format("delta").save(str(tmp_path / "t"))
    keys = ["_database", "_table", "id"] if named else ["id"]
    both = streams[0].union(streams[1]).transform(made)
    sink = bs.DeltaUpsert(str(tmp_path / "t"), keys=keys)
    followed(spark, both.write("existing").to(sink), tmp_path / "c", "1 s", change=lambda: None)
    found = spark.read.format("delta").load(str(tmp_path / "t"))
    there = {name: mysql.execute(f"SELECT * FROM existing.{name}") for name in "ab"}
    if named:
        expected = [(*row, name) for name in "ab" for row in there[name]]
        expected += [(key, 0, "old", "c") for key in range(LIMIT)]
        assert Counter(tuple(row) for row in found.select("id", "n", "v", "_table").collect()) == Counter(expected)
    else:
        assert found.count() == 3 * LIMIT
        assert found.where("v = 'new'").count() == sum(map(len, there.values()))


@pytest.mark.slow
def test_queries_that_share_a_new_target(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    """The second one finds rows that are not its own, and a new checkpoint of the first finds some as well."""
    create(mysql, "a", "b")
    mysql.execute("INSERT INTO existing.a VALUES (1, 1, 'a'), (2, 2, 'a')")
    mysql.execute("INSERT INTO existing.b VALUES (11, 1, 'b')")
    for name, checkpoint in (("a", "1"), ("b", "2"), ("a", "3")):
        rows = bs.source("mysql_cdc", name=name, options=options(mysql, f"existing.{name}"))
        made = rows.write(name).to(bs.DeltaUpsert(str(tmp_path / "t"), keys=["id"]))
        followed(spark, made, tmp_path / checkpoint, "0", change=lambda: None)
    assert contents(spark, tmp_path / "t") == Counter([(1, 1, "a"), (2, 2, "a"), (11, 1, "b")])


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"startup.mode": "latest"}, pytest.param({"skipped.operations": "d"}, marks=pytest.mark.grid)]
)
def test_streams_without_all_rows_remove_none(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, more: dict[str, str]
) -> None:
    create(mysql, "t")
    mysql.execute("INSERT INTO existing.t VALUES (1, 1, 'new')")
    spark.sql("SELECT 5 id, 5 n, 'old' v").write.format("delta").save(str(tmp_path / "t"))
    rows = bs.source("mysql_cdc", name="t", options=options(mysql, "existing.t", **more))
    made = rows.write("t").to(bs.DeltaUpsert(str(tmp_path / "t"), keys=["id"]))
    insert = "INSERT INTO existing.t VALUES (2, 2, 'log')"
    followed(spark, made, tmp_path / "c", "0", change=lambda: mysql.execute(insert))
    snapshot = {} if more.get("startup.mode") else {(1, 1, "new"): 1}
    assert contents(spark, tmp_path / "t") == Counter({(5, 5, "old"): 1, (2, 2, "log"): 1, **snapshot})
