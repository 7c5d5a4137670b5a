"""The job of the cluster demo, for spark-submit: MySQL to Delta, then files and Kafka to keyed sums in Delta.

It may be killed and submitted again at any time; it goes on from its checkpoints. At the end it compares the tables
with their sources and prints the last line. ``make demo-cluster`` and docker-compose.yml run it through docker/job.sh.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

# spark-submit runs a file and not a module.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import backlog_spark as bs
from examples.cluster_data import PARTS, QUERIES, Database, await_file, parser

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession


def start(part: str, spark: SparkSession, arguments: argparse.Namespace) -> bs.BacklogQuery:
    """Start one of the two queries."""
    folder = arguments.folder
    if part == "mysql":
        host, _, port = arguments.mysql.rpartition(":")
        # Each process reads the password from its own environment, so it is in no plan and no log.
        login = {"host": host, "port": int(port), "user": "reader", "passwordEnv": "MYSQL_PASSWORD"}
        source = bs.source("mysql_cdc", name="orders", table="shop.orders", options=login)
        writer, keys, during = source.write(QUERIES[part]), ["id"], "5 seconds"
    else:
        from examples import demo_hybrid

        options = {"kafka.bootstrap.servers": arguments.broker, "startingOffsets": "earliest", "valueFormat": "json"}
        schema, topic = demo_hybrid.SCHEMA, demo_hybrid.TOPIC
        path = str(folder / "history")
        source = bs.source("hybrid", name="orders", schema=schema, path=path, subscribe=topic, options=options)
        sums = source.transform(demo_hybrid.by_minute).key_by("minute")
        writer = sums.aggregate("sum(cents) AS cents, count(*) AS orders").write(QUERIES[part])
        keys, during = ["minute"], "0"
    return (
        writer.trigger(processing_time="1 second", interval_during_backlog=during)
        .option("checkpointLocation", str(folder / "checkpoints" / part))
        .to(bs.DeltaUpsert(str(folder / "tables" / part), keys=keys))
        .start(spark)
    )


def follow(part: str, spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Run one query until its source does not change any more and all is committed."""
    folder, ended = arguments.folder, arguments.folder / f"ended-{part}"

    def running() -> None:
        if not query.isActive:
            raise query.exception() or RuntimeError("The query ended early.")

    await_file(folder / f"ready-{part}")
    query = start(part, spark, arguments)
    print(f"{part}: started, in {query.mode} mode", flush=True)
    try:
        # A driver that is started after the last change commits nothing.
        while query.isProcessingBacklog or not (query.backlogProgress.commits_after or ended.exists()):
            running()
            time.sleep(0.1)
        print(f"{part}: it follows the changes", flush=True)
        end = time.time() + arguments.seconds
        while time.time() < end or (folder / f"hold-{part}").exists():
            running()
            time.sleep(0.1)
        (folder / f"follows-{part}").touch()
        await_file(ended, running)
        query.processAllAvailable()
    finally:
        query.stop()
    done = query.backlogProgress
    commits = f"{done.commits_in_backlog} commits in backlog, {done.commits_after} after it"
    print(f"{part}: done; since this driver started {commits}", flush=True)


def compare(part: str, spark: SparkSession, arguments: argparse.Namespace) -> tuple[int, int, int, int]:
    """Rows, and how many are lost, duplicated and different."""
    from examples import demo, demo_hybrid

    folder, table = arguments.folder, arguments.folder / "tables" / part
    if part == "mysql":
        database: Any = Database(arguments.mysql, "reader", "MYSQL_PASSWORD")
        return demo.compare(spark, database, table, [])
    return demo_hybrid.compare(spark, table, demo_hybrid.expected(folder / "history", arguments.broker))


def main() -> int:
    """Both queries, one after the other, and the last line."""
    from pyspark.sql import SparkSession

    found = parser(__doc__)
    found.add_argument("--seconds", type=float, default=20, help="how long to follow the changes of each source")
    arguments = found.parse_args()
    spark = SparkSession.builder.appName("backlog_spark cluster demo").getOrCreate()
    counts = []
    for part in PARTS:
        follow(part, spark, arguments)
        counts.append(compare(part, spark, arguments))
    rows, lost, duplicated, different = (sum(each) for each in zip(*counts, strict=True))
    right = all(each[0] for each in counts) and not (lost or duplicated or different)
    text = f"rows={rows} lost={lost} duplicated={duplicated} different={different}"
    (arguments.folder / "result.json").write_text(json.dumps({"right": right, "text": text}))
    print(f"demo: {'OK' if right else 'FAILED'} {text}", flush=True)
    spark.stop()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
