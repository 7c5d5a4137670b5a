"""`DeltaTables` on a real server: every type, new tables, ALTER, TRUNCATE and DROP, and what it refuses."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import backlog_spark as bs
from backlog_spark.sinks.begun_tables import TableMark, TableMarks
from backlog_spark.spark.checkpoint.store import CheckpointStore
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, is_mariadb, options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

COLUMNS = "_change_type,_commit_timestamp,_commit_seq,_database,_table,_columns"
TYPES = {
    "t": ("TINYINT", "-5"), "tu": ("TINYINT UNSIGNED", "250"), "s": ("SMALLINT", "-300"), "m": ("MEDIUMINT", "-70000"),
    "i": ("INT UNSIGNED", "4294967295"), "b": ("BIGINT", "-9223372036854775808"),
    "bu": ("BIGINT UNSIGNED", "18446744073709551615"), "d": ("DECIMAL(12,2)", "-1234567890.05"),
    "dd": ("DECIMAL(65,30)", "12345678901234567890123456789012345.000000000000000000000000000001"),
    "f": ("FLOAT", "1.1"), "g": ("DOUBLE", "-1.7976931348623157e308"), "bit1": ("BIT(1)", "1"),
    "bit9": ("BIT(9)", "257"), "bit64": ("BIT(64)", "18446744073709551615"), "y": ("YEAR", "1999"),
    "da": ("DATE", "'0999-12-31'"),
    "dt": ("DATETIME", "'1969-12-31 23:59:59'"), "dt3": ("DATETIME(3)", "'1900-01-01 00:00:00.001'"),
    "dt6": ("DATETIME(6)", "'9999-12-31 23:59:59.999999'"), "ts": ("TIMESTAMP", "'2024-03-31 02:30:00'"),
    "ts6": ("TIMESTAMP(6)", "'2024-03-31 02:30:00.123456'"), "ti": ("TIME", "'-838:59:59'"),
    "ti2": ("TIME(2)", "'-00:00:00.05'"), "ti6": ("TIME(6)", "'23:59:59.000001'"), "c": ("CHAR(9)", r"'a\"b\\\\c'"),
    "v": ("VARCHAR(99)", r"'ä\n\t€😀\0'"), "tx": ("TEXT", "''"), "e": ("ENUM('x','ä')", "'ä'"),
    "st": ("SET('x','y','z')", "'x,z'"), "bi": ("BINARY(4)", r"'a\0'"), "vb": ("VARBINARY(9)", r"'\0\xff'"),
    "bl": ("BLOB", "x'00ff10'"), "j": ("JSON", """'{"a": [1, 2.5, "x"], "b": null}'"""),
    "po": ("POINT", "ST_GeomFromText('POINT(1 -2.5)', 4326)"),
    "ge": ("GEOMETRY", "ST_GeomFromText('LINESTRING(0 0,1 1)')"),
    "Strange`Name": ("INT", "7"),
}  # fmt: skip
OF_MARIADB = {"uu": ("UUID", "'123e4567-e89b-12d3-a456-426655440000'"), "ip": ("INET6", "'2001:db8::ff00:42:8329'")}


@pytest.fixture(params=SERVERS_IN_GRID)
def server(request: pytest.FixtureRequest, pool: Callable[..., MySQLServer]) -> MySQLServer:
    """A real server of each kind, MariaDB in the grid."""
    return pool(request.param)


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def source(server: MySQLServer, pattern: str, **more: object) -> bs.BacklogStream:
    given = options(
        server,
        "",
        tablePattern=pattern,
        format="debezium",
        metadataColumns=COLUMNS,
        scanNewlyAddedTables="true",
        **more,
    )
    return bs.source("mysql_cdc", name="tables", options={k: v for k, v in given.items() if v})


def started(
    spark: SparkSession, stream: bs.BacklogStream, sink: bs.Sink, root: Path, interval: str = "200 ms"
) -> bs.BacklogQuery:
    writer = (
        stream.write(f"tables {root.name}")
        .trigger(processing_time=interval)
        .option("checkpointLocation", str(root / "c"))
    )
    return writer.to(sink).start(spark)


def rows(spark: SparkSession, path: str | Path) -> Counter[Any]:
    return Counter(tuple(row) for row in spark.read.format("delta").load(str(path)).collect())


@pytest.mark.grid
def test_every_type_is_as_in_a_stream_of_one_table(spark: SparkSession, server: MySQLServer, tmp_path: Path) -> None:
    server.execute("DROP DATABASE IF EXISTS typed")
    server.execute("CREATE DATABASE typed")
    types = {**TYPES, **(OF_MARIADB if is_mariadb(server) else {})}
    columns = ", ".join(f"{quoted(name)} {kind} NULL" for name, (kind, _) in types.items())
    server.execute(f"CREATE TABLE typed.every (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    values = ", ".join(value for _, value in types.values())
    for number in (1, 2, 3):
        server.execute(f"INSERT INTO typed.every VALUES ({number}, {values})")
    server.execute(f"INSERT INTO typed.every VALUES (4, {', '.join('NULL' for _ in types)})")
    one = bs.source("mysql_cdc", name="one", options=options(server, "typed.every"))
    queries = [
        started(spark, one, bs.DeltaUpsert(str(tmp_path / "one"), keys=["id"]), tmp_path / "1"),
        started(spark, source(server, r"typed\..*"), bs.DeltaTables(str(tmp_path / "many")), tmp_path / "2"),
    ]
    try:
        for query in queries:
            query.processAllAvailable()
        # The same from the log.
        server.execute(f"INSERT INTO typed.every VALUES (5, {values})")
        server.execute("UPDATE typed.every SET v = 'other', j = NULL WHERE id = 2")
        server.execute("DELETE FROM typed.every WHERE id = 3")
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    expected = spark.read.format("delta").load(str(tmp_path / "one"))
    found = spark.read.format("delta").load(str(tmp_path / "many" / "typed" / "every"))
    assert found.schema == expected.schema
    for name in expected.columns:
        pairs = [
            sorted((row["id"], row[name]) for row in each.select("id", f"`{name.replace('`', '``')}`").collect())
            if name != "id" else sorted(row["id"] for row in each.select("id").collect())
            for each in (found, expected)
        ]  # fmt: skip
        assert pairs[0] == pairs[1], name
    assert found.count() == 4


def test_new_altered_and_truncated_tables(spark: SparkSession, server: MySQLServer, tmp_path: Path) -> None:
    server.execute("DROP DATABASE IF EXISTS shop")
    server.execute("CREATE DATABASE shop")
    server.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY, n INT)")
    server.execute("CREATE TABLE shop.names (a INT, b VARCHAR(9), name TEXT, PRIMARY KEY (a, b))")
    server.execute("INSERT INTO shop.orders VALUES " + ",".join(f"({i}, {i})" for i in range(500)))
    server.execute("INSERT INTO shop.names VALUES (1, 'x', 'one'), (1, 'y', 'two')")
    sink = bs.DeltaTables(str(tmp_path), routes=[("shop.names", "people"), ("shop.*", "ods/ods_<>")])
    query = started(spark, source(server, r"shop\..*", maxRowsPerBatch=200), sink, tmp_path)
    try:
        query.processAllAvailable()
        assert rows(spark, tmp_path / "people") == Counter([(1, "x", "one"), (1, "y", "two")])
        server.execute("CREATE TABLE shop.later (id INT PRIMARY KEY, v VARCHAR(9))")
        server.execute("INSERT INTO shop.later VALUES (1, 'a'), (2, 'b')")
        # Before and after it in one batch.
        server.execute("UPDATE shop.orders SET n = -1 WHERE id < 5")
        server.execute("ALTER TABLE shop.orders ADD COLUMN more DATETIME(6)")
        server.execute("UPDATE shop.orders SET more = '2024-01-01 00:00:00.000001' WHERE id < 3")
        server.execute("TRUNCATE TABLE shop.names")
        server.execute("INSERT INTO shop.names VALUES (2, 'z', 'three')")
        query.processAllAvailable()
        for _ in range(60):
            query.processAllAvailable()
            if (tmp_path / "ods" / "ods_later").exists():
                break
            time.sleep(1)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert rows(spark, tmp_path / "ods" / "ods_orders") == Counter(server.execute("SELECT * FROM shop.orders"))
    assert rows(spark, tmp_path / "ods" / "ods_later") == Counter([(1, "a"), (2, "b")])
    assert rows(spark, tmp_path / "people") == Counter([(2, "z", "three")])
    moved = bs.DeltaTables(str(tmp_path), routes=[("shop.*", "ods/<>")])
    with pytest.raises(bs.BacklogError, match=r"was begun in .* and now belongs to"):
        started(spark, source(server, r"shop\..*"), moved, tmp_path)
    # A table that somebody removes is not begun again.
    shutil.rmtree(tmp_path / "people")
    with pytest.raises(bs.BacklogError, match=r"shop\.names: The Delta table at .*/people lacks batches"):
        started(spark, source(server, r"shop\..*"), sink, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("events", ["emit", pytest.param("skip", marks=pytest.mark.grid)])
def test_a_dropped_table(
    spark: SparkSession, server: MySQLServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, events: str
) -> None:
    server.execute("DROP DATABASE IF EXISTS gone")
    server.execute("CREATE DATABASE gone")
    for name in ("left", "dropped"):
        server.execute(f"CREATE TABLE gone.`{name}` (id INT PRIMARY KEY, n INT)")
        server.execute(f"INSERT INTO gone.`{name}` VALUES (1, 1), (2, 2)")
    query = started(spark, source(server, r"gone\..*", tableEvents=events), bs.DeltaTables(str(tmp_path)), tmp_path)
    try:
        query.processAllAvailable()
        with caplog.at_level("INFO"):
            server.execute("UPDATE gone.dropped SET n = 3 WHERE id = 1")
            server.execute("DROP TABLE gone.dropped")
            server.execute("UPDATE gone.`left` SET n = 4 WHERE id = 1")
            query.processAllAvailable()
            server.execute("UPDATE gone.`left` SET n = 5 WHERE id = 1")
            query.processAllAvailable()
        told = [record.message for record in caplog.records if "gone.dropped was dropped" in record.message]
        path = f"{tmp_path}/gone/dropped"
        notice = f"gone.dropped was dropped: its rows were removed. Its table {path} stays."
        assert told == ([notice] if events == "emit" else [])
        kept = [] if events == "emit" else [(1, 3), (2, 2)]
        assert rows(spark, tmp_path / "gone" / "dropped") == Counter(kept)
        assert rows(spark, tmp_path / "gone" / "left") == Counter([(1, 5), (2, 2)])
    finally:
        query.stop()
    assert query.exception() is None


@pytest.mark.grid
def test_a_column_that_gets_another_type(spark: SparkSession, server: MySQLServer, tmp_path: Path) -> None:
    server.execute("DROP DATABASE IF EXISTS wider")
    server.execute("CREATE DATABASE wider")
    server.execute("CREATE TABLE wider.t (id SMALLINT PRIMARY KEY, n INT, d DECIMAL(5,2), f FLOAT, day DATE, v INT)")
    server.execute("INSERT INTO wider.t VALUES (1, 1, 1.5, 1, '2024-01-01', 1), (2, 2, 2.5, 2, NULL, 2)")
    path = f"{tmp_path}/wider/t"

    def run() -> bs.BacklogQuery:
        return started(spark, source(server, r"wider\..*"), bs.DeltaTables(str(tmp_path)), tmp_path)

    def refused(column: str, old: str, new: str, what_to_do: str) -> None:
        query = run()
        with pytest.raises(bs.BacklogError) as error:
            query.awaitTermination(300)
        for text in ("wider.t: ", path, f"{column!r} of type {old}", f"{column!r} is {new}", what_to_do):
            assert text in str(error.value)

    def copied() -> None:
        query = run()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert query.exception() is None
        assert rows(spark, path) == Counter(server.execute("SELECT * FROM wider.t"))

    copied()
    server.execute("INSERT INTO wider.t VALUES (3, 3, 3.5, 3, '2024-02-29', 3)")
    server.execute("ALTER TABLE wider.t MODIFY n BIGINT, MODIFY d DECIMAL(9,3), MODIFY f DOUBLE, MODIFY day DATETIME")
    server.execute("INSERT INTO wider.t VALUES (4, 9000000000, 123456.789, 0.1, '2024-01-01 12:00:00', 4)")
    refused("n", "int", "bigint", "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    copied()
    types = {field.name: field.dataType.simpleString() for field in spark.read.format("delta").load(path).schema}
    assert types == {
        "id": "smallint", "n": "bigint", "d": "decimal(9,3)", "f": "double", "day": "timestamp_ntz", "v": "int",
    }  # fmt: skip
    server.execute("ALTER TABLE wider.t MODIFY v VARCHAR(20)")
    server.execute("UPDATE wider.t SET v = 'a text' WHERE id = 1")
    refused("v", "int", "string", "write it with mode('overwrite') and the option overwriteSchema=true")
    changed = spark.read.format("delta").load(path).withColumn("v", F.col("v").cast("string"))
    changed.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    copied()


@pytest.mark.slow
def test_what_it_refuses(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("DROP DATABASE IF EXISTS refused")
    mysql.execute("CREATE DATABASE refused")
    mysql.execute("CREATE TABLE refused.a (id INT PRIMARY KEY)")
    mysql.execute("CREATE TABLE refused.b (id INT PRIMARY KEY)")
    mysql.execute("INSERT INTO refused.a VALUES (1)")
    mysql.execute("INSERT INTO refused.b VALUES (1)")
    plain = bs.source("mysql_cdc", name="a", options=options(mysql, "refused.a"))
    with pytest.raises(bs.SettingError, match="DeltaTables needs value, _database, _table, _columns"):
        started(spark, plain, bs.DeltaTables(str(tmp_path / "t")), tmp_path / "1")
    with pytest.raises(bs.SettingError, match=r"is not database\.table"):
        bs.DeltaTables("/lake", routes=[("shop", "x")])
    both = bs.DeltaTables(str(tmp_path / "t"), routes=[("refused.*", "one")])
    query = started(spark, source(mysql, r"refused\.[ab]"), both, tmp_path / "2")
    with pytest.raises(bs.BacklogError, match=r"refused\.[ab] would lie at .*/one, in the directory of refused\.[ab]"):
        query.awaitTermination(300)


def test_each_table_has_a_mark_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """Also with a dot in a name, and with names that are longer than a file's name when they are escaped."""
    names = [("a", "b.c"), ("a.b", "c"), ("A", "b.c"), ("ä" * 64, "b" * 64), ("ä" * 64, "b" * 63 + "c"), ("..", "%2E")]
    made = TableMarks(CheckpointStore(spark, str(tmp_path / "query")))
    for _ in range(2):  # the second time over the first ones
        kept = [made.note(TableMark(*name, "path", number)) for number, name in enumerate(names)]
    assert sorted(TableMarks(CheckpointStore(spark, str(tmp_path / "query"))), key=lambda mark: mark.batch) == kept
