"""The main job on a real MySQL server: a large orders table that keeps changing is copied to a Delta table.

``make demo`` runs it. The query reads a snapshot of the table in few large commits. At the exact batch where the
snapshot ends it switches to the binary log, and follows in small commits. At the end the two tables are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import backlog_spark as bs
from servers.mysql import MySQLServer
from servers.session import local_session

from .common import arguments_parser, follow, main, outcome, write_report
from .freshness import freshness, read_log

ORDERS = """
CREATE TABLE shop.orders (
  id BIGINT PRIMARY KEY,
  customer_id INT NOT NULL,
  status ENUM('new', 'paid', 'shipped', 'returned') NOT NULL,
  amount DECIMAL(12,2) NOT NULL,
  discount DOUBLE,
  quantity SMALLINT UNSIGNED NOT NULL,
  note VARCHAR(200) CHARACTER SET utf8mb4,
  ordered_on DATE,
  created_at DATETIME(3) NOT NULL,
  updated_at TIMESTAMP(6) NOT NULL
)"""
FILL = """
INSERT INTO shop.orders
WITH RECURSIVE s (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last})
SELECT n, n * 7919 % 200000, 1 + n % 4, (n * 37 % 100000) / 100, IF(n % 5 = 0, NULL, n % 100 / 7), 1 + n % 9,
       IF(n % 11 = 0, NULL, CONCAT('order ', n, ', "fragile"')), CAST('2024-01-01' AS DATE) + INTERVAL n % 700 DAY,
       TIMESTAMP('2024-01-01') + INTERVAL n SECOND, NOW(6)
FROM s"""
_FILL_STEP = 100_000
_COMPARE_STEP = 200_000


def load(server: MySQLServer, rows: int) -> None:
    """Create and fill the table."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute(ORDERS)
        cursor.execute(f"SET cte_max_recursion_depth = {_FILL_STEP + 1}")
        for first in range(1, rows + 1, _FILL_STEP):
            cursor.execute(FILL.format(first=first, last=min(rows, first + _FILL_STEP - 1)))


@contextlib.contextmanager
def writer(server: MySQLServer, rows: int) -> Iterator[subprocess.Popen[bytes]]:
    """The writer's process. It has ended when the block ends."""
    command = [sys.executable, "-m", "examples.demo_writer", "--port", str(server.port), "--keys", str(rows)]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def compare(spark: Any, server: MySQLServer, target: Path, changed: list[datetime]) -> tuple[int, int, int, int]:
    """Compare row by row: rows in MySQL, and how many are lost, duplicated or different in Delta.

    The time of the last change of each row in Delta is added to ``changed``, in UTC without a zone.
    """
    import pyspark.sql.functions as F

    delta = spark.read.format("delta").load(str(target))
    rows = lost = duplicated = different = 0
    with server.connect(init_command="SET time_zone = '+00:00'") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COALESCE(MAX(id), 0) FROM shop.orders")
        last = max(cursor.fetchone()[0], delta.agg(F.max("id")).first()[0] or 0)
        for first in range(0, last + 1, _COMPARE_STEP):
            cursor.execute("SELECT * FROM shop.orders WHERE id BETWEEN %s AND %s", (first, first + _COMPARE_STEP - 1))
            expected = {row[0]: row for row in cursor.fetchall()}
            piece = delta.where(F.col("id").between(first, first + _COMPARE_STEP - 1)).toArrow()
            found: dict[int, tuple[Any, ...]] = {}
            columns = [column.to_pylist() for column in piece.columns]
            for row in zip(*columns, strict=True):
                # MySQL's client returns timestamps without their zone, which is UTC here.
                row = (*row[:-1], row[-1].replace(tzinfo=None))
                duplicated += row[0] in found
                changed.append(row[-1])
                found[row[0]] = row
            rows += len(expected)
            lost += len(expected.keys() - found.keys())
            different += sum(expected.get(key) != row for key, row in found.items())
    return rows, lost, duplicated, different


def run(arguments: argparse.Namespace) -> str:
    """The whole demo. Returns the last line to print."""
    say = print
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-demo-")))
        began = time.time()
        server = stack.enter_context(MySQLServer())
        load(server, arguments.rows)
        say(f"MySQL {server.execute('SELECT VERSION()')[0][0]} on port {server.port}: {arguments.rows:,} orders loaded"
            f" in {time.time() - began:.0f} s", flush=True)  # fmt: skip
        spark = local_session("backlog_spark demo", conf={"spark.backlog.progress": "off"})  # the demo draws its own
        stack.callback(spark.stop)
        process = stack.enter_context(writer(server, arguments.rows))
        orders = bs.source(
            "mysql_cdc", name="orders", host="127.0.0.1", port=server.port, user="root", table="shop.orders"
        )
        target = folder / "orders"
        began = time.time()
        query = (
            orders.write("orders")
            .trigger(processing_time=arguments.interval, interval_during_backlog=arguments.interval_during_backlog)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .to(bs.DeltaUpsert(str(target), keys=["id"]))
            .start(spark)
        )
        stack.callback(query.stop)

        def end_of_changes() -> None:
            process.terminate()
            process.wait()

        progress = follow(query, arguments, began, end_of_changes)
        say(write_report(folder / "checkpoint", "demo"), flush=True)
        say("Comparing the Delta table with MySQL row by row", flush=True)
        changed: list[datetime] = []
        compared = compare(spark, server, target, changed)
        say(freshness(read_log(target), "updated_at", changed, since=query.history[-1].timestamp), flush=True)
        return outcome(progress, compared)


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=1_000_000, during_backlog="10 seconds")))
