"""Verifies and repairs a target that is not Delta, and is killed at a point of the repair."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import backlog_spark as bs
from backlog_spark.sinks.database.staging import Stage
from backlog_spark.verification import iceberg_target
from tests.sinks.iceberg.places import TABLE, catalog_at
from tests.verify.jobs import run_to_the_end

from .session import job_session

POINTS = {
    "iceberg": {
        "before": (iceberg_target, "commit_repaired", False),  # the files are written
        "after": (iceberg_target, "commit_repaired", True),
    },
    "postgresql": {
        "before": (Stage, "load", True),
        "in": (Stage, "merge", True),  # in the transaction
        "after": (Stage, "drop", False),
    },
}
"""For each kind of target: what is called at a point, and whether the kill comes after the call."""


def killing(real: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if after:
            real(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    return call


def sink_of(job: dict[str, Any]) -> bs.Sink:
    """The job's target."""
    if job["kind"] == "iceberg":
        return bs.IcebergUpsert(TABLE, ["id"], catalog_at(job["lake"]))
    return bs.JdbcUpsert(job["url"], "t", ["id"], user=job["user"], ssl_mode="disabled")


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = job_session()
    source = bs.source("mysql_cdc", name="t", options=job["options"])
    query = run_to_the_end(source, Path(job["root"]), sink_of(job), spark)
    where, name, after = POINTS[job["kind"]][job["point"]]
    with mock.patch.object(where, name, killing(getattr(where, name), after=after)):
        bs.verify(query, repair=True)


if __name__ == "__main__":
    main()
