"""Time in a keyed query: greatest event times in, watermarks and due timers out to the control sources.

Event times are known when a batch has run, and count when it has committed. Before the commit they are written to
``<checkpoint>/backlog/event-time-<batch>.json``. So a watermark survives a crash between a commit and the next batch,
above all the one at the switch, which may be the last for a long time.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backlog_spark.model.nodes import KeyedNode, Node, operator_attributes, watermark_nodes
from backlog_spark.model.record_attributes import STANDS_STILL, as_bits
from backlog_spark.model.watermark_tree import WatermarkTree
from backlog_spark.model.watermarks import END_OF_TIME, observation_name
from backlog_spark.operators.fold import Fold
from backlog_spark.runner.control import Clerk, ControlDataSource, ControlServer
from backlog_spark.spark.batch_execution import UNKNOWN, greatest_event_times
from backlog_spark.spark.checkpoint import Checkpoint
from backlog_spark.spark.internals import require
from backlog_spark.spark.session import register_source, starting
from backlog_spark.spark.versions import BatchState
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
        Whether the query commits nothing while there is backlog: then no watermark is told either.
    max_firing_ms : int, optional
        How long a batch may fire timers before the rest is left to the next one, in milliseconds; None: all are fired.
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
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._root = root
        self._key_groups = key_groups
        self._mixed = mixed
        self._max_firing_ms = max_firing_ms
        self._inputs = len(watermark_nodes(root))
        if self._inputs:
            require("event times")
        self._times = self._fresh()
        self._clerk = Clerk()
        self._server: ControlServer | None = None
        self._folds: Mapping[str, Fold] = {}
        self._timed = [node.name for node in root.walk() if isinstance(node, KeyedNode) and node.is_timed]
        self._budgets: dict[str, FiringBudget] = {}
        # The watermark of which all timers have fired, of each operator.
        self._passed: dict[str, int | None] = {}
        self._firing: set[str] = set()
        self.reports: Accumulator[Any] = spark.sparkContext.accumulator({}, GroupReports())
        self._told_late = 0
        self._kept: list[int] = []
        # Of each operator's newest version in backlog: which it is, and when the first timer is due by the clock.
        self._timers: dict[str, tuple[int, int | None]] = {}

    def _fresh(self) -> WatermarkTree:
        return WatermarkTree(self._root, lambda: int(time.time() * 1000))

    def control(self, operator: str) -> DataFrame:
        """An operator's control source. The first one opens what `close` closes."""
        if self._server is None:
            register_source(self._spark, ControlDataSource)
            self._server = ControlServer(self._clerk)
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
        """A run starts; called while none is active.

        Parameters
        ----------
        folds : mapping of str to Fold
        flags, finished : sequence of bool
            Whether each declared source is processing backlog, and whether it has come to its end.
        sorted_run : bool
            Whether the run is sorted. A sorted run has no control-source consumer.
        tasks : int
            Partitions of the state.
        epoch : int
            Of a sorted run that has no batch to replay; else -1.
        """
        self._folds = folds
        self._times = self._fresh()
        committed = self._checkpoint.latest_committed()
        names = self._checkpoint.names_in("backlog")
        self._kept = sorted(int(m[1]) for name in names if (m := _FILE.fullmatch(name)))
        # One of a batch that was not committed counts when that has been replayed.
        for newest in [n for n in self._kept if committed is not None and n <= committed][-1:]:
            self._recall(newest)
        if self._max_firing_ms is not None:
            for name in self._timed:
                if folds[name].interruptible and name not in self._budgets:
                    self._budgets[name] = FiringBudget(self._max_firing_ms, self._key_groups, tasks)
        # Nothing is known of the timers that are left until the key groups have been asked.
        self._passed = dict.fromkeys(self._timed)
        self._clerk.begin({name: budget.of({}) for name, budget in self._budgets.items()})
        if sorted_run:
            self._clerk.hold(wakes=epoch >= 0 and self._is_timer_due(epoch))
        else:
            self._tell(flags, finished)

    def _is_timer_due(self, epoch: int) -> bool:
        """Whether a timer that goes by the clock is due in the state of a stay, though no rows may come."""
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
        """A batch has been written and is about to be committed.

        Parameters
        ----------
        flags, finished : sequence of bool
            Whether each declared source is processing backlog at the batch's end, and whether it has come to its own.
        """
        if self._inputs and batch_id in self._kept:
            self._recall(batch_id)
        elif self._inputs and self._times.take(self._observed(batch_id, query_name)):
            self._keep(batch_id)
        if not sorted_run:
            told: Mapping[tuple[str, int], GroupReport] = self.reports.value
            for name in self._timed:
                self._report(name, {group: report for (operator, group), report in told.items() if operator == name})
            self._tell(flags, finished)
            late = sum(report.late for report in told.values())
            if late > self._told_late:
                _log.warning(
                    "Query %s: %d rows came behind the watermark and were left out, %d so far. "
                    "Raise the delay of with_watermark, or give process a late_output.",
                    query_name, late - self._told_late, late,
                )  # fmt: skip
                self._told_late = late

    def _report(self, operator: str, reports: Mapping[int, GroupReport]) -> None:
        if len(reports) < self._key_groups:
            return  # some have not been asked in this process: the first thing that they are told is the time
        is_firing = any(report.is_firing for report in reports.values())
        if is_firing:
            self._firing.add(operator)
        else:
            self._firing.discard(operator)
            self._passed[operator] = min(report.watermark for report in reports.values())
        budget = self._budgets.get(operator)
        self._clerk.report(
            operator,
            next_event=min(report.next_event for report in reports.values()),
            next_processing=min(report.next_processing for report in reports.values()),
            is_firing=is_firing and budget is not None,
            budget=None if budget is None else budget.of(reports),
        )

    def watermark_after(self, batch_id: int, query_name: str, finished: Sequence[bool]) -> int | None:
        """The watermark that holds for all operators when the batch under way, which has been executed, is committed.

        Then no source is in backlog; ``finished`` is which ones have come to their end.
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
        """Whether timers of the watermark are left to the next batch."""
        return any(name in self._firing for name in self._budgets)

    @property
    def has_ended(self) -> bool:
        """Whether every operator has been told of the end of its inputs, and nothing is left to fire."""
        return all(self._passed.get(name) == END_OF_TIME for name in self._timed)

    @property
    def late_rows(self) -> int:
        """Rows that came behind the watermark and went nowhere, in this process."""
        return self._told_late

    def close(self) -> None:
        """Stop listening to control sources."""
        if self._server is not None:
            self._server.close()

    def _tell(self, flags: Sequence[bool], finished: Sequence[bool]) -> None:
        times = self._times
        times.follow(flags, finished)
        passed, firing = {name: self._passed[name] for name in self._budgets}, set(self._firing)
        # In mixed mode the greatest watermark of the backlog is told when it ends (FLIP-327, "Watermark strategy").
        held_back = self._mixed and any(flags)
        attributes = operator_attributes(self._root, flags, self._folds, finished)
        self._clerk.tell(
            watermarks=dict if held_back else lambda: times.watermarks(passed, firing),
            backlog={name: as_bits(each) | (STANDS_STILL if held_back else 0) for name, each in attributes.items()},
        )

    def _recall(self, batch_id: int) -> None:
        found = self._checkpoint.read_metadata(f"event-time-{batch_id}") or {}
        self._times.take(found.get("greatest", ()))

    def _keep(self, batch_id: int) -> None:
        self._checkpoint.write_metadata(f"event-time-{batch_id}", {"greatest": self._times.greatest})
        # The newest one before this batch counts until it has committed.
        for old in [n for n in self._kept if n < batch_id][:-1]:
            self._checkpoint.delete(f"backlog/event-time-{old}.json")
        self._kept = [*[n for n in self._kept if n < batch_id][-1:], batch_id]

    def _observed(self, batch_id: int, query_name: str) -> list[int | None]:
        """Greatest event time of each input in the batch under way, which has been executed.

        None for an input without rows, and where Spark does not tell, which is logged: the watermark then stays behind
        until rows with later times come.
        """
        # Spark tells its listeners after the commit; what is needed before is with the batch's execution.
        nodes = watermark_nodes(self._root)
        names = [observation_name(number) for number in range(len(nodes))]
        found: list[int | None] = []
        for node, greatest in zip(nodes, greatest_event_times(self._spark, query_name, names), strict=True):
            if greatest is UNKNOWN:
                _log.warning(
                    "Query %s: Spark does not tell the greatest %s of batch %d. "
                    "The watermark of that input stays as it is until later rows come.",
                    query_name, node.column, batch_id,
                )  # fmt: skip
            found.append(greatest if isinstance(greatest, int) else None)
        return found
