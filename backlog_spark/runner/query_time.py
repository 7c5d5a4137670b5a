"""Keeps time in a keyed query: turns greatest event times into watermarks, and sends them to the control sources.

The greatest event times are known after a batch has run, and count after it has committed. Before the commit they are
written to ``<checkpoint>/backlog/event-time-<batch>.json``. So a watermark survives a crash between a commit and the
next batch. That matters most at the switch, because the next batch may be long in coming.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backlog_spark.handover.versions import BatchState
from backlog_spark.model.nodes import KeyedNode, Node
from backlog_spark.model.record_attributes import STANDS_STILL, as_bits
from backlog_spark.model.trees import operator_attributes, readers_of_same_rows, watermark_nodes
from backlog_spark.model.watermark_tree import WatermarkTree
from backlog_spark.model.watermarks import END_OF_TIME, observation_name
from backlog_spark.operators.fold import Fold
from backlog_spark.runner.control import ControlDataSource, ControlMessages, ControlServer
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.batch_execution import UNKNOWN, greatest_event_times
from backlog_spark.spark.jvm.internals import require
from backlog_spark.spark.jvm.session import register_source, starting
from backlog_spark.state.timer_reports import FiringBudget, GroupReport, GroupReports

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Timekeeper"]

_log = logging.getLogger(__name__)

_FILE = re.compile(r"event-time-(\d+)\.json")


class Timekeeper:
    """Keeps the time of one query, on the driver.

    Parameters
    ----------
    spark : SparkSession
    checkpoint : Checkpoint
    root : Node
    key_groups : int
        ``spark.backlog.keyGroups``.
    mixed : bool
        Whether the query commits nothing during backlog. Then it sends no watermark either.
    max_firing_ms : int, optional
        How long a batch may fire timers, in milliseconds. The next batch fires the rest. None: no limit.
    judges_frames : bool
        Whether a rule says if streaming DataFrames are in backlog. Else it is unknown.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        root: Node,
        key_groups: int,
        *,
        mixed: bool,
        max_firing_ms: int | None = None,
        judges_frames: bool = False,
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._root = root
        self._key_groups = key_groups
        self._mixed = mixed
        self._max_firing_ms = max_firing_ms
        self._frames = False if judges_frames else None
        self._inputs = len(watermark_nodes(root))
        if self._inputs:
            require("event times")
        self._times = self._fresh()
        self._messages = ControlMessages()
        self._server: ControlServer | None = None
        self._folds: Mapping[str, Fold] = {}
        self._timed = [node.name for node in root.walk() if isinstance(node, KeyedNode) and node.is_timed]
        self._budgets: dict[str, FiringBudget] = {}
        # For each operator: all timers up to this watermark have fired.
        self._passed: dict[str, int | None] = {}
        self._firing: set[str] = set()
        self.reports: Accumulator[Any] = spark.sparkContext.accumulator({}, GroupReports())
        self._told_late = 0
        # Operators that read the same rows, and the late rows of each operator so far.
        self._readers = readers_of_same_rows(root)
        self._late = Counter[str]()
        self._kept: list[int] = []
        # For each operator: its newest version in backlog, and when its first processing-time timer is due.
        self._timers: dict[str, tuple[int, int | None]] = {}

    def _fresh(self) -> WatermarkTree:
        return WatermarkTree(self._root, lambda: int(time.time() * 1000))

    def control(self, operator: str) -> DataFrame:
        """An operator's control source. The first call starts the server; `close` stops it."""
        if self._server is None:
            register_source(self._spark, ControlDataSource)
            self._server = ControlServer(self._messages)
        options = {**self._server.options, "operator": operator, "keyGroups": str(self._key_groups)}
        with starting:
            return self._spark.readStream.format("backlog_control").options(**options).load()

    def begin(
        self,
        folds: Mapping[str, Fold],
        flags: Sequence[bool],
        finished: Sequence[bool],
        *,
        sorted_run: bool,
        tasks: int,
        epoch: int = -1,
    ) -> None:
        """Called before a run starts, while none is active.

        Parameters
        ----------
        folds : mapping of str to Fold
        flags, finished : sequence of bool
            For each declared source: whether it is processing backlog, and whether it has finished.
        sorted_run : bool
            Whether the run is sorted. A sorted run has no control-source consumer.
        tasks : int
            Partitions of the state.
        epoch : int
            The epoch of a sorted run without a batch to replay; else -1.
        """
        self._folds = folds
        self._times = self._fresh()
        committed = self._checkpoint.latest_committed()
        names = self._checkpoint.names_in("backlog")
        self._kept = sorted(int(m[1]) for name in names if (m := _FILE.fullmatch(name)))
        # The times of an uncommitted batch count after its replay.
        for newest in [n for n in self._kept if committed is not None and n <= committed][-1:]:
            self._recall(newest)
        if self._max_firing_ms is not None:
            for name in self._timed:
                if folds[name].interruptible and name not in self._budgets:
                    self._budgets[name] = FiringBudget(self._max_firing_ms, self._key_groups, tasks)
        # Which timers are left is unknown until the key groups have reported.
        self._passed = dict.fromkeys(self._timed)
        self._messages.begin({name: budget.of({}) for name, budget in self._budgets.items()})
        if sorted_run:
            self._messages.hold(wakes=epoch >= 0 and self._is_timer_due(epoch))
        else:
            self._tell(flags, finished)

    def _is_timer_due(self, epoch: int) -> bool:
        """Whether a processing-time timer is due in the state of a stay. It must fire even if no rows come."""
        now = time.time() * 1000
        for name in self._timed:
            state = BatchState(self._checkpoint, name, epoch)
            newest = state.newest()
            if newest is None:
                continue
            version, due = self._timers.get(name, (-1, None))
            if version != newest:
                fold = self._folds[name]
                due = fold.next_processing_timer(state.read(self._spark, fold, newest))
                self._timers[name] = newest, due
            if due is not None and due <= now:
                return True
        return False

    def take(
        self, batch_id: int, query_name: str, flags: Sequence[bool], finished: Sequence[bool], *, sorted_run: bool
    ) -> None:
        """Called when a batch has been written, before it commits.

        Parameters
        ----------
        flags, finished : sequence of bool
            For each declared source, at the batch's end: whether it is processing backlog, and whether it has finished.
        """
        if self._inputs and batch_id in self._kept:
            self._recall(batch_id)
        elif self._inputs and self._times.take(self._observed(batch_id, query_name)):
            self._keep(batch_id)
        if not sorted_run:
            reports: Mapping[tuple[str, int], GroupReport] = self.reports.value
            for name in self._timed:
                self._report(name, {group: report for (operator, group), report in reports.items() if operator == name})
            self._tell(flags, finished)
            late = self._told_late + self._new_late_rows(reports)
            if late > self._told_late:
                _log.warning(
                    "Query %s: %d late rows were dropped, %d so far. "
                    "Raise the delay of with_watermark, or give process a late_output.",
                    query_name, late - self._told_late, late,
                )  # fmt: skip
                self._told_late = late

    def _new_late_rows(self, reports: Mapping[tuple[str, int], GroupReport]) -> int:
        """Late rows since the last call. A row is counted once, whichever of the operators that read it drop it."""
        found = Counter[str]()
        for (operator, _), report in reports.items():
            found[operator] += report.late
        new, self._late = found - self._late, found
        return sum(max(new[name] for name in same) for same in self._readers)

    def _report(self, operator: str, reports: Mapping[int, GroupReport]) -> None:
        if len(reports) < self._key_groups:
            return  # some groups have not reported in this process: their first message has the time
        is_firing = any(report.is_firing for report in reports.values())
        if is_firing:
            self._firing.add(operator)
        else:
            self._firing.discard(operator)
            self._passed[operator] = min(report.watermark for report in reports.values())
        budget = self._budgets.get(operator)
        self._messages.report(
            operator,
            next_event=min(report.next_event for report in reports.values()),
            next_processing=min(report.next_processing for report in reports.values()),
            is_firing=is_firing and budget is not None,
            budget=None if budget is None else budget.of(reports),
        )

    def watermark_after(self, batch_id: int, query_name: str, finished: Sequence[bool]) -> int | None:
        """The watermark of all operators after the commit of the running batch, which has been executed.

        No source is in backlog then. ``finished``: which sources have finished.
        """
        ahead = self._fresh()
        ahead.take(self._times.greatest)
        if batch_id in self._kept:
            ahead.take((self._checkpoint.read_metadata(f"event-time-{batch_id}") or {}).get("greatest", ()))
        else:
            ahead.take(self._observed(batch_id, query_name))
        ahead.follow([False] * len(finished), finished)
        return ahead.least()

    @property
    def is_firing(self) -> bool:
        """Whether the next batch still has event-time timers to fire."""
        return any(name in self._firing for name in self._budgets)

    @property
    def has_ended(self) -> bool:
        """Whether every operator knows that its inputs have ended, and no timer is left to fire."""
        return all(self._passed.get(name) == END_OF_TIME for name in self._timed)

    @property
    def late_rows(self) -> int:
        """Late rows that were dropped, in this process.

        Of operators that read the same rows, the one that dropped the most in a batch counts.
        """
        return self._told_late

    def close(self) -> None:
        """Stop listening to control sources."""
        if self._server is not None:
            self._server.close()

    def _tell(self, flags: Sequence[bool], finished: Sequence[bool]) -> None:
        times = self._times
        times.follow(flags, finished)
        passed, firing = {name: self._passed[name] for name in self._budgets}, set(self._firing)
        # In mixed mode the greatest watermark is sent at the end of the backlog (FLIP-327, "Watermark strategy").
        held_back = self._mixed and any(flags)
        attributes = operator_attributes(self._root, flags, self._folds, finished, frames=self._frames)
        self._messages.tell(
            watermarks=dict if held_back else lambda: times.watermarks(passed, firing),
            backlog={name: as_bits(each) | (STANDS_STILL if held_back else 0) for name, each in attributes.items()},
        )

    def _recall(self, batch_id: int) -> None:
        found = self._checkpoint.read_metadata(f"event-time-{batch_id}") or {}
        self._times.take(found.get("greatest", ()))

    def _keep(self, batch_id: int) -> None:
        self._checkpoint.write_metadata(f"event-time-{batch_id}", {"greatest": self._times.greatest})
        # The newest file before this batch counts until this batch has committed.
        for old in [n for n in self._kept if n < batch_id][:-1]:
            self._checkpoint.delete(f"backlog/event-time-{old}.json")
        self._kept = [*[n for n in self._kept if n < batch_id][-1:], batch_id]

    def _observed(self, batch_id: int, query_name: str) -> list[int | None]:
        """Greatest event time of each input in the running batch, which has been executed.

        None for an input without rows, and where Spark does not report it. The latter is logged: the watermark then
        stays as it is until rows with later times come.
        """
        # Spark's listeners get it after the commit. It is needed before, so it is read from the batch's execution.
        nodes = watermark_nodes(self._root)
        names = [observation_name(number) for number in range(len(nodes))]
        found: list[int | None] = []
        for node, greatest in zip(nodes, greatest_event_times(self._spark, query_name, names), strict=True):
            if greatest is UNKNOWN:
                _log.warning(
                    "Query %s: Spark does not report the greatest %s of batch %d. "
                    "The watermark of that input stays as it is until later rows come.",
                    query_name, node.column, batch_id,
                )  # fmt: skip
            found.append(greatest if isinstance(greatest, int) else None)
        return found
