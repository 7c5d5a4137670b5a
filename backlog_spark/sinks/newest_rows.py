"""The newest change of each key of a batch of any size, in Spark. `newest_changes` is the same in Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.sinks.newest_changes import DELETES, UPSERTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["IS_DELETE", "RANK", "SOURCE", "is_delete_of", "newest_rows", "unique_inserts"]

# Delta resolves its internal columns together with the source's and the table's, so the source gets names of our own.
SOURCE: Final = "__backlog_spark_c"
RANK: Final = "__backlog_spark_rank"
IS_DELETE: Final = "__backlog_spark_is_delete"


def newest_rows(
    rows: DataFrame,
    columns: Sequence[str],
    keys: Sequence[str],
    change_type: str | None,
    sequence: str | None,
    sink: str,
) -> DataFrame:
    """The newest change of each key.

    Parameters
    ----------
    columns : sequence of str
        The stored columns.
    keys, change_type, sequence, sink
        As of `newest_changes`. Its errors are those of the job that computes the rows.

    Returns
    -------
    DataFrame
        The stored columns in order, named `SOURCE` and their number, then `IS_DELETE`.
    """
    stored = [F.col(quoted(name)).alias(f"{SOURCE}{number}") for number, name in enumerate(columns)]
    by = [F.col(quoted(key)) for key in keys]
    rows = rows.withColumn(IS_DELETE, is_delete_of(change_type, sink))
    if sequence is not None:
        order = Window.partitionBy(*by).orderBy(F.col(quoted(sequence)).desc_nulls_last(), IS_DELETE)
        newest = rows.withColumn(RANK, F.row_number().over(order)).where(F.col(RANK) == 1)
    else:
        # MERGE rejects two rows of one key only if the key is already in the table. New keys would be inserted
        # twice.
        twice = F.raise_error(F.lit(f"{sink}: two rows of one key in a batch; name a sequence column.")).cast("boolean")
        group = Window.partitionBy(*by)
        upserts = F.count(F.when(~F.col(IS_DELETE), 1)).over(group)
        rank = F.when(upserts > 1, twice.cast("int")).otherwise(F.row_number().over(group.orderBy(IS_DELETE)))
        newest = rows.withColumn(RANK, rank).where(F.col(RANK) == 1)
    return newest.select(*stored, IS_DELETE)


def is_delete_of(change_type: str | None, sink: str) -> Column:
    """Whether a row is a delete. An unknown change type fails the query."""
    if change_type is None:
        return F.lit(False)
    kind = F.col(quoted(change_type))
    unknown = F.raise_error(
        F.concat(
            F.lit(f"{sink}: unknown {change_type} = "),
            F.coalesce(kind.cast("string"), F.lit("NULL")),
            F.lit("; known: " + ", ".join(UPSERTS + DELETES) + "."),
        )
    )
    is_upsert, is_delete = kind.isin(*UPSERTS), kind.isin(*DELETES)
    return F.when(is_upsert, F.lit(False)).when(is_delete, F.lit(True)).otherwise(unknown.cast("boolean"))


def unique_inserts(rows: DataFrame, change_type: str | None, sink: str) -> DataFrame:
    """The rows of a batch in which each key is new. Another change type than ``insert`` fails the query."""
    if change_type is None:
        return rows
    # Cheap, and necessary: if inserts are promised to be unique but are not, stale rows would stay for ever.
    kind = F.col(quoted(change_type))
    wrong = F.raise_error(
        F.concat(
            F.lit(f"{sink}: a backlog batch of unique inserts has a row with {change_type} = "),
            F.coalesce(kind.cast("string"), F.lit("NULL")),
            F.lit(". Declare the keys as not unique in backlog."),
        )
    )
    return rows.where(F.when(kind == "insert", F.lit(True)).otherwise(wrong.cast("boolean")))
