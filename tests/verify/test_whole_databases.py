"""``verify`` of a copy of a whole database: each table, while the query runs and afterwards, and by the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import backlog_spark as bs
from backlog_spark.tools.command import command
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID
from tests.sinks.test_delta_tables import source, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer


@pytest.fixture(params=SERVERS_IN_GRID)
def server(request: pytest.FixtureRequest, pool: Callable[..., MySQLServer]) -> MySQLServer:
    return pool(request.param)


def create(server: MySQLServer) -> None:
    for statement in (
        "DROP DATABASE IF EXISTS whole",
        "CREATE DATABASE whole",
        "CREATE TABLE whole.a (id INT PRIMARY KEY, n INT, at DATETIME(3), j JSON)",
        "CREATE TABLE whole.b (x INT, y VARCHAR(9), v DECIMAL(9,2), PRIMARY KEY (x, y))",
        "CREATE TABLE whole.empty (id INT PRIMARY KEY)",
        "CREATE TABLE whole.gone (id INT PRIMARY KEY)",
        "INSERT INTO whole.a VALUES (1, 1, '2024-01-01', '{\"k\": 1}'), (2, NULL, NULL, NULL), (3, 3, NULL, '[]')",
        "INSERT INTO whole.b VALUES (1, 'x', 1.5), (1, 'y', 2.5)",
        "INSERT INTO whole.gone VALUES (1)",
    ):
        server.execute(statement)


@pytest.mark.grid
def test_every_table_is_compared(
    spark: SparkSession, server: MySQLServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(server)
    stream, sink = source(server, r"whole\..*"), bs.DeltaTables(str(tmp_path / "lake"))
    query = started(spark, stream, sink, tmp_path)
    try:
        query.processAllAvailable()
        server.execute("DROP TABLE whole.gone")
        # Later batches have no rows of the other tables.
        for n in range(2):
            server.execute(f"UPDATE whole.a SET n = {n} WHERE id = 1")
            query.processAllAvailable()
        found = bs.verify_tables(query)
        with pytest.raises(bs.SettingError, match=r"bs\.verify_tables compares all tables"):
            bs.verify(query)
    finally:
        query.stop()
    assert "the source's stream has no such tables: whole.gone" in caplog.text
    assert list(found) == ["whole.a", "whole.b", "whole.empty"]
    assert {name: (r.is_equal, r.source_rows, r.target_rows) for name, r in found.items()} == {
        "whole.a": (True, 3, 3), "whole.b": (True, 2, 2), "whole.empty": (True, 0, 0),
    }  # fmt: skip
    # Changes that the query has not read are no differences.
    server.execute("UPDATE whole.b SET v = 0")
    server.execute("INSERT INTO whole.empty VALUES (1)")
    spark.sql(f"UPDATE delta.`{tmp_path}/lake/whole/a` SET n = 77 WHERE id = 3")
    spark.sql(f"DELETE FROM delta.`{tmp_path}/lake/whole/b` WHERE y = 'y'")
    checkpoint = str(tmp_path / "c")
    found = bs.verify_tables(stream, sink, checkpoint=checkpoint, spark=spark)
    a, b = found["whole.a"], found["whole.b"]
    assert [(d.kind, d.key, d.columns) for d in a.differences] == [("different", {"id": 3}, ("n",))]
    assert [(d.kind, d.key) for d in b.differences] == [("missing", {"x": 1, "y": "y"})]
    assert found["whole.empty"].is_equal
    repaired = bs.verify(stream, sink, checkpoint=checkpoint, table="whole.b", repair=True, spark=spark)
    assert repaired.repaired == 1
    assert not bs.verify(stream, sink, checkpoint=checkpoint, table="whole.a", spark=spark).is_equal
    # The command compares every table too.
    (tmp_path / "p.yaml").write_text(f"""\
source: {{type: mysql_cdc, name: tables, host: 127.0.0.1, port: {server.port}, user: root, tables: whole.*}}
sink: {{type: delta_tables, name: lake, path: {tmp_path}/lake}}
pipeline: {{name: whole, checkpoint: {checkpoint}}}
""")
    made = CliRunner().invoke(command, ["verify", str(tmp_path / "p.yaml"), "--json"])
    told = {tuple(each["tables"]): each["equal"] for each in json.loads(made.stdout)}
    assert told == {("whole.a",): False, ("whole.b",): True, ("whole.empty",): True}
    assert made.exit_code == 1
    # A table whose rows were never written is not passed over.
    (mark,) = (tmp_path / "lake" / "_backlog_tables").glob("*/tables/whole.b.json")
    mark.unlink()
    found_b = bs.verify(stream, sink, checkpoint=checkpoint, table="whole.b", spark=spark)
    assert (found_b.missing, found_b.target_rows, found_b.is_equal) == (2, 0, False)


@pytest.mark.grid
def test_two_tables_whose_names_are_one_without_quotes(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    for statement in (
        "DROP DATABASE IF EXISTS dotted",
        "DROP DATABASE IF EXISTS `dotted.x`",
        "CREATE DATABASE dotted",
        "CREATE DATABASE `dotted.x`",
        "CREATE TABLE `dotted.x`.a (id INT PRIMARY KEY)",
        "CREATE TABLE dotted.`x.a` (id INT PRIMARY KEY, n INT)",
        "INSERT INTO `dotted.x`.a VALUES (1), (2), (3), (4)",
        "INSERT INTO dotted.`x.a` VALUES (1, 1)",
    ):
        mysql.execute(statement)
    stream, sink = source(mysql, r"dotted\..*"), bs.DeltaTables(str(tmp_path / "lake"))
    query = started(spark, stream, sink, tmp_path)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    given = {"checkpoint": str(tmp_path / "c"), "spark": spark}
    found = bs.verify_tables(stream, sink, **given)
    assert {name: (result.tables, result.source_rows, result.is_equal) for name, result in found.items()} == {
        "`dotted.x`.a": (("`dotted.x`.a",), 4, True),
        "dotted.x.a": (("dotted.x.a",), 1, True),
    }
    assert bs.verify(stream, sink, table="`dotted.x`.`a`", **given).source_rows == 4
    for table in ("dotted", "dotted.x.a,dotted.b"):
        with pytest.raises(bs.SettingError, match=r"table = .* is not database\.table"):
            bs.verify(stream, sink, table=table, **given)
