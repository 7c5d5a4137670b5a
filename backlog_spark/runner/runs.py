"""One query over several Spark runs: follows the present run, starts the next, restarts after failures.

One thread owns the Spark query. The listener only puts reports on its queue. So no listener callback ever switches,
stops or starts anything.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import queue
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from backlog_spark.common.durations import format_duration
from backlog_spark.common.failure_causes import UNKNOWN, first_line, is_of_spark, next_step, with_next_step
from backlog_spark.common.fault_points import reached
from backlog_spark.common.log_fields import event
from backlog_spark.decide.reports import ProgressReport, Report, Terminated
from backlog_spark.decide.restarts import RestartPolicy
from backlog_spark.errors import BacklogError, RejectedRowError
from backlog_spark.runner import running_queries
from backlog_spark.runner.estimate import BacklogEstimate, SourceRows, rows_before
from backlog_spark.runner.handle import QueryHandle
from backlog_spark.runner.progress_outputs import is_terminal
from backlog_spark.runner.query_events import QueryEvents
from backlog_spark.spark.checkpoint.driver_claim import LOOK_S, DriverClaim, NewerDriver
from backlog_spark.spark.checkpoint.offset_log import remove_unfinished
from backlog_spark.spark.jvm.internals import fails_closed, is_usable
from backlog_spark.spark.jvm.launch import is_spark_gone
from backlog_spark.spark.jvm.quiet import end_console_progress, filter_messages
from backlog_spark.spark.jvm.session import session_listener
from backlog_spark.spark.jvm.stop_between_batches import end_at_boundary, ends_by_itself, found_the_end, is_running

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from backlog_spark.runner.query_progress import QueryTracker
    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["NEXT_RUN_S", "QueryRuns"]

_log = logging.getLogger(__name__)

# How often the runner checks that the query still runs, besides the reports.
_LOOK_S = 0.5
# How often it tries to end a run. Spark takes the request only while a batch runs.
_LOOK_TO_END_S = 0.02
# How often `processAllAvailable` looks for the next run.
NEXT_RUN_S = 0.05
# The listener bus is up to 1.3 s late. After this time the runner goes on without the final report.
_LAST_REPORT_S = 5.0


class QueryRuns(QueryHandle):
    """The runs of one query. Subclasses define a run and what follows it.

    A failed query is restarted after ``spark.backlog.restart.delay``, which doubles each time. It fails for good after
    ``spark.backlog.restart.maxAttempts`` restarts without a commit in between.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        checkpoint: Checkpoint,
        tracker: QueryTracker,
        settings: Mapping[str, int | float | str | None],
    ) -> None:
        self._spark = spark
        self._name = name
        self._checkpoint = checkpoint
        self._driver = DriverClaim(checkpoint)
        self._tracker = tracker
        self._estimate = BacklogEstimate(spark, checkpoint, tracker)
        self._coordinator = tracker.coordinator
        self._restarts = RestartPolicy(
            int(settings["spark.backlog.restart.maxAttempts"] or 0), int(settings["spark.backlog.restart.delay"] or 0)
        )
        self._show = str(settings["spark.backlog.progress"])
        self._events = QueryEvents(lambda: self._name, checkpoint, tracker, settings)
        self._reports: queue.Queue[Report] = queue.Queue()
        self._query: StreamingQuery | None = None
        self._query_id = ""
        self._stopping = threading.Event()  # at once: a running batch is interrupted
        self._ending = threading.Event()  # no further run starts; set by both ways of `stop`
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._leaving = False
        self._thread: threading.Thread | None = None
        self._began_at = time.monotonic()
        self._summary = ""

    # -- for subclasses -------------------------------------------------------------------------------------

    @abstractmethod
    def _recall(self) -> None:
        """Read from the checkpoint what earlier runs left. Called by `_begin`, when no other query runs on it."""

    @abstractmethod
    def _run(self) -> StreamingQuery:
        """Start the next run and subscribe to it (`_subscribe`). Called by `_begin`, then by the runner's thread."""

    @abstractmethod
    def _go_on(self, *, idle: bool, left: bool) -> bool:
        """Whether another run follows one that ended without an error.

        Parameters
        ----------
        idle : bool
            It committed nothing.
        left : bool
            `_leave` ended it.
        """

    @abstractmethod
    def _described(self) -> dict[str, Any]:
        """The query's sources, sinks and intervals, for the event log. No options: they may be secret."""

    def _targets(self) -> Sequence[str]:
        """Where the query writes, for people."""
        return ()

    @abstractmethod
    def _described_run(self) -> dict[str, Any]:
        """What the present run is and why, for the event log."""

    def _explained(self) -> list[str]:
        """What the query reads, for `backlog_spark.explain`: a line each, none if only the user's function knows it."""
        return []

    def _take(self, report: ProgressReport) -> None:
        """Take the report of a committed batch."""
        with self._tracker.lock:
            is_new = self._tracker.took(report, self._coordinator.take(report))
        if is_new:
            self._events.batch(report)
        self._events.switches()

    def _drain(self, sources: Collection[int] | None = None) -> None:
        """Called when nothing more is left to read in these sources, or in all."""
        with self._tracker.lock:
            self._tracker.switched(self._coordinator.drain(time.monotonic() * 1000, sources))

    def _leave(self) -> bool:
        """Whether the present run must end at the next batch boundary. Asked after each `_take`."""
        return False

    def _ends_by_itself(self) -> bool | None:
        """Whether the present run ends when it has read all present data; None: ask Spark."""
        return None

    def _has_an_end(self) -> bool:
        """Whether the next run would skip data that the present run has not read."""
        return True

    def _why(self) -> BaseException | None:
        """Why the run ended; None after a stop or at the end of input."""
        return self.streamingQuery.exception()

    def _close(self) -> None:
        """Called once, when no further run follows."""

    # -- starting -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the first run, and follow it.

        Raises
        ------
        SettingError
            If another query of this process runs on the checkpoint.
        NewerDriver
            If another driver starts on it at the same time.
        """
        try:
            running_queries.enter(self, self._spark, self._checkpoint)
        except BaseException:
            self._close()  # the event log is the other query's, which goes on
            raise
        try:
            filter_messages(self._spark)
            if self.showsProgress or not is_terminal(sys.stderr):
                end_console_progress(self._spark)
            with with_next_step(f"Query {self._name!r} could not be started"):
                self._checkpoint.check_version()
                self._driver.take()
                self._checkpoint.remove_unfinished()
                self._recall()
                self._tracker.rows_before, self._tracker.rows_before_of = rows_before(self._checkpoint)
                remove_unfinished(self._checkpoint)
                self._query = self._run()
            self._events.started({**self._described(), "python": platform.python_version()})
            self._events.run(str(self._query.runId), self._described_run())
        except BaseException as error:
            self._events.refused(error)
            self._release()
            self._close()
            raise
        self._thread = threading.Thread(target=self._follow, name=f"backlog-{self._name}", daemon=True)
        self._thread.start()

    def _close_targets(self) -> None:
        """Close what the query holds open in its targets."""

    def _release(self) -> None:
        self._close_targets()
        try:
            self._driver.release()
        except Exception as error:  # the JVM may be gone; the next driver removes the claim
            _log.debug("The claim on checkpoint %s stays: %s", self._checkpoint.location, first_line(error))
        running_queries.leave(self)

    def _subscribe(self, started: StreamingQuery) -> StreamingQuery:
        self._query_id = str(started.id)  # at the end the JVM may be gone
        session_listener(self._spark).subscribe(self._query_id, self._reports)
        return started

    # -- following, in the runner's own thread --------------------------------------------------------------

    def _follow(self) -> None:
        from backlog_spark.runner.progress_line import ProgressLine, started_line

        try:
            with contextlib.ExitStack() as stack:
                line = None
                with self._without_display():
                    if self.showsProgress:
                        line = stack.enter_context(ProgressLine(self, every_commit=self._show == "on"))
                        start = self.history[0] if self.history else None
                        line.say(started_line(self._name, start, self.checkpointLocation))
                try:
                    self._follow_runs()
                finally:
                    self._summary = self._summarized()
                    with self._without_display():
                        if line is not None:
                            line.finish(self.summary)
        finally:
            self._release()
            self._ended.set()

    @contextlib.contextmanager
    def _without_display(self) -> Iterator[None]:
        """A terminal that is gone, or one that others write to, must not end the query."""
        try:
            yield
        except Exception as error:
            _log.warning("Query %s goes on without its progress line: %s", self._name, first_line(error))

    def _follow_runs(self) -> None:
        try:
            attempts, again = 0, False
            while not self._ending.is_set() or is_running(self.streamingQuery):
                if not again:
                    before = self._tracker.last_batch
                last, again = self._tracker.last_batch, False
                error = self._with_hint(self._until_it_ends())
                left, self._leaving = self._leaving, False
                if self._stopping.is_set():
                    return
                if self._ending.is_set():
                    self._failure = error
                    return
                if error is None:
                    found_end = left or self._found_the_end(idle=self._tracker.last_batch == last)
                    if found_end is False:
                        _log.warning("Query %s was stopped through Spark, not by its own stop().", self._name)
                        self._stopping.set()
                        return
                    again = found_end is None
                    idle = self._tracker.last_batch == before and not left
                    if not again and not self._go_on(idle=idle, left=left):
                        return
                    error = self._next_run()
                    if error is None:
                        continue
                    again = False
                error = self._newer_driver() or error
                if isinstance(error, NewerDriver | RejectedRowError):
                    raise error
                attempts = self._restarts.attempt_after(attempts, has_committed=self._tracker.last_batch > before)
                error = self._restart(attempts, error)
                if error is not None:
                    self._failure = error
                    return
        except Exception as error:
            self._failure = self._with_hint(error)  # which awaitTermination raises
            _log.error("Query %s ended: %s", self._name, first_line(error))
        except BaseException as error:
            self._failure = error
            raise
        finally:
            if self._ending.is_set() and self._failure is None:
                self._stopping.set()
            self._wind_up()

    def _wind_up(self) -> None:
        """Clean up after the last run. After a failure of the runner itself the Spark query may still run: stop it."""
        reached("ended")
        if self._query is not None and self._failure is not None:
            try:
                self._query.stop()
            except Exception as error:  # the JVM may be what failed
                _log.warning("Query %s could not be stopped: %s", self._name, first_line(error))
        if self._query_id:
            session_listener(self._spark).unsubscribe(self._query_id)
        self._close()
        self._events.ended(self._failure, was_stopped=self._stopping.is_set())

    def _summarized(self) -> str:
        from backlog_spark.runner.progress_line import ended_line

        try:
            is_whole = self._checkpoint.latest_batch() == self._checkpoint.latest_committed()
        except Exception:  # the JVM may be gone, and with it the batch that was running
            is_whole = False
        status = "FAILED" if self._failure is not None else "CANCELED" if self._stopping.is_set() else "FINISHED"
        return ended_line(
            self._name, status, self.backlogProgress, time.monotonic() - self._began_at, self._targets(),
            failure="" if self._failure is None else first_line(self._failure), is_whole=is_whole,
        )  # fmt: skip

    def _found_the_end(self, *, idle: bool) -> bool | None:
        """Whether a run that ended without an error reached its end; False if somebody stopped Spark's query.

        Parameters
        ----------
        idle : bool
            It committed nothing.

        Returns
        -------
        bool or None
            None: Spark does not report it, and the run committed batches. The same run must be repeated until it finds
            nothing to do.

        Raises
        ------
        BacklogError
            If Spark does not report it for a run that did nothing. The next run could skip data.
        """
        query_ = self.streamingQuery
        if self._checkpoint.latest_batch() != self._checkpoint.latest_committed():
            return False
        ends = self._ends_by_itself()
        ends = ends_by_itself(query_) if ends is None else ends
        if ends is False:
            return False
        found = found_the_end(query_)
        if found is None and ends and not self._has_an_end():
            return True
        if found is not None or (ends and not idle):
            return found
        if ends is None:
            return False  # the user has set the trigger: no run follows
        raise fails_closed("end between batches", "whether a run came to the end of its input")

    def _next_run(self) -> BaseException | None:
        """Start the next run. Returns the error if that fails, else None."""
        if self._ending.is_set():
            return None
        try:
            self._driver.check()
            remove_unfinished(self._checkpoint)
            self._query = self._run()
        except Exception as error:
            return self._with_hint(error)
        self._events.run(str(self._query.runId), self._described_run())
        if self._stopping.is_set():
            self._query.stop()
        return None

    def _with_hint(self, error: BaseException | None) -> BaseException | None:
        """The same error, or one that says what to do about it."""
        if error is not None and is_spark_gone(error):
            failure = BacklogError(
                f"Query {self._name!r} failed: Spark's JVM has ended.",
                "Its last messages or the kernel's log say why: a signal, or no memory left. The next start continues "
                "from the checkpoint.",
            )
            failure.__cause__ = error
            return failure
        hint = "" if error is None or isinstance(error, BacklogError) else next_step(str(error))
        if error is None or isinstance(error, BacklogError) or not (hint or is_of_spark(error)):
            return error
        failure = BacklogError(f"Query {self._name!r} failed: {first_line(error)}", hint or UNKNOWN)
        failure.__cause__ = error
        return failure

    def _until_it_ends(self) -> BaseException | None:
        """Take reports until the run ends. Returns its error; None after a stop or at the end of input."""
        assert self._query is not None
        run_id = str(self._query.runId)
        last_look = None
        is_ending = False
        next_look = time.monotonic() + LOOK_S
        while True:
            if time.monotonic() > next_look:
                if (newer := self._newer_driver()) is not None:
                    return newer
                next_look = time.monotonic() + LOOK_S
            # Without Spark's internals a request to end interrupts a running batch: wait for its report.
            if self._ending.is_set() and not self._leaving:
                self._leaving = is_usable("end between batches") or not self._query.status["isTriggerActive"]
            if self._leaving and not is_ending:
                is_ending = not is_running(self._query) or end_at_boundary(self._query)
            try:
                report = self._reports.get(timeout=_LOOK_TO_END_S if self._leaving and not is_ending else _LOOK_S)
            except queue.Empty:
                self._events.look(self.backlogSources)
                if self._query.isActive or is_running(self._query):
                    continue
                last_look = last_look or time.monotonic()
                if time.monotonic() - last_look > _LAST_REPORT_S:
                    return self._why()
                continue
            if isinstance(report, ProgressReport):
                self._take(report)
                self._leaving = self._leaving or self._leave() or self._ending.is_set()
            elif isinstance(report, Terminated) and report.run_id == run_id:
                return self._why()

    def _newer_driver(self) -> NewerDriver | None:
        """The error if another driver has started on the checkpoint."""
        try:
            self._driver.check()
        except NewerDriver as error:
            return error
        except Exception as error:  # it looks again; a batch is not written before it could
            _log.warning("Query %s could not look for newer drivers: %s", self._name, first_line(error))
        return None

    def _restart(self, attempts: int, error: BaseException) -> BaseException | None:
        """Restart after a failure. Returns the last error, or None if the query runs or was stopped at once."""
        while (delay := self._restarts.wait_ms(attempts)) is not None and not self._ending.is_set():
            _log.warning(
                "Query %s failed and is restarted in %s (attempt %d of %d): %s",
                self._name, format_duration(delay), attempts, self._restarts.max_attempts, first_line(error),
                extra=event("restart", query=self._name, attempt=attempts, delay_ms=delay, error=first_line(error)),
            )  # fmt: skip
            self._events.restart(attempt=attempts, delay_ms=delay, error=first_line(error))
            reached("restart")
            before = self._query
            again = None if self._ending.wait(delay / 1000) else self._next_run()
            if again is None and self._query is before:  # it was told to end
                return None if self._stopping.is_set() else error
            if isinstance(again, NewerDriver):
                return again
            if again is not None:
                error, attempts = again, attempts + 1
                continue
            self._tracker.restarted()
            return None
        return error

    def _is_between_runs(self, run: StreamingQuery) -> bool:
        """Whether a run has ended and another one follows, or may follow."""
        return self.isActive and not (run is self.streamingQuery and is_running(run))

    # -- waiting and stopping -------------------------------------------------------------------------------

    def _processed(self, run: StreamingQuery) -> bool:
        """Wait until a run has committed what is there. False if it failed, and another run has followed.

        Raises
        ------
        Exception
            The error that ended the query.
        """
        try:
            run.processAllAvailable()
        except Exception:
            if run.exception() is None:
                raise
            while not self._ended.wait(NEXT_RUN_S):
                if self.streamingQuery is not run:
                    return False
            if self._failure is not None:
                raise self._failure from None
        return True

    @property
    def checkpointLocation(self) -> str:
        """Where its checkpoint is."""
        return self._checkpoint.location

    @property
    def streamingQuery(self) -> StreamingQuery:
        """Spark's own handle of the present run; another one after a restart."""
        assert self._query is not None, "start() comes first"
        return self._query

    @property
    def backlogRowsCommitted(self) -> int:
        """Committed rows of the backlog, including those of earlier processes if the sources count them."""
        return self._tracker.backlog_rows

    def backlogRows(self) -> tuple[float, int]:
        """Rows of the backlog read so far, including the running batch, and an estimate of all its rows (0: unknown).

        The share of the running batch is estimated from its finished tasks. For display only.
        """
        return self._estimate.of_all()

    def backlogSources(self) -> list[SourceRows]:
        """Rows of each source in backlog, likewise. Of streaming DataFrames alone there is one estimate for all."""
        return self._estimate.of_sources() or [SourceRows(self._name, *self.backlogRows())]

    def stop(self, *, after_batch: bool = False) -> None:
        """Stop the query and wait until it has ended. A running batch is interrupted; the next start replays it.

        Parameters
        ----------
        after_batch : bool
            Return at once, and let the query end when its running batch has committed. `awaitTermination` waits for
            it. Default false.
        """
        if not after_batch:
            self._stopping.set()  # first: whoever sees the other one looks which way it is
        self._ending.set()
        if after_batch:
            return
        query_ = self._query
        if query_ is not None:
            query_.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
