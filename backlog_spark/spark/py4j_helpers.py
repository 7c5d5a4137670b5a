"""The JVM beside this process in few calls: each through py4j takes a tenth of a millisecond.

A Java exception takes thirty, which PySpark compares with each class that it knows; the end of an iteration over a Java
or Scala collection is one. A package costs a call for each of its parts, and one of a millisecond for the first.

Reaches for: PySpark's ``_jvm``, ``_jsparkSession`` and ``_jdf`` (seen in Spark 4.2). There is no fallback: no other
road leads to Hadoop's file systems, and a session without them, such as one of Spark Connect, is refused.
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
    """A class or Scala object by its full name."""
    return getattr(cast("Any", spark)._jvm, name)


def qualified(spark: SparkSession, location: str) -> Any:
    """Hadoop's path of a location: with its file system, absolute, and one and the same however it was written."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(location)
    return file_system(spark, path).makeQualified(path)


def hadoop_conf(spark: SparkSession) -> Any:
    """Hadoop's configuration, with the session's settings for it."""
    return cast("Any", spark)._jsparkSession.sessionState().newHadoopConf()


def file_system(spark: SparkSession, path: Any) -> Any:
    """Hadoop's file system of a path."""
    return path.getFileSystem(hadoop_conf(spark))


def file_size(spark: SparkSession, location: str) -> int:
    """The bytes of a file; ``location`` is a URI, as ``DataFrame.inputFiles`` gives it."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(java_class(spark, "java.net.URI")(location))
    return int(file_system(spark, path).getFileStatus(path).getLen())


def elements(seq: Any) -> list[Any]:
    """What a Scala Seq holds."""
    return [seq.apply(i) for i in range(seq.size())]


def as_seq(spark: SparkSession, values: Sequence[Any]) -> Any:
    """A Scala Seq of values."""
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(list(values))


def streaming_relations(frame: DataFrame) -> list[tuple[int, Any]]:
    """The relations of the streaming sources that a DataFrame reads, in the order in which Spark's plan has them.

    Each with its hash code; equal ones are one source to Spark.
    """
    leaves = elements(cast("Any", frame)._jdf.queryExecution().analyzed().collectLeaves())
    return [(leaf.hashCode(), leaf) for leaf in leaves if leaf.isStreaming()]
