"""Runs a pipeline until its queries end or a user stops it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from backlog_spark.api.writer import BacklogStreamWriter
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.building import sink_of, streams_of, use_directory
from backlog_spark.pipelines.model import Pipeline
from backlog_spark.pipelines.sections import PrintSink
from backlog_spark.runner.handle import JobStatus
from backlog_spark.runner.interrupts import ending_on_interrupt
from backlog_spark.spark.jvm.launch import delta_package, launch
from backlog_spark.spark.jvm.session import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.runner.query import BacklogQuery

__all__ = [
    "StoppedAtOnce",
    "configure",
    "ended",
    "session_for",
    "sigterm_as_ctrl_c",
    "start",
    "wait",
]

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# How often a signal is looked for while the queries run.
_LOOK_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedAtOnce(Exception):
    """A second signal has interrupted the running batch."""


def session_for(pipeline: Pipeline) -> SparkSession:
    """The active session, such as that of spark-submit; else a new one with the pipeline's settings.

    A new session has Delta. Its jars come from ``spark.jars`` or ``spark.jars.packages``; without these, from Maven, as
    delta-spark configures it.

    Raises
    ------
    BacklogError
        The session runs already, and a setting only counts when Spark starts.
    """
    from pyspark.sql import SparkSession

    use_directory(pipeline)
    settings, active = dict(pipeline.pipeline.settings), SparkSession.getActiveSession()
    if active is not None:
        configure(pipeline, active)
        return active
    own = {"spark.app.name": pipeline.pipeline.name, "spark.ui.showConsoleProgress": "false"}
    settings = {**own, **_DELTA, **settings}
    if "spark.jars" not in settings and "spark.jars.packages" not in settings and not _has_context():
        settings["spark.jars.packages"] = delta_package()
    launch(settings)
    made: SparkSession = SparkSession.builder.config(map={**settings}).getOrCreate()
    register(made)
    return made


def configure(pipeline: Pipeline, spark: SparkSession) -> None:
    """Give a running session the pipeline's settings, and register the sources.

    Raises
    ------
    BacklogError
        A setting only counts when Spark starts.
    """
    use_directory(pipeline)
    for name, text in pipeline.pipeline.settings.items():
        if spark.conf.get(name, None) != text:
            _set(spark, name, text)
    register(spark)


def _has_context() -> bool:
    """Whether spark-submit started this process: it brings the jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _set(spark: SparkSession, name: str, text: str) -> None:
    if not spark.conf.isModifiable(name) and not name.startswith("spark.backlog."):
        raise BacklogError(
            f"The setting {name} only counts when Spark starts, and a session runs already.",
            "Give it to spark-submit with --conf, or to the session's builder.",
        )
    spark.conf.set(name, text)


def start(pipeline: Pipeline, spark: SparkSession) -> list[BacklogQuery]:
    """Start a query for each sink. If one cannot start, those before it are stopped.

    Raises
    ------
    BacklogError
        See `BacklogStreamWriter.start`.
    """
    streams = streams_of(pipeline, spark)
    settings = pipeline.pipeline
    started: list[BacklogQuery] = []
    for sink in pipeline.queries():
        stream = streams[pipeline.input_of(sink)]
        targets = [each.section for each in pipeline.outputs() if each.query is sink and not each.side]
        if all(isinstance(target, PrintSink) for target in targets):
            stream = stream.changes()  # it shows what was before, too
        writer: BacklogStreamWriter = stream.write(pipeline.query_name(sink))
        writer = writer.trigger(
            processing_time=settings.interval,
            interval_during_backlog=settings.interval_during_backlog,
            available_now=settings.available_now,
        )
        writer = writer.option("checkpointLocation", pipeline.checkpoint_of(sink))
        try:
            for output in pipeline.outputs():
                if output.query is sink:
                    writer = writer.to(sink_of(pipeline, output), side_output=output.side)
            started.append(writer.start(spark))
        except BaseException:
            for query in started:
                query.stop()
            raise
    return started


def wait(queries: list[BacklogQuery]) -> bool:
    """Wait until all queries have ended. If one fails, or is stopped from elsewhere, the others end after their batch.

    The first Ctrl-C (or SIGTERM) lets each query end after its running batch, the second one ends it at once.

    Returns
    -------
    bool
        Whether they came to their end; False if a signal ended them after a whole batch.

    Raises
    ------
    StoppedAtOnce
        After the second signal.
    Exception
        The error of the first query that failed.
    BacklogError
        A query was stopped before its end, through Spark and not by a signal.
    """
    signals: list[int] = []
    stopped: BacklogQuery | None = None
    try:
        with ending_on_interrupt(*queries, signals=_SIGNALS), _counting(signals):
            while any(query.isActive for query in queries):
                stopped = stopped or (None if signals else _stopped(queries))
                if stopped is not None or any(query.exception() is not None for query in queries):
                    for query in queries:
                        query.stop(after_batch=True)
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        if len(signals) > 1:
            raise StoppedAtOnce from None
    for query in queries:
        error = query.exception()
        if error is not None:
            raise error
    stopped = stopped or (None if signals else _stopped(queries))
    if stopped is not None:
        raise BacklogError(
            f"Query {stopped.name} was stopped through Spark before the end of its input, not by this command.",
            "Look for who calls stop() on Spark's queries or session. The next run continues from the checkpoint "
            f"{stopped.checkpointLocation}.",
        )
    return not signals


def _stopped(queries: list[BacklogQuery]) -> BacklogQuery | None:
    """A query that has ended because somebody stopped it."""
    return next((query for query in queries if query.jobStatus is JobStatus.CANCELED), None)


@contextlib.contextmanager
def _counting(signals: list[int]) -> Iterator[None]:
    """Note each signal that ends the queries."""

    def noting(inner: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
        def note(number: int, frame: FrameType | None) -> None:
            signals.append(number)
            inner(number, frame)

        return note

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            inner = signal.getsignal(number)
            if callable(inner):
                before[number] = signal.signal(number, noting(inner))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Raise `KeyboardInterrupt` after a SIGTERM, as Ctrl-C does. For the time until `wait`."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ended(queries: list[BacklogQuery]) -> list[dict[str, object]]:
    """What the queries have done."""
    return [
        {
            "query": query.name,
            "status": query.jobStatus.value,
            "rows": query.backlogProgress.rows,
            "commits": query.backlogProgress.commits,
            "checkpoint": query.checkpointLocation,
        }
        for query in queries
    ]
