"""The script of examples/sql runs on a real server, and docs/scripts.md shows it as it is."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import wait
from backlog_spark.pipelines.sections import PipelineSection, keys_of
from tests.pipelines.conftest import own_paths  # noqa: F401

from .blocks import ROOT, blocks, python_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

PAGE = ROOT / "docs" / "scripts.md"
SCRIPT = ROOT / "examples" / "sql" / "orders.sql"


def test_the_page_shows_the_script() -> None:
    assert [text for language, text in blocks(PAGE) if language == "sql"] == [SCRIPT.read_text()]
    made = load(str(SCRIPT), {"DB_PASSWORD": "secret"})
    assert [made.checkpoint_of(sink) for sink in made.sinks] == [
        "/lake/_checkpoints/orders_sql/copy", "/lake/_checkpoints/orders_sql/totals"
    ]  # fmt: skip
    assert {"functions", "settings"} <= set(keys_of(PipelineSection))


@pytest.mark.slow
def test_the_page_runs(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statement in (
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, customer INT, amount INT)",
        "INSERT INTO shop.orders VALUES (1, 7, 10), (2, 7, 60), (3, 8, 50), (4, 7, 100)",
        "DROP USER IF EXISTS reader",
        "CREATE USER reader IDENTIFIED BY 'secret'",
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader",
    ):
        mysql.execute(statement)
    for name, text in {"HOST": "127.0.0.1", "PORT": str(mysql.port), "PASSWORD": "secret"}.items():
        monkeypatch.setenv(f"DB_{name}", text)
    monkeypatch.setenv("LAKE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.sql").write_text(SCRIPT.read_text() + "SET 'execution.runtime-mode' = 'batch';")
    (code,) = python_blocks(PAGE)
    names: dict[str, Any] = {"spark": spark}
    exec(code.replace("/lake", str(tmp_path)), names)
    assert wait(names["queries"])

    def rows(path: str) -> Counter[Any]:
        return Counter(tuple(row) for row in spark.read.format("delta").load(f"{tmp_path}/{path}").collect())

    assert rows("orders_sql") == Counter(mysql.execute("SELECT id, customer, amount / 100 FROM shop.orders"))
    assert rows("totals_sql") == Counter([(7, 2, Decimal("1.60")), (8, 1, Decimal("0.50"))])
