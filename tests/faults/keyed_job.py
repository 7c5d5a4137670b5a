"""A keyed query as a program of its own that ends itself, and all its processes, at a given point."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import backlog_spark as bs
import connectors
from backlog_spark.keyed import KeyedPlan
from backlog_spark.query import BacklogQuery
from backlog_spark.state.versions import BatchState

AGGREGATES = "sum(v) AS total, count(*) AS n, max(v) AS hi"


def start(spark: Any, job: dict[str, str]) -> bs.BacklogQuery:
    """Start the query that ``job`` describes: the same here and after the kill."""
    connectors.add_connector("scripted", "tests.operators.scripted", "ScriptedDataSource")
    source = bs.source("scripted", name="s", path=job["script"])
    return (
        source.key_by("k")
        .aggregate(AGGREGATES)
        .write("keyed")
        .trigger(processing_time="100 ms", interval_during_backlog=0)
        .option("checkpointLocation", job["checkpoint"])
        .to(bs.DeltaUpsert(job["target"], keys=["k"]))
        .start(spark)
    )


def kill(*_: object, **__: object) -> None:
    """The driver, its JVM and every worker: they are one process group."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def before(owner: type, name: str, act: Callable[..., None] = kill) -> None:
    """Call ``act`` where a method is about to run."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: type, name: str) -> None:
    """Kill where a method has just run."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        kill()

    setattr(owner, name, wrapped)


def half_published(self: Any, name: str, to: str) -> None:
    """Kill when the second of the seeds is about to appear."""
    if "/seed/" in to and to.endswith(".parquet"):
        half_published.seen += 1  # type: ignore[attr-defined]
        if half_published.seen == 2:  # type: ignore[attr-defined]
            kill()


half_published.seen = 0  # type: ignore[attr-defined]


def only_in_stream(act: Callable[..., None]) -> Callable[..., None]:
    """For a method of a query: only in a run of the stream vehicle."""

    def checked(self: BacklogQuery, *args: Any, **kwargs: Any) -> None:
        if self._keyed is not None and not self._keyed.ends_by_itself:
            act()

    return checked


def during_the_fold() -> None:
    """Kill from inside the batch's own job, while tasks run."""
    from backlog_spark.operators.fold import AggregateFold

    original = AggregateFold.fold

    def fold(self: Any, rows: Any, base: Any) -> Any:
        group = os.getpgrp()

        def die(batches: Any) -> Any:
            for batch in batches:
                os.killpg(group, signal.SIGKILL)
                yield batch

        return original(self, rows.mapInArrow(die, rows.schema), base)

    AggregateFold.fold = fold  # type: ignore[method-assign]


POINTS: dict[str, Callable[[], None]] = {
    "while tasks fold": during_the_fold,
    "before the state is valid": lambda: before(bs_checkpoint(), "write_file"),
    "before the output": lambda: before(bs.DeltaUpsert, "write"),
    "before the commit": lambda: after(bs.DeltaUpsert, "write"),
    "before the publication": lambda: before(BatchState, "publish"),
    "half published": lambda: before(bs_checkpoint(), "rename", half_published),
    "before the ledger knows": lambda: after(BatchState, "publish"),
    "before the stream run": lambda: after(KeyedPlan, "_publish"),
    "in the first stream batch": lambda: before(BacklogQuery, "_write_batch", only_in_stream(kill)),
    "after the first stream output": lambda: after(bs.DeltaUpsert, "write"),
}


def bs_checkpoint() -> type:
    """The class, by way of its module: the package imports lazily."""
    from backlog_spark.checkpoint import Checkpoint

    return Checkpoint


def main() -> None:
    from backlog_spark.embedded.session import local_session

    job = json.loads(sys.argv[1])
    POINTS[sys.argv[2]]()
    # Lives are short: compiling more than simply costs more than it gains.
    conf = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    start(local_session("job", conf=conf), job).awaitTermination()


if __name__ == "__main__":
    main()
