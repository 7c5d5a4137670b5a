"""The parts of a batch of many tables: which tables it has, with which columns, and the rows of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from backlog_spark.common.table_names import TableName
from backlog_spark.model.changes import CHANGE_TYPE, TABLE_EVENTS
from backlog_spark.sinks.base import Written
from backlog_spark.sinks.envelopes import COLUMNS, TableColumns, decoded, united
from backlog_spark.sinks.fills import new_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

__all__ = ["NO_ROWS", "fills_of", "rows_of_table", "table_versions", "together"]

NO_ROWS: Final = {COLUMNS: None, "has_events": False, "only_events": False, "is_dropped": False}
"""Stands for the version of a table of which a batch has no rows."""

Fills = Sequence[tuple[str, str, str]]


def table_versions(batch_df: DataFrame) -> list[Row]:
    """The batch's tables with each version of their columns, oldest first; see `NO_ROWS`."""
    grouped = batch_df.groupBy("_database", "_table", COLUMNS).agg(
        F.max("_commit_seq").alias("last"),
        F.max(F.col(CHANGE_TYPE).isin(*TABLE_EVENTS)).alias("has_events"),
        F.min(F.col(CHANGE_TYPE).isin(*TABLE_EVENTS)).alias("only_events"),
        F.max(F.col(CHANGE_TYPE) == "drop").alias("is_dropped"),
    )
    return sorted(grouped.collect(), key=lambda row: (row["_database"], row["_table"], row["last"]))


def rows_of_table(
    batch_df: DataFrame, database: str, table: str, versions: Sequence[str | None], newest: TableColumns, fills: Fills
) -> DataFrame:
    """One table's rows, with the columns of its newest version.

    Parameters
    ----------
    versions : sequence of str or None
        Values of ``_columns`` in the rows, oldest first. None: rows for events of the table.
    newest : TableColumns
    fills : sequence of (str, str, str)
        Of this table, as in `BatchInfo`.
    """
    own = batch_df.where((F.col("_database") == database) & (F.col("_table") == table))
    parts = []
    for text in versions:
        columns = newest if text is None else TableColumns.parse(text)
        of_version = own.where(F.col(COLUMNS).eqNullSafe(F.lit(text)))
        parts.append(decoded(of_version, str(TableName(database, table)), columns))
    rows = united(parts, newest)
    for added, kind in new_columns(fills).items():
        if added not in rows.columns:
            rows = rows.withColumn(added, F.lit(None).cast(kind))
    return rows


def fills_of(fills: Fills, name: tuple[str, str]) -> tuple[tuple[str, str, str], ...]:
    """The fills of one table."""
    return tuple(fill for fill in fills if fill[:2] == name)


def together(batch_id: int, written: Sequence[Written | None]) -> Written:
    """One report for all tables: of the slowest writer."""
    found = [each for each in written if each is not None]
    if not found:
        return Written(batch_id, "none", "the batch has no rows", rows=0)
    order = ("none", "direct", "files", "spark")
    slowest = max(found, key=lambda each: order.index(each.writer))
    rows = [each.rows for each in found]
    return Written(
        batch_id,
        slowest.writer,
        slowest.reason,
        None if None in rows else sum(each or 0 for each in rows),
        max(each.attempts for each in found),
        sum(each.seconds for each in found),
    )
