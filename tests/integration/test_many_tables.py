"""Several tables in one query, on real servers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from tests.connectors.mysql_cdc.replay import options

from .test_main_job import wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

SHARDS = ("part_0", "part_1")


def create(server: MySQLServer) -> None:
    server.execute("DROP DATABASE IF EXISTS shards")
    server.execute("CREATE DATABASE shards")
    for i, name in enumerate(SHARDS):
        server.execute(f"CREATE TABLE shards.{name} (id INT PRIMARY KEY, n INT)")
        server.execute(f"INSERT INTO shards.{name} VALUES " + ",".join(f"({k}, {i})" for k in range(300)))


def change(server: MySQLServer) -> None:
    server.execute("UPDATE shards.part_0 SET n = 7 WHERE id < 10")
    server.execute("DELETE FROM shards.part_1 WHERE id = 5")
    server.execute("INSERT INTO shards.part_1 VALUES (1000, 1)")


@pytest.mark.slow
def test_shards_go_into_one_table(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql)
    given = {k: v for k, v in options(mysql, "", tablePattern=r"shards\.part_\d", maxRowsPerBatch=250).items() if v}
    made = bs.source("mysql_cdc", name="shards", options=given).write("shards")
    made = made.option("checkpointLocation", str(tmp_path / "c")).trigger(processing_time="200 ms")
    target = bs.DeltaUpsert(str(tmp_path / "t"), keys=["_database", "_table", "id"])
    query = made.to(target).start(spark)
    try:
        wait(lambda: not query.isProcessingBacklog, query)
        change(mysql)
        query.processAllAvailable()
    finally:
        query.stop()
    found = spark.read.format("delta").load(str(tmp_path / "t")).select("_table", "id", "n")
    expected = [(name, *row) for name in SHARDS for row in mysql.execute(f"SELECT id, n FROM shards.{name}")]
    assert Counter(tuple(row) for row in found.collect()) == Counter(expected)


def test_tables_of_any_columns_as_envelopes(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql)
    mysql.execute("CREATE TABLE shards.names (id INT PRIMARY KEY, name TEXT)")
    mysql.execute("INSERT INTO shards.names VALUES (1, 'a')")
    given = options(mysql, "shards.part_0, shards.part_1, shards.names")
    frame = spark.readStream.format("mysql_cdc").options(**given).option("format", "debezium").load()
    writer = frame.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "t"))
    query.awaitTermination()
    change(mysql)
    query = writer.trigger(availableNow=True).start(str(tmp_path / "t"))
    query.awaitTermination()
    rows = spark.read.format("delta").load(str(tmp_path / "t")).orderBy("_commit_seq").collect()
    state: dict[tuple[str, str], object] = {}
    for row in rows:
        after = json.loads(row.value)["after"]
        state[row._table, row.key] = after
    found = Counter((table, *after.values()) for (table, _), after in state.items() if isinstance(after, dict))
    expected = [(name, *row) for name in (*SHARDS, "names") for row in mysql.execute(f"SELECT * FROM shards.{name}")]
    assert found == Counter(expected)
