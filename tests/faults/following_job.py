"""A program that copies a Delta table, and goes on with its later commits, for tests that kill it."""

from __future__ import annotations

import json
import sys
from typing import Any

import backlog_spark as bs

from .session import job_session

__all__ = ["start"]


def start(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery:
    """Start the query that ``job`` describes: the same here and after the kill."""
    options = {
        "path": job["table"], "discovery": "continuous", "discoveryInterval": "100 ms", "maxFilesPerBatch": "2",
        "backlogVersionsThreshold": "3", **job["options"],
    }  # fmt: skip
    return (
        bs.source("hybrid", name="numbers", phases="live:delta", options=options)
        .write("numbers")
        .trigger(processing_time="200 ms", interval_during_backlog=job["during"])
        .option("checkpointLocation", job["checkpoint"])
        .to(bs.DeltaAppend(job["target"]))
        .start(spark)
    )


def main() -> None:
    job = json.loads(sys.argv[1])
    start(job_session(), job).awaitTermination()


if __name__ == "__main__":
    main()
