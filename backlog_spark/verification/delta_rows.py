"""The rows of a sink's Delta table at one version, and the batch that created that version, for ``bs.verify``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import CHANGE_TYPE, TABLE_EVENTS
from backlog_spark.sinks.delta.upsert import DeltaUpsert
from backlog_spark.sinks.newest_changes import DELETES
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.jvm.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.delta.sink import DeltaSink

__all__ = ["TargetVersion", "newest_target", "rows_at"]

_SEQUENCE: Final = "_commit_seq"
_RANK: Final = "__backlog_spark_rank"
_EMPTIED: Final = "__backlog_spark_emptied"


@dataclass(frozen=True)
class TargetVersion:
    """A version of a sink's table.

    Parameters
    ----------
    path : str
        Qualified path of the table.
    version : int
    batch : int
        The newest batch of the query in this version.
    """

    path: str
    version: int
    batch: int


def newest_target(spark: SparkSession, location: str, txn_app_id: str) -> TargetVersion:
    """The table's newest version.

    Raises
    ------
    BacklogError
        If there is no table, or it has no batch of this query.
    """
    delta_log.refuse_without_delta(spark)
    path = delta_log.qualified_text(spark, location)
    with session_conf(spark, delta_log.snapshot_conf(spark)):
        found = delta_log.newest_version(spark, path, txn_app_id)
    if found.version < 0 or found.batch is None:
        what = "There is no Delta table" if found.version < 0 else "No batch of this checkpoint is in the Delta table"
        raise BacklogError(f"{what} at {path}.", "Give verify the sink and the checkpoint of one query.")
    return TargetVersion(path, found.version, found.batch)


def rows_at(spark: SparkSession, sink: DeltaSink, target: TargetVersion, keys: Sequence[str]) -> DataFrame:
    """The rows at a version; for `DeltaAppend`, the newest row of each key that was not deleted.

    Raises
    ------
    BacklogError
        If a `DeltaAppend` does not store the change type or the sequence, which determine a key's newest row.
    """
    with session_conf(spark, delta_log.snapshot_conf(spark)):
        found = spark.read.format("delta").option("versionAsOf", str(target.version)).load(target.path)
    if isinstance(sink, DeltaUpsert):
        return found
    there = {name.lower() for name in found.columns}
    for name in (CHANGE_TYPE, _SEQUENCE):
        if name not in there:
            raise BacklogError(
                f"The Delta table at {target.path} has no column {name!r}, so the newest row of a key is not known.",
                "verify needs it in a table of DeltaAppend.",
            )
    found = _since_emptied(found)
    is_delete = F.col(CHANGE_TYPE).isin(*DELETES)
    order = Window.partitionBy(*[F.col(quoted(key)) for key in keys]).orderBy(F.col(_SEQUENCE).desc(), is_delete)
    newest = found.withColumn(_RANK, F.row_number().over(order)).where((F.col(_RANK) == 1) & ~is_delete)
    return newest.drop(_RANK)


def _since_emptied(found: DataFrame) -> DataFrame:
    """The changes that came after the last TRUNCATE or DROP of their table."""
    is_event = F.coalesce(F.col(CHANGE_TYPE).isin(*TABLE_EVENTS), F.lit(False))
    names: list[str] = [name for name in ("_database", "_table") if name in found.columns]
    emptied = found.where(is_event).groupBy(*names).agg(F.max(_SEQUENCE).alias(_EMPTIED))
    changes = found.where(~is_event)
    small = F.broadcast(emptied)
    joined = changes.join(small, names, "left") if names else changes.crossJoin(small)
    is_later = F.col(_EMPTIED).isNull() | (F.col(_SEQUENCE) > F.col(_EMPTIED))
    return joined.where(is_later).select(*(F.col(quoted(name)) for name in found.columns))
