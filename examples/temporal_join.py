"""Clicks joined with the users of a MySQL table: no click is joined before the user snapshot is complete.

``make demo-temporal`` runs it; ``--sql`` uses the same join in SQL. It is the example of FLIP-326: a temporal join by
processing time. Its probe side, generated clicks, waits until the build side has switched to the binary log.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import backlog_spark as bs
from servers.mysql import MySQLServer
from servers.session import local_session

from .common import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USERS = "CREATE TABLE {database}.user_info (user_id INT PRIMARY KEY, gender VARCHAR(1) NOT NULL)"
FILL = """
INSERT INTO {database}.user_info
WITH RECURSIVE s (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last})
SELECT n, IF(n % 2, 'f', 'm') FROM s"""
JOIN = """
SELECT click_event.user_id AS user_id, item_id, gender FROM click_event
LEFT JOIN user_info FOR SYSTEM_TIME AS OF PROCTIME()
ON click_event.user_id = user_info.user_id"""


def load(server: MySQLServer, users: int, database: str = "shop") -> None:
    """Create the table, with users 0 to ``users`` - 1."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        cursor.execute(USERS.format(database=database))
        cursor.execute(f"SET cte_max_recursion_depth = {users + 1}")
        cursor.execute(FILL.format(database=database, first=0, last=users - 1))


def joined(
    spark: SparkSession, server: MySQLServer, users: int, database: str = "shop", *, sql: bool = False
) -> bs.BacklogStream:
    """Generated clicks with the gender of their user. One in eleven has a user who is not in the snapshot."""
    generated = spark.readStream.format("rate").option("rowsPerSecond", 2_000).load()
    clicks = generated.selectExpr(f"CAST(value % {users + users // 10} AS INT) AS user_id", "value AS item_id")
    click_event = bs.stream(clicks, use_processing_time=True)
    user_info = bs.source(
        "mysql_cdc", name="user_info", host="127.0.0.1", port=server.port, user="root",
        table=f"{database}.user_info",
        useProcessingTimeDuringBinlog=True,
    )  # fmt: skip
    if sql:
        return bs.sql(spark, JOIN, click_event=click_event, user_info=user_info)
    return click_event.temporal_join(user_info, on="user_id", how="left").map("user_id", "item_id", "gender")


def counts(spark: SparkSession, target: Path, users: int) -> tuple[int, int, int, int]:
    """Number of clicks, of those with a user, of duplicates, and of those of snapshot users without a match."""
    clicks = spark.read.format("delta").load(str(target)).cache()
    found = clicks.where("gender IS NOT NULL").count()
    twice = clicks.groupBy("item_id").count().where("count > 1").count()
    missed = clicks.where(f"user_id < {users} AND gender IS NULL").count()
    total = clicks.count()
    clicks.unpersist()
    return total, found, twice, missed


def run(arguments: argparse.Namespace) -> str:
    """The whole example. Returns the last line to print."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-temporal-")))
        server = stack.enter_context(MySQLServer())
        load(server, arguments.rows)
        print(f"MySQL on port {server.port}: {arguments.rows:,} users", flush=True)
        spark = local_session("backlog_spark temporal join")
        stack.callback(spark.stop)
        target = folder / "clicks"
        query = (
            joined(spark, server, arguments.rows, sql=arguments.sql)
            .write("clicks")
            .trigger(processing_time="1 second", interval_during_backlog=0)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .to(bs.DeltaAppend(str(target)))
            .start(spark)
        )
        stack.callback(query.stop)
        while query.isProcessingBacklog and query.isActive:
            time.sleep(0.05)
        print("The snapshot is complete: waiting clicks are joined, and later ones as they come", flush=True)
        query.awaitTermination(arguments.seconds)
        query.stop()
        if query.exception() is not None:
            raise query.exception() or RuntimeError
        clicks, found, twice, missed = counts(spark, target, arguments.rows)
        right = found and not (twice or missed)
        return (
            f"demo: {'OK' if right else 'FAILED'} clicks={clicks} joined={found} duplicated={twice} "
            f"unjoined_of_the_snapshot={missed}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="number of users at the start")
    parser.add_argument("--seconds", type=float, default=20, help="how long to follow after the switch")
    parser.add_argument("--sql", action="store_true", help="join in SQL")
    return parser


if __name__ == "__main__":
    sys.exit(main(run, _parser()))
