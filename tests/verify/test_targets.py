"""Clean targets give no difference, whatever their types and sinks; those that cannot be compared give clear errors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.connectors.mysql_cdc.schema.types import type_table
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.verification.verify import both_sides, compare
from tests.connectors.mysql_cdc.replay import forget_log, is_mariadb
from tests.connectors.mysql_cdc.schema.test_values import COLUMNS, ROWS, quoted, random_row

from .jobs import create, found, run_to_the_end, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

# Delta has no column with a blank in its name.
TYPES = {name: kind for name, kind in COLUMNS.items() if " " not in name} | {
    "g": "GEOMETRY",
    "pt": "POINT",
    "ls": "LINESTRING",
    "j": "JSON",
    "tt": "TINYTEXT",
    "mt": "MEDIUMTEXT",
    "tb": "TINYBLOB",
    "mb": "MEDIUMBLOB",
    "lb": "LONGBLOB",
}
OF_MARIADB = {"uu": "UUID", "i6": "INET6", "i4": "INET4"}
MORE: list[dict[str, Any]] = [
    {"g": b"\0\0\0\0\1\1\0\0\0" + b"\0" * 16, "pt": b"\0\0\0\0\1\1\0\0\0" + b"\0" * 8 + b"\0\0\0\0\0\0\xf0?"},
    {"j": '{"b": [1, 2.50, null, "é"], "a": 1e3}', "tt": "", "mt": "x" * 70_000},
    {"j": '"text"', "tb": b"", "mb": b"\0\xff", "lb": bytes(range(256))},
    {"f": -0.0, "d": -0.0},
    {"f": 0.0, "d": 0.0},
]


def fill(server: MySQLServer, rows: list[dict[str, Any]], first: int) -> None:
    with server.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        for number, row in enumerate(rows, first):
            row = {name: value for name, value in row.items() if " " not in name}
            names = ", ".join(map(quoted, row))
            marks = ", ".join(["%s"] * len(row))
            cursor.execute(f"INSERT INTO verify.types (id, {names}) VALUES ({number}, {marks})", list(row.values()))
        connection.commit()


@pytest.mark.grid
def test_no_type_differs_from_itself(spark: SparkSession, server: MySQLServer, tmp_path: Path) -> None:
    columns = TYPES | (OF_MARIADB if is_mariadb(server) else {})
    rows = ROWS + MORE
    if is_mariadb(server):
        rows = [*rows, {"uu": "01234567-89ab-cdef-0123-456789abcdef", "i6": "::ffff:1.2.3.4", "i4": "1.2.3.4"}]
    documented = {n.strip() for line in type_table().splitlines()[2:] for n in line.split("|")[1].split(",")}
    used = {kind.split("(")[0].split(" ")[0].lower() for kind in columns.values()}
    others = {"polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection"}
    assert documented - used <= others | (set() if is_mariadb(server) else {"uuid", "inet6", "inet4"})
    server.execute("CREATE DATABASE IF NOT EXISTS verify")
    server.execute("DROP TABLE IF EXISTS verify.types")
    made = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    server.execute(f"CREATE TABLE verify.types ({made}) CHARACTER SET utf8mb4")
    server.execute("INSERT INTO verify.types (id) VALUES (0)")
    chance = random.Random(3)
    fill(server, rows + [random_row(chance) for _ in range(40)], 1)
    types, sink = source(server, "verify.types", chunkSize=30), bs.DeltaUpsert(str(tmp_path / "t"), keys=["id"])
    run_to_the_end(types, tmp_path, sink, spark)
    fill(server, rows + [random_row(chance) for _ in range(40)], 1_000)  # the same through the binary log
    query = run_to_the_end(types, tmp_path, sink, spark)
    # Half of the rows come from before-images, half from a SELECT.
    server.execute("UPDATE verify.types SET v = CONCAT('later', id) WHERE id % 2")
    result = bs.verify(query)
    assert result.raise_for_differences().source_rows == 1 + 2 * (len(rows) + 40)
    assert set(result.columns) == set(columns)
    assert result.left_out == ()


@pytest.mark.grid
def test_several_tables_in_a_table_of_all_changes(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    for name in ("a1", "a2"):
        create(mysql, name, 30)
    both, sink = source(mysql, "verify.a1,verify.a2"), bs.DeltaAppend(str(tmp_path / "t"))
    run_to_the_end(both, tmp_path, sink, spark)
    mysql.execute("UPDATE verify.a1 SET id = id + 100 WHERE id < 3")
    mysql.execute("UPDATE verify.a2 SET v = 'x' WHERE id < 3")
    mysql.execute("DELETE FROM verify.a2 WHERE id = 20")
    query = run_to_the_end(both, tmp_path, sink, spark)
    assert bs.verify(query).raise_for_differences().source_rows == 59
    spark.sql(f"DELETE FROM delta.`{tmp_path}/t` WHERE _table = 'a2' AND id = 1 AND _change_type = 'update_postimage'")
    result = bs.verify(query)
    assert [(d.kind, dict(d.key)) for d in result.differences] == [
        ("missing", {"_database": "verify", "_table": "a2", "id": 1})
    ]
    assert bs.verify(query, table="verify.a1").source_rows == 30
    assert bs.verify(query, table="verify.a2").missing == 1
    with pytest.raises(SettingError, match="is not in the checkpoint"):
        bs.verify(query, table="verify.a3")
    with pytest.raises(SettingError, match="keeps all changes, so it cannot be repaired"):
        bs.verify(query, repair=True)


@pytest.mark.grid
def test_repair_gives_each_key_the_rows_of_the_compared_position(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    from .jobs import corrupt

    create(mysql, "hurt", 300)
    hurt, path = source(mysql, "verify.hurt", chunkSize=50), str(tmp_path / "t")
    sink = bs.DeltaUpsert(path, keys=["id"])
    query = run_to_the_end(hurt, tmp_path, sink, spark)
    expected = corrupt(path, random.Random(1), list(range(300)), [-1])
    mysql.execute("UPDATE verify.hurt SET v = 'later'")  # not in the target yet
    at = both_sides(query, None)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('someone' = 'was here')")
    with pytest.raises(BacklogError, match=r"Another writer has written .* nothing was repaired"):
        compare(at, repair=True)
    result = bs.verify(query, repair=True)
    assert found(result) == expected
    assert result.repaired == len(expected) == result.count
    assert bs.verify(query).raise_for_differences().target_rows == 300
    rows = {row["id"]: row["v"] for row in spark.read.format("delta").load(path).collect()}
    assert rows == {i: f"s{i}" for i in range(300)}
    again = run_to_the_end(hurt, tmp_path, sink, spark)
    assert bs.verify(again).raise_for_differences().target_rows == 300


@pytest.mark.slow
def test_what_cannot_be_compared_says_why(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "plain", 10)
    plain, sink = source(mysql, "verify.plain"), bs.DeltaUpsert(str(tmp_path / "t"), keys=["id"])
    query = run_to_the_end(plain, tmp_path, sink, spark)
    assert bs.verify(query, max_rows_per_second=1_000).is_equal
    with pytest.raises(SettingError, match="is needed with a source"):
        bs.verify(plain, sink, spark=spark)
    with pytest.raises(SettingError, match="has no query"):
        bs.verify(plain, sink, checkpoint=str(tmp_path / "other"), spark=spark)
    with pytest.raises(BacklogError, match="There is no Delta table"):
        bs.verify(query, bs.DeltaAppend(str(tmp_path / "other")))
    with pytest.raises(SettingError, match="are not the source's key"):
        bs.verify(query, bs.DeltaUpsert(str(tmp_path / "t"), keys=["v"]))
    with pytest.raises(BacklogError, match="There are steps"):
        bs.verify(plain.filter("id > 1"), sink, checkpoint=str(tmp_path / "checkpoint"), spark=spark)
    with pytest.raises(BacklogError, match="verify was given"):
        bs.verify("query")  # type: ignore[arg-type]
    for name, value in (("max_differences", -1), ("max_rows_per_second", 0)):
        with pytest.raises(SettingError, match=name):
            bs.verify(query, **{name: value})  # type: ignore[arg-type]


@pytest.mark.grid
def test_files_and_logs_that_are_gone_are_named(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "gone", 10)
    query = run_to_the_end(
        source(mysql, "verify.gone"), tmp_path, bs.DeltaUpsert(str(tmp_path / "t"), keys=["id"]), spark
    )
    at = both_sides(query, None)
    spark.sql(f"UPDATE delta.`{tmp_path}/t` SET v = 'x'")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{tmp_path}/t` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    with pytest.raises(BacklogError, match=r"Files of version .* are gone"):
        compare(at)
    assert bs.verify(query).different == 10
    # The log that takes rows back, purged before a chunk is read.
    at = both_sides(query, None)
    mysql.execute("UPDATE verify.gone SET n = n + 1")
    forget_log(mysql)
    with pytest.raises(BacklogError, match=r"(?s)comparison with .* failed: .*purged"):
        compare(at)
