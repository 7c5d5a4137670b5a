"""`DeltaTables` with tables that were dropped, on a real server: their columns may be unknown, or of another table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from tests.connectors.mysql_cdc.replay import forget_log

from .test_delta_tables import rows, server, source, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

__all__ = ["server"]


def database(server: MySQLServer, name: str, **tables: str) -> None:
    """A database with these tables, each with two rows of the numbers 1 and 2."""
    server.execute(f"DROP DATABASE IF EXISTS {name}")
    server.execute(f"CREATE DATABASE {name}")
    for table, columns in tables.items():
        server.execute(f"CREATE TABLE {name}.{table} ({columns})")
        width = len(server.execute(f"SHOW COLUMNS FROM {name}.{table}"))
        server.execute(f"INSERT INTO {name}.{table} VALUES ({', '.join('1' * width)}), ({', '.join('2' * width)})")


def copied(
    spark: SparkSession,
    stream: bs.BacklogStream,
    root: Path,
    change: Callable[[], object] = lambda: 0,
    routes: Sequence[tuple[str, str]] = (),
) -> None:
    """Run the query until it has everything, also what is changed then."""
    query = started(spark, stream, bs.DeltaTables(str(root / "lake"), routes=routes), root)
    try:
        query.processAllAvailable()
        change()
        query.processAllAvailable()
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None


@pytest.mark.slow
def test_tables_are_dropped_and_the_log_is_purged_while_the_query_is_stopped(
    spark: SparkSession, server: MySQLServer, tmp_path: Path
) -> None:
    lake = tmp_path / "lake" / "lost"
    database(
        server, "lost", a="id INT PRIMARY KEY, n INT", b="code VARCHAR(9), part INT, PRIMARY KEY (code, part)",
        c="x TEXT, y BIGINT PRIMARY KEY", d="only INT PRIMARY KEY",
    )  # fmt: skip
    server.execute("CREATE TABLE lost.empty (id INT PRIMARY KEY)")
    server.execute("CREATE TABLE lost.no_key (id INT)")
    stream = source(server, r"lost\..*", **{"snapshot.mode": "when_needed", "tableEvents": "skip"})
    copied(spark, stream, tmp_path, lambda: server.execute("DROP TABLE lost.d"))
    columns = {name: spark.read.format("delta").load(str(lake / name)).schema for name in ("a", "b", "c", "d")}
    assert {name: len(rows(spark, lake / name)) for name in ("a", "b", "c", "d")} == {"a": 2, "b": 2, "c": 2, "d": 2}
    server.execute("DROP TABLE lost.b, lost.c, lost.empty, lost.no_key")
    server.execute("UPDATE lost.a SET n = 7 WHERE id = 1")
    forget_log(server)
    copied(spark, stream, tmp_path, lambda: server.execute("INSERT INTO lost.a VALUES (3, 3)"))
    assert rows(spark, lake / "a") == Counter([(1, 7), (2, 2), (3, 3)])
    for name in ("b", "c", "d"):
        assert rows(spark, lake / name) == Counter(), name
        assert spark.read.format("delta").load(str(lake / name)).schema == columns[name]
    assert {path.name for path in lake.iterdir()} == {"a", "b", "c", "d"}
    # One comes back, in another form.
    server.execute("CREATE TABLE lost.b (code VARCHAR(9), part INT, more INT, PRIMARY KEY (code, part))")
    server.execute("INSERT INTO lost.b VALUES ('x', 1, 2)")
    copied(spark, stream, tmp_path, lambda: server.execute("INSERT INTO lost.b VALUES ('y', 2, 3)"))
    assert rows(spark, lake / "b") == Counter([("x", 1, 2), ("y", 2, 3)])


@pytest.mark.grid
def test_a_table_comes_back_with_another_key(spark: SparkSession, server: MySQLServer, tmp_path: Path) -> None:
    lake = tmp_path / "lake" / "rekeyed"
    database(server, "rekeyed", same="id INT PRIMARY KEY, n INT", other="id INT PRIMARY KEY, n INT")

    def made_anew() -> None:
        server.execute("DROP TABLE rekeyed.same, rekeyed.other")
        server.execute("CREATE TABLE rekeyed.same (id INT, n INT PRIMARY KEY)")
        server.execute("INSERT INTO rekeyed.same VALUES (7, 1), (7, 2)")
        server.execute("CREATE TABLE rekeyed.other (code VARCHAR(9) PRIMARY KEY, n INT)")
        server.execute("INSERT INTO rekeyed.other VALUES ('x', 1), ('y', 1)")

    stream = source(server, r"rekeyed\..*")
    copied(spark, stream, tmp_path, made_anew)
    copied(spark, stream, tmp_path, lambda: server.execute("UPDATE rekeyed.same SET id = id + n"))
    assert rows(spark, lake / "same") == Counter([(8, 1), (9, 2)])
    assert rows(spark, lake / "other") == Counter([(None, 1, "x"), (None, 1, "y")])


@pytest.mark.slow
def test_a_key_of_rows_that_stay_is_refused(spark: SparkSession, server: MySQLServer, tmp_path: Path) -> None:
    path = tmp_path / "lake" / "kept" / "t"
    database(server, "kept", t="id INT PRIMARY KEY, n INT")
    stream = source(server, r"kept\..*", tableEvents="skip")
    copied(spark, stream, tmp_path)
    server.execute("DROP TABLE kept.t")
    server.execute("CREATE TABLE kept.t (code VARCHAR(9) PRIMARY KEY, n INT)")
    server.execute("INSERT INTO kept.t VALUES ('x', 1)")
    query = started(spark, stream, bs.DeltaTables(str(tmp_path / "lake")), tmp_path)
    with pytest.raises(bs.BacklogError) as error:
        query.awaitTermination(300)
    for text in ("primary key of kept.t was (id)", "now has the key (code)", "still has rows", "DELETE FROM delta.`"):
        assert text in str(error.value)
    spark.sql(f"DELETE FROM delta.`{path}`")
    copied(spark, stream, tmp_path)
    assert rows(spark, path) == Counter([(None, 1, "x")])


@pytest.mark.grid
def test_tables_swap_their_names_while_the_query_is_stopped(
    spark: SparkSession, server: MySQLServer, tmp_path: Path
) -> None:
    lake = tmp_path / "lake" / "swapped"
    tables = {"a": "id INT PRIMARY KEY, n INT", "b": "code VARCHAR(9) PRIMARY KEY, n INT", "A": "N INT PRIMARY KEY"}
    database(server, "swapped", **tables)
    server.execute("INSERT INTO swapped.A VALUES (3)")
    stream = source(server, r"swapped\..*")
    routes = [("swapped.A", "swapped/upper")]  # some disks ignore case
    copied(spark, stream, tmp_path, routes=routes)
    server.execute("UPDATE swapped.a SET n = 5 WHERE id = 1")
    server.execute("RENAME TABLE swapped.a TO swapped.c, swapped.b TO swapped.a, swapped.c TO swapped.b")
    server.execute("UPDATE swapped.a SET n = 7 WHERE code = '1'")
    copied(spark, stream, tmp_path, lambda: server.execute("INSERT INTO swapped.b VALUES (9, 9)"), routes)
    for name, columns in {"a": ("code", "n"), "b": ("id", "n"), "A": ("N",)}.items():
        found = spark.read.format("delta").load(str(lake / {"A": "upper"}.get(name, name))).select(*columns).collect()
        assert Counter(map(tuple, found)) == Counter(server.execute(f"SELECT * FROM swapped.{name}")), name


@pytest.mark.slow
def test_no_table_lies_in_the_directory_of_another_one(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    database(mysql, "nested", a="id INT PRIMARY KEY", b="id INT PRIMARY KEY")
    for place, routes in enumerate([[("nested.a", "t"), ("nested.b", "t/b")], [("nested.b", "nested")]]):
        sink = bs.DeltaTables(str(tmp_path / f"lake{place}"), routes=routes)
        query = started(spark, source(mysql, r"nested\..*"), sink, tmp_path / str(place))
        with pytest.raises(bs.BacklogError, match=r"nested\.[ab] .* in the directory of nested\.[ab]"):
            query.awaitTermination(300)
