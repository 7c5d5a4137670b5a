"""`DeltaTables` on a real server: every type, new tables, ALTER, TRUNCATE and DROP, and what it refuses."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from tests.connectors.mysql_cdc.replay import options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.embedded.mysql import MySQLServer

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


def test_every_type_is_as_in_a_stream_of_one_table(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("DROP DATABASE IF EXISTS typed")
    mysql.execute("CREATE DATABASE typed")
    columns = ", ".join(f"{quoted(name)} {kind} NULL" for name, (kind, _) in TYPES.items())
    mysql.execute(f"CREATE TABLE typed.every (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    values = ", ".join(value for _, value in TYPES.values())
    for number in (1, 2, 3):
        mysql.execute(f"INSERT INTO typed.every VALUES ({number}, {values})")
    mysql.execute(f"INSERT INTO typed.every VALUES (4, {', '.join('NULL' for _ in TYPES)})")
    one = bs.source("mysql_cdc", name="one", options=options(mysql, "typed.every"))
    queries = [
        started(spark, one, bs.DeltaUpsert(str(tmp_path / "one"), keys=["id"]), tmp_path / "1"),
        started(spark, source(mysql, r"typed\..*"), bs.DeltaTables(str(tmp_path / "many")), tmp_path / "2"),
    ]
    try:
        for query in queries:
            query.processAllAvailable()
        # The same from the log.
        mysql.execute(f"INSERT INTO typed.every VALUES (5, {values})")
        mysql.execute("UPDATE typed.every SET v = 'other', j = NULL WHERE id = 2")
        mysql.execute("DELETE FROM typed.every WHERE id = 3")
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


def test_new_altered_truncated_and_dropped_tables(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("DROP DATABASE IF EXISTS shop")
    mysql.execute("CREATE DATABASE shop")
    mysql.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY, n INT)")
    mysql.execute("CREATE TABLE shop.names (a INT, b VARCHAR(9), name TEXT, PRIMARY KEY (a, b))")
    mysql.execute("INSERT INTO shop.orders VALUES " + ",".join(f"({i}, {i})" for i in range(500)))
    mysql.execute("INSERT INTO shop.names VALUES (1, 'x', 'one'), (1, 'y', 'two')")
    sink = bs.DeltaTables(str(tmp_path), routes=[("shop.names", "people"), ("shop.*", "ods/ods_<>")])
    query = started(spark, source(mysql, r"shop\..*", maxRowsPerBatch=200), sink, tmp_path)
    try:
        query.processAllAvailable()
        assert rows(spark, tmp_path / "people") == Counter([(1, "x", "one"), (1, "y", "two")])
        mysql.execute("CREATE TABLE shop.later (id INT PRIMARY KEY, v VARCHAR(9))")
        mysql.execute("INSERT INTO shop.later VALUES (1, 'a'), (2, 'b')")
        # Before and after it in one batch.
        mysql.execute("UPDATE shop.orders SET n = -1 WHERE id < 5")
        mysql.execute("ALTER TABLE shop.orders ADD COLUMN more DATETIME(6)")
        mysql.execute("UPDATE shop.orders SET more = '2024-01-01 00:00:00.000001' WHERE id < 3")
        mysql.execute("TRUNCATE TABLE shop.names")
        mysql.execute("INSERT INTO shop.names VALUES (2, 'z', 'three')")
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
    assert rows(spark, tmp_path / "ods" / "ods_orders") == Counter(mysql.execute("SELECT * FROM shop.orders"))
    assert rows(spark, tmp_path / "ods" / "ods_later") == Counter([(1, "a"), (2, "b")])
    assert rows(spark, tmp_path / "people") == Counter([(2, "z", "three")])
    # A table that somebody removes is not begun again.
    shutil.rmtree(tmp_path / "people")
    with pytest.raises(bs.BacklogError, match=r"The Delta table of shop\.names at .*/people lacks the rows"):
        started(spark, source(mysql, r"shop\..*"), sink, tmp_path)
    moved = bs.DeltaTables(str(tmp_path), routes=[("shop.*", "ods/<>")])
    with pytest.raises(bs.BacklogError, match=r"was begun in .* and now has the directory"):
        started(spark, source(mysql, r"shop\..*"), moved, tmp_path)


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
    with pytest.raises(bs.BacklogError, match=r"refused\.b and refused\.a have one directory"):
        query.awaitTermination(300)
