"""Statements that change old rows, followed into Delta: the target equals the source afterwards, on real servers.

tests/connectors/mysql_cdc/test_altered_random.py tries the statements themselves, without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.errors import SettingError
from tests.connectors.mysql_cdc.replay import options

from .test_main_job import wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer


@pytest.fixture(autouse=True)
def database(mysql: MySQLServer) -> None:
    mysql.execute("DROP DATABASE IF EXISTS alters")
    mysql.execute("CREATE DATABASE alters")


def of_target(spark: SparkSession, path: Path, *columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in spark.read.format("delta").load(str(path)).select(*columns).collect())


def of_server(server: MySQLServer, table: str) -> Counter[tuple[Any, ...]]:
    return Counter(server.execute(f"SELECT * FROM {table}"))


def until(query: bs.BacklogQuery, condition: Callable[[], bool]) -> None:
    """Wait for the stream to have read all, and for a condition that other batches may fulfil."""
    wait(lambda: not query.isProcessingBacklog and condition(), query)


@pytest.mark.slow
@pytest.mark.parametrize("during", [None, pytest.param(0, marks=pytest.mark.grid)])
def test_an_upserted_table_equals_its_source(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, during: int | None
) -> None:
    mysql.execute("CREATE TABLE alters.t (id INT PRIMARY KEY, d DATETIME(6), n INT)")
    mysql.execute("INSERT INTO alters.t VALUES (0, '2020-01-01 00:00:00.6', 1), (2, NULL, 2), (3, '1999-12-31', 3)")
    source = bs.source("mysql_cdc", name="t", options=options(mysql, "alters.t", chunkSize=2))
    target = tmp_path / "t"
    query = (
        source.write("t")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processing_time="200 ms", interval_during_backlog=during)
        .to(bs.DeltaUpsert(str(target), keys=["id"], merge_schema=True))
        .start(spark)
    )

    def equal(*columns: str) -> bool:
        return of_target(spark, target, *columns) == of_server(mysql, "alters.t")

    try:
        until(query, lambda: equal("id", "d", "n"))
        # A rounded fraction of seconds: the table is read again.
        mysql.execute("ALTER TABLE alters.t MODIFY d DATETIME")
        mysql.execute("UPDATE alters.t SET n = 4 WHERE id = 3")
        wait(lambda: query.backlogProgress.restarts == 1, query)
        until(query, lambda: equal("id", "d", "n"))
        # New columns: the sink fills them.
        mysql.execute(
            "ALTER TABLE alters.t ADD c DECIMAL(9,2) NOT NULL DEFAULT 1.5, ADD e DATETIME(3) DEFAULT "
            "'2020-01-02 03:04:05.678', ADD f VARCHAR(9) DEFAULT 'x''y', ADD g BIGINT"
        )
        mysql.execute("UPDATE alters.t SET c = 9, g = 7 WHERE id = 3")
        wait(lambda: query.backlogProgress.restarts == 2, query)
        until(query, lambda: equal("id", "d", "n", "c", "e", "f", "g"))
        fills = [entry for entry in history(spark, target) if "notMatchedBySourcePredicates" in entry]
        assert any("update" in entry["notMatchedBySourcePredicates"] for entry in fills)
        # The row with 0 gets another key: its old row must go.
        mysql.execute("ALTER TABLE alters.t MODIFY id INT AUTO_INCREMENT")
        assert 0 not in {row[0] for row in mysql.execute("SELECT id FROM alters.t")}
        until(query, lambda: equal("id", "d", "n", "c", "e", "f", "g"))
    finally:
        query.stop()


def history(spark: SparkSession, path: Path) -> list[dict[str, str]]:
    found = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").select("operationParameters").collect()
    return [row[0] for row in found]


@pytest.mark.grid
def test_each_table_of_a_copied_database_equals_its_source(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    for name in ("filled", "keyed", "rounded"):
        mysql.execute(f"CREATE TABLE alters.{name} (id VARCHAR(9) PRIMARY KEY, m TIME(3), n INT)")
        mysql.execute(f"INSERT INTO alters.{name} VALUES ('a', '10:00:00.6', 1), ('b ', NULL, 2)")
    source = bs.source(
        "mysql_cdc", name="all", host="127.0.0.1", port=mysql.port, user="root", tablePattern=r"alters\..*",
        format="debezium", metadataColumns="_change_type,_commit_timestamp,_commit_seq,_database,_table,_columns",
    )  # fmt: skip
    query = (
        source.write("all")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processing_time="200 ms")
        .to(bs.DeltaTables(str(tmp_path / "lake")))
        .start(spark)
    )
    columns = {"filled": ("id", "m", "n", "c"), "keyed": ("id", "m", "n"), "rounded": ("id", "m", "n")}

    def equal() -> bool:
        return all(
            of_target(spark, tmp_path / "lake" / "alters" / name, *kept)
            == Counter(mysql.execute(f"SELECT {', '.join(c if c != 'm' else 'CAST(m AS CHAR)' for c in kept)} "
                                     f"FROM alters.{name}"))
            for name, kept in columns.items()
        )  # fmt: skip

    try:
        until(query, lambda: (tmp_path / "lake" / "alters" / "rounded" / "_delta_log").exists())
        query.processAllAvailable()
        mysql.execute("ALTER TABLE alters.filled ADD c INT NOT NULL DEFAULT 7")
        mysql.execute("ALTER TABLE alters.rounded MODIFY m TIME")
        mysql.execute("ALTER TABLE alters.keyed MODIFY id CHAR(9)")
        mysql.execute("UPDATE alters.filled SET c = 8 WHERE id = 'a'")
        mysql.execute("UPDATE alters.keyed SET n = 9 WHERE id = 'b'")
        wait(lambda: "c" in columns_of(spark, tmp_path / "lake" / "alters" / "filled"), query)
        until(query, equal)
    finally:
        query.stop()


def columns_of(spark: SparkSession, path: Path) -> list[str]:
    return list(spark.read.format("delta").load(str(path)).columns)


@pytest.mark.slow
def test_an_aggregate_stops_and_says_why(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("CREATE TABLE alters.s (id INT PRIMARY KEY, k BINARY(4), n INT)")
    mysql.execute("INSERT INTO alters.s VALUES (1, 'a', 1), (2, 'b', 2)")
    source = bs.source("mysql_cdc", name="s", options=options(mysql, "alters.s"))
    query = (
        source.key_by("k")
        .sum("n")
        .write("s")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processing_time="200 ms", interval_during_backlog=0)
        .to(bs.DeltaUpsert(str(tmp_path / "t"), keys=["k"]))
        .start(spark)
    )
    try:
        wait(lambda: not query.isProcessingBacklog, query)
        mysql.execute("ALTER TABLE alters.s MODIFY k BINARY(8)")
        with pytest.raises(bs.BacklogError, match=r"column 'k'.*MODIFY k BINARY\(8\).*rewritingAlter"):
            query.awaitTermination(120)
    finally:
        query.stop()
    again = bs.source("mysql_cdc", name="s", options=options(mysql, "alters.s", rewritingAlter="snapshot"))
    with pytest.raises(SettingError, match="keyed operators would count them twice"):
        again.key_by("k").sum("n").write("s").option("checkpointLocation", str(tmp_path / "d")).to(
            bs.DeltaUpsert(str(tmp_path / "u"), keys=["k"])
        ).start(spark)


def test_a_log_of_changes_gets_nothing(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("CREATE TABLE alters.l (id INT PRIMARY KEY, v VARCHAR(9))")
    mysql.execute("INSERT INTO alters.l VALUES (1, 'a '), (2, 'b')")
    source = bs.source("mysql_cdc", name="l", options=options(mysql, "alters.l"))
    query = (
        source.write("l")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processing_time="200 ms")
        .to(bs.DeltaAppend(str(tmp_path / "t")))
        .start(spark)
    )
    try:
        wait(lambda: not query.isProcessingBacklog, query)
        mysql.execute("ALTER TABLE alters.l MODIFY v CHAR(9)")
        mysql.execute("INSERT INTO alters.l VALUES (3, 'c')")
        wait(lambda: sum(of_target(spark, tmp_path / "t", "id").values()) >= 3, query)
        query.processAllAvailable()
    finally:
        query.stop()
    rows = of_target(spark, tmp_path / "t", "id", "v", "_change_type")
    assert rows == Counter([(1, "a ", "insert"), (2, "b", "insert"), (3, "c", "insert")])
