"""DataFrames of a batch of backlog: how they are executed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from backlog_spark.jvm import elements, java_class
from backlog_spark.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["arrow_batches", "bytes_of", "empty_frame", "exchanged", "is_repeatable", "persisted"]

_PARTITIONS = "spark.sql.shuffle.partitions"
_COALESCES = "spark.sql.adaptive.coalescePartitions.enabled"
_PARTITION_BYTES = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
# Spark sorts pointers and then fetches the rows one by one, from memory where a partition is larger than the
# processor's cache: ten million rows in 4 partitions took 2.5 s to sort on two cores, in 8 or 16 of them 1.8 s.
_SORTED_AT_ONCE, _PIECES_PER_CORE = "16m", 8
# What Spark has by default: nobody's choice, and many small tasks where they cannot be coalesced.
_OF_SPARK = 200

_ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = f"{2**31 - 1}b"
_FIXED = {"boolean", "byte", "short", "integer", "long", "float", "double", "date", "timestamp", "timestamp_ntz"}


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows. PySpark's ``createDataFrame`` would make a session the active one of the process, also a batch's."""
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = cast("Any", spark)._jsparkSession
    rows = java_class(spark, "java.util.ArrayList")()
    return DataFrame(session.createDataFrame(rows, session.parseDataType(schema.json())), cast("Any", spark))


def is_repeatable(rows: DataFrame, *, of_batch: bool) -> bool:
    """Whether rows come out the same when their batch is replayed, as far as Spark knows.

    Without ``rand()`` and ``uuid()``, and of one input, a streaming one, as a table may have changed meanwhile.

    Parameters
    ----------
    rows : DataFrame
    of_batch : bool
        Whether they are made from a batch, in ``foreachBatch``, so that the clock counts too. Elsewhere Spark has
        written down for each batch what time it is.
    """
    plan: Any = rows._jdf.queryExecution().analyzed()
    inputs = elements(plan.collectLeaves())
    if not plan.deterministic() or not (len(inputs) == 1 if of_batch else all(each.isStreaming() for each in inputs)):
        return False
    patterns = java_class(rows.sparkSession, "org.apache.spark.sql.catalyst.trees.TreePattern")
    return not (of_batch and plan.containsPattern(patterns.CURRENT_LIKE()))


def bytes_of(files: DataFrame) -> int:
    """The size of the files that a DataFrame reads."""
    plan: Any = files._jdf.queryExecution().analyzed()
    return int(str(plan.stats().sizeInBytes()))


def exchanged(rows: DataFrame, by: Sequence[str], *, joins: bool = False) -> DataFrame | None:
    """Rows brought together by columns, of which that has been run: reading them starts behind the exchange.

    Parameters
    ----------
    rows : DataFrame
    by : sequence of str
        Equal values of all of these are in one partition, and Spark knows it.
    joins : bool, default False
        Whether the result is joined with itself by these columns, which Spark does without another exchange only if no
        partitions have been coalesced. There are 8 for each core then, or ``spark.sql.shuffle.partitions`` if that is
        more and not Spark's default of 200.

    Returns
    -------
    DataFrame or None
        None, and nothing is run, without adaptive execution, which alone runs the stages of a plan one after the other.
    """
    session, conf = rows.sparkSession, dict[str, str]()
    coalesces = str(session.conf.get(_COALESCES)).lower() == "true"
    if coalesces:
        usual = int(str(session.conf.get(_PARTITIONS)))
        if joins and usual == _OF_SPARK:
            usual = 0
        pieces = max(usual, _PIECES_PER_CORE * session.sparkContext.defaultParallelism)
        conf = {_PARTITIONS: str(pieces), _PARTITION_BYTES: _SORTED_AT_ONCE}
        conf[_COALESCES] = str(not joins).lower()
    with session_conf(session, conf):
        execution: Any = rows.repartition(*by)._jdf.queryExecution()
        plan = execution.executedPlan()
        if plan.nodeName() != "AdaptiveSparkPlan":
            return None
        # To run it is what makes the plan final.
        found = execution.toRdd()
    output, spark = execution.analyzed().output(), cast("Any", session)._jsparkSession
    unordered = java_class(session, "org.apache.spark.api.python.PythonUtils").toSeq([])
    none = java_class(session, "scala.Option").empty()
    # As Spark makes one of a checkpointed DataFrame, but for the partitioning, which it does not ask an adaptive plan.
    logical = java_class(session, "org.apache.spark.sql.execution.LogicalRDD")(
        output, found, _partitioning(session, plan.executedPlan().outputPartitioning(), output, by), unordered, False,
        none, spark, none, none,
    )  # fmt: skip
    return type(rows)(java_class(session, "org.apache.spark.sql.classic.Dataset").ofRows(spark, logical), session)


def _partitioning(session: SparkSession, found: Any, output: Any, by: Sequence[str]) -> Any:
    """How rows are partitioned that were exchanged, in terms of their own columns.

    The plan may have a constant in the place of one, or another name of the same value.
    """
    columns = {column.name(): column for column in elements(output)}
    expressions = java_class(session, "org.apache.spark.api.python.PythonUtils").toSeq([columns[name] for name in by])
    physical = "org.apache.spark.sql.catalyst.plans.physical"
    hashed, coalesced = (java_class(session, f"{physical}.{name}Partitioning") for name in ("Hash", "CoalescedHash"))
    kind = found.getClass().getSimpleName()
    if kind == "HashPartitioning":
        return hashed(expressions, found.numPartitions())
    if kind == "CoalescedHashPartitioning":
        return coalesced(hashed(expressions, getattr(found, "from")().numPartitions()), found.partitions())
    # One partition, in which all rows are.
    return found


def arrow_batches(frame: DataFrame) -> dict[str, str]:
    """Configuration for the job that executes a batch DataFrame: its Arrow batches limited by their rows alone.

    Spark also adds up the bytes of all columns after each row, which takes longer than to write the row. That is needed
    where a value may have any length, so this is empty if one of those goes to Python.
    """

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
    return {_ARROW_BYTES: _NO_LIMIT} if fields and fixed else {}


@contextmanager
def persisted(frame: DataFrame) -> Iterator[None]:
    """Keep a DataFrame's rows for a while, in memory and on disk."""
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()
