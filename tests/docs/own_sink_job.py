"""The query of docs/own_sink.md, whose driver is killed at a point of a batch. Runs until it is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import backlog_spark as bs
from tests.faults.session import job_session

from .blocks import python_blocks


def sink_class(page: Path) -> Any:
    """The page's sink."""
    names: dict[str, Any] = {}
    exec(python_blocks(page)[0], names)
    return names["SqliteUpsert"]


def deadly(page: Path, moment: str, batch_id: int) -> Any:
    """The page's sink, which kills its driver before, in or after the write of the batch or a later one."""

    def die() -> None:
        os.killpg(os.getpgrp(), signal.SIGKILL)

    class Deadly(sink_class(page)):  # type: ignore[misc]
        at = ""
        applied = 0

        def write(self, batch_df: Any, batch: Any) -> None:
            self.at, self.applied = moment if batch.batch_id >= batch_id else "", 0
            if self.at == "before":
                die()
            super().write(batch_df, batch)
            if self.at == "after":
                die()

        def apply(self, database: Any, row: Any) -> None:
            super().apply(database, row)
            self.applied += 1
            if self.at == "in" and self.applied == 5:
                die()

    return Deadly


def start(spark: Any, job: dict[str, Any], kind: Any) -> bs.BacklogQuery:
    """Start the query with the page's sink, or a deadly one."""
    source = bs.source("mysql_cdc", name="rows", options=job["source"])
    writer = source.write("rows").trigger(processing_time="200 ms")
    writer = writer.option("checkpointLocation", job["checkpoint"])
    return writer.to(kind(job["target"], "odd table", keys=["id"])).start(spark)


if __name__ == "__main__":
    described = json.loads(sys.argv[1])
    start(
        job_session(), described, deadly(Path(described["page"]), described["moment"], described["batch"])
    ).awaitTermination()
