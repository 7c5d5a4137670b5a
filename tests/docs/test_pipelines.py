"""The pipelines of examples/ run on a real server, and docs/pipelines.md and docs/command.md show them as they are."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.shell_completion import get_completion_class

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.parsing import parse
from backlog_spark.pipelines.running import session_for, start, wait
from backlog_spark.tools.command import command
from tests.pipelines.conftest import own_paths  # noqa: F401

from .blocks import ROOT, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

EXAMPLES = ROOT / "examples" / "pipelines"
PAGE = (ROOT / "docs" / "pipelines.md").read_text()
COMMANDS = (ROOT / "docs" / "command.md").read_text()


def text_of(name: str) -> str:
    return "".join(line for line in (EXAMPLES / name).read_text().splitlines(True) if not line.startswith("#"))


def test_the_page_shows_the_examples() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert blocks[0] == text_of("orders.yaml")
    assert text_of("databases.yaml") in blocks
    assert any(block.startswith("transform:") and block in text_of("totals.yaml") for block in blocks)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    without_texts = re.sub(r'^ *""".*"""\n\n?', "", (EXAMPLES / "jobs.py").read_text(), flags=re.MULTILINE)
    assert code == without_texts


def test_the_page_shows_mistakes_as_they_are_told() -> None:
    file = text_of("orders.yaml").replace("  user:", "  usr:").replace("  keys:", "  keyz:")
    with pytest.raises(BacklogError) as raised:
        parse(file, "pipeline.yaml", {"DB_PASSWORD": "secret"})
    [(_, shown)] = [block for block in blocks(ROOT / "docs" / "pipelines.md") if block[0] == "text"]
    assert f"error: {raised.value}\n".startswith(shown.removesuffix("…\n"))


@pytest.mark.process  # click asks bash for its version
def test_the_page_names_every_command_and_the_names_of_completion() -> None:
    assert set(re.findall(r"^\| `([a-z]+) ?", COMMANDS, re.MULTILINE)) >= set(command.commands) - {"report", "ui"}
    for shell in ("bash", "zsh", "fish"):
        made = get_completion_class(shell)
        assert made is not None
        assert f"_BACKLOG_SPARK_COMPLETE={shell}_source" in COMMANDS
        assert "_BACKLOG_SPARK_COMPLETE" in made(command, {}, "backlog-spark", "_BACKLOG_SPARK_COMPLETE").source()


@pytest.mark.slow
def test_the_examples_run(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    for statement in (
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, customer INT, amount INT)",
        "CREATE TABLE shop.order_lines (id INT, line INT, PRIMARY KEY (id, line))",
        "CREATE TABLE shop.tmp_x (a INT)",
        "INSERT INTO shop.orders VALUES (1, 7, 10), (2, 7, 60), (3, 8, 50), (4, 7, 100)",
        "INSERT INTO shop.order_lines VALUES (1, 1), (1, 2)",
        "DROP USER IF EXISTS reader",
        "CREATE USER reader IDENTIFIED BY 'secret'",
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader",
    ):
        mysql.execute(statement)
    given = {"DB_HOST": "127.0.0.1", "DB_PORT": str(mysql.port), "DB_PASSWORD": "secret", "LAKE": str(tmp_path)}
    for name in ("orders", "totals", "databases"):
        text = (EXAMPLES / f"{name}.yaml").read_text().replace("pipeline:\n", "pipeline:\n  availableNow: true\n")
        pipeline = parse(text, str(EXAMPLES / f"{name}.yaml"), given)
        assert wait(start(pipeline, session_for(pipeline)))

    def rows(path: str) -> Counter[Any]:
        return Counter(tuple(row) for row in spark.read.format("delta").load(f"{tmp_path}/{path}").collect())

    orders = Counter(mysql.execute("SELECT * FROM shop.orders"))
    assert rows("orders") == rows("databases/shop/orders") == orders
    assert rows("totals") == Counter([(7, 160, 2), (8, 50, 1)])
    assert rows("databases/lines/order_lines") == Counter([(1, 1), (1, 2)])
    assert not (tmp_path / "databases" / "shop" / "tmp_x").exists()
