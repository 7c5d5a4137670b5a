"""DataFrames of a batch of backlog: how they are executed.

Reaches for: the analysed plan's tree patterns and statistics, ``LogicalRDD`` and ``Dataset.ofRows`` (seen in Spark 4.2;
entry "plan checks" of `backlog_spark.spark.internals`). Without them no plan counts as repeatable, sizes are not known,
and Spark counts the bytes of Arrow batches. `frame_of` and `united` have no fallback of their own: callers ask whether
they may be used, by their own entries of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from backlog_spark.spark.internals import is_usable
from backlog_spark.spark.py4j_helpers import as_seq, elements, java_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "ARROW_BYTES",
    "arrow_batches",
    "bytes_of",
    "empty_frame",
    "frame_of",
    "is_repeatable",
    "kept",
    "nullable",
    "persisted",
    "united",
]

# Steps of a plan that look at one row at a time, whose order and number of partitions are no matter.
_ROW_BY_ROW = {
    "CollectMetrics",
    "EventTimeWatermark",
    "Expand",
    "Filter",
    "Generate",
    "Project",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "Union",
    "View",
}
_NULLABLE = {"nullable", "containsNull", "valueContainsNull"}
_PHYSICAL = "org.apache.spark.sql.catalyst.plans.physical"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = f"{2**31 - 1}b"
_FIXED = {"boolean", "byte", "short", "integer", "long", "float", "double", "date", "timestamp", "timestamp_ntz"}


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows. PySpark's ``createDataFrame`` would make a session the active one of the process, also a batch's.

    The fallback has the same types; its columns may be NULL.
    """
    if not is_usable("plan checks"):
        from pyspark.sql import functions as F

        columns = [F.lit(None).cast(f.dataType).alias(f.name, metadata=f.metadata) for f in schema]
        return spark.range(0).select(*columns)
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = cast("Any", spark)._jsparkSession
    rows = java_class(spark, "java.util.ArrayList")()
    return DataFrame(session.createDataFrame(rows, session.parseDataType(schema.json())), cast("Any", spark))


def is_repeatable(rows: DataFrame, *, of_batch: bool) -> bool:
    """Whether rows come out the same when their batch is replayed, as far as Spark knows.

    Made row by row, without ``rand()``, ``uuid()`` and functions marked ``asNondeterministic``, and of one input, a
    streaming one, as a table may have changed meanwhile, also in a subquery. Not by ``mapInPandas`` and ``mapInArrow``,
    whose functions cannot be so marked.

    Parameters
    ----------
    rows : DataFrame
    of_batch : bool
        Whether they are made from a batch, in ``foreachBatch``, so that the clock counts too. Elsewhere Spark has
        written down for each batch what time it is.
    """
    if not is_usable("plan checks"):
        return False
    plan: Any = rows._jdf.queryExecution().analyzed()
    inputs = elements(plan.collectLeaves())
    if not plan.deterministic() or not (len(inputs) == 1 if of_batch else all(each.isStreaming() for each in inputs)):
        return False
    patterns = java_class(rows.sparkSession, "org.apache.spark.sql.catalyst.trees.TreePattern")
    if plan.containsPattern(patterns.PLAN_EXPRESSION()) or (of_batch and plan.containsPattern(patterns.CURRENT_LIKE())):
        return False
    return _is_row_by_row(plan)


def _is_row_by_row(plan: Any) -> bool:
    children = elements(plan.children())
    return not children or (plan.nodeName() in _ROW_BY_ROW and all(map(_is_row_by_row, children)))


def bytes_of(files: DataFrame) -> int | None:
    """The size of the files that a DataFrame reads; None where it is not known."""
    if not is_usable("plan checks"):
        return None
    plan: Any = files._jdf.queryExecution().analyzed()
    return int(str(plan.stats().sizeInBytes()))


def arrow_batches(frame: DataFrame) -> dict[str, str]:
    """Configuration for the job that executes a batch DataFrame: its Arrow batches limited by their rows alone.

    Spark also adds up the bytes of all columns after each row, which takes longer than to write the row. That is needed
    where a value may have any length, so this is empty if one of those goes to Python.
    """
    if not is_usable("plan checks"):
        return {}
    patterns = java_class(frame.sparkSession, "org.apache.spark.sql.catalyst.trees.TreePattern")
    python = patterns.PYTHON_UDF()

    def reaches_python(plan: Any) -> Iterator[dict[str, Any]]:
        """Schemas of what enters a step with Python in it, whichever kind it is."""
        if not plan.containsPattern(python):
            return
        children = elements(plan.children())
        if any(expression.containsPattern(python) for expression in elements(plan.expressions())):
            yield from (json.loads(child.schema().json()) for child in children)
        for child in children:
            yield from reaches_python(child)

    fields = [field for schema in reaches_python(frame._jdf.queryExecution().analyzed()) for field in schema["fields"]]
    # A nested type is an object in JSON.
    fixed = all(str(f["type"]) in _FIXED or str(f["type"]).startswith("decimal(") for f in fields)
    return {ARROW_BYTES: _NO_LIMIT} if fields and fixed else {}


def united(rows: Sequence[Any]) -> Any:
    """Spark's RDDs of internal rows as one; there is at least one."""
    found, *others = rows
    for more in others:
        found = found.union(more)
    return found


def frame_of(session: SparkSession, output: Any, rows: Any, partitioning: Any = None) -> DataFrame:
    """A DataFrame of the rows of an executed plan.

    As Spark makes one of a checkpointed DataFrame, but for the partitioning, which it does not ask an adaptive plan.

    Parameters
    ----------
    session : SparkSession
    output, rows : object
        Spark's attributes, and its RDD of internal rows.
    partitioning : object, optional
        How Spark may take them to be partitioned. Default: it does not know.
    """
    from pyspark.sql.classic.dataframe import DataFrame

    spark = cast("Any", session)._jsparkSession
    none = java_class(session, "scala.Option").empty()
    if partitioning is None:
        partitioning = java_class(session, f"{_PHYSICAL}.UnknownPartitioning")(rows.getNumPartitions())
    logical = java_class(session, "org.apache.spark.sql.execution.LogicalRDD")(
        output, rows, partitioning, as_seq(session, []), False, none, spark, none, none
    )
    return DataFrame(java_class(session, "org.apache.spark.sql.classic.Dataset").ofRows(spark, logical), session)


@contextmanager
def persisted(frame: DataFrame) -> Iterator[None]:
    """Keep a DataFrame's rows for a while, in memory and on disk."""
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


def nullable(schema: StructType) -> StructType:
    """A schema whose fields, elements and values may all be NULL."""

    def loosened(type: Any) -> Any:
        if isinstance(type, dict):
            return {key: True if key in _NULLABLE else loosened(value) for key, value in type.items()}
        return [loosened(each) for each in type] if isinstance(type, list) else type

    from pyspark.sql.types import StructType

    return StructType.fromJson(loosened(schema.jsonValue()))


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """The same rows, which the first action on them keeps for others, in memory and on disk, partition by partition.

    Not `persisted`: that takes a job of its own, 0.1 s, and Delta's MERGE refuses a source in Spark's cache. A worker
    that is lost between two actions takes its rows with it, and the second action fails.
    """
    rows = frame.localCheckpoint(eager=False)
    try:
        yield rows
    finally:
        if is_usable("plan checks"):  # else Spark does so when nobody has the DataFrame any more
            plan: Any = rows._jdf.queryExecution().analyzed()
            plan.rdd().unpersist(False)
