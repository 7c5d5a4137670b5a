"""A program with a keyed query. It kills itself and all its processes at a given point, if there is one."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import backlog_spark as bs
from backlog_spark.handover import versions
from backlog_spark.handover.state_handover import StateHandover
from backlog_spark.handover.versions import BatchState
from backlog_spark.runner.keyed_query import KeyedPlan
from backlog_spark.runner.query import BacklogQuery
from backlog_spark.runner.query_time import Timekeeper
from backlog_spark.sinks.delta.sink import DeltaSink
from backlog_spark.spark.plan import cardinality
from backlog_spark.spi import registry
from backlog_spark.state.timer_reports import FiringBudget

from .session import job_session

AGGREGATES = "sum(v) AS total, count(*) AS n, max(v) AS hi"


WINDOW_MS = 10_000
# Timers, or pairs of joins, of a key group in a batch, where a batch may be interrupted: enough batches for all the
# points at which it is killed.
FEW_TIMERS = 12


TOP = """
    SELECT v, count(*) AS n FROM (
      SELECT pmod(v, 10) AS v FROM (
        SELECT v, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC, seq) AS n FROM l) WHERE n <= 2
      UNION ALL
      SELECT pmod(v, 10) FROM (SELECT k, v, RANK() OVER (PARTITION BY k ORDER BY v) AS n FROM r) WHERE n <= 2
    ) GROUP BY v"""


class Windows(bs.KeyedProcessFunction):
    """Sums by ten seconds of event time, once the watermark has passed; odd values to a side output as they come."""

    output = "k long, window long, n long, total long"
    interruptible_timers = True
    odd = bs.OutputTag("k long, v long, nth long")
    nth = bs.ValueState("long", default=0, ttl=bs.StateTtlConfig.new_builder("1 hour").build())
    sums = bs.MapState("long", "struct<n: long, total: long>", ttl=bs.StateTtlConfig.new_builder("1 hour").build())

    def process_element(self, row: Any, ctx: Any) -> Any:
        window = ctx.timestamp() // WINDOW_MS * WINDOW_MS
        before = self.sums.get(window) or {"n": 0, "total": 0}
        self.sums.put(window, {"n": before["n"] + 1, "total": before["total"] + row.v})
        ctx.timer_service().register_event_time_timer(window + WINDOW_MS - 1)
        if row.v % 2:
            self.nth.update(self.nth.value() + 1)
            yield self.odd, (row.k, row.v, self.nth.value())

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        window = timestamp + 1 - WINDOW_MS
        found = self.sums.get(window)
        self.sums.remove(window)
        yield ctx.get_current_key(), window, found["n"], found["total"]


class Groups(bs.CoGroupFunction):
    """How many rows each side has in a window, and what they add up to."""

    output = "k long, lefts long, rights long, total long"

    def co_group(self, left: list[Any], right: list[Any]) -> Any:
        yield (left or right)[0].k, len(left), len(right), sum(r.v for r in [*left, *right])


def paired(left: bs.BacklogStream, right: bs.BacklogStream, shape: str, *, cut: bool = False) -> bs.BacklogStream:
    """The tested operator of two streams. ``cut``: joins may stop between two pairs."""
    if shape == "join":
        # Sums change, and with them the pairs; their numbers by value are made of what is added and taken back.
        sums = left.key_by("k").sum("v").map("k", "v % 10 AS v")
        newest = right.key_by("k").aggregate("max(seq) AS seq")
        joined = sums.key_by("k").join(newest.key_by("k"), how="left", interruptible=cut)
        return joined.key_by("v").aggregate("count(*) AS n, max(seq) AS newest")
    if shape == "top":
        return bs.sql(SparkSession.active(), TOP, l=left, r=right)
    if shape == "pairs":
        sides = [side.map("k * 10 + v % 10 AS k", f"v AS {v}") for side, v in ((left, "v"), (right, "w"))]
        return sides[0].key_by("k").join(sides[1].key_by("k"), interruptible=cut)
    if shape == "late":
        # The first rows of a batch come when windows of theirs have been put out.
        both = left.with_watermark("ts", "0 seconds").union(right.with_watermark("ts", "0 seconds"))
        short = both.key_by("k").window(bs.TumblingEventTimeWindows.of("2 seconds")).allowed_lateness("1 minute")
        return short.aggregate("sum(v) AS v").map("v % 10 AS v").key_by("v").aggregate("count(*) AS n")
    if shape == "temporal":
        return left.temporal_join(right.map("k", "v AS w", "seq AS at"), on="k", order="at").map("k", "seq", "w", "at")
    left, right = left.with_watermark("ts", "2 seconds"), right.with_watermark("ts", "2 seconds")
    windows = bs.TumblingEventTimeWindows.of("10 seconds")
    if shape == "co_group":
        return left.co_group(right).where("k").equal_to("k").window(windows).apply(Groups())
    if shape == "chain":
        # One input of the join has a state of its own, the other comes from its source.
        left = left.key_by("k").window(windows).aggregate("sum(v) AS v, min(seq) AS seq")
        left = left.map("k", "v", "seq", "window_time AS ts")
    right = right.map("k", "v AS w", "ts AS at")
    joined = left.key_by("k").interval_join(right.key_by("k"), how="left", interruptible=cut)
    return joined.between("-5 seconds", "5 seconds").map("k", "v", "seq", "w")


def start(spark: Any, job: dict[str, str]) -> bs.BacklogQuery:
    """Start the query that ``job`` describes: the same here and after the kill."""
    registry.add_connector("scripted", "tests.operators.scripted", "ScriptedDataSource")
    spark.conf.set("spark.backlog.timers.interruptible.enabled", str("interrupted" in job).lower())
    if "key_groups" in job:
        spark.conf.set("spark.backlog.keyGroups", job["key_groups"])
    source = bs.source("scripted", name="s", path=job["script"], bits="bits" in job)
    if "files" in job:
        source = bs.stream(spark.readStream.schema("k long, v long").parquet(job["files"])).union(source)
    if "shape" in job:
        other = bs.source("scripted", name="r", path=job["right"])
        sink = (
            bs.DeltaUpsert(job["target"], ["v"])
            if job["shape"] in ("join", "late", "top")
            else bs.DeltaAppend(job["target"])
        )
        writer = paired(source, other, job["shape"], cut="interrupted" in job).write("keyed").to(sink)
    elif "odd" in job:
        stream = source.with_watermark("ts", "2 seconds").key_by("k", order="seq").process(Windows(), name="windows")
        writer = stream.write("keyed").to(bs.DeltaAppend(job["target"]))
        writer = writer.to(bs.DeltaAppend(job["odd"]), side_output="odd")
    else:
        writer = source.key_by("k").aggregate(AGGREGATES).write("keyed").to(bs.DeltaUpsert(job["target"], keys=["k"]))
    return (
        writer.trigger(processing_time="100 ms", interval_during_backlog=0)
        .option("checkpointLocation", job["checkpoint"])
        .start(spark)
    )


def kill(*_: object, **__: object) -> None:
    """The driver, its JVM and every worker: they are one process group."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def kill_soon(*_: object, **__: object) -> None:
    """Kill in the middle of the next step."""
    threading.Timer(0.2, kill).start()


def before(owner: type, name: str, act: Callable[..., None] = kill) -> None:
    """Call ``act`` before a method runs."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: type, name: str) -> None:
    """Kill after a method has run."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        kill()

    setattr(owner, name, wrapped)


def half_published(self: Any, name: str, to: str) -> None:
    """Kill before the second seed appears."""
    if "/seed/" in to and to.endswith(".parquet"):
        half_published.seen += 1  # type: ignore[attr-defined]
        if half_published.seen == 2:  # type: ignore[attr-defined]
            kill()


half_published.seen = 0  # type: ignore[attr-defined]


def only_in_stream(act: Callable[..., None]) -> Callable[..., None]:
    """For a method of a query: only in a run of the stream vehicle."""

    def checked(self: BacklogQuery, *args: Any, **kwargs: Any) -> None:
        if not self._coordinator.step.ends_by_itself:
            act()

    return checked


def on_call(number: int, act: Callable[..., None] = kill) -> Callable[..., None]:
    """Only at the n-th call."""
    calls = iter(range(1, 1_000))

    def counted(*args: Any, **kwargs: Any) -> None:
        if next(calls) == number:
            act(*args, **kwargs)

    return counted


def during_the_fold(fold_class: type | None = None) -> None:
    """Kill from inside the batch's own job, while tasks run."""
    from backlog_spark.operators.merge import AggregateFold

    owner: Any = fold_class or AggregateFold
    original = owner.fold

    def fold(self: Any, rows: Any, base: Any) -> Any:
        group = os.getpgrp()

        def die(batches: Any) -> Any:
            for batch in batches:
                os.killpg(group, signal.SIGKILL)
                yield batch

        return original(self, rows.mapInArrow(die, rows.schema), base)

    owner.fold = fold


POINTS: dict[str, Callable[[], None]] = {
    "while tasks fold": during_the_fold,
    "before the state is valid": lambda: before(bs_checkpoint(), "write_file", only_for("/state/")),
    "before the output": lambda: before(bs.DeltaUpsert, "write"),
    "before the commit": lambda: after(bs.DeltaUpsert, "write"),
    "before the publication": lambda: before(BatchState, "publish"),
    "half published": lambda: before(bs_checkpoint(), "rename", half_published),
    "before the ledger knows": lambda: after(BatchState, "publish"),
    "before the stream run": lambda: after(StateHandover, "publish"),
    "in the first stream batch": lambda: before(BacklogQuery, "_write_batch", only_in_stream(kill)),
    "after the first stream output": lambda: after(bs.DeltaUpsert, "write"),
}


# Of the same query when a batch without rows has found out that there is backlog.
SILENT_POINTS: dict[str, Callable[[], None]] = {
    "before the first sorted run": lambda: before(StateHandover, "write", on_call(2)),
}


# Of the query with time: where the others do not lead.
TIMED_POINTS: dict[str, Callable[[], None]] = {
    "while tasks process": lambda: during_the_fold(process_fold()),
    "before the side output": lambda: before(bs.DeltaAppend, "write", on_call(2)),
    "before the event time is kept": lambda: before(Timekeeper, "_keep"),
    "before the commit": lambda: after(KeyedPlan, "written"),
    "half published": lambda: before(bs_checkpoint(), "rename", half_published),
    # The first stream batch takes the state in and fires what is due.
    "when timers have fired": lambda: after(bs.DeltaAppend, "write"),
    "before the first event time of the stream is kept": lambda: before(Timekeeper, "_keep"),
    "before a commit of the stream": lambda: after(KeyedPlan, "written"),
}


# Of the same query when a batch may fire a few timers only. The first stream batch takes the state in.
INTERRUPTED_POINTS: dict[str, Callable[[], None]] = {
    "when some timers have fired": lambda: before(BacklogQuery, "_write_batch", only_in_stream(on_call(2))),
    "when some timers have been written": lambda: before(KeyedPlan, "written", only_when_streaming(on_call(2))),
    "when more timers have been committed": lambda: before(BacklogQuery, "_write_batch", only_in_stream(on_call(3))),
}


# The state has many buckets, and each live batch changes some keys. By the third batch some changes are in the overlay.
KEPT_POINTS: dict[str, Callable[[], None]] = {
    "while state is taken in": lambda: before(BacklogQuery, "_write_batch", only_in_stream(on_call(1, kill_soon))),
    "when state has been taken in": lambda: before(KeyedPlan, "written", only_when_streaming(on_call(1))),
    "when changes are to be kept apart": lambda: before(BacklogQuery, "_write_batch", only_in_stream(on_call(3))),
    "while state is written": lambda: before(BacklogQuery, "_write_batch", only_in_stream(on_call(2, kill_soon))),
    "when changes have been written": lambda: before(KeyedPlan, "written", only_when_streaming(on_call(2))),
    "when more changes have been committed": lambda: before(BacklogQuery, "_write_batch", only_in_stream(on_call(3))),
}


# Of the query with time whose backlog comes behind live rows: its third batch and the next are of that later stay.
LATER_POINTS: dict[str, Callable[[], None]] = {
    "in a later stay": lambda: before(KeyedPlan, "written", on_call(3)),
    "one batch on": lambda: before(KeyedPlan, "written", on_call(2)),
}


def only_when_streaming(act: Callable[..., None]) -> Callable[..., None]:
    """For a method of a keyed plan: only in a run of the stream vehicle."""

    def checked(self: KeyedPlan, *args: Any, **kwargs: Any) -> None:
        if not self._coordinator.step.ends_by_itself:
            act()

    return checked


# Settings of `backlog_spark.spark.plan.cardinality` by which rows of small files are brought together by key.
SMALL = {"_WORTH_IT_BYTES": 0, "_SAMPLED_ROWS": 500, "_MANY_KEYS": 50, "_KEYS_A_PARTITION": 20}


def bring_together(mark: Path) -> None:
    """Shuffle rows of small files by key. ``mark`` exists after the first shuffle."""
    vars(cardinality).update(SMALL)
    original = cardinality.shuffled_by_key

    def marked(*args: Any) -> Any:
        found = original(*args)
        if found is not None:
            mark.touch()
        return found

    vars(versions)["shuffled_by_key"] = marked


def fire_few(timers: int = FEW_TIMERS) -> None:
    """Let each key group fire this many timers per batch."""
    FiringBudget.of = lambda self, reports: timers  # type: ignore[method-assign]


# Of queries with two inputs, whose results come at the end of the backlog.
PAIRED_POINTS: dict[str, Callable[[], None]] = {
    "while tasks keep rows": lambda: during_the_fold(rows_fold()),
    "before the end of the stay is kept": lambda: before(bs_checkpoint(), "write_metadata", only_for("stay-end")),
    "before the output": lambda: before(DeltaSink, "write"),
    "before what is handed over is kept": lambda: after(DeltaSink, "write"),
    "before what is handed over is valid": lambda: before(bs_checkpoint(), "write_file", only_for("/h")),
    "before the commit": lambda: after(KeyedPlan, "written"),
    "before the publication": lambda: before(BatchState, "publish"),
    "before the stream run": lambda: after(StateHandover, "publish"),
    "in the first stream batch": lambda: before(BacklogQuery, "_write_batch", only_in_stream(kill)),
    "after the first stream output": lambda: after(DeltaSink, "write"),
}


def only_for(text: str) -> Callable[..., None]:
    """For a method of the checkpoint that is given a name: only for names with this text."""

    def checked(self: Any, name: str, *args: Any, **kwargs: Any) -> None:
        if text in name:
            kill()

    return checked


def rows_fold() -> type:
    """The class of all operators that keep rows."""
    from backlog_spark.operators.rows import RowsFold

    return RowsFold


def process_fold() -> type:
    """The class, which is only loaded by queries that need it."""
    from backlog_spark.operators.process.fold import ProcessFold

    return ProcessFold


def bs_checkpoint() -> type:
    """The class, by way of its module: the package imports lazily."""
    from backlog_spark.spark.checkpoint.logs import Checkpoint

    return Checkpoint


# Of the query with time when its backlog comes in pieces: the first one puts out nothing, the second one all.
BITS_POINTS: dict[str, Callable[[], None]] = {
    "while tasks process": TIMED_POINTS["while tasks process"],
    "before a piece is committed": lambda: after(KeyedPlan, "written"),
    "before the end of the stay is kept": PAIRED_POINTS["before the end of the stay is kept"],
    "before the side output": TIMED_POINTS["before the side output"],
    "before the commit": lambda: after(KeyedPlan, "written"),
    "half published": TIMED_POINTS["half published"],
    "when timers have fired": TIMED_POINTS["when timers have fired"],
}


def main() -> None:
    job = json.loads(sys.argv[1])
    every = {**POINTS, **SILENT_POINTS, **TIMED_POINTS, **INTERRUPTED_POINTS, **KEPT_POINTS, **LATER_POINTS}
    every |= PAIRED_POINTS if "shape" in job else BITS_POINTS if "bits" in job else {}
    if len(sys.argv) > 2:
        every[sys.argv[2]]()
    if "interrupted" in job:
        fire_few()
    if "files" in job:
        bring_together(Path(job["together"]))
    # State as small as here would be put into one file, and could not be published by halves.
    conf = {"spark.sql.adaptive.coalescePartitions.enabled": "false", **job.get("conf", {})}
    start(job_session(**conf), job).awaitTermination()


if __name__ == "__main__":
    main()
