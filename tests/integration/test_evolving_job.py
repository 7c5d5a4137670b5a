"""A table that is altered while a query follows it into Delta, on real servers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from tests.connectors.mysql_cdc.replay import options

from .test_main_job import wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer


def start(spark: SparkSession, server: MySQLServer, root: Path, *, merge_schema: bool) -> bs.BacklogQuery:
    source = bs.source("mysql_cdc", name="orders", options=options(server, "altered.orders"))
    made = source.write("orders").option("checkpointLocation", str(root / "c")).trigger(processing_time="200 ms")
    return made.to(bs.DeltaUpsert(str(root / "t"), keys=["id"], merge_schema=merge_schema)).start(spark)


@pytest.mark.slow
def test_the_query_goes_on_with_the_new_column(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("DROP DATABASE IF EXISTS altered")
    mysql.execute("CREATE DATABASE altered")
    mysql.execute("CREATE TABLE altered.orders (id INT PRIMARY KEY, n INT, gone INT)")
    mysql.execute("INSERT INTO altered.orders VALUES (1, 1, 1), (2, 2, 2)")
    query = start(spark, mysql, tmp_path, merge_schema=True)
    try:
        wait(lambda: not query.isProcessingBacklog, query)
        query.processAllAvailable()
        mysql.execute("UPDATE altered.orders SET n = 10 WHERE id = 1")
        mysql.execute("ALTER TABLE altered.orders DROP COLUMN gone, ADD COLUMN added VARCHAR(9) AFTER id")
        mysql.execute("INSERT INTO altered.orders VALUES (3, 'new', 3)")
        wait(lambda: query.backlogProgress.restarts == 1, query)
        query.processAllAvailable()
        mysql.execute("UPDATE altered.orders SET added = 'later' WHERE id = 2")
        query.processAllAvailable()
    finally:
        query.stop()
    found = spark.read.format("delta").load(str(tmp_path / "t"))
    assert found.columns == ["id", "n", "gone", "added"]
    rows = Counter(tuple(row) for row in found.collect())
    assert rows == Counter([(1, 10, 1, None), (2, 2, 2, "later"), (3, 3, None, "new")])
    # A target that is not to change says what it lacks.
    mysql.execute("ALTER TABLE altered.orders ADD COLUMN another INT")
    with pytest.raises(BacklogError, match=r"no column 'another'.*merge_schema=True"):
        start(spark, mysql, tmp_path, merge_schema=False)
