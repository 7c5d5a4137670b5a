"""`IcebergTables` on a real server: random statements and kills, tables that lost batches, and names."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import start
from backlog_spark.sinks import BatchInfo, IcebergTables
from backlog_spark.sinks.iceberg.table_names import TableNames, refuse_same
from backlog_spark.sinks.table_routes import TablePlace
from tests.connectors.mysql_cdc.replay import Writers, options
from tests.faults.test_kill_tables import ROWS, create
from tests.faults.watching import newest
from tests.pipelines.test_running import running, settings, wait_for
from tests.sinks.iceberg.places import access_to, catalog_at, rows_of, table_at
from tests.sinks.test_put_back import batch_of, context_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

COLUMNS = "_change_type,_commit_timestamp,_commit_seq,_database,_table,_columns"
ROUTES = [("many.b", "lake.second"), ("many.*", "lake.ods_<>")]


def target_of(name: str) -> str:
    return "lake.second" if name == "b" else f"lake.ods_{name}"


class Database:
    """Tables that change at random: rows, columns, and the tables themselves."""

    def __init__(self, server: MySQLServer, seed: int) -> None:
        self.server, self.chance = server, random.Random(seed)
        server.execute("DROP DATABASE IF EXISTS many")
        server.execute("CREATE DATABASE many")
        self.tables: list[str] = []
        self.columns: dict[str, int] = {}
        for name in ("a", "b"):
            self.create(name)

    def create(self, name: str) -> None:
        self.server.execute(
            f"CREATE TABLE many.{name} (k INT, l VARCHAR(9), n INT, d DECIMAL(20,3), at DATETIME(6), "
            "big BIGINT UNSIGNED, PRIMARY KEY (k, l))"
        )
        self.tables.append(name)
        self.columns[name] = 0
        for _ in range(5):
            self.change(name)

    def change(self, name: str) -> None:
        key, kind = f"k = {self.chance.randrange(8)}", self.chance.random()
        value = self.chance.randrange(1000)
        if kind < 0.6:
            self.server.execute(
                f"REPLACE INTO many.{name} (k, l, n, d, at, big) VALUES ({self.chance.randrange(8)}, "
                f"'{self.chance.choice('xyz')}', {value}, {value}.125, '2024-01-01 00:00:00.{value:06}', "
                f"{2**64 - 1 - value})"
            )
        elif kind < 0.8:
            self.server.execute(f"UPDATE many.{name} SET n = {value}, at = NULL WHERE {key}")
        else:
            self.server.execute(f"DELETE FROM many.{name} WHERE {key}")

    def alter(self, name: str) -> None:
        kind = self.chance.choice(["null", "default", "wider", "truncate"])
        if kind == "wider":
            self.server.execute(f"ALTER TABLE many.{name} MODIFY n BIGINT")
        elif kind == "truncate":
            self.server.execute(f"TRUNCATE TABLE many.{name}")
        else:
            more = "NOT NULL DEFAULT 7" if kind == "default" else "NULL"
            self.columns[name] += 1
            self.server.execute(f"ALTER TABLE many.{name} ADD COLUMN more{self.columns[name]} INT {more}")

    def run(self) -> None:
        for _ in range(12):
            self.change(self.chance.choice(self.tables))
        self.alter(self.chance.choice(self.tables))
        if self.chance.random() < 0.5:
            self.create(f"t{len(self.tables)}")
        for _ in range(6):
            self.change(self.chance.choice(self.tables))

    def rows(self, name: str) -> Counter[Any]:
        return Counter(self.server.execute(f"SELECT * FROM many.{name}"))


def started(spark: SparkSession, server: MySQLServer, root: Path, sink: bs.Sink, **more: object) -> bs.BacklogQuery:
    given = options(
        server, "", tablePattern=r"many\..*", format="debezium", metadataColumns=COLUMNS, scanNewlyAddedTables="true",
        chunkSize=3, maxRowsPerBatch=7, **more,
    )  # fmt: skip
    stream = bs.source("mysql_cdc", name="many", options={k: v for k, v in given.items() if v})
    writer = stream.write("many").trigger(processing_time="100 ms").option("checkpointLocation", str(root / "c"))
    return writer.to(sink).start(spark)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.grid) for seed in range(2, 5))])
def test_tables_are_those_of_the_server(spark: SparkSession, mysql: MySQLServer, tmp_path: Path, seed: int) -> None:
    database, lake = Database(mysql, seed), tmp_path / "lake"
    sink = IcebergTables(catalog_at(lake), routes=ROUTES)

    def is_equal() -> bool:
        return all(
            access_to(lake, target_of(name)).load() is not None
            and rows_of(table_at(lake, target_of(name))) == database.rows(name)
            for name in database.tables
        )

    for _ in range(3):
        query = started(spark, mysql, tmp_path, sink)
        try:
            for _ in range(2):
                query.processAllAvailable()
                database.run()
            until = time.monotonic() + 120
            while not is_equal() and query.isActive and time.monotonic() < until:
                query.processAllAvailable()
        finally:
            query.stop()
        assert query.exception() is None
        for name in database.tables:
            assert rows_of(table_at(lake, target_of(name))) == database.rows(name), name
    assert all(bs.verify_tables(query).values())
    hurt = max(database.tables, key=lambda name: database.rows(name).total())
    table_at(lake, target_of(hurt)).delete("k >= 0")
    found = bs.verify_tables(query, repair=True)
    assert [name for name, result in found.items() if result.count] == [f"many.{hurt}"]
    assert rows_of(table_at(lake, target_of(hurt))) == database.rows(hurt)
    moved = IcebergTables(catalog_at(lake), routes=[("many.*", "lake.<>")])
    with pytest.raises(bs.BacklogError, match=r"many\.[a-z0-9]+ was begun in lake\..*, and now belongs to lake\."):
        started(spark, mysql, tmp_path, moved)


def test_a_table_that_lost_batches(spark: SparkSession, tmp_path: Path) -> None:
    """It is refused by its name when the query starts, also if it gets no rows any more."""
    lake, sink = tmp_path / "lake", IcebergTables(catalog_at(tmp_path / "lake"))
    one, other = ("shop", "a"), ("shop", "c")

    def opened(committed: int | None) -> None:
        context = context_of(spark, lake, committed)
        sink.open(type(context)(**{**vars(context), "directory": str(tmp_path / "c")}))

    opened(None)
    for batch, names in enumerate(([one, other], [one], [other])):
        sink.write(batch_of(spark, batch, names), BatchInfo(batch, is_backlog=False))
    opened(2)
    assert rows_of(table_at(lake, "shop.a")) == Counter([(0, 0), (1, 1)])
    table = table_at(lake, "shop.a")
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    with pytest.raises(bs.BacklogError, match=r"shop\.a: .* The table was rolled back"):
        opened(2)
    table.manage_snapshots().set_current_snapshot(table.snapshots()[-1].snapshot_id).commit()
    opened(2)
    access_to(lake).catalog.drop_table("shop.c")
    with pytest.raises(bs.BacklogError, match=r"shop\.c: There is no Iceberg table .*shop\.c, and the checkpoint"):
        opened(2)


@pytest.mark.slow
def test_a_killed_copy_of_a_database_is_exact(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    names = ("one", "three", "two")
    mysql.execute("DROP DATABASE IF EXISTS killed")
    mysql.execute("CREATE DATABASE killed")
    for name in names:
        create(mysql, name)
    lake, file, log = tmp_path / "lake", tmp_path / "pipeline.yaml", tmp_path / "log"
    file.write_text(f"""\
source: {{type: mysql_cdc, host: 127.0.0.1, port: {mysql.port}, user: root, tables: killed.*, chunkSize: 500,
  maxRowsPerBatch: 4000}}
sink: {{type: iceberg_tables, catalog: {{warehouse: {lake}}}}}
pipeline:
  name: killed
  checkpoint: {tmp_path}/c
  interval: 300 ms
  settings:
{settings()}""")

    def newest_of(name: str) -> int:
        table = access_to(lake, f"killed.{name}").load()
        marks = {} if table is None else {key: text for key, text in table.properties.items() if ".query-" in key}
        return max((json.loads(text)["batch"] for text in marks.values()), default=-1)

    def is_between_two_tables() -> bool:
        planned = newest(tmp_path / "c" / "offsets")
        return planned > newest(tmp_path / "c" / "commits") and newest_of("one") == planned

    def run_and_kill(moment: Callable[[], bool]) -> None:
        with running(file, log) as process:

            def reached() -> bool:
                assert process.poll() is None, log.read_text()[-3000:]
                return moment()

            wait_for(reached, "the moment")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    with Writers(mysql, "killed.one", 5, threads=1, keys=ROWS, pause=0.02):
        run_and_kill(lambda: newest_of("one") >= 1)
        run_and_kill(is_between_two_tables)
    (query,) = start(load(str(file), {}), spark)
    try:
        wait_for(lambda: not query.isProcessingBacklog or not query.isActive, "the end of the backlog")
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    for name in names:
        assert rows_of(table_at(lake, f"killed.{name}")) == Counter(mysql.execute(f"SELECT * FROM killed.{name}")), name


def test_names_of_tables() -> None:
    names = TableNames([("shop.order_*", "lake.orders_<>"), ("shop.odd", "lake.one")])
    assert names.path_of("shop", "order_1") == "lake.orders_order_1"
    assert names.path_of("shop", "odd") == "lake.one"
    assert names.path_of("shop", "other") == "shop.other"
    for database, table in (("shop", "a.b"), ("s.p", "a"), ("shop", "order_.")):
        with pytest.raises(bs.BacklogError, match="would end the name of a namespace"):
            names.path_of(database, table)
    with pytest.raises(bs.SettingError, match="routes"):
        TableNames([("shop.*", "nowhere")])
    with pytest.raises(bs.BacklogError, match="would have one Iceberg table"):
        refuse_same(TablePlace("shop.A", "shop.A"), TablePlace("shop.a", "shop.a"))
    with pytest.raises(bs.SettingError, match=r"metadataColumns.*IcebergTables needs value"):
        IcebergTables({"warehouse": "/lake"}).open(context_without_columns())


def context_without_columns() -> Any:
    from pyspark.sql.types import StructType

    from backlog_spark.sinks import SinkContext

    return SinkContext(None, "app", StructType(), False)  # type: ignore[arg-type]
