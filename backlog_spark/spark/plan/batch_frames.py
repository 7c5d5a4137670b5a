"""Properties and helpers of the DataFrames in a backlog batch.

Reaches for: the analysed plan's tree patterns and statistics, ``LogicalRDD`` and ``Dataset.ofRows`` (seen in Spark 4.2;
entry "plan checks" of `backlog_spark.spark.jvm.internals`). Without them no plan counts as repeatable, sizes are
unknown, and Spark counts the bytes of Arrow batches. `frame_of` and `united` have no fallback: callers check their own
entry of the table first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spark.jvm.py4j_helpers import as_seq, elements, java_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "ARROW_BYTES",
    "arrow_batches",
    "bytes_of",
    "empty_frame",
    "frame_of",
    "is_projection",
    "is_repeatable",
    "kept",
    "nullable",
    "persisted",
    "united",
]

# Plan steps that look at one row at a time. Row order and partitioning do not matter to them.
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
    """A DataFrame without rows.

    PySpark's ``createDataFrame`` would make its session the active one of the process, also the session of a batch. The
    fallback has the same types, but its columns may be NULL.
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
    """Whether a replay of the batch gives the same rows, as far as Spark knows.

    The plan must work row by row and have exactly one input, a streaming one: a table may have changed, also in a
    subquery. It must not use ``rand()``, ``uuid()`` or functions marked ``asNondeterministic``. ``mapInPandas`` and
    ``mapInArrow`` are not repeatable, because their functions cannot be marked.

    Parameters
    ----------
    rows : DataFrame
    of_batch : bool
        Whether the rows come from a batch in ``foreachBatch``. Then functions of the present time count too. Elsewhere
        Spark logs the time of each batch.
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


def is_projection(frame: DataFrame) -> bool:
    """Whether each row of a frame comes from one row of its only input: no generator, window, aggregate or subquery."""
    if not is_usable("plan checks"):
        return True
    plan: Any = frame._jdf.queryExecution().analyzed()
    patterns = java_class(frame.sparkSession, "org.apache.spark.sql.catalyst.trees.TreePattern")
    if plan.containsPattern(patterns.PLAN_EXPRESSION()):
        return False
    while plan.nodeName() == "Project":
        (plan,) = elements(plan.children())
    return not elements(plan.children())


def _is_row_by_row(plan: Any) -> bool:
    children = elements(plan.children())
    return not children or (plan.nodeName() in _ROW_BY_ROW and all(map(_is_row_by_row, children)))


def bytes_of(files: DataFrame) -> int | None:
    """Total size of the files that a DataFrame reads; None if unknown."""
    if not is_usable("plan checks"):
        return None
    plan: Any = files._jdf.queryExecution().analyzed()
    return int(str(plan.stats().sizeInBytes()))


def arrow_batches(frame: DataFrame) -> dict[str, str]:
    """Configuration for the job that executes a batch DataFrame: limits Arrow batches by their number of rows alone.

    By default Spark also adds up the bytes of all columns after each row, which takes longer than writing the row. That
    limit is needed for values of any length. So the result is empty if such a column goes to Python.
    """
    if not is_usable("plan checks"):
        return {}
    patterns = java_class(frame.sparkSession, "org.apache.spark.sql.catalyst.trees.TreePattern")
    python = patterns.PYTHON_UDF()

    def reaches_python(plan: Any) -> Iterator[dict[str, Any]]:
        """The input schemas of all steps with Python in them."""
        if not plan.containsPattern(python):
            return
        children = elements(plan.children())
        if any(expression.containsPattern(python) for expression in elements(plan.expressions())):
            yield from (json.loads(child.schema().json()) for child in children)
        for child in children:
            yield from reaches_python(child)

    fields = [field for schema in reaches_python(frame._jdf.queryExecution().analyzed()) for field in schema["fields"]]
    # In JSON a nested type is an object.
    fixed = all(str(f["type"]) in _FIXED or str(f["type"]).startswith("decimal(") for f in fields)
    return {ARROW_BYTES: _NO_LIMIT} if fields and fixed else {}


def united(rows: Sequence[Any]) -> Any:
    """The union of Spark's RDDs of internal rows; at least one is given."""
    found, *others = rows
    for more in others:
        found = found.union(more)
    return found


def frame_of(session: SparkSession, output: Any, rows: Any, partitioning: Any = None) -> DataFrame:
    """A DataFrame of the rows of an executed plan.

    Made like Spark's checkpointed DataFrames, except for the partitioning, which Spark does not take from an adaptive
    plan.
    Parameters
    ----------
    session : SparkSession
    output, rows : object
        Spark's attributes, and its RDD of internal rows.
    partitioning : object, optional
        The partitioning that Spark may rely on. Default: unknown.
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
    """Keep a DataFrame's rows in memory and on disk, until the end of the context."""
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
    """The same rows; the first action on them keeps them for later actions, in memory and on disk, per partition.

    `persisted` takes a job of its own (0.1 s), and Delta's MERGE refuses a source in Spark's cache. If a worker is lost
    between two actions, its rows are lost too and the second action fails.
    """
    rows = frame.localCheckpoint(eager=False)
    try:
        yield rows
    finally:
        if is_usable("plan checks"):  # else Spark frees the rows with the DataFrame
            plan: Any = rows._jdf.queryExecution().analyzed()
            # What `RDD.unpersist` does, which also logs a warning for each batch.
            rows.sparkSession._jsparkSession.sparkContext().unpersistRDD(plan.rdd().id(), False)
