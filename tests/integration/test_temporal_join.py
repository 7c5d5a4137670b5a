"""The example of FLIP-326 on a real server: generated clicks, users of MySQL, in Python and in SQL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from backlog_spark.spark.jvm.internals import is_usable
from examples.temporal_join import counts, joined, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

USERS = 5_000
LIMIT_S = 300


# SQL is translated into the calls of the other form.
@pytest.mark.slow
@pytest.mark.parametrize("sql", [pytest.param(False, id="api", marks=pytest.mark.grid), pytest.param(True, id="sql")])
def test_every_click_of_a_user_in_the_snapshot_is_joined(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, sql: bool
) -> None:
    database = f"temporal_{sql}".lower()
    load(mysql, USERS, database)
    sink = bs.DeltaAppend(str(tmp_path / "clicks"))
    writer = joined(spark, mysql, USERS, database, sql=sql).write("clicks").to(sink)
    writer = writer.trigger(processing_time="200 ms", interval_during_backlog=0)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    if not is_usable("end between batches"):  # the clicks are a streaming DataFrame
        with pytest.raises(bs.BacklogError, match="needs a run that ends between two batches"):
            writer.start(spark)
        return
    query = writer.start(spark)

    def clicks_of(users: str) -> int:
        found = spark.read.format("delta").load(str(tmp_path / "clicks"))
        return int(found.where(f"{users} AND gender IS NOT NULL").count())

    def wait_for(users: str) -> None:
        limit = time.monotonic() + LIMIT_S
        while not (is_written(tmp_path / "clicks") and clicks_of(users)):
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            time.sleep(0.5)

    try:
        wait_for(f"user_id < {USERS}")
        assert not clicks_of(f"user_id >= {USERS}"), "nobody knows them yet"
        # A user of the log: later clicks find it.
        new = ", ".join(f"({n}, 'n')" for n in range(USERS, USERS + USERS // 10))
        mysql.execute(f"INSERT INTO {database}.user_info VALUES {new}")
        wait_for(f"user_id >= {USERS}")
    finally:
        query.stop()
    assert query.exception() is None
    clicks, found, twice, missed = counts(spark, tmp_path / "clicks", USERS)
    assert clicks >= found > 0
    assert (twice, missed) == (0, 0)


def is_written(location: Path) -> bool:
    return any((location / "_delta_log").glob("*.json"))
