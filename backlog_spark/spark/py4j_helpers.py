"""What is asked of Spark's JVM in few calls: each through py4j takes a tenth of a millisecond.

A Java exception takes thirty, which PySpark compares with each class that it knows; the end of an iteration over a Java
or Scala collection is one. A package costs a call for each of its parts, and one of a millisecond for the first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from backlog_spark.common.settings import FLINK_DURING_BACKLOG, FLINK_INTERVAL, PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["as_seq", "elements", "java_class", "own_conf", "qualified", "streaming_relations"]

_OURS = re.compile(
    rf"{re.escape(PREFIX)}|(spark\.)?({re.escape(FLINK_INTERVAL)}|{re.escape(FLINK_DURING_BACKLOG)}) -> "
)
# In no name and no value of a configuration.
_BETWEEN = "\0"


def java_class(spark: SparkSession, name: str) -> Any:
    """A class or Scala object by its full name."""
    return getattr(cast("Any", spark)._jvm, name)


def qualified(spark: SparkSession, location: str) -> Any:
    """Hadoop's path of a location: with its file system, absolute, and one and the same however it was written."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(location)
    return path.getFileSystem(cast("Any", spark)._jsparkSession.sessionState().newHadoopConf()).makeQualified(path)


def elements(seq: Any) -> list[Any]:
    """What a Scala Seq holds."""
    return [seq.apply(i) for i in range(seq.size())]


def as_seq(spark: SparkSession, values: Sequence[Any]) -> Any:
    """A Scala Seq of values."""
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(list(values))


def own_conf(spark: SparkSession) -> dict[str, str]:
    """The session's configuration, of what starts with ``spark.backlog.`` and Flink's names of the two intervals."""
    # Scala's own form of a map as text.
    text: str = cast("Any", spark)._jsparkSession.conf().getAll().mkString(_BETWEEN)
    pairs = (each.split(" -> ", 1) for each in text.split(_BETWEEN) if _OURS.match(each))
    return dict(pairs)


def streaming_relations(frame: DataFrame) -> list[tuple[int, Any]]:
    """The relations of the streaming sources that a DataFrame reads, in the order in which Spark's plan has them.

    Each with its hash code; equal ones are one source to Spark.
    """
    leaves = elements(cast("Any", frame)._jdf.queryExecution().analyzed().collectLeaves())
    return [(leaf.hashCode(), leaf) for leaf in leaves if leaf.isStreaming()]
