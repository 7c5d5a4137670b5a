"""The example of docs/databases.md runs, from a real MySQL server to a real PostgreSQL server."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.pipelines.parsing import parse

from .blocks import ROOT, blocks, python_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer
    from servers.postgres import PostgresServer

PAGE = ROOT / "docs" / "databases.md"


@pytest.mark.slow
def test_a_table_is_copied_and_followed(
    spark: SparkSession, mysql: MySQLServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    for statement in (
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, amount DECIMAL(10,2), at TIMESTAMP(6) NULL)",
        "INSERT INTO shop.orders VALUES (1, 10.50, NOW(6)), (2, 20, '1970-01-02'), (3, 30, NULL)",
    ):
        mysql.execute(statement)
    postgres.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
    postgres.execute("DROP USER IF EXISTS writer")
    postgres.execute("CREATE USER writer PASSWORD 's3cret'")
    postgres.execute("CREATE DATABASE shop OWNER writer")
    (tmp_path / "password").write_text("s3cret\n")
    code = python_blocks(PAGE)[0]
    for found, put in (
        (r'host="db",\s+user="reader",\s+passwordFile="[\w/-]+"', f'host="127.0.0.1", port={mysql.port}, user="root"'),
        ("warehouse:5432", f"127.0.0.1:{postgres.port}"),
        ("/etc/backlog/postgres-password", str(tmp_path / "password")),
        ("/lake", str(tmp_path)),
    ):
        assert re.search(found, code)
        code = re.sub(found, put, code)
    names: dict[str, Any] = {"spark": spark}
    exec(code, names)
    query = names["query"]
    try:
        limit = time.monotonic() + 300
        while query.isProcessingBacklog or query.backlogProgress.last_write is None:
            assert time.monotonic() < limit
            time.sleep(0.1)
        mysql.execute("UPDATE shop.orders SET amount = 11 WHERE id = 1")
        mysql.execute("DELETE FROM shop.orders WHERE id = 2")
        mysql.execute("INSERT INTO shop.orders VALUES (4, 40, '2037-12-31 01:02:03.000004')")
        query.processAllAvailable()
        progress = query.backlogProgress
    finally:
        query.stop()
    assert progress.last_write.writer == "direct"
    assert progress.direct_commits >= 1
    rows = postgres.execute("SELECT id, amount::text, extract(epoch FROM at)::text FROM public.orders", dbname="shop")
    found_rows = {key: (amount, at) for key, amount, at in rows}
    assert sorted(found_rows) == [1, 3, 4]
    assert found_rows[1][0] == "11.00"
    assert found_rows[3] == ("30.00", None)
    assert found_rows[4] == ("40.00", "2145834123.000004")
    assert "s3cret" not in "".join(
        file.read_text("utf-8", "replace") for file in tmp_path.rglob("_chec*/**/*") if file.is_file()
    )


def test_the_section_of_a_pipeline_is_one() -> None:
    ((_, text),) = [block for block in blocks(PAGE) if block[0] == "yaml"]
    whole = f"source: {{type: mysql_cdc, name: orders, host: db, user: me, table: shop.orders}}\n{text}"
    made = parse(f"{whole}pipeline: {{name: p, checkpoint: /c, interval: 1 s}}\n", "p.yaml", {"PG_PASSWORD": "s3cret"})
    (sink,) = made.sinks
    assert sink.arguments()["password"] == "s3cret"
    assert "s3cret" not in repr(made)
