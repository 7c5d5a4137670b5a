"""What Spark prints in a good run is taken away, and nothing else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import pytest

import backlog_spark as bs
from backlog_spark.spark.jvm import quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J = "org.apache.logging.log4j"
MESSAGES = {
    "ResolveWriteToStream": "spark.sql.adaptive.enabled is not supported in streaming DataFrames/Datasets and will be "
    "disabled.",
    "MicroBatchExecution": "Disabling AQE since AQE is not supported in stateful workloads.",
    "SparkStringUtils": "Truncated the string representation of a plan since it was too large. This behavior can be "
    "adjusted by setting 'spark.sql.debug.maxToStringFields'.",
    "WindowExec": "No Partition Defined for Window operation! Moving all data to a single partition, this can cause "
    "serious performance degradation.",
    "TransformWithStateInPySparkStateServer": "No more data to read from the socket",
    "DAGScheduler": "Failed to cancel job group 7f2c. Cannot find active jobs for it.",
    "DataSourceManager": "The data source mysql_cdc replaced a statically registered data source.",
    "TaskSetManager": "[queryId = c0dd1] [batchId = 10] Lost task 1.0 in stage 35.0 (TID 86) (localhost executor "
    "driver): TaskKilled (Stage cancelled: [SPARK_JOB_CANCELLED] Job 15 cancelled Query q was stopped ",
    "BlockManager": "Putting block rdd_306_0 failed due to exception org.apache.spark.TaskKilledException: Stage "
    "cancelled: [SPARK_JOB_CANCELLED] Job 15 cancelled Query q [id = 1, runId = 2] was stopped SQLSTATE: XXKDA",
    "MapPartitionsRDD": "RDD 7 was locally checkpointed, its lineage has been truncated and cannot be recomputed",
}


def is_printed(spark: SparkSession, name: str, text: str) -> bool:
    """Whether Log4j would print a warning, asked of its own configuration."""
    jvm = cast("Any", spark)._jvm
    configuration = getattr(jvm, f"{LOG4J}.LogManager").getContext(False).getConfiguration()
    message = getattr(jvm, f"{LOG4J}.message.SimpleMessage")(text)
    warn = getattr(jvm, f"{LOG4J}.Level").WARN
    event = getattr(jvm, f"{LOG4J}.core.impl.Log4jLogEvent").newBuilder().setLoggerName(name).setLevel(warn)
    return not configuration.getLoggerConfig(name).isFiltered(event.setMessage(message).build())


@pytest.mark.parametrize("name", quiet.HARMLESS)
def test_only_the_harmless_message_of_a_logger_is_left_out(spark: SparkSession, name: str) -> None:
    quiet.filter_messages(spark)
    text = MESSAGES[name.rpartition(".")[2]]
    assert not is_printed(spark, name, text)
    for other in ("A batch failed.", f"A batch failed: {text}"):
        assert is_printed(spark, name, other)


def test_the_process_that_looked_for_sources_ends(spark: SparkSession) -> None:
    bs.register(spark)
    current = cast("Any", spark)._jvm.java.lang.ProcessHandle.current()
    until = time.monotonic() + 60
    while True:
        lines = [child.info().commandLine() for child in current.children().toArray()]
        if not any(line.isPresent() and "lookup_data_sources" in line.get() for line in lines):
            return
        assert time.monotonic() < until, "it is still there"
        time.sleep(0.1)
