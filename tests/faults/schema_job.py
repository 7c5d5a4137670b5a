"""A program that reads files whose columns are inferred, for tests that kill it."""

from __future__ import annotations

import json
import sys
from typing import Any

import backlog_spark as bs

from .session import job_session

__all__ = ["start"]


def start(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery:
    """Start the query that ``job`` describes: the same here and after the kill."""
    spark.conf.set("spark.backlog.restart.delay", "100 ms")
    options = {
        "path": job["files"], "fileFormat": "json", "discovery": "continuous", "discoveryInterval": "100 ms",
        "discoveryOrder": "name", "inferColumnTypes": "true",
    }  # fmt: skip
    return (
        bs.source("hybrid", name="events", phases="files", options=options)
        .write("events")
        .trigger(processing_time="200 ms")
        .option("checkpointLocation", job["checkpoint"])
        .to(bs.DeltaAppend(job["target"], merge_schema=True))
        .start(spark)
    )


def main() -> None:
    job = json.loads(sys.argv[1])
    start(job_session(), job).awaitTermination()


if __name__ == "__main__":
    main()
