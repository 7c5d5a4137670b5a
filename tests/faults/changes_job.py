"""A program that copies a dump, then a topic of Debezium, into a Delta table, for tests that kill it."""

from __future__ import annotations

import json
import sys
from typing import Any

import backlog_spark as bs
from tests.integration.changing_table import SCHEMA

from .session import job_session

__all__ = ["start"]


def start(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery:
    """Start the query that ``job`` describes: the same here and after the kill."""
    orders = bs.source(
        "hybrid",
        name="orders",
        schema=SCHEMA,
        path=job["files"],
        subscribe=job["topic"],
        options={
            "kafka.bootstrap.servers": job["broker"],
            "startingOffsets": "earliest",
            "maxRowsPerBatch": job["rows"],
            **job["options"],
        },
    )
    return (
        orders.write("orders")
        .trigger(processing_time="300 ms")
        .option("checkpointLocation", job["checkpoint"])
        .to(bs.DeltaUpsert(job["target"], keys=["id"]))
        .start(spark)
    )


def main() -> None:
    job = json.loads(sys.argv[1])
    start(job_session(), job).awaitTermination()


if __name__ == "__main__":
    main()
