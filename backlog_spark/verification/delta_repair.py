"""Changes keys of a Delta table to given rows, in one commit on the version that was compared, for ``bs.verify``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.jvm.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlog_spark.verification.delta_rows import TargetVersion

__all__ = ["DELETE", "INSERT", "STEP", "UPDATE", "repair"]

STEP: Final = "__backlog_spark_step"
INSERT, UPDATE, DELETE = "insert", "update", "delete"

_COLUMN: Final = "__backlog_spark_c"
_SETTINGS: Final = {
    # MERGE evaluates its source twice unless it materializes it.
    "spark.databricks.delta.merge.materializeSource": "all",
    "spark.databricks.delta.commitInfo.userMetadata": "backlog_spark: repair after a verification",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def repair(target: TargetVersion, steps: DataFrame, keys: Sequence[str]) -> None:
    """Apply repair steps in one commit.

    Parameters
    ----------
    target : TargetVersion
        The table version that was compared.
    steps : DataFrame
        Columns of the table, and `STEP`. Each key has one step, or a `DELETE` of all its rows and an `INSERT`. An
        `UPDATE` keeps the values of columns that are not given, and inserts the row if the key is not there; an
        `INSERT` makes them NULL.
    keys : sequence of str
        Columns that identify a row; NULL is a value like any other.

    Raises
    ------
    BacklogError
        If another writer has committed since that version, before or during the repair.
    """
    from delta.tables import DeltaTable

    spark = steps.sparkSession
    names = [name for name in steps.columns if name != STEP]
    # Delta resolves its internal columns together with the source's, so the source's columns get unique names.
    source = {name: f"s.{_COLUMN}{number}" for number, name in enumerate(names)}
    given = steps.select(*(F.col(quoted(n)).alias(f"{_COLUMN}{i}") for i, n in enumerate(names)), STEP)
    # An insert matches no row: a key's old rows are deleted in the same commit.
    on = " AND ".join([f"s.{STEP} <> '{INSERT}'", *(f"t.{quoted(key)} <=> {source[key]}" for key in keys)])
    values: dict[str, Any] = {quoted(name): source[name] for name in names}
    with session_conf(spark, {**_SETTINGS, **delta_log.snapshot_conf(spark)}):
        table = DeltaTable.forPath(spark, target.path)
        _check_newest(table, target, target.version)
        merge = table.alias("t").merge(given.alias("s"), on)
        merge = merge.whenMatchedDelete(f"s.{STEP} = '{DELETE}'").whenMatchedUpdate(f"s.{STEP} = '{UPDATE}'", values)
        merge.whenNotMatchedInsert(f"s.{STEP} <> '{DELETE}'", values).execute()
        _check_newest(table, target, target.version + 1)


def _check_newest(table: Any, target: TargetVersion, wanted: int) -> None:
    found = int(table.history(1).collect()[0]["version"])
    if found != wanted:
        before = wanted == target.version
        raise BacklogError(
            f"Another writer has written to the Delta table at {target.path} since its version {target.version} was "
            f"compared: {'nothing was repaired' if before else 'rows that were written meanwhile may now be older'}.",
            "Stop the query and other writers, then verify with repair=True again.",
        )
