"""The main job on a real MySQL server: a large orders table, changed all the while, arrives in a Delta table.

``make demo`` runs it. The query reads a snapshot of the table in few large commits, goes over to the binary log at
the exact batch where the snapshot ends, and follows in small commits. At the end the two tables are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import backlog_spark as bs
from backlog_spark.durations import parse_duration
from backlog_spark.embedded.mysql import MySQLServer
from backlog_spark.embedded.session import local_session
from backlog_spark.monitor import ProgressLine

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
    """The writer's process, ended with the block at the latest."""
    command = [sys.executable, "-m", "examples.demo_writer", "--port", str(server.port), "--keys", str(rows)]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def compare(spark: Any, server: MySQLServer, target: Path) -> tuple[int, int, int, int]:
    """Row by row: rows in MySQL, and how many are lost, duplicated or different in Delta."""
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
                # MySQL's client tells timestamps without their zone, which is UTC here.
                row = (*row[:-1], row[-1].replace(tzinfo=None))
                duplicated += row[0] in found
                found[row[0]] = row
            rows += len(expected)
            lost += len(expected.keys() - found.keys())
            different += sum(expected.get(key) != row for key, row in found.items())
    return rows, lost, duplicated, different


def run(arguments: argparse.Namespace) -> str:
    """The whole demo; the last line to print."""
    say = print
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-demo-")))
        began = time.time()
        server = stack.enter_context(MySQLServer())
        load(server, arguments.rows)
        say(f"MySQL {server.execute('SELECT VERSION()')[0][0]} on port {server.port}: {arguments.rows:,} orders loaded"
            f" in {time.time() - began:.0f} s", flush=True)  # fmt: skip
        spark = local_session("backlog_spark demo", conf={"spark.backlog.progress": "off"})  # it draws its own
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
        with ProgressLine(query, sys.stdout, force=True) as line:
            line.say(
                f"Query started: a commit every {arguments.interval}, in backlog every "
                f"{arguments.interval_during_backlog}; a writer changes the table all the while"
            )
            while query.isProcessingBacklog and query.isActive:
                time.sleep(0.05)
            _raise_if_ended(query)
            line.say(
                f"Switch to streaming after {time.time() - began:.1f} s, at batch {query.history[-1].batch_id}: "
                f"the backlog took {query.backlogProgress.commits_in_backlog} commits"
            )
            end = time.time() + arguments.seconds
            while time.time() < end and query.isActive:
                time.sleep(0.2)
            _raise_if_ended(query)
            process.terminate()
            process.wait()
            line.say("Writer stopped; waiting for its last changes")
            query.processAllAvailable()
        query.stop()
        progress = query.backlogProgress
        say("Comparing the Delta table with MySQL row by row", flush=True)
        rows, lost, duplicated, different = compare(spark, server, target)
        counts = (
            f"rows={rows} commits_in_backlog={progress.commits_in_backlog} commits_after={progress.commits_after} "
            f"lost={lost} duplicated={duplicated} different={different}"
        )
        right = rows > 0 and not (lost or duplicated or different) and progress.commits_after > 0
        return f"demo: {'OK' if right else 'FAILED'} {counts}"


def _raise_if_ended(query: bs.BacklogQuery) -> None:
    if not query.isActive:
        raise query.exception() or RuntimeError("The query ended early.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="orders to load first")
    parser.add_argument("--interval", default="1 second", help="normal commit interval")
    parser.add_argument("--interval-during-backlog", default="10 seconds", help="0: the backlog is one commit")
    parser.add_argument("--seconds", type=float, default=20, help="how long to follow after the switch")
    arguments = parser.parse_args()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        parse_duration(arguments.interval_during_backlog, "INTERVAL_DURING_BACKLOG")
        outcome = run(arguments)
    except Exception as error:
        outcome = f"demo: FAILED {type(error).__name__}: {' '.join(str(error).split())[:1000]}"
    print(outcome, flush=True)
    return 0 if outcome.startswith("demo: OK") else 1


if __name__ == "__main__":
    sys.exit(main())
