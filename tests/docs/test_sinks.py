"""The example of docs/sinks.md runs, and its query is written by the writer that the page says."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from .blocks import ROOT, python_blocks

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer


@pytest.mark.slow
def test_small_live_batches_go_past_spark(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mysql.execute("DROP DATABASE IF EXISTS sinks")
    mysql.execute("CREATE DATABASE sinks")
    mysql.execute("CREATE TABLE sinks.orders (id INT PRIMARY KEY, amount DECIMAL(10,2), at TIMESTAMP(6))")
    mysql.execute("INSERT INTO sinks.orders VALUES (1, 10.50, NOW(6)), (2, 20, '1970-01-02'), (3, 30, NULL)")
    names: dict[str, Any] = {"spark": spark}
    block, own_columns, progress_block, several, rejected = python_blocks(ROOT / "docs" / "sinks.md")
    given = re.search(r'host="db",\s+user="reader",\s+passwordFile="[\w/-]+"', block)
    assert given
    code = block.replace(given[0], f'host="127.0.0.1", port={mysql.port}, user="root"').replace("/lake", str(tmp_path))
    caplog.set_level("INFO", logger="backlog_spark")
    exec(code, names)
    query = names["query"]
    try:
        limit = time.monotonic() + 300
        while query.isProcessingBacklog or query.backlogProgress.last_write is None:
            assert time.monotonic() < limit
            time.sleep(0.1)
        mysql.execute("UPDATE sinks.orders SET amount = 11 WHERE id = 1")
        mysql.execute("DELETE FROM sinks.orders WHERE id = 2")
        mysql.execute("INSERT INTO sinks.orders VALUES (4, 40, '2037-12-31 01:02:03.000004')")
        query.processAllAvailable()
        exec(progress_block, names)
        progress = query.backlogProgress
        exec(own_columns.replace("/lake", str(tmp_path)), names)
        assert several.count(".start(spark)") == 1
        both = several.replace(".start(spark)", ".to(orders_by_day).start(spark)").replace("/lake", str(tmp_path))
        exec(both, names)
        names["both"].processAllAvailable()
        checked = f"{tmp_path}/orders_checked"
        spark.sql(f"CREATE TABLE delta.`{checked}` (id INT, amount DECIMAL(10,2), at TIMESTAMP) USING delta")
        spark.sql(f"ALTER TABLE delta.`{checked}` ADD CONSTRAINT positive CHECK (amount > 20)")
        exec(rejected.replace("/lake", str(tmp_path)), names)
        names["checked"].processAllAvailable()
    finally:
        for name in ("query", "both", "checked"):
            if name in names:
                names[name].stop()
    now, log = (spark.read.format("delta").load(f"{tmp_path}/orders_{name}") for name in ("now", "log"))
    by_day = spark.read.format("delta").load(f"{tmp_path}/orders_by_day").where("at_day = '2037-12-31'")
    assert [(row["id"], row["cents"], row["operation"]) for row in by_day.collect()] == [(4, 4000, "insert")]
    assert sorted(row["id"] for row in now.collect()) == sorted(row["id"] for row in log.collect()) == [1, 3, 4]
    held, beside = (spark.read.format("delta").load(f"{tmp_path}/orders_{name}") for name in ("checked", "rejected"))
    assert sorted(row["id"] for row in held.collect()) == [3, 4]
    found = [(row["id"], row["_constraint"]) for row in beside.collect()]
    assert found == [(1, "CHECK positive (amount > 20)")]
    assert progress.last_write.writer == "direct"
    assert progress.direct_commits >= 1
    assert "by the writer direct" in caplog.text
    found = spark.read.format("delta").load(f"{tmp_path}/orders").selectExpr("id", "amount", "cast(at AS DOUBLE) AS at")
    rows = {row["id"]: (str(row["amount"]), row["at"]) for row in found.collect()}
    assert sorted(rows) == [1, 3, 4]
    assert rows[1][0] == "11.00"
    assert rows[3] == ("30.00", None)
    assert rows[4] == ("40.00", 2145834123.000004)
