"""The example of docs/iceberg.md runs, and the reader of the page sees the rows."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.pipelines.building import sink_of
from backlog_spark.pipelines.parsing import parse
from backlog_spark.sinks import IcebergTables

from .blocks import ROOT, blocks, python_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer


@pytest.mark.slow
def test_the_page(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("DROP DATABASE IF EXISTS iceberg")
    mysql.execute("CREATE DATABASE iceberg")
    mysql.execute("CREATE TABLE iceberg.orders (id BIGINT UNSIGNED PRIMARY KEY, amount DECIMAL(10,2), at TIMESTAMP(6))")
    mysql.execute("INSERT INTO iceberg.orders VALUES (1, 10.50, NOW(6)), (2, 20, '1970-01-02'), (3, 30, NULL)")
    names: dict[str, Any] = {"spark": spark}
    block, reader = (text.replace("/lake", str(tmp_path)) for text in python_blocks(ROOT / "docs" / "iceberg.md"))
    given = re.search(r'host="db",\s+user="reader",\s+passwordFile="[\w/-]+"', block)
    assert given
    block = block.replace(given[0], f'host="127.0.0.1", port={mysql.port}, user="root"').replace(
        "10 seconds", "1 second"
    )
    exec(block, names)
    query = names["query"]
    try:
        limit = time.monotonic() + 300
        while query.isProcessingBacklog or query.backlogProgress.last_write is None:
            assert time.monotonic() < limit
            time.sleep(0.1)
        mysql.execute("UPDATE iceberg.orders SET amount = 11 WHERE id = 1")
        mysql.execute("DELETE FROM iceberg.orders WHERE id = 2")
        mysql.execute("INSERT INTO iceberg.orders VALUES (18446744073709551615, 40, '2037-12-31 01:02:03.000004')")
        query.processAllAvailable()
        assert query.backlogProgress.last_write.writer == "direct"
        exec(reader, names)
        before = names["rows"]
        mysql.execute("TRUNCATE iceberg.orders")
        mysql.execute("INSERT INTO iceberg.orders VALUES (7, 7, NULL)")
        query.processAllAvailable()
    finally:
        query.stop()
    found = {str(row["id"]): (str(row["amount"]), row["at"]) for row in before.to_pylist()}
    assert sorted(found) == ["1", "18446744073709551615", "3"]
    assert found["1"][0] == "11.00"
    assert found["3"] == ("30.00", None)
    assert found["18446744073709551615"][1].timestamp() == 2145834123.000004
    exec(reader, names)
    assert [str(row["id"]) for row in names["rows"].to_pylist()] == ["7"]


def test_the_pipeline_of_the_page(tmp_path: Path) -> None:
    """`tests/sinks/iceberg/test_many_tables.py` runs one like it."""
    ((_, text),) = [block for block in blocks(ROOT / "docs" / "iceberg.md") if block[0] == "yaml"]
    pipeline = parse(text.replace("/lake", str(tmp_path)), "p.yaml", {})
    (output,) = pipeline.outputs()
    sink = sink_of(pipeline, output)
    assert isinstance(sink, IcebergTables)
    assert [sink.path_of("shop", name) for name in ("order_1", "names")] == ["lake.ods_order_1", "shop.names"]
