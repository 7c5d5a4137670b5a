"""Calls into the JVM of this process, as few as possible: each py4j call takes 0.1 ms.

A Java exception takes 30 ms, because PySpark compares it with each class that it knows. The end of an iteration over a
Java or Scala collection is such an exception. A package name costs a call for each of its parts, the first one 1 ms.

Reaches for: PySpark's ``_jvm``, ``_jsparkSession`` and ``_jdf`` (seen in Spark 4.2). There is no fallback: nothing else
leads to Hadoop's file systems. A session without them, such as one of Spark Connect, is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "as_seq",
    "elements",
    "file_size",
    "file_system",
    "hadoop_conf",
    "java_class",
    "qualified",
    "streaming_relations",
]


def java_class(spark: SparkSession, name: str) -> Any:
    """A Java class or Scala object, by its full name."""
    return getattr(cast("Any", spark)._jvm, name)


def qualified(spark: SparkSession, location: str) -> Any:
    """Hadoop's path of a location: with its file system, absolute, in one canonical form."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(location)
    return file_system(spark, path).makeQualified(path)


def hadoop_conf(spark: SparkSession) -> Any:
    """Hadoop's configuration, including the session's settings for it."""
    return cast("Any", spark)._jsparkSession.sessionState().newHadoopConf()


def file_system(spark: SparkSession, path: Any) -> Any:
    """Hadoop's file system of a path."""
    return path.getFileSystem(hadoop_conf(spark))


def file_size(spark: SparkSession, location: str) -> int:
    """The bytes of a file. ``location`` is a URI from ``DataFrame.inputFiles``."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(java_class(spark, "java.net.URI")(location))
    return int(file_system(spark, path).getFileStatus(path).getLen())


def elements(seq: Any) -> list[Any]:
    """The elements of a Scala Seq."""
    return [seq.apply(i) for i in range(seq.size())]


def as_seq(spark: SparkSession, values: Sequence[Any]) -> Any:
    """A Scala Seq of values."""
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(list(values))


def streaming_relations(frame: DataFrame) -> list[tuple[int, Any]]:
    """The relations of the streaming sources that a DataFrame reads, in the order of Spark's plan.

    Each comes with its hash code. Spark takes equal relations for one source.
    """
    leaves = elements(cast("Any", frame)._jdf.queryExecution().analyzed().collectLeaves())
    return [(leaf.hashCode(), leaf) for leaf in leaves if leaf.isStreaming()]
