"""A program that copies files into Delta, and goes on with new ones, for tests that kill it."""

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
        "path": job["files"],
        "schema": "n BIGINT",
        "discovery": "continuous",
        "discoveryInterval": "100 ms",
        "backlogFilesThreshold": "5",
        "cleanSource": "archive",
        "sourceArchiveDir": job["archive"],
        **job["options"],
    }
    return (
        bs.source("hybrid", name="numbers", phases="live:files", options=options)
        .write("numbers")
        .trigger(processing_time="200 ms", interval_during_backlog=job["during"])
        .option("checkpointLocation", job["checkpoint"])
        .to(bs.DeltaAppend(job["target"]))
        .start(spark)
    )


def main() -> None:
    job = json.loads(sys.argv[1])
    # Else Spark's processes come from one that was started before, and have its own sitecustomize.
    start(job_session(**{"spark.backlog.fastPythonStart": "false"}), job).awaitTermination()


if __name__ == "__main__":
    main()
