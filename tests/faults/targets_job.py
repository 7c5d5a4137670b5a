"""A query with several targets, whose driver may be killed before one of them gets a batch. Runs until it is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import backlog_spark as bs

from .session import job_session


class Deadly(bs.DeltaAppend):
    """Kills the driver instead of writing the n-th batch that has rows."""

    def __init__(self, path: str, die_at: int) -> None:
        super().__init__(path)
        self.die_at = die_at

    def write(self, batch_df: Any, batch: Any) -> None:
        if batch.batch_id == self.die_at:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        super().write(batch_df, batch)


def start(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery:
    """Start the query: an upserted table, a log of all changes, and another log."""
    source = bs.source("mysql_cdc", name="rows", options=job["source"])
    log = Deadly(job["log"], job["die_at"]) if job["die_at"] is not None else bs.DeltaAppend(job["log"])
    return (
        source.write("rows")
        .trigger(processing_time="300 ms", interval_during_backlog="1 second")
        .option("checkpointLocation", job["checkpoint"])
        .to(bs.DeltaUpsert(job["target"], keys=["id"]))
        .to(log)
        .to(bs.DeltaAppend(job["second log"]))
        .start(spark)
    )


if __name__ == "__main__":
    described = json.loads(sys.argv[1])
    start(job_session(), described).awaitTermination()
