"""A program with one of the two queries: changes of MySQL into a table, or sums of files and Kafka's records.

It says in a file every few seconds how the query is, and how much of the JVM's heap is in use after a collection.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import backlog_spark as bs

from .plan import CHANGES

_EACH_S = 2.0
# A collection of the whole heap takes half a second.
_COLLECT_EACH_S = 60.0


def start(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery:
    """Start the query that ``job`` describes: the same after each kill."""
    if job["kind"] == CHANGES:
        stream = bs.source("mysql_cdc", name="rows", options=job["source"])
        # A live batch has up to 200,000 rows. Then it goes to the table without Spark's MERGE.
        small = {"small_batch_rows": 250_000, "small_batch_bytes": 256 << 20}
        properties = job["properties"]
        sink = bs.DeltaUpsert(job["target"], keys=["id"], merge_schema=True, properties=properties, **small)
    else:
        read = bs.source("hybrid", name="records", options=job["source"])
        stream = read.key_by("k").aggregate("sum(n) AS total, count(*) AS records")
        sink = bs.DeltaUpsert(job["target"], keys=["k"], properties=job["properties"])
    return (
        stream.write(job["kind"])
        .trigger(processing_time=job["interval"], interval_during_backlog=job["during"])
        .option("checkpointLocation", job["checkpoint"])
        .to(sink)
        .start(spark)
    )


def _heap(spark: Any) -> dict[str, float]:
    """MiB that are in use after a collection, and outside of the heap."""
    jvm = spark._jvm
    jvm.java.lang.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    return {
        "heap, MiB": memory.getHeapMemoryUsage().getUsed() / 2**20,
        "outside of the heap, MiB": memory.getNonHeapMemoryUsage().getUsed() / 2**20,
    }


def main() -> None:
    from servers.session import local_session

    job = json.loads(sys.argv[1])
    conf = {
        "spark.driver.memory": job["memory"],
        # The heap is there from the beginning, so that resident memory only grows by what is outside of it.
        "spark.driver.extraJavaOptions": f"-Xms{job['memory']} -XX:+AlwaysPreTouch",
        "spark.backlog.restart.maxAttempts": "20",
        **job["conf"],
    }
    spark = local_session(f"soak-{job['kind']}", conf=conf)
    query = start(spark, job)
    status, collected, heap = Path(job["status"]), time.monotonic(), {}
    while query.isActive:
        if time.monotonic() - collected > _COLLECT_EACH_S:
            collected, heap = time.monotonic(), _heap(spark)
        progress = query.backlogProgress
        told = {
            "pid": os.getpid(),
            "at": time.time(),
            "backlog": query.isProcessingBacklog,
            "commits": progress.commits,
            "restarts": progress.restarts,
            **heap,
        }
        written = status.with_suffix(".new")
        written.write_text(json.dumps(told))
        written.replace(status)
        time.sleep(_EACH_S)
    sys.exit(f"the query ended: {query.exception()}")


if __name__ == "__main__":
    main()
