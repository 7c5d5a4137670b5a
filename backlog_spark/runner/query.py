"""The query runner: carries out what `backlog_spark.decide.coordinator` decides, and reports back to it.

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
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backlog_spark.common.failure_causes import first_line, was_interrupted
from backlog_spark.common.failure_causes import next_step as hint_of
from backlog_spark.common.fault_points import reached
from backlog_spark.decide.reports import ProgressReport
from backlog_spark.decide.rules import figures
from backlog_spark.decide.steps import AVAILABLE_NOW, Boundary, Seen
from backlog_spark.errors import BacklogError, RejectedRowError
from backlog_spark.model.nodes import SourceNode
from backlog_spark.model.trees import sources_of
from backlog_spark.runner.assembly import QueryParts
from backlog_spark.runner.batch_writer import BatchWriter
from backlog_spark.runner.identity import operators_of
from backlog_spark.runner.interrupts import ending_on_interrupt
from backlog_spark.runner.query_progress import QueryTracker
from backlog_spark.runner.runs import NEXT_RUN_S, QueryRuns
from backlog_spark.spark.checkpoint.driver_claim import NewerDriver
from backlog_spark.spark.jvm.internals import require
from backlog_spark.spark.jvm.own_settings import start_with
from backlog_spark.spark.jvm.stop_between_batches import (
    INTERRUPTED,
    end_after_batch,
    reporting_its_end,
    set_interval_after_batch,
)
from backlog_spark.spark.plan.plan_builder import Plans
from backlog_spark.spi.pacing import poll_every_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType


__all__ = ["BacklogQuery"]

_log = logging.getLogger(__name__)

# Spark polls every 10 ms by default. Polling a Python source that often keeps a third of a core busy.
_LONGEST_POLL_MS = 1_000
_POLLING_DELAY = "spark.sql.streaming.pollingDelay"
_LONGEST_ERROR = 500
_REPEATED = "Its cause is in the traceback. The next start repeats the batch."


class BacklogQuery(QueryRuns):
    """A running query. Has the members of Spark's ``StreamingQuery``, and the state of the backlog.

    ``BacklogStreamWriter.start`` makes it. To recover, make the same call with the same checkpoint.
    """

    def __init__(self, parts: QueryParts) -> None:
        tracker = QueryTracker(parts.name, parts.coordinator)
        super().__init__(parts.spark, parts.name, parts.checkpoint, tracker, parts.settings)
        self._intervals = parts.intervals
        self._parts = parts
        self._keyed = parts.keyed
        self._declared = parts.declared
        self._batches = BatchWriter(parts, tracker)
        self._sink_error: BacklogError | None = None
        self._waits_ms: int | None = None  # the present trigger interval

    # -- starting -------------------------------------------------------------------------------------------

    def _launch(self) -> BacklogQuery:
        """Start and follow the query. Called once, by the writer.

        Raises
        ------
        BacklogError
            If the query cannot start. No row has been read then.
        """
        self._begin()
        return self

    def _recall(self) -> None:
        parts, facts = self._parts, self._coordinator.facts
        if facts.has_frames and facts.sorts_backlog:
            require("end between batches")  # rows of the frames after the end of the backlog must not come sorted
        specs = sources_of(parts.node)
        if self._checkpoint.latest_batch() is None:
            parts.loader.check_first(specs)
        self._declared.recall(
            lambda output: parts.outputs.has_rows_of(output, self._spark, self._checkpoint.identity())
        )
        parts.signals.recall()
        parts.loader.check(specs, self._declared.offsets())

    def _load(self, node: SourceNode) -> DataFrame:
        frame = self._parts.loader.load(node, self._parts.node, self._coordinator, self._parts.promises.of_old_rows)
        self._declared.add(node, frame)
        return frame

    def _decide(self) -> None:
        flags, keyed = self._declared.flags_at(), self._keyed
        if keyed is not None:
            self._coordinator.ledger = keyed.ledger()
        committed = self._checkpoint.latest_committed()
        self._driver.run_begins(0 if committed is None else committed + 1)
        self._coordinator.next_run(
            Seen(
                planned=self._checkpoint.latest_batch(),
                committed=committed,
                in_backlog=flags.in_backlog,
                finished=flags.finished,
                has_unread_seeds=keyed is not None and keyed.has_unread_seeds(),
                no_rows_yet=flags.no_rows_yet,
            )
        )

    def _prepare(self) -> tuple[DataFrame, StructType, dict[str, str]]:
        """The DataFrame of the next run, the schema of its output, and the settings that it needs."""
        if self._keyed is None:
            frame = Plans(self._spark, self._load).stream(self._parts.node)
            return frame, frame.schema, {}
        return self._keyed.start(self._coordinator.step, self._declared.flags_at(), self._load)

    def _described(self) -> dict[str, Any]:
        return {
            "interval_ms": self._intervals.interval_ms,
            "interval_during_backlog_ms": self._intervals.during_backlog_ms,
            "sources": [{"name": spec.name, "format": spec.format} for spec in sources_of(self._parts.node)],
            "sink": ", ".join(type(sink).__name__ for sink in self._parts.outputs.main),
            "operators": list(operators_of(self._parts.node)),
            "spark": self._spark.version,
        }

    def _close_targets(self) -> None:
        self._parts.outputs.close()

    def _targets(self) -> list[str]:
        return self._parts.outputs.targets()

    def _described_run(self) -> dict[str, Any]:
        step = self._coordinator.step
        vehicle = None if step.run is None else step.run.vehicle.value
        return {"vehicle": vehicle, "trigger_ms": step.trigger_ms, "why": step.why}

    def _leave(self) -> bool:
        committed = self._checkpoint.latest_committed()
        return committed is not None and self._coordinator.after_report(self._declared.flags_at(committed).finished)

    def _run(self) -> StreamingQuery:
        reached("run")
        self._declared.load_again()
        self._decide()
        facts, step = self._coordinator.facts, self._coordinator.step
        frame, schema, conf = self._prepare()
        if self._declared.settle(frame):
            flags, names = self._declared.flags_by_number(), self._declared.names_by_number()
            self._tracker.began(self._coordinator.begin(flags, names))
        self._batches.open(schema)
        options = self._parts.options
        writer = frame.writeStream.queryName(self._name).options(**options).foreachBatch(self._write_batch)
        if self._keyed is not None:
            writer = writer.outputMode("update")
        self._waits_ms = step.trigger_ms
        if step.trigger_ms is AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{step.trigger_ms} milliseconds")
        if facts.sources_pace or facts.source_waits:
            delay = poll_every_ms(0 if facts.source_waits else facts.interval_ms)
            conf = {**conf, _POLLING_DELAY: f"{delay}ms"}
        with reporting_its_end(self._spark) if self._ends_by_itself() else contextlib.nullcontext():
            return self._subscribe(start_with(self._spark, self._checkpoint.qualified(), conf, writer.start))

    def _write_batch(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._driver.check_batch(batch_id)
            self._obey(self._batches.write(batch, batch_id))
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
                failed = f"Batch {batch_id} of query {self._name!r} failed: "
                if isinstance(error, RejectedRowError):
                    self._sink_error = RejectedRowError(failed + error.problem, error.hint)
                else:
                    self._sink_error = BacklogError(failed + first_line(error), hint_of(str(error)) or _REPEATED)
                self._sink_error.__cause__ = error
            raise RuntimeError(str(self._sink_error)[:_LONGEST_ERROR]) from None

    def _obey(self, boundary: Boundary) -> None:
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
        coordinator = self._coordinator
        if coordinator.rules.needs:
            judged = replace(report, sources=tuple(s for s in report.sources if s.index in foreign))
            interval = None if coordinator.step.ends_by_itself else self._intervals.interval_ms
            outstanding = self._parts.outstanding.of(judged)
            found = figures(judged, time.time() * 1000, interval, outstanding)
            report = coordinator.judge(report, foreign, found, time.monotonic() * 1000)
        coordinator.source_rules.take(report, coordinator.names, time.time() * 1000, time.monotonic() * 1000)
        super()._take(report)

    # -- between runs, in the runner's own thread ------------------------------------------------------------

    def _go_on(self, *, idle: bool, left: bool) -> bool:
        timers_done = self._keyed is None or self._keyed.has_ended
        then = self._coordinator.after_run(idle=idle, left=left, timers_done=timers_done)
        if then.is_drained:
            self._drain(self._declared.foreign)
        return then.goes_on and not self._ending.wait(then.wait_ms / 1000)

    def _ends_by_itself(self) -> bool:
        return self._coordinator.step.trigger_ms is AVAILABLE_NOW

    def _why(self) -> BaseException | None:
        error, self._sink_error = self._sink_error or self.streamingQuery.exception(), None
        return error

    def _close(self) -> None:
        self._parts.loader.close()
        if self._keyed is not None:
            self._keyed.close()

    # -- the query's state ---------------------------------------------------------------------------------

    @property
    def sourcesInBacklog(self) -> tuple[str, ...]:
        """Names of the sources in backlog, as of the newest batch. Rules decide for streaming DataFrames."""
        found = zip(sources_of(self._parts.node), self._declared.flags_at().in_backlog, strict=True)
        frames = ("streaming DataFrames",) if self._coordinator.rules.is_backlog else ()
        return (*(source.name for source, is_backlog in found if is_backlog), *frames)

    @property
    def lateRows(self) -> int:
        """Late rows without a side output, since this process started the query.

        A row counts once if several keyed operators read it: of these, the one that dropped the most rows in a batch
        counts.
        """
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
        return self._parts.signals.send(kind, data, source, id, self._parts.infos, self._declared.offsets)

    # -- waiting and stopping ------------------------------------------------------------------------------

    def processAllAvailable(self) -> None:
        """Wait until all data present now are committed. For tests, like Spark's method.

        Spark's method returns at once while a source waits for its next tick. This one also waits for an interval
        without new data. Ctrl-C works as in `awaitTermination`.
        """
        with ending_on_interrupt(self):
            self._process_all()
            if self.isEnding:
                self._ended.wait()

    def _process_all(self) -> None:
        while True:
            run, before = self.streamingQuery, self._checkpoint.latest_committed()
            if not self._processed(run):
                continue
            if self._coordinator.facts.sources_pace or self._coordinator.step.ends_by_itself:
                time.sleep((self._intervals.interval_ms + _LONGEST_POLL_MS) / 1000)
                if not self._processed(self.streamingQuery):
                    continue
            # After a run that found nothing the next one starts late, and most likely finds nothing either.
            if self._is_between_runs(run) and not self._coordinator.then.is_drained:
                time.sleep(NEXT_RUN_S)
            elif self._checkpoint.latest_committed() == before or not self._coordinator.facts.sources_pace:
                return
