"""Takes away what Spark prints in a good run, and nothing else. Other warnings stay, also those of the same loggers.

* Spark's progress bar: it writes over our lines, and a carriage return a second into a log.
* Messages that come in each query and that a user can do nothing about. Each is filtered by its whole text.
* The end of the process that looks for installed sources. It would print a traceback when Spark closes its connection.
  Those of queries are silent by themselves: `backlog_spark.spark.startup.sitecustomize`.

Reaches for: ``SparkContext.progressBar`` (seen in Spark 4.2; entry "console progress" of
`backlog_spark.spark.jvm.internals`) and the configuration of Log4j (entry "log filters"). Without them, and with
``BACKLOG_SPARK_INTERNALS=off``, these lines are printed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.spark.jvm import internals
from backlog_spark.spark.jvm.py4j_helpers import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HARMLESS", "end_console_progress", "end_source_lookup", "filter_messages"]

_SPARK: Final = "org.apache.spark"
_LOG4J: Final = "org.apache.logging.log4j"

HARMLESS: Final[dict[str, str]] = {
    # At the start of each query, whatever the session's settings are
    f"{_SPARK}.sql.execution.streaming.runtime.ResolveWriteToStream": (
        r"spark\.sql\.adaptive\.enabled is not supported in streaming .*"
    ),
    f"{_SPARK}.sql.execution.streaming.runtime.MicroBatchExecution": "Disabling AQE .* in stateful workloads.*",
    # A keyed query's plan has more columns than Spark prints.
    f"{_SPARK}.util.SparkStringUtils": "Truncated the string representation of a plan .*",
    # A Top-N of all rows has no PARTITION BY.
    f"{_SPARK}.sql.execution.window.WindowExec": "No Partition Defined for Window operation! .*",
    # The orderly end of a worker with keyed state
    f"{_SPARK}.sql.execution.python.streaming.TransformWithStateInPySparkStateServer": (
        "No more data to read from the socket"
    ),
    # A query that is stopped between two batches has no job to cancel.
    f"{_SPARK}.scheduler.DAGScheduler": "Failed to cancel job group .*",
    # Where the driver's Python is not the workers', the sources that Spark has found are registered again.
    f"{_SPARK}.sql.execution.datasources.DataSourceManager": (
        r"The data source (mysql_cdc|hybrid) replaced a statically registered data source\.?"
    ),
    # A query that is stopped in the middle of a batch
    f"{_SPARK}.scheduler.TaskSetManager": (
        r"(\[queryId = \w+\] \[batchId = \d+\] )?Lost task .* TaskKilled \(Stage cancelled: .* was stopped.*"
    ),
    f"{_SPARK}.storage.BlockManager": (
        r"Putting block rdd_\w+ failed due to exception .*TaskKilledException: Stage cancelled: .* was stopped.*"
        r"|Block rdd_\w+ could not be removed as it was not found on disk or in memory"
        r"|Asked to remove block rdd_\w+, which does not exist"
    ),
    # Delta keeps a copy of a MERGE's source, and drops it afterwards.
    f"{_SPARK}.rdd.MapPartitionsRDD": "RDD .* was locally checkpointed.*",
}
"""For each logger, the message that it need not print, as a regular expression."""

_LOOKUP: Final = "pyspark.sql.worker.lookup_data_sources"

_lock = threading.Lock()
_filtered = _looked = False


def filter_messages(spark: SparkSession) -> None:
    """Filter the messages of `HARMLESS`. Once a process: it has one JVM."""
    global _filtered
    with _lock:
        if _filtered or not internals.is_usable("log filters"):
            return
        _filtered = True
        try:
            context = java_class(spark, f"{_LOG4J}.LogManager").getContext(False)
            configuration = context.getConfiguration()
            result = java_class(spark, f"{_LOG4J}.core.Filter$Result")
            regex_filter = java_class(spark, f"{_LOG4J}.core.filter.RegexFilter")
            # A configuration of our own for a logger would let its INFO through: PySpark takes it for the user's wish.
            found = {name: configuration.getLoggerConfig(name) for name in HARMLESS}
            texts: dict[str, list[str]] = {}
            for name, logger in found.items():  # most are the root's
                texts.setdefault(logger.getName(), []).append(HARMLESS[name])
            for logger in {logger.getName(): logger for logger in found.values()}.values():
                text = f"(?s)({'|'.join(texts[logger.getName()])})"
                logger.addFilter(regex_filter.createFilter(text, None, False, result.DENY, result.NEUTRAL))
            context.updateLoggers()
        except (Py4JError, TypeError):
            return  # another implementation of Log4j's interface


def end_console_progress(spark: SparkSession) -> None:
    """End Spark's progress bar, for the whole application.

    PySpark starts it in each program that is not run with ``spark-submit``.
    """
    if internals.is_usable("console progress"):
        bar = cast("Any", spark.sparkContext)._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().stop()


def end_source_lookup(spark: SparkSession) -> None:
    """End the process that looked for installed sources. Spark asks it once a JVM, and keeps it until its own end."""
    global _looked
    with _lock:
        if _looked or not internals.is_usable("installed sources"):
            return
        _looked = True
    children = java_class(spark, "java.lang.ProcessHandle").current().children().toArray()
    for child in children:
        line = child.info().commandLine()
        if line.isPresent() and _LOOKUP in line.get():
            child.destroy()  # with its workers, by its own handler of SIGTERM
