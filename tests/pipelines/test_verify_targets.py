"""``backlog-spark verify`` of a pipeline whose sinks are no Delta tables."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import session_for, start, wait
from backlog_spark.tools.command import command
from tests.sinks.iceberg.places import table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer
    from servers.postgres import PostgresServer

DATABASE = "verified_targets"
PASSWORD = "not-to-be-shown"


def invoke(*arguments: str) -> Result:
    made = CliRunner().invoke(command, ["verify", *arguments])
    assert PASSWORD not in made.output
    return made


def test_each_target_of_a_pipeline_is_compared_and_repaired(
    spark: SparkSession,
    mysql: MySQLServer,
    postgres: PostgresServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mysql.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
    mysql.execute(f"CREATE DATABASE {DATABASE}")
    mysql.execute(f"CREATE TABLE {DATABASE}.orders (id INT PRIMARY KEY, amount INT)")
    mysql.execute(f"INSERT INTO {DATABASE}.orders VALUES (1, 10), (2, 20), (3, 30)")
    postgres.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
    postgres.execute(f"CREATE DATABASE {DATABASE}")
    place = f"postgresql://127.0.0.1:{postgres.port}/{DATABASE}"
    sinks: list[dict[str, Any]] = [
        {"name": "shown", "type": "print"},
        {
            "name": "served", "type": "jdbc_upsert", "url": place, "table": "orders", "keys": ["id"],
            "user": "postgres", "password": PASSWORD, "sslMode": "disabled",
        },
        {
            "name": "lake", "type": "iceberg_upsert", "table": "shop.orders", "keys": ["id"],
            "catalog": {"warehouse": f"{tmp_path}/lake"},
        },
        {"name": "totals", "type": "print", "from": "sums", "checkpoint": f"{tmp_path}/other"},
    ]  # fmt: skip
    source = {
        "type": "mysql_cdc", "name": "orders", "host": "127.0.0.1", "port": mysql.port, "user": "root",
        "startup.mode": "snapshot", "table": f"{DATABASE}.orders",
    }  # fmt: skip
    path = tmp_path / "p.yaml"

    def write(*chosen: dict[str, Any]) -> str:
        given = [{"from": "orders", **sink} for sink in chosen]
        transform = [{"name": "sums", "sql": "SELECT count(*) AS n FROM orders"}]
        pipeline = {"name": "p", "checkpoint": f"{tmp_path}/c", "interval": "100 ms", "availableNow": True}
        path.write_text(json.dumps({"source": source, "transform": transform, "sink": given, "pipeline": pipeline}))
        return str(path)

    pipeline = load(write(*sinks[:3]))
    assert wait(start(pipeline, session_for(pipeline)))
    file = write(*sinks)
    with caplog.at_level(logging.WARNING, logger="backlog_spark"):
        made = invoke(file, "--json")
    assert made.exit_code == 0, made.output
    found = [(each["sink"], each["target"], each["equal"], each["target_rows"]) for each in json.loads(made.stdout)]
    assert found == [
        ("served", f"{place}/public.orders", True, 3),
        ("lake", f"sqlite:///{tmp_path}/lake/catalog.db/shop.orders", True, 3),
    ]
    assert (
        "verify: not compared: shown is a Print, which keeps no table; totals does not get the rows of a source"
        in caplog.messages
    )
    postgres.execute("UPDATE orders SET amount = 0 WHERE id = 2", dbname=DATABASE)
    table_at(tmp_path / "lake").delete("id = 3")
    made = invoke(file)
    assert made.exit_code == 1
    assert [line.strip() for line in made.stdout.splitlines() if line.startswith("  ")] == [
        "different id=2: amount", "missing id=3",
    ]  # fmt: skip
    assert invoke(file, "--repair").exit_code == 0
    assert invoke(file).exit_code == 0
    assert postgres.execute("SELECT amount FROM orders ORDER BY id", dbname=DATABASE) == [(10,), (20,), (30,)]
    refused = invoke(write(sinks[0]))
    assert "can be compared with its source (shown is a Print, which keeps no table)" in str(refused.exception)
