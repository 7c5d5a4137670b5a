"""The README's examples run, against a real server; its commands and settings exist."""

from __future__ import annotations

import re
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.common.settings import parse_settings
from backlog_spark.spark.jvm.session import REDACTION
from docs.hybrid import redaction_line
from tests.connectors.mysql_cdc.replay import table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def examples(mysql: MySQLServer, root: Path) -> list[str]:
    """The Python blocks, with the test's server and directory in place of the reader's."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    text = "\0".join(blocks)
    for old, new in (
        ('host="db"', f'host="127.0.0.1", port={mysql.port}'),
        ('.option("host", "db")', f'.option("host", "127.0.0.1").option("port", {mysql.port})'),
        ('"/lake/', f'"{root}/'),
        ('passwordFile="/etc/backlog/mysql-password"', 'password="secret"'),
        ('.option("passwordFile", "/etc/backlog/mysql-password")', '.option("password", "secret")'),
        ("query.awaitTermination()", ""),
    ):
        assert old in text, f"the README no longer says {old}"
        text = text.replace(old, new)
    return text.split("\0")


def test_the_examples_run(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("DROP DATABASE IF EXISTS shop")
    mysql.execute("CREATE DATABASE shop")
    mysql.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY, customer_id INT, amount DECIMAL(10,2))")
    mysql.execute("INSERT INTO shop.orders VALUES (1, 7, 10.50), (2, 8, 20), (3, 7, 30)")
    mysql.execute("DROP USER IF EXISTS reader")
    mysql.execute("CREATE USER reader IDENTIFIED BY 'secret'")
    for grant in re.findall(r"GRANT [^;`]*?(?= TO )", README):
        mysql.execute(f"{grant} TO reader")
    names: dict[str, Any] = {"spark": spark}
    queries: list[bs.BacklogQuery] = []
    try:
        for block in examples(mysql, tmp_path):
            exec(block, names)
            queries += [v for v in names.values() if isinstance(v, bs.BacklogQuery) and v not in queries]
        limit = time.monotonic() + 300
        while any(query.isProcessingBacklog for query in queries):
            assert all(query.isActive for query in queries), [query.exception() for query in queries]
            assert time.monotonic() < limit
            time.sleep(0.1)
    finally:
        for query in queries:
            query.stop()
    assert len(queries) == 3
    found = Counter(tuple(row) for row in spark.read.format("delta").load(f"{tmp_path}/orders").collect())
    assert found == Counter(table_rows(mysql, "shop.orders").values())
    totals = spark.read.format("delta").load(f"{tmp_path}/totals").collect()
    assert {tuple(row) for row in totals} == {(7, Decimal("40.50"), 2), (8, Decimal("20.00"), 1)}
    jumps = spark.read.format("delta").load(f"{tmp_path}/jumps").collect()
    assert [tuple(row) for row in jumps] == [(7, 3, Decimal("30.00"), Decimal("10.50"))]
    assert names["changes"].isStreaming
    assert names["changes"].columns[-3:] == ["_change_type", "_commit_timestamp", "_commit_seq"]


def test_the_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b(?! lists)", README))
    assert {"demo", "test"} <= named <= targets


def test_the_example_configuration_is_accepted() -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    conf = {name: value.strip() for name, value in pairs}
    assert parse_settings(conf)["spark.backlog.intervalDuringBacklog"] == 30 * 60_000
    assert conf[REDACTION] == redaction_line().split()[1]


def test_the_picture_is_there_and_small() -> None:
    [path] = re.findall(r"!\[[^\]]+\]\(https://\S+/raw/main/(\S+)\)", README)
    picture = (ROOT / path).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000
