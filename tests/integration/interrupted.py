"""A program that gets Ctrl-C while it waits for a query.

Arguments: a folder, and how often Ctrl-C comes in a batch. With 0 it comes once, while the query waits for rows of a
source in Python. With -1 it comes in a batch that fails, with -2 when the query is about to be restarted after that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.spi import add_connector

from ..faults.session import job_session
from .test_foreign import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH_S = 3


class Interrupted(bs.Sink):
    """Its first batch takes some seconds, in which the terminal sends Ctrl-C to all processes of the program."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.wrote: list[int] = []

    def open(self, context: Any) -> None:
        pass

    def write(self, batch_df: DataFrame, batch: bs.BatchInfo) -> None:
        for _ in range(self.times if batch.batch_id == 0 else 0):
            os.killpg(0, signal.SIGINT)
            time.sleep(_BATCH_S)
        if self.times < 0:
            if self.times == -1:
                os.killpg(0, signal.SIGINT)
                time.sleep(_BATCH_S)
            raise ValueError("The batch failed.")
        # A job that PySpark's own handler would have cancelled
        self.wrote.append(batch_df.count())


def interrupt_between_batches(commits: Path) -> None:
    while not (commits / "0").exists():
        time.sleep(0.1)
    time.sleep(_BATCH_S)
    os.killpg(0, signal.SIGINT)


def interrupt_before_the_restart(query: bs.BacklogQuery) -> None:
    while not any(event["kind"] == "restart" for event in events_of(query)):
        time.sleep(0.1)
    os.killpg(0, signal.SIGINT)


def events_of(query: bs.BacklogQuery) -> list[dict[str, Any]]:
    files = sorted(Path(query.checkpointLocation, "backlog", "events").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def main() -> None:
    """Prints as JSON how the wait and the query ended."""
    root = Path(sys.argv[1])
    sink = Interrupted(int(sys.argv[2]))
    spark = job_session(**{"spark.backlog.restart.delay": "1 min"})
    if sink.times:
        files(root / "in", 0, 3, rows=20)
        frame = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).parquet(str(root / "in"))
        stream = bs.stream(frame)
    else:
        (root / "lines").write_text("a\n" * 20)
        add_connector("lines", "examples.lines_source", "LinesDataSource")
        stream = bs.source("lines", name="lines", path=root / "lines")
        threading.Thread(target=interrupt_between_batches, args=[root / "checkpoint" / "commits"], daemon=True).start()
    query = (
        stream.write("numbers").trigger(processing_time="100 ms")
        .option("checkpointLocation", str(root / "checkpoint")).to(sink).start(spark)
    )  # fmt: skip
    if sink.times == -2:
        threading.Thread(target=interrupt_before_the_restart, args=[query], daemon=True).start()
    try:
        query.awaitTermination()
        raised = ""
    except (KeyboardInterrupt, Exception) as error:
        raised = type(error).__name__
    planned, committed = (
        sorted(int(p.name) for p in (root / "checkpoint" / name).iterdir() if p.name.isdigit())
        for name in ("offsets", "commits")
    )
    print(json.dumps([raised, query.jobStatus, sink.wrote, planned, committed]))


if __name__ == "__main__":
    main()
