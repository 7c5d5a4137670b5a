"""Writes a batch by the file sink of Spark's own streams.

Reaches for: ``DataSource`` and ``FileStreamSink`` (seen in Spark 4.2; entry "file sink" of
`backlog_spark.spark.jvm.internals`). There is no fallback: no other writer adds to the log that Spark's readers follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.spark.jvm.internals import fails_closed, require
from backlog_spark.spark.jvm.py4j_helpers import as_seq, java_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["METADATA", "add_batch", "check_format", "file_sink"]

_UTILS: Final = "org.apache.spark.sql.execution.datasources.DataSourceUtils"
METADATA: Final = "_spark_metadata"
"""Directory of the sink's log in the target: a file for each batch, whose name is its number."""


def check_format(spark: SparkSession, form: str, schema: StructType) -> None:
    """Check that Spark can write columns as a format. Writes nothing.

    Raises
    ------
    BacklogError
        Spark lacks the classes.
    Exception
        Spark knows no such format, or the format has no such type.
    """
    found = _data_source(spark, form, (), {}).providingInstance()
    columns = cast("Any", spark)._jsparkSession.parseDataType(schema.json())
    java_class(spark, _UTILS).verifySchema(found, columns, False)


def file_sink(spark: SparkSession, form: str, partition_by: Sequence[str], options: Mapping[str, str]) -> Any:
    """Spark's sink of a path. Creates the directory of its log.

    Parameters
    ----------
    form : str
        As of `check_format`.
    partition_by : sequence of str
    options : mapping of str to str
        Of the format; ``path`` among them.
    """
    found = _data_source(spark, form, partition_by, options).providingInstance()
    # As createSink of DataSource does, whose arguments differ between versions of Spark.
    return java_class(spark, "org.apache.spark.sql.execution.streaming.sinks.FileStreamSink")(
        cast("Any", spark)._jsparkSession, options["path"], found, as_seq(spark, partition_by), _scala(spark, options)
    )


def _data_source(spark: SparkSession, form: str, partition_by: Sequence[str], options: Mapping[str, str]) -> Any:
    require("file sink")
    none, empty = java_class(spark, "scala.Option").empty(), as_seq(spark, [])
    given = _scala(spark, options)
    try:
        return java_class(spark, "org.apache.spark.sql.execution.datasources.DataSource")(
            cast("Any", spark)._jsparkSession, form, empty, none, as_seq(spark, partition_by), none, given, none, none
        )
    except Py4JJavaError:
        raise
    except Py4JError as error:
        raise fails_closed("file sink", f"the constructor of DataSource ({error})") from error


def _scala(spark: SparkSession, options: Mapping[str, str]) -> Any:
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toScalaMap(dict(options))


def add_batch(sink: Any, batch_df: DataFrame, batch_id: int) -> None:
    """Write a batch. One that the log has, or an earlier one, is not written."""
    sink.addBatch(batch_id, cast("Any", batch_df)._jdf)
