"""A program with the main job, for tests that kill it. Runs until it is killed."""

from __future__ import annotations

import json
import sys
from typing import Any

import backlog_spark as bs

from .session import job_session


def start(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery:
    """Start the query that ``job`` describes: the same here and after the kill."""
    source = bs.source("mysql_cdc", name="rows", options=job["source"])
    more = job.get("sink", {})
    upsert = bs.DeltaUpsert(job["target"], keys=["id"], merge_schema=bool(job.get("merges_schema")), **more)
    sink = bs.DeltaAppend(job["target"]) if job.get("appends") else upsert
    return (
        source.write("rows")
        .trigger(processing_time=job["interval"], interval_during_backlog=job["during"])
        .option("checkpointLocation", job["checkpoint"])
        .to(sink)
        .start(spark)
    )


def main() -> None:
    job = json.loads(sys.argv[1])
    start(job_session(**job.get("conf", {})), job).awaitTermination()


if __name__ == "__main__":
    main()
