"""The query runner: carries out the steps of `backlog_spark.decide.next_step`, and reports back to it.

* Connector sources pace themselves (`backlog_spark.spi.pacing`). The query runs with an immediate trigger. The source
  sizes batches in backlog and spaces them afterwards. It asks the runner whether another source is in backlog. Then it
  spaces batches by the interval during backlog. The switch is a batch boundary of a running query and costs nothing.
* Streaming DataFrames do not pace themselves. With them in the query the trigger spaces batches, and connector sources
  only size them.
* With the interval during backlog unset the query is plain Spark with a processing-time trigger.
* If keyed operators commit nothing during backlog, the query runs twice: first sorted, then as stream
  (`backlog_spark.runner.keyed_query`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backlog_spark.common.failure_causes import first_line, was_interrupted
from backlog_spark.common.failure_causes import next_step as hint_of
from backlog_spark.common.intervals import Intervals, resolve_intervals
from backlog_spark.common.settings import parse_settings
from backlog_spark.decide.next_step import (
    AVAILABLE_NOW,
    BatchEnd,
    Facts,
    Seen,
    Step,
    Then,
    after_report,
    after_run,
    at_batch_end,
    next_step,
)
from backlog_spark.decide.promises import Promises, refuse_rows_again
from backlog_spark.decide.reports import ProgressReport
from backlog_spark.decide.rules import Judge, figures, flagged, parse_rules
from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import (
    Node,
    SourceNode,
    has_frames,
    informed,
    is_timed,
    sources_of,
)
from backlog_spark.model.plan_checks import check_source_names
from backlog_spark.runner.identity import operators_of, record_of, writer_of
from backlog_spark.runner.keyed_query import KeyedPlan
from backlog_spark.runner.query_progress import QueryTracker
from backlog_spark.runner.runs import NEXT_RUN_S, QueryRuns
from backlog_spark.runner.signal_log import SignalLog
from backlog_spark.runner.source_loader import SourceLoader
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext
from backlog_spark.sinks.outputs import Outputs
from backlog_spark.spark.batch_frames import arrow_batches, persisted
from backlog_spark.spark.checkpoint import Checkpoint
from backlog_spark.spark.checkpoint_store import check_is_no_pattern
from backlog_spark.spark.driver_claim import NewerDriver
from backlog_spark.spark.internals import require
from backlog_spark.spark.outstanding_files import Outstanding
from backlog_spark.spark.own_settings import start_with
from backlog_spark.spark.plan_builder import Plans
from backlog_spark.spark.session import own_conf, register, session_conf
from backlog_spark.spark.source_layout import DeclaredSources
from backlog_spark.spark.stop_between_batches import (
    INTERRUPTED,
    end_after_batch,
    reporting_its_end,
    set_interval_after_batch,
)
from backlog_spark.spi.pacing import poll_every_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType


__all__ = ["BacklogQuery"]

_log = logging.getLogger(__name__)

# Spark polls every 10 ms by default. Polling a Python source that often keeps a third of a core busy.
_LONGEST_POLL_MS = 1_000
_POLLING_DELAY = "spark.sql.streaming.pollingDelay"
# How long a batch may fire timers if the query has no interval.
_FIRING_MS = 1_000
_LONGEST_ERROR = 500
_SNAPSHOTS = "snapshots"  # in the checkpoint


class BacklogQuery(QueryRuns):
    """A running query. Has the members of Spark's ``StreamingQuery``, and the state of the backlog.

    ``BacklogStreamWriter.start`` makes it. To recover, make the same call with the same checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        node: Node,
        sinks: Mapping[str, Sink],
        *,
        name: str,
        checkpoint_location: str,
        intervals: Mapping[str, object],
        available_now: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        check_source_names(node)
        if node.is_keyed:
            check_is_no_pattern(checkpoint_location)
        conf = own_conf(spark)
        settings = parse_settings(conf)
        self.intervals: Intervals = resolve_intervals(intervals, conf, [(s.name, s.options) for s in sources_of(node)])
        tracker = QueryTracker(name, self.intervals)
        super().__init__(spark, name, Checkpoint(spark, checkpoint_location), tracker, settings)
        register(spark)
        self._signals = SignalLog(self._checkpoint, sources_of(node))
        self._loader = SourceLoader(
            spark, self._checkpoint, lambda: self._in_backlog or self._judge.is_backlog, self._signals
        )
        self._infos = [self._loader.inspect(spec) for spec in sources_of(node)]
        self._node = node = informed(node, self._infos)
        refuse_rows_again(node, self._infos)
        self._outputs = Outputs(sinks)
        main = self._outputs.main
        self._promises = Promises(
            node, self._infos, getattr(main, "keys", ()),
            keeps_newest=main.keeps_newest, fills=lambda of_one_table: main.fills(of_one_table=of_one_table),
        )  # fmt: skip
        self._options = dict(options or {})
        self._writes = threading.Lock()
        self._sink_error: BacklogError | None = None
        self._snapshot_of: tuple[tuple[str, str], ...] = ()
        self._then = Then(True)
        self._waits_ms: int | None = None  # the present trigger interval
        self._in_backlog = False  # any source of ours, at the end of the newest batch
        self._declared = DeclaredSources(self._checkpoint, node, self._infos, record_of(spark, node, self._outputs))
        rules, min_stay_ms = parse_rules(settings)
        self._judge = Judge(rules if has_frames(node) else (), min_stay_ms)
        self._outstanding = Outstanding(spark, self._checkpoint, self._judge.needs)
        self._facts = Facts(
            interval_ms=self.intervals.interval_ms,
            during_backlog_ms=self.intervals.during_backlog_ms,
            is_keyed=node.is_keyed,
            sorts_each_batch=settings["spark.backlog.sortedBatch.enabled"] == "true",
            available_now=available_now,
            ours=tuple(info is not None for info in self._infos),
            has_frames=has_frames(node),
            has_rules=bool(self._judge.needs),
            waits_for_rows=bool(self._infos and self._infos[0] and self._infos[0].waits_for_rows),
            is_timed=is_timed(node),
        )
        self._step = Step(None, 0)
        self._keyed: KeyedPlan | None = None
        if node.is_keyed:
            key_groups = int(settings["spark.backlog.keyGroups"] or 0) or None
            self._keyed = KeyedPlan(
                spark, self._checkpoint, node, key_groups, self._facts,
                max_firing_ms=_max_firing_ms(settings, self.intervals),
            )  # fmt: skip

    # -- starting -------------------------------------------------------------------------------------------

    def start(self) -> BacklogQuery:
        """Start and follow the query. Called once, by the writer.

        Raises
        ------
        BacklogError
            If the query cannot start. No row has been read then.
        """
        self._begin()
        return self

    def _recall(self) -> None:
        if self._facts.has_frames and self._facts.sorts_backlog:
            require("end between batches")  # rows of the frames after the end of the backlog must not come sorted
        specs = sources_of(self._node)
        if self._checkpoint.latest_batch() is None:
            self._loader.check_first(specs)
        self._declared.recall(
            lambda output: self._outputs.has_rows_of(output, self._spark, self._checkpoint.identity())
        )
        self._signals.recall()
        self._loader.check(specs, self._declared.offsets())

    def _load(self, node: SourceNode) -> DataFrame:
        frame = self._loader.load(node, self._facts, self._step.target, self._promises.of_old_rows)
        self._declared.add(node, frame)
        return frame

    def _decide(self) -> Step:
        flags = self._declared.flags()
        seen = Seen(
            planned=self._checkpoint.latest_batch(),
            committed=self._checkpoint.latest_committed(),
            in_backlog=any(flags),
            rule_holds=self._judge.is_backlog,
            finished=tuple(self._declared.finished()),
            merges=self._keyed is not None and self._keyed.merges,
            has_unread_seeds=self._keyed is not None and self._keyed.has_unread_seeds(),
            is_last_run=self._then.is_last_run,
        )
        self._first_batch = 0 if seen.committed is None else seen.committed + 1
        return next_step(self._facts, seen, None if self._keyed is None else self._keyed.ledger())

    def _prepare(self) -> tuple[DataFrame, StructType, dict[str, str]]:
        """The streaming DataFrame of the next run, the schema of its output, and the configuration that it needs."""
        if self._keyed is None:
            frame = Plans(self._spark, self._load).stream(self._node)
            return frame, frame.schema, {}
        return self._keyed.start(self._step, self._declared.flags(), self._declared.finished(), self._load)

    def _described(self) -> dict[str, Any]:
        return {
            "interval_ms": self.intervals.interval_ms,
            "interval_during_backlog_ms": self.intervals.during_backlog_ms,
            "sources": [{"name": spec.name, "format": spec.format} for spec in sources_of(self._node)],
            "sink": type(self._outputs.main).__name__,
            "operators": list(operators_of(self._node)),
            "spark": self._spark.version,
        }

    def _described_run(self) -> dict[str, Any]:
        step = self._step
        vehicle = None if step.run is None else step.run.vehicle.value
        return {"vehicle": vehicle, "trigger_ms": step.trigger_ms, "why": step.why}

    def _leave(self) -> bool:
        return after_report(
            self._facts, self._step,
            in_backlog=self._tracker.is_processing_backlog,
            merges=self._keyed is not None and self._keyed.merges,
            has_running_sources=self._tracker.has_running_sources,
            finished=self._declared.finished(self._checkpoint.latest_committed()),
        )  # fmt: skip

    def _run(self) -> StreamingQuery:
        self._declared.load_again()
        self._step = step = self._decide()
        frame, schema, conf = self._prepare()
        if self._declared.settle(frame):
            self._tracker.begin(self._declared.flags_by_number(), self._declared.names_by_number())
        self._in_backlog = any(self._declared.flags())
        self._open_sinks(schema)
        writer = frame.writeStream.queryName(self._name).options(**self._options).foreachBatch(self._write_batch)
        if self._keyed is not None:
            writer = writer.outputMode("update")
        self._waits_ms = step.trigger_ms
        if step.trigger_ms is AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{step.trigger_ms} milliseconds")
        if self._facts.sources_pace or self._facts.source_waits:
            delay = poll_every_ms(0 if self._facts.source_waits else self._facts.interval_ms)
            conf = {**conf, _POLLING_DELAY: f"{delay}ms"}
        with reporting_its_end(self._spark) if self._ends_by_itself() else contextlib.nullcontext():
            return self._subscribe(start_with(self._spark, self._checkpoint.qualified(), conf, writer.start))

    def _find_snapshots(self) -> tuple[tuple[str, str], ...]:
        """The tables whose snapshots the query begins with. The first start decides, for ever."""
        if self._checkpoint.latest_batch() is not None:
            noted = self._checkpoint.newest_metadata(_SNAPSHOTS) or {"tables": []}
            return tuple((database, table) for database, table in noted["tables"])
        found = self._promises.snapshots
        if found or self._checkpoint.newest_metadata(_SNAPSHOTS):
            self._checkpoint.replace_metadata(_SNAPSHOTS, {"tables": list(found)})
        return found

    def _open_sinks(self, schema: StructType) -> None:
        self._snapshot_of = self._find_snapshots()
        self._outputs.open(
            SinkContext(
                self._spark,
                self._checkpoint.identity(),
                schema,
                self._promises.is_unique_in_backlog,
                self._checkpoint.latest_batch(),
                self._checkpoint.latest_committed(),
                rows_are_results=self._keyed is not None,
                of_one_table=self._promises.is_of_one_table,
                snapshot_of=self._snapshot_of,
                directory=self._checkpoint.location_of("backlog/sink"),
                writer=writer_of(self._name, self._node, self._infos),
            ),
            {} if self._keyed is None else self._keyed.side_outputs,
        )

    def between_batches(self) -> AbstractContextManager[object]:
        """While this lasts, no batch is written to the sinks. For steps of seconds: the query waits."""
        return self._writes

    def _write_batch(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._check_driver(batch_id)
            logged = self._checkpoint
            info = BatchInfo(
                batch_id,
                logged.is_backlog(batch_id),
                logged.has_table_events(batch_id),
                logged.has_changes(batch_id),
                () if self._node.is_keyed else logged.fills(batch_id),
                logged.snapshot(batch_id, len(self._infos)) if self._snapshot_of else "",
            )
            with self._writes:
                self._hand_over(batch, info)
        except Exception as error:
            # Spark matches the text of an error raised here with a regular expression. A long Java trace overflows
            # the stack there, and Spark's thread dies silently. So the error has one line.
            interrupted = was_interrupted(error)
            if self._stopping.is_set() and not interrupted:
                _log.warning(
                    "Batch %d of query %s failed while it was stopped: %s", batch_id, self._name, first_line(error)
                )
            if self._stopping.is_set() or (self._leaving and interrupted):
                raise RuntimeError(INTERRUPTED) from None
            if isinstance(error, NewerDriver):
                self._sink_error = error
            else:
                problem = f"Batch {batch_id} of query {self._name!r} failed: {first_line(error)}"
                self._sink_error = BacklogError(problem, hint_of(str(error)))
                self._sink_error.__cause__ = error
            raise RuntimeError(str(self._sink_error)[:_LONGEST_ERROR]) from None

    def _hand_over(self, batch: DataFrame, info: BatchInfo) -> None:
        # For Spark's UI. Its own description of the job comes back with the next batch.
        mode = "backlog" if info.is_backlog else "live rows"
        batch.sparkSession.sparkContext.setJobDescription(f"{self._name}: batch {info.batch_id}, {mode}")
        flags = self._declared.flags(info.batch_id)
        self._in_backlog = any(flags)  # sources plan the next batch only after this one has committed
        if self._keyed is None:
            self._outputs.write(batch, {}, info)
            self._tracker.wrote(info.batch_id, self._outputs.main.written)
            return
        taken = self._keyed.take(batch, self._name)
        # Each sink or operator that reads the batch would run its plan again.
        several = self._keyed.reads_several_times(several_outputs=self._outputs.several)
        spark, settings = batch.sparkSession, self._keyed.batch_settings
        with persisted(taken.raw) if several else contextlib.nullcontext(), session_conf(spark, settings):
            finished = self._declared.finished(info.batch_id)
            at_start = self._declared.flags(info.batch_id - 1), self._declared.finished(info.batch_id - 1)
            output, sides = self._keyed.output(taken, info.batch_id, self._name, flags, finished, at_start)
            with session_conf(spark, arrow_batches(output) if settings else {}):
                self._outputs.write(output, sides, info)
            self._tracker.wrote(info.batch_id, self._outputs.main.written)
            self._keyed.written(taken, info.batch_id, self._name, flags, finished)
        end = BatchEnd(self._in_backlog, self._keyed.stay_ended, self._keyed.is_firing, self._keyed.merges)
        boundary = at_batch_end(self._facts, self._step, end)
        if boundary.leaves:
            self._leaving = True
            for query in self._active():
                end_after_batch(query)
        if boundary.wait_ms is not None and boundary.wait_ms != self._waits_ms:
            self._waits_ms = boundary.wait_ms
            for query in self._active():
                set_interval_after_batch(query, boundary.wait_ms)

    def _active(self) -> list[StreamingQuery]:
        """The present run, also in its first batch."""
        return [query for query in self._spark.streams.active if query.name == self._name]

    def _take(self, report: ProgressReport) -> None:
        report, foreign = self._declared.reported(report), self._declared.foreign
        if self._judge.needs:
            judged = replace(report, sources=tuple(s for s in report.sources if s.index in foreign))
            before = self._judge.is_backlog
            interval = None if self._step.ends_by_itself else self.intervals.interval_ms
            found = figures(judged, time.time() * 1000, interval, self._outstanding.of(judged))
            after = self._judge.take(found, time.monotonic() * 1000)
            report = flagged(report, dict.fromkeys(foreign, after), dict.fromkeys(foreign, before))
        super()._take(report)

    # -- between runs, in the runner's own thread ------------------------------------------------------------

    def _go_on(self, *, idle: bool, left: bool) -> bool:
        timers_done = self._keyed is None or self._keyed.has_ended
        self._then = then = after_run(self._facts, self._step, idle=idle, left=left, timers_done=timers_done)
        if then.is_drained:
            self._judge.end(time.monotonic() * 1000)
            self._tracker.all_read(self._declared.foreign)
        return then.goes_on and not self._ending.wait(then.wait_ms / 1000)

    def _ends_by_itself(self) -> bool:
        return self._step.trigger_ms is AVAILABLE_NOW

    def _why(self) -> BaseException | None:
        error, self._sink_error = self._sink_error or self.streamingQuery.exception(), None
        return error

    def _close(self) -> None:
        self._loader.close()
        if self._keyed is not None:
            self._keyed.close()

    # -- the query's state ---------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The last node of the query's tree."""
        return self._node

    @property
    def sink(self) -> Sink:
        """The sink of the main output, as the query uses it; to be read only."""
        return self._outputs.main

    @property
    def keyed(self) -> KeyedPlan | None:
        """The keyed part, if there is a keyed operator. Read-only, for `backlog_spark.explain`."""
        return self._keyed

    @property
    def sortsBacklog(self) -> bool:
        """Whether the keyed operators run sorted during backlog. `keyed` shows whether they do now."""
        return self._facts.sorts_backlog

    @property
    def sourcesInBacklog(self) -> tuple[str, ...]:
        """Names of the sources in backlog, as of the newest batch. Rules decide for streaming DataFrames."""
        flagged = zip(sources_of(self._node), self._declared.flags(), strict=True)
        frames = ("streaming DataFrames",) if self._judge.is_backlog else ()
        return (*(source.name for source, is_backlog in flagged if is_backlog), *frames)

    @property
    def lateRows(self) -> int:
        """Late rows without a side output, since this process started the query."""
        return 0 if self._keyed is None else self._keyed.late_rows

    def state(self, name: str) -> DataFrame:
        """A keyed operator's state, as the rows that it would emit for every key. For debugging.

        Parameters
        ----------
        name : str
            The operator's name.

        Raises
        ------
        BacklogError
            If there is no such operator.
        """
        if self._keyed is None:
            raise BacklogError(f"The query {self._name!r} has no keyed operator.", "State is kept after a key_by.")
        return self._keyed.state(name)

    def signal(
        self, kind: str, data: Mapping[str, Any] | None = None, *, source: str | None = None, id: str | None = None
    ) -> str:
        """Send a signal to a source, such as ``execute-snapshot``. Returns when the checkpoint has it.

        The source carries it out exactly once, also if driver or workers are killed. What is left to do is in its
        offset.

        Parameters
        ----------
        kind : str
            The type of the signal, such as ``"execute-snapshot"``, ``"pause-snapshot"``, ``"resume-snapshot"`` or
            ``"stop-snapshot"`` of ``mysql_cdc``, with the names and the data of Debezium.
        data : mapping, optional
            For example ``{"data-collections": ["shop.orders"]}``.
        source : str, optional
            The name of the source, if several take signals.
        id : str, optional
            Names the signal in the log. Default: a random one.

        Returns
        -------
        str
            The id.

        Raises
        ------
        BacklogError
            No source takes signals, or this one cannot carry out the signal. Nothing has changed then.

        Examples
        --------
        >>> query.signal("execute-snapshot", {"data-collections": ["shop.orders"]})  # doctest: +SKIP
        """
        if not self.isActive or self._keyed is not None:
            what = "has ended" if self._keyed is None else "has keyed operators, which would count a row again"
            raise BacklogError(f"The query {self._name!r} {what}.", "Signals are for running queries without key_by.")
        return self._signals.send(kind, data, source, id, self._infos, self._declared.offsets)

    # -- waiting and stopping ------------------------------------------------------------------------------

    def processAllAvailable(self) -> None:
        """Wait until all data present now are committed. For tests, like Spark's method.

        Spark's method returns at once while a source waits for its next tick. This one also waits for an interval
        without new data.
        """
        while True:
            run, before = self.streamingQuery, self._checkpoint.latest_committed()
            run.processAllAvailable()
            if self._facts.sources_pace or self._step.ends_by_itself:
                time.sleep((self.intervals.interval_ms + _LONGEST_POLL_MS) / 1000)
                self.streamingQuery.processAllAvailable()
            # After a run that found nothing the next one starts late, and most likely finds nothing either.
            if self._is_between_runs(run) and not self._then.is_drained:
                time.sleep(NEXT_RUN_S)
            elif self._checkpoint.latest_committed() == before or not self._facts.sources_pace:
                return


def _max_firing_ms(settings: Mapping[str, int | float | str | None], intervals: Intervals) -> int | None:
    """How long a batch may fire timers, in milliseconds; None: no limit."""
    if settings["spark.backlog.timers.interruptible.enabled"] != "true":
        return None
    given = settings["spark.backlog.timers.maxFiringTime"]
    return (intervals.interval_ms or _FIRING_MS) if given is None else int(given)
