"""A program with a query of Spark's own source and sink, for tests that start it twice. Runs until it is killed."""

from __future__ import annotations

import json
import sys
from typing import Any

import backlog_spark as bs

from .session import job_session


def start(spark: Any, job: dict[str, Any]) -> bs.NativeQuery:
    """Start the query that ``job`` describes."""

    def build(ctx: bs.RunContext) -> Any:
        rows = ctx.spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 2).json(job["source"])
        return rows.writeStream.format("delta").option("path", job["target"])

    return bs.backlog_query(build, checkpoint=job["checkpoint"], interval=job["interval"], name="native", spark=spark)


def main() -> None:
    job = json.loads(sys.argv[1])
    start(job_session(), job).awaitTermination()


if __name__ == "__main__":
    main()
