"""Shuffles rows by columns once, for any number of readers.

Reaches for: the final plan of adaptive execution, its exchange, and ``LogicalRDD`` (seen in Spark 4.2; entry "shuffle
once" of `backlog_spark.spark.jvm.internals`). Without them `exchanged` returns None, and each reader shuffles the rows.

Measured on two cores: the backlog of a co-group of two times 750,000 rows, one row per key on each side, takes 4.6 s
and 3.4 s of processor time. Without this module it takes 8.9 s and 5.0 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spark.jvm.py4j_helpers import as_seq, elements, java_class
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.spark.plan.batch_frames import frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Exchanged", "exchanged"]

_PARTITIONS = "spark.sql.shuffle.partitions"
_COALESCES = "spark.sql.adaptive.coalescePartitions.enabled"
_PARTITION_BYTES = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
# Spark sorts pointers and then fetches the rows one by one. A partition larger than the processor's cache makes that
# slow: on two cores ten million rows took 2.5 s in 4 partitions, and 1.8 s in 8 or 16.
_SORTED_AT_ONCE, _PIECES_PER_CORE = "16m", 8
# Spark's default: not the user's choice, and many small tasks if they cannot be coalesced.
_OF_SPARK = 200
_PHYSICAL = "org.apache.spark.sql.catalyst.plans.physical"
_EXECUTION = "org.apache.spark.sql.execution"


@dataclass(frozen=True)
class Exchanged:
    """Rows that were shuffled.

    Parameters
    ----------
    rows : DataFrame
    sizes : (int, int), optional
        For rows with sides: estimated bytes of the largest partition of each side; None if unknown.
    """

    rows: DataFrame
    sizes: tuple[int, int] | None = None


def exchanged(rows: DataFrame, by: Sequence[str], *, sides: str | None = None) -> Exchanged | None:
    """Shuffle rows by columns. The shuffle has run when this returns; readers start after it.

    Parameters
    ----------
    rows : DataFrame
    by : sequence of str
        Rows with equal values in all these columns are in one partition, and Spark knows it.
    sides : str, optional
        A column that is 0 or 1, if rows of the two sides are to be joined by these columns. Spark joins them without
        another exchange, and a filter by this column reads one side only. There are 8 partitions per core, or
        ``spark.sql.shuffle.partitions`` if that is more and not Spark's default of 200.

    Returns
    -------
    Exchanged or None
        None without adaptive execution, which alone runs a plan stage by stage. Nothing has run then.
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
    """The partitions of side 0, then as many of side 1. The n-th partitions of both have the same keys."""
    from pyspark.sql import functions as F
    from pyspark.sql.classic.column import Column

    session = rows.sparkSession
    usual = int(str(session.conf.get(_PARTITIONS)))
    count = max(_pieces(session), 0 if usual == _OF_SPARK else usual)

    def hashed(output: Any) -> Any:
        return _hash_partitioning(session, as_seq(session, _columns(output, by)), count)

    # Spark's own partition number for these columns. So Spark may rely on the partitioning.
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
        # A constant, so that the optimiser drops the other side if the column is filtered.
        frames.append(frame.withColumn(sides, F.lit(side).cast(frame.schema[sides].dataType)))
    return Exchanged(frames[0].unionAll(frames[1]), _sizes(exchange, count))


def _pieces(session: SparkSession) -> int:
    return _PIECES_PER_CORE * session.sparkContext.defaultParallelism


def _run(frame: DataFrame) -> tuple[Any, Any, Any] | None:
    """Run a frame. Returns its columns, final plan and rows; None if the plan is not adaptive."""
    execution: Any = frame._jdf.queryExecution()
    plan = execution.executedPlan()
    if plan.nodeName() != "AdaptiveSparkPlan":
        return None
    # Running makes the plan final.
    found = execution.toRdd()
    return execution.analyzed().output(), plan.executedPlan(), found


def _exchange_of(plan: Any, partitions: int) -> Any | None:
    """The exchange at the end of a final plan; None if a Spark plug-in has put something else there."""
    try:
        exchange = plan.plan().shuffle()
        return exchange if exchange.numPartitions() == partitions else None
    except (Py4JError, AttributeError):
        return None


def _sizes(exchange: Any, count: int) -> tuple[int, int] | None:
    """The value of `Exchanged.sizes`, if the exchange reports what it wrote."""
    try:
        written = list(exchange.mapOutputStatisticsFuture().value().get().get().bytesByPartitionId())
        whole = int(exchange.metrics().apply("dataSize").value())
    except (Py4JError, AttributeError, TypeError):  # it wrote nothing
        return None
    # The written bytes are compressed. The largest partition's share of them is taken as its share of all bytes.
    left, right = (whole * max(some) // max(1, sum(written)) for some in (written[:count], written[count:]))
    return left, right


def _partitioning(session: SparkSession, found: Any, output: Any, by: Sequence[str]) -> Any:
    """The partitioning of shuffled rows, in terms of their own columns.

    The plan may have a constant instead of a column, or another name for it.
    """
    expressions = as_seq(session, _columns(output, by))
    kind = found.getClass().getSimpleName()
    if kind == "HashPartitioning":
        return _hash_partitioning(session, expressions, found.numPartitions())
    if kind == "CoalescedHashPartitioning":
        whole = _hash_partitioning(session, expressions, getattr(found, "from")().numPartitions())
        return java_class(session, f"{_PHYSICAL}.CoalescedHashPartitioning")(whole, found.partitions())
    # A single partition has all rows.
    return found


def _hash_partitioning(session: SparkSession, expressions: Any, count: int) -> Any:
    return java_class(session, f"{_PHYSICAL}.HashPartitioning")(expressions, count)


def _columns(output: Any, names: Sequence[str]) -> list[Any]:
    found = {column.name(): column for column in elements(output)}
    return [found[name] for name in names]
