"""Starts a Spark query with settings of its own, which no other query of the session gets.

A query copies the session's settings when it is made. Before it reads the copy it informs its listeners and waits for
them. In that moment the settings are put into the copy. The fallback, if Spark's copy cannot be reached, sets them in
the session itself. Then other queries that start at that moment get them too.

Reaches for: ``StreamExecution.sparkSessionForStream`` and its field of the polling delay (seen in Spark 4.2,
``StreamExecution.runStream``; entry "query settings" of `backlog_spark.spark.jvm.internals`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from backlog_spark.common.failure_causes import first_line
from backlog_spark.errors import BacklogError
from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spark.jvm.py4j_helpers import java_class
from backlog_spark.spark.jvm.session import session_conf, session_listener, starting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["start_with"]

_EXECUTION = "org.apache.spark.sql.execution.streaming.runtime.StreamExecution"
# Spark reads this setting from the session when it makes the query, and keeps it in a field.
_POLLING_DELAY, _POLLING_FIELD = "spark.sql.streaming.pollingDelay", "pollingDelayMs"


def start_with(
    spark: SparkSession, checkpoint: str, values: Mapping[str, str], start: Callable[[], StreamingQuery]
) -> StreamingQuery:
    """Start a query.

    Parameters
    ----------
    spark : SparkSession
        The session of the query's DataFrame.
    checkpoint : str
        Its checkpoint location, with the filesystem. It identifies the query.
    values : mapping of str to str
        Its settings, in addition to the session's.
    start : callable
        ``DataStreamWriter.start``.

    Raises
    ------
    BacklogError
        If the query has started without the settings. It is stopped then.
    """
    if not values:
        return start()
    if not is_usable("query settings"):
        with starting, session_conf(spark, values):
            return start()
    field = _delay_field(spark)
    given: list[str] = []  # an error text, or "" for success

    def give(query_id: str) -> None:
        try:
            query = cast("Any", spark)._jsparkSession.streams().get(query_id)
            execution = None if query is None else query.streamingQuery()
            if execution is None or str(execution.resolvedCheckpointRoot()).rstrip("/") != checkpoint.rstrip("/"):
                return  # another query that starts now
            conf = execution.sparkSessionForStream().conf()
            for name, value in values.items():
                conf.set(name, value)
            if _POLLING_DELAY in values:
                field.setLong(execution, int(values[_POLLING_DELAY].removesuffix("ms")))
            given.append("")
        except Exception as error:
            given.append(first_line(error))

    listener = session_listener(spark)
    listener.starts.append(give)
    try:
        started = start()
    finally:
        listener.starts.remove(give)
    if given != [""]:
        started.stop()
        why = ", ".join(given) or "Spark did not report its start"
        raise BacklogError(f"The settings of query {started.name!r} could not be set: {why}.", "Start it again.")
    return started


def _delay_field(spark: SparkSession) -> Any:
    """The field of the polling delay."""
    field = java_class(spark, "java.lang.Class").forName(_EXECUTION).getDeclaredField(_POLLING_FIELD)
    field.setAccessible(True)
    return field
