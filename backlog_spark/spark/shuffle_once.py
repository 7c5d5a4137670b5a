"""Rows brought together by columns, in a shuffle that is run once and read as often as one likes.

Reaches for: the final plan of adaptive execution, its exchange, and ``LogicalRDD`` (seen in Spark 4.2; entry "shuffle
once" of `backlog_spark.spark.internals`). Without them `exchanged` returns None, and each reader shuffles by itself.

Measured on two cores: the backlog of a co-group of two times 750,000 rows, a row a key on each side, takes 4.6 s and
3.4 s of processor time. Without this module it takes 8.9 s and 5.0 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.spark.batch_frames import frame_of
from backlog_spark.spark.internals import is_usable
from backlog_spark.spark.py4j_helpers import as_seq, elements, java_class
from backlog_spark.spark.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Exchanged", "exchanged"]

_PARTITIONS = "spark.sql.shuffle.partitions"
_COALESCES = "spark.sql.adaptive.coalescePartitions.enabled"
_PARTITION_BYTES = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
# Spark sorts pointers and then fetches the rows one by one, from memory where a partition is larger than the
# processor's cache: ten million rows in 4 partitions took 2.5 s to sort on two cores, in 8 or 16 of them 1.8 s.
_SORTED_AT_ONCE, _PIECES_PER_CORE = "16m", 8
# What Spark has by default: nobody's choice, and many small tasks where they cannot be coalesced.
_OF_SPARK = 200
_PHYSICAL = "org.apache.spark.sql.catalyst.plans.physical"
_EXECUTION = "org.apache.spark.sql.execution"


@dataclass(frozen=True)
class Exchanged:
    """Rows that have been brought together.

    Parameters
    ----------
    rows : DataFrame
    sizes : (int, int), optional
        Of rows with sides: about how many bytes the largest partition of each side has; None if that is not known.
    """

    rows: DataFrame
    sizes: tuple[int, int] | None = None


def exchanged(rows: DataFrame, by: Sequence[str], *, sides: str | None = None) -> Exchanged | None:
    """Rows brought together by columns, of which that has been run: reading them starts behind the exchange.

    Parameters
    ----------
    rows : DataFrame
    by : sequence of str
        Equal values of all of these are in one partition, and Spark knows it.
    sides : str, optional
        A column that is 0 or 1, where the rows of the one are to be joined with those of the other by these columns:
        Spark does so without another exchange, and to filter by this column is to read those rows alone. There are 8
        partitions for each core, or ``spark.sql.shuffle.partitions`` if that is more and not Spark's default of 200.

    Returns
    -------
    Exchanged or None
        None, and nothing is run, without adaptive execution, which alone runs the stages of a plan one after the other.
    """
    if not is_usable("shuffle once"):
        return None
    return _together(rows, by) if sides is None else _apart(rows, by, sides)


def _together(rows: DataFrame, by: Sequence[str]) -> Exchanged | None:
    session, conf = rows.sparkSession, dict[str, str]()
    if str(session.conf.get(_COALESCES)).lower() == "true":
        pieces = max(int(str(session.conf.get(_PARTITIONS))), _pieces(session))
        conf = {_PARTITIONS: str(pieces), _PARTITION_BYTES: _SORTED_AT_ONCE}
    with session_conf(session, conf):
        run = _run(rows.repartition(*by))
    if run is None:
        return None
    output, plan, found = run
    return Exchanged(frame_of(session, output, found, _partitioning(session, plan.outputPartitioning(), output, by)))


def _apart(rows: DataFrame, by: Sequence[str], sides: str) -> Exchanged | None:
    """Partitions of the one side, then as many of the other, of which the n-th ones have the same keys."""
    from pyspark.sql import functions as F
    from pyspark.sql.classic.column import Column

    session = rows.sparkSession
    usual = int(str(session.conf.get(_PARTITIONS)))
    count = max(_pieces(session), 0 if usual == _OF_SPARK else usual)

    def hashed(output: Any) -> Any:
        return _hash_partitioning(session, as_seq(session, _columns(output, by)), count)

    # The number that Spark gives to a partition by these columns, so that it is right of it to take them for such.
    number = hashed(rows._jdf.queryExecution().analyzed().output()).partitionIdExpression()
    number = Column(java_class(session, "org.apache.spark.sql.classic.ExpressionUtils").column(number))
    run = _run(rows.repartitionById(2 * count, (F.col(sides) * count + number).cast("int")))
    if run is None:
        return None
    output, plan, found = run
    exchange, partitioning = _exchange_of(plan, 2 * count), hashed(output)
    if exchange is None:
        return Exchanged(frame_of(session, output, found))
    specs = java_class(session, f"{_EXECUTION}.CoalescedPartitionSpec")
    none = java_class(session, "scala.Option").empty()
    gateway = cast("Any", session.sparkContext)._gateway
    frames = []
    for side in (0, 1):
        taken = gateway.new_array(java_class(session, f"{_EXECUTION}.ShufflePartitionSpec"), count)
        for i in range(count):
            first = side * count + i
            taken[i] = specs(first, first + 1, none)
        frame = frame_of(session, output, exchange.getShuffleRDD(taken), partitioning)
        # As a constant, by which the optimiser leaves out the other side where it is filtered.
        frames.append(frame.withColumn(sides, F.lit(side).cast(frame.schema[sides].dataType)))
    return Exchanged(frames[0].unionAll(frames[1]), _sizes(exchange, count))


def _pieces(session: SparkSession) -> int:
    return _PIECES_PER_CORE * session.sparkContext.defaultParallelism


def _run(frame: DataFrame) -> tuple[Any, Any, Any] | None:
    """Its columns, its final plan and its rows; None if the plan is not an adaptive one."""
    execution: Any = frame._jdf.queryExecution()
    plan = execution.executedPlan()
    if plan.nodeName() != "AdaptiveSparkPlan":
        return None
    # To run it is what makes the plan final.
    found = execution.toRdd()
    return execution.analyzed().output(), plan.executedPlan(), found


def _exchange_of(plan: Any, partitions: int) -> Any | None:
    """The exchange that a final plan ends with; None where a plug-in of Spark's has put something else there."""
    try:
        exchange = plan.plan().shuffle()
        return exchange if exchange.numPartitions() == partitions else None
    except (Py4JError, AttributeError):
        return None


def _sizes(exchange: Any, count: int) -> tuple[int, int] | None:
    """`Exchanged.sizes`, if an exchange tells what it wrote."""
    try:
        written = list(exchange.mapOutputStatisticsFuture().value().get().get().bytesByPartitionId())
        whole = int(exchange.metrics().apply("dataSize").value())
    except (Py4JError, AttributeError, TypeError):  # it wrote nothing
        return None
    # The largest one's share of what was written, which is compressed, taken for its share of all.
    left, right = (whole * max(some) // max(1, sum(written)) for some in (written[:count], written[count:]))
    return left, right


def _partitioning(session: SparkSession, found: Any, output: Any, by: Sequence[str]) -> Any:
    """How rows are partitioned that were exchanged, in terms of their own columns.

    The plan may have a constant in the place of one, or another name of the same value.
    """
    expressions = as_seq(session, _columns(output, by))
    kind = found.getClass().getSimpleName()
    if kind == "HashPartitioning":
        return _hash_partitioning(session, expressions, found.numPartitions())
    if kind == "CoalescedHashPartitioning":
        whole = _hash_partitioning(session, expressions, getattr(found, "from")().numPartitions())
        return java_class(session, f"{_PHYSICAL}.CoalescedHashPartitioning")(whole, found.partitions())
    # One partition, in which all rows are.
    return found


def _hash_partitioning(session: SparkSession, expressions: Any, count: int) -> Any:
    return java_class(session, f"{_PHYSICAL}.HashPartitioning")(expressions, count)


def _columns(output: Any, names: Sequence[str]) -> list[Any]:
    found = {column.name(): column for column in elements(output)}
    return [found[name] for name in names]
