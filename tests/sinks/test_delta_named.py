"""Delta sinks whose table a catalog knows by name."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

import backlog_spark as bs
from backlog_spark.sinks import BatchInfo, DeltaAppend, DeltaUpsert, SinkContext
from backlog_spark.sinks.delta.sink import DeltaSink
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options
from tests.sinks.metastore import HiveMetastoreServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("id", LongType()).add("v", StringType())
ROWS: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE SCHEMA `123_named`")
    yield "`123_named`"
    spark.sql("DROP SCHEMA `123_named` CASCADE")


def write(spark: SparkSession, sink: DeltaSink, batch: int, *rows: tuple[int, str], again: bool = False) -> DeltaSink:
    """Open the sink as after batch ``batch - 1``, and write one. ``again``: it was planned before."""
    committed = batch - 1 if batch else None
    sink.open(SinkContext(spark, "app", SCHEMA, False, batch if again else committed, committed))
    sink.write(spark.createDataFrame(list(rows), SCHEMA), BatchInfo(batch, False))
    return sink


def table_of(spark: SparkSession, name: str) -> list[tuple[int, str]]:
    return sorted((row.id, row.v) for row in spark.table(name).collect())


def test_a_managed_table_is_created_and_goes_on(spark: SparkSession, schema: str) -> None:
    name = f"{schema}.`1_odd`"
    first = write(spark, DeltaUpsert(keys=["id"], table=name, partition_by=["v"], **ROWS), 0, (1, "a"), (2, "b"))
    assert "123_named" in first.path
    second = write(spark, DeltaUpsert(keys=["id"], table=name, **ROWS), 1, (2, "c"), (3, "d"))
    assert second.written is not None
    assert table_of(spark, name) == [(1, "a"), (2, "c"), (3, "d")]
    write(spark, DeltaUpsert(keys=["id"], table=name, **ROWS), 1, (4, "replayed"), again=True)
    assert table_of(spark, name) == [(1, "a"), (2, "c"), (3, "d")]
    # One part of the name is a table of the current schema.
    spark.sql(f"USE {schema}")
    try:
        assert DeltaAppend(table="`1_odd`").location(spark) == second.path
    finally:
        spark.sql("USE default")


def test_live_batches_go_past_spark(spark: SparkSession, schema: str) -> None:
    sink = write(spark, DeltaAppend(table=f"{schema}.clicks"), 0, (1, "a"))
    assert sink.written is not None
    assert sink.written.writer == "direct"
    assert table_of(spark, f"{schema}.clicks") == [(1, "a")]


def test_an_external_table(spark: SparkSession, schema: str, tmp_path: Path) -> None:
    name, place = f"{schema}.away", tmp_path / "it's here"
    write(spark, DeltaAppend(place, table=name), 0, (1, "a"))
    write(spark, DeltaAppend(table=name), 1, (2, "b"))
    assert table_of(spark, name) == [(1, "a"), (2, "b")]
    assert (place / "_delta_log").is_dir()
    spark.sql(f"DROP TABLE {name}")
    with pytest.raises(bs.SettingError, match=r"table = .*away.*the checkpoint has batches up to 1: it was renamed or"):
        write(spark, DeltaAppend(table=name), 2, (3, "c"))
    # With the query's rows at the given path, the table is entered into the catalog again.
    write(spark, DeltaAppend(place, table=name), 2, (3, "c"))
    spark.sql(f"DROP TABLE {name}")
    write(spark, DeltaAppend(place, table=name), 3)
    assert table_of(spark, name) == [(1, "a"), (2, "b"), (3, "c")]
    with pytest.raises(
        bs.SettingError, match=rf"path = .*elsewhere.*the catalog has the table .*away at .*{place.name}"
    ):
        write(spark, DeltaAppend(tmp_path / "elsewhere", table=name), 4, (4, "d"))


def test_a_delta_table_that_is_there_is_entered_into_the_catalog(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    spark.createDataFrame([(7, "old")], SCHEMA).write.format("delta").save(str(tmp_path / "old"))
    write(spark, DeltaAppend(tmp_path / "old", table=f"{schema}.old"), 0, (8, "new"))
    assert table_of(spark, f"{schema}.old") == [(7, "old"), (8, "new")]


def test_renamed_tables_are_refused(spark: SparkSession, schema: str) -> None:
    write(spark, DeltaAppend(table=f"{schema}.one"), 0, (1, "a"))
    spark.sql(f"ALTER TABLE {schema}.one RENAME TO {schema}.two")
    with pytest.raises(bs.SettingError, match=r"the catalog has no such table, and the checkpoint has batches up to 0"):
        write(spark, DeltaAppend(table=f"{schema}.one"), 1, (2, "b"))
    assert not spark.catalog.tableExists(f"{schema}.one")
    # Another table of that name lacks the batches.
    write(spark, DeltaAppend(table=f"{schema}.three"), 0, (1, "a"))
    spark.sql(f"CREATE TABLE {schema}.one USING DELTA AS SELECT * FROM {schema}.three WHERE false")
    with pytest.raises(bs.BacklogError, match="lacks"):
        write(spark, DeltaAppend(table=f"{schema}.one"), 1, (2, "b"))


@pytest.mark.parametrize(
    ("sink", "error"),
    [
        (lambda: DeltaAppend(table="nowhere.one"), r"table = 'nowhere\.one': cannot be created: .*Create the schema"),
        (lambda: DeltaAppend(table="default.a_view"), r"table = 'default\.a_view': cannot be read: "),
        (lambda: DeltaAppend(table="default.a_file"), r"table = 'default\.a_file': cannot be read: "),
        (lambda: DeltaAppend(table="a.b.c.d"), r"table = 'a\.b\.c\.d': cannot be "),
        (lambda: DeltaAppend(table="no name"), r"table = 'no name': cannot be read: .*Correct the name"),
        (lambda: DeltaAppend(table=" "), r"table = ' ': is empty"),
        (lambda: DeltaAppend(), r"path = None: is empty"),
        (lambda: DeltaUpsert(table="default.one"), r"keys = \[\]: an upsert needs"),
    ],
)
def test_refused(spark: SparkSession, sink: Callable[[], DeltaSink], error: str) -> None:
    spark.sql("CREATE OR REPLACE VIEW default.a_view AS SELECT 1L AS id, 'a' AS v")
    spark.sql("CREATE TABLE IF NOT EXISTS default.a_file (id BIGINT, v STRING) USING parquet")
    try:
        with pytest.raises(bs.SettingError) as caught:
            write(spark, sink(), 0, (1, "a"))
        assert re.match(error, str(caught.value)), str(caught.value)
    finally:
        spark.sql("DROP VIEW default.a_view")
        spark.sql("DROP TABLE default.a_file")


def test_a_session_without_deltas_catalog_is_refused(spark: SparkSession) -> None:
    other = spark.newSession()
    catalog = other.conf.get("spark.sql.catalog.spark_catalog")
    other.conf.set("spark.sql.catalog.spark_catalog", "other")
    try:
        with pytest.raises(bs.SettingError, match=r"the session finds no Delta table by its name: .*Set it, and"):
            DeltaAppend(table="default.x").location(other)
    finally:
        other.conf.set("spark.sql.catalog.spark_catalog", catalog)


@pytest.mark.slow
def test_a_query_and_verify(spark: SparkSession, schema: str, pool: Callable[..., MySQLServer], tmp_path: Path) -> None:
    mysql = pool(MySQLServer)
    mysql.execute("CREATE DATABASE IF NOT EXISTS named")
    mysql.execute("CREATE TABLE named.rows (id BIGINT PRIMARY KEY, v VARCHAR(9))")
    mysql.execute("INSERT INTO named.rows VALUES (1, 'a'), (2, 'b')")
    source = bs.source("mysql_cdc", name="rows", options=options(mysql, "named.rows"))
    sink = bs.DeltaUpsert(table=f"{schema}.rows", keys=["id"])
    writer = source.write("named").trigger(processing_time="200 ms")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.to(sink).to(bs.DeltaAppend(table=f"{schema}.log")).start(spark)
    try:
        mysql.execute("DELETE FROM named.rows WHERE id = 1")
        query.processAllAvailable()
        assert bs.verify(query, sink).is_equal
    finally:
        query.stop()
    assert bs.verify(source, sink, checkpoint=str(tmp_path / "checkpoint"), spark=spark).is_equal
    writer = source.write("named").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.to(bs.DeltaUpsert(table=f"{schema}.other", keys=["id"]))
    with pytest.raises(bs.SettingError, match=r"DeltaUpsert table = .*other.*was made with .*rows"):
        writer.start(spark)


@pytest.mark.slow
@pytest.mark.parametrize("is_server", [pytest.param(False, marks=pytest.mark.grid), True])
def test_a_hive_metastore_under_kills(tmp_path: Path, is_server: bool) -> None:
    """Three drivers, one after another, on one metastore. The first two are killed around the creation."""
    log = tmp_path / "log"
    with HiveMetastoreServer() if is_server else contextlib.nullcontext() as server:
        ran_under_kills(tmp_path, log, "" if server is None else server.uri)
    found = json.loads((tmp_path / "rows.json").read_text())
    assert found == {"shop.orders": [[n, "live"] for n in range(30)], "shop.away": [[n, "live"] for n in range(30)]}


def ran_under_kills(root: Path, log: Path, uri: str) -> None:
    for moment in ("created", "committed", ""):
        with log.open("wb") as out:
            command = [sys.executable, "-m", "tests.sinks.hive_job", str(root), moment, uri]
            ended = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, timeout=300, check=False,
                env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            )  # fmt: skip
        assert ended.returncode == (-signal.SIGKILL if moment else 0), log.read_text()[-3000:]
