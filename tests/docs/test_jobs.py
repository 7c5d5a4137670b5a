"""The jobs of docs/quickstart.md and docs/submit.md run, against a real server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from .blocks import ROOT, python_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    import backlog_spark as bs
    from servers.mysql import MySQLServer

# Page -> (what the page says, what the test does).
CHANGED = {
    "quickstart.md": (
        ('passwordEnv="DB_PASSWORD"', 'password="secret"'), ('"2 seconds"', '"50 ms"'), ("/tmp/quickstart/", "{root}/")
    ),
    "submit.md": (("passwordFile=password", 'password="secret"'), ("/lake/", "{root}/")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("page", CHANGED)
def test_the_job_copies_the_table_and_follows_it(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, page: str
) -> None:
    for statement in (
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, amount DECIMAL(10,2))",
        "INSERT INTO shop.orders VALUES (1, 10.50), (2, 20)",
        "DROP USER IF EXISTS reader",
        "CREATE USER reader IDENTIFIED BY 'secret'",
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader",
    ):
        mysql.execute(statement)
    (code,) = python_blocks(ROOT / "docs" / page)
    host = ('host="db"', f'host="127.0.0.1", port={mysql.port}')
    for old, new in (*CHANGED[page], host, ("query.awaitTermination()", "")):
        assert old in code
        code = code.replace(old, new.format(root=tmp_path))
    names: dict[str, Any] = {}
    exec(code, names)
    query: bs.BacklogQuery = names["query"]
    try:
        assert names["spark"] is spark
        limit = time.monotonic() + 300
        while query.isProcessingBacklog or query.backlogProgress.rows < 2:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            time.sleep(0.1)
        mysql.execute("UPDATE shop.orders SET amount = 11 WHERE id = 1")
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.format("delta").load(f"{tmp_path}/orders").orderBy("id").collect()
    assert [(row["id"], str(row["amount"])) for row in rows] == [(1, "11.00"), (2, "20.00")]
