"""Switches queries of Spark's own sources between backlog and stream: `backlog_query`.

Spark cannot change the trigger of a running query or the rate limit of its sources. So in backlog the query runs in
*rounds*. A round reads the present data (``availableNow``) and ends by itself. A limit makes its batches take the
interval during backlog. When the rules say that the backlog is over, the query starts with its normal trigger on the
same checkpoint. When the rules report backlog again, that run ends at its next batch boundary, and rounds follow. A
switch interrupts no batch.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from backlog_spark.common.failure_causes import with_next_step
from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.intervals import Intervals, resolve_intervals
from backlog_spark.common.settings import parse_settings
from backlog_spark.decide.available_now_runs import after_round, first_round, leaves
from backlog_spark.decide.coordinator import Coordinator
from backlog_spark.decide.reports import ProgressReport
from backlog_spark.decide.rules import Judge, UserRule, check_user_rule, figures, flagged, parse_rules
from backlog_spark.decide.steps import Facts, Mode
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.native.hybrid import CONF, NativeHybrid
from backlog_spark.native.run_context import RunContext
from backlog_spark.runner.interrupts import ending_on_interrupt
from backlog_spark.runner.query_progress import QueryTracker
from backlog_spark.runner.runs import QueryRuns
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.foreign.outstanding_files import Outstanding
from backlog_spark.spark.jvm.own_settings import start_with
from backlog_spark.spark.jvm.session import check_session, own_conf, session_listener
from backlog_spark.spark.jvm.stop_between_batches import reporting_its_end
from backlog_spark.spi.offset_flags import has_flag
from backlog_spark.spi.pacing import PROBE_ROWS, BacklogSizer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["NativeQuery", "backlog_query"]


@checked_arguments
def backlog_query(
    build: Callable[[RunContext], DataStreamWriter],
    *,
    checkpoint: str,
    name: str = "",
    spark: SparkSession | None = None,
    interval: str | timedelta | None = None,
    interval_during_backlog: str | int | timedelta | None = None,
    to_table: str = "",
    source: NativeHybrid | None = None,
    backlog_when: UserRule | None = None,
) -> NativeQuery:
    """Start a query of Spark's own sources that switches between backlog and stream.

    Parameters
    ----------
    build : callable
        Takes a `RunContext` and returns a ``DataStreamWriter`` that is not started. Called for each run, so it must
        make the same query every time; only the sources' rate limits may differ. The normal run keeps its trigger if no
        interval is set. Its checkpoint location is replaced.
    checkpoint : str
        Checkpoint location; it may be that of an existing query.
    name : str, optional
        Name of the query. Default: the writer's own.
    spark : SparkSession, optional
        Default: the active session.
    interval, interval_during_backlog : optional
        Override ``spark.backlog.interval`` and ``spark.backlog.intervalDuringBacklog``. Without an interval during
        backlog the query never switches.
    to_table : str, optional
        Table to write to, as in ``DataStreamWriter.toTable``.
    source : NativeHybrid, optional
        Phases, made with `hybrid`. All but the last are backlog. In the last one the rules decide.
    backlog_when : callable, optional
        A rule of your own, beside those that are set: called on the driver after each batch with its
        `backlog_spark.decide.reports.ProgressReport`; returns True, False, or None if it does not know. An exception or
        another value ends the query.

    Returns
    -------
    NativeQuery
        Started.

    Raises
    ------
    BacklogError
        For wrong settings, and without any rule (``spark.backlog.rule.*`` or ``backlog_when``).

    Notes
    -----
    With an interval during backlog of 0 a round is one batch with all present data. If live data keeps coming
    there are several rounds, and each commits. This differs from sources that carry a flag.
    """
    from pyspark.sql import SparkSession

    _check_build(build)
    session: Any = spark or SparkSession.getActiveSession()
    check_session(session)
    given = {"interval": interval, "interval_during_backlog": interval_during_backlog}
    if backlog_when is not None:
        check_user_rule(backlog_when)
    with with_next_step("The query could not be started"):
        query = NativeQuery(
            session, build, checkpoint, name=name, intervals=given, to_table=to_table, source=source,
            own_rule=backlog_when,
        )  # fmt: skip
        return query._launch()


def _check_build(build: object) -> None:
    problem = "" if callable(build) else "is no function."
    if callable(build):
        with contextlib.suppress(ValueError):  # the signature of some functions in C is unknown
            try:
                inspect.signature(build).bind(None)
            except TypeError as error:
                problem = f"cannot be called with one argument: {error}."
    if problem:
        raise SettingError(
            "build", build, problem, "Pass a function of a RunContext that returns a DataStreamWriter, not started."
        )


class NativeQuery(QueryRuns):
    """A running query of `backlog_query`. Has the members of Spark's ``StreamingQuery``, and the backlog's state."""

    def __init__(
        self,
        spark: SparkSession,
        build: Callable[[RunContext], DataStreamWriter],
        checkpoint_location: str,
        *,
        name: str,
        intervals: Mapping[str, object],
        to_table: str,
        source: NativeHybrid | None = None,
        own_rule: UserRule | None = None,
    ) -> None:
        if not checkpoint_location:
            raise SettingError("checkpoint", checkpoint_location, "a query needs one.", "Pass checkpoint='…'.")
        conf = own_conf(spark)
        settings = parse_settings(conf)
        self._intervals: Intervals = resolve_intervals(intervals, conf, [])
        rules, min_stay_ms = parse_rules(settings)
        judge = Judge(rules, min_stay_ms, own_rule)
        if self._intervals.during_backlog_ms is not None and not judge.needs and source is None:
            raise SettingError(
                self._intervals.during_backlog_origin,
                self._intervals.during_backlog_ms,
                "no rule says when the query is in backlog.",
                "Set a rule, such as spark.backlog.rule.offsetsBehindLatest for Kafka, or pass backlog_when=….",
            )
        during = self._intervals.during_backlog_ms
        facts = Facts(self._intervals.interval_ms, during, ours=(), has_frames=True)
        coordinator = Coordinator(facts, judge)
        super().__init__(spark, name, Checkpoint(spark, checkpoint_location), QueryTracker(name, coordinator), settings)
        self._build = build
        self._to_table = to_table
        self._outstanding = Outstanding(spark, self._checkpoint, coordinator.rules.needs)
        self._sizer = BacklogSizer(during) if during else None
        self._limit = PROBE_ROWS
        self._wanted = PROBE_ROWS
        self._source = None if source is None else source._of_query()
        self._phase = 0
        self._in_round = False
        self._began = time.monotonic()

    def _launch(self) -> NativeQuery:
        """Start the first run, and follow it. Called once, by `backlog_query`."""
        session_listener(self._spark)
        self._begin()
        return self

    def _recall(self) -> None:
        if self._source is not None:
            self._phase = self._source._recall(self._checkpoint)
        self._in_round = first_round(self._coordinator, is_bounded=self._is_bounded())
        self._tracker.began(self._coordinator.begin({0: True} if self._is_bounded() else {}))

    def _is_bounded(self, phases: int = 0) -> bool:
        """Whether the present phase, or the one this many phases later, is bounded."""
        return self._source is not None and self._phase + phases < len(self._source.phases) - 1

    def _run(self) -> StreamingQuery:
        self._limit = self._wanted
        context = self._context()
        if self._source:
            self._source._mend(self._checkpoint)
            context = replace(context, _frame=self._source._frame(self._phase, context, self._checkpoint))
        writer = self._build(context)
        conf = CONF if self._source else {}
        with reporting_its_end(self._spark) if self._in_round else contextlib.nullcontext():
            started = start_with(self._spark, self._checkpoint.qualified(), conf, lambda: self._start(writer))
        self._name = self._name or started.name or str(started.id)
        return self._subscribe(started)

    def _explained(self) -> list[str]:
        """See `QueryRuns`."""
        return self._source._explained(self._phase) if self._source else []

    def _described(self) -> dict[str, Any]:
        return {
            "interval_ms": self._intervals.interval_ms,
            "interval_during_backlog_ms": self._intervals.during_backlog_ms,
            "sources": [],
            "phases": list(self._source.phases) if self._source else None,
            "spark": self._spark.version,
        }

    def _targets(self) -> list[str]:
        return [self._to_table] if self._to_table else []

    def _described_run(self) -> dict[str, Any]:
        if self._is_bounded():
            why = "a phase that ends"
        elif self._in_round:
            why = (
                "a rule says backlog" if self._coordinator.rules.is_backlog else "the rows that were there at the start"
            )
        else:
            why = "no backlog"
        phase = self._source.phases[self._phase] if self._source else None
        return {"phase": phase, "trigger_ms": None if self._in_round else self._intervals.interval_ms, "why": why}

    def _context(self) -> RunContext:
        during = self._intervals.during_backlog_ms
        in_backlog = self._in_round and during is not None
        return RunContext(
            self._spark,
            Mode.BACKLOG if in_backlog else Mode.STREAM,
            self._limit if in_backlog and during else None,
            self._source.phases[self._phase] if self._source else "",
            self._source._starting_timestamp if self._source and not self._is_bounded() else None,
        )

    def _start(self, writer: DataStreamWriter) -> StreamingQuery:
        if not hasattr(writer, "trigger") or hasattr(writer, "awaitTermination"):
            raise BacklogError(
                f"build returned {type(writer).__name__}.", "Return the DataStreamWriter, without calling start()."
            )
        writer = writer.option("checkpointLocation", self._checkpoint.location)
        if self._name:
            writer = writer.queryName(self._name)
        if self._in_round:
            writer = writer.trigger(availableNow=True)
        elif self._intervals.interval_ms:
            writer = writer.trigger(processingTime=f"{self._intervals.interval_ms} milliseconds")
        self._began = time.monotonic()
        return writer.toTable(self._to_table) if self._to_table else writer.start()

    def _take(self, report: ProgressReport) -> None:
        now = time.time() * 1000
        indices = [source.index for source in report.sources if not has_flag(source.end_offset)]
        if self._is_bounded():
            report = flagged(report, dict.fromkeys(indices, True), dict.fromkeys(indices, True))
        else:
            interval = None if self._in_round else self._intervals.interval_ms
            name = self._source._source(self._source.phases[self._phase]) if self._source else ""
            found = figures(report, now, interval, self._outstanding.of(report, name))
            report = self._coordinator.judge(report, indices, found, time.monotonic() * 1000)
        super()._take(report)
        # There is more data, so the limit decided the size of this batch.
        is_more = self._is_bounded() or self._coordinator.rules.is_backlog
        if self._in_round and self._sizer is not None and report.num_input_rows and is_more:
            self._sizer.started(self._limit, now - max(1, report.duration_ms.get("triggerExecution", 1)))
            self._wanted = self._sizer.next_rows(now)

    def _leave(self) -> bool:
        return leaves(self._coordinator, in_round=self._in_round, limit=self._limit, wanted=self._wanted)

    def _ends_by_itself(self) -> bool | None:
        if self._in_round:
            return True
        return False if self._intervals.interval_ms else None  # `build` has set the trigger

    def _has_an_end(self) -> bool:
        return self._is_bounded()  # the next round reads the rest

    def _go_on(self, *, idle: bool, left: bool) -> bool:
        then = after_round(
            self._coordinator, in_round=self._in_round, left=left, idle=idle, is_bounded=self._is_bounded(),
            next_is_bounded=self._is_bounded(1), took_ms=(time.monotonic() - self._began) * 1000,
        )  # fmt: skip
        if then.next_phase and self._source is not None:
            self._source._leave(self._checkpoint, self._phase, self._context())
            self._phase += 1
            if not self._is_bounded():
                self._drain()
            self._wanted = PROBE_ROWS  # the measurement is of another source
        if then.is_drained:
            self._drain()
        self._in_round = then.in_round
        return then.goes_on

    def processAllAvailable(self) -> None:
        """Wait until all data present now are committed. For tests, like Spark's method."""
        with ending_on_interrupt(self):
            self._process_all()
            if self.isEnding:
                self._ended.wait()

    def _process_all(self) -> None:
        while self.isActive:
            run, before = self.streamingQuery, self._checkpoint.latest_committed()
            if not self._processed(run):
                continue
            busy = self._in_round or self._is_between_runs(run)
            if self._checkpoint.latest_committed() == before and not busy:
                return
            time.sleep(0.2)
