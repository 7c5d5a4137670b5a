"""A process that writes one batch of `DeltaTables` and dies before or after it notes the batch, for a test."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import backlog_spark as bs
from backlog_spark.sinks.base import BatchInfo
from backlog_spark.sinks.newest_batches import TableBatches
from tests.sinks.test_put_back import TABLES, batch_of, context_of

from .session import job_session


def main() -> None:
    lake, batch, moment = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    noted = TableBatches.note

    def note(self: TableBatches, *given: Any) -> None:
        if moment == "after":
            noted(self, *given)
        os.kill(os.getpid(), signal.SIGKILL)

    TableBatches.note = note  # type: ignore[method-assign]
    spark, sink = job_session(), bs.DeltaTables(str(lake))
    sink.open(context_of(spark, lake, batch - 1))
    sink.write(batch_of(spark, batch, TABLES), BatchInfo(batch, is_backlog=False))


if __name__ == "__main__":
    main()
