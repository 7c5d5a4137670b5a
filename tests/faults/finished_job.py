"""A program with three bounded sources and an unbounded one. It kills itself when enough sources have finished."""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import Any

import backlog_spark as bs
from backlog_spark.runner.query import BacklogQuery

from .keyed_job import kill
from .session import job_session

__all__ = ["BOUNDED", "ROWS", "Echo", "start"]

BOUNDED = ("a", "b", "c")
ROWS = 200
"""Rows of each file, and of each batch."""
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Echo(bs.KeyedProcessFunction):
    """Each row comes back when the watermark is at its time."""

    output = "origin string, n long"

    def process_element(self, row: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        origin, n = ctx.get_current_key()
        yield origin, n


def start(spark: Any, job: dict[str, Any]) -> BacklogQuery:
    """Start the query that ``job`` describes: the same here and after the kill."""
    schema = {"schema": "n BIGINT, ts TIMESTAMP", "maxRowsPerBatch": ROWS}
    streams = {
        name: bs.source("hybrid", name=name, options={**schema, "phases": "files", "path": f"{job['root']}/{name}"})
        for name in BOUNDED
    }
    topic = {"kafka.bootstrap.servers": job["broker"], "subscribe": job["topic"], "startingOffsets": "earliest"}
    if job["topic"]:
        more = {**schema, **topic, "phases": "kafka", "valueFormat": "json"}
        streams["live"] = bs.source("hybrid", name="live", options=more)
    given = [
        stream.with_watermark("ts", "0 seconds").map(f"'{name}' AS origin", "n", "ts")
        for name, stream in streams.items()
    ]
    united = given[0].union(*given[1:])
    return (
        united.key_by("origin", "n")
        .process(Echo(), name="echo")
        .write("finished")
        .trigger(processing_time="100 ms", interval_during_backlog=job["during"])
        .option("checkpointLocation", job["checkpoint"])
        .to(bs.DeltaAppend(job["target"]))
        .start(spark)
    )


def kill_when_finished(count: int) -> None:
    """Kill in the batch after the one in which enough sources had finished. That one is committed."""
    original = BacklogQuery._hand_over

    def hand_over(self: BacklogQuery, batch: Any, info: Any) -> None:
        committed = self._checkpoint.latest_committed()
        if committed is not None and sum(self._declared.flags_at(committed).finished) >= count:
            kill()
        original(self, batch, info)

    BacklogQuery._hand_over = hand_over  # type: ignore[method-assign]


def main() -> None:
    job = json.loads(sys.argv[1])
    kill_when_finished(int(sys.argv[2]))
    start(job_session(), job).awaitTermination()


if __name__ == "__main__":
    main()
