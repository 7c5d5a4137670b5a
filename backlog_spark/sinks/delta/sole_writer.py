"""Tells whether a Delta table has rows of one query only, so that its backlog of unique keys may be appended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError
from backlog_spark.sinks.delta.history import read_commits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SoleWriter", "noticing_others"]


class SoleWriter:
    """Looks through a table's log, each commit once, for rows of others.

    The property ``backlog_spark.createdBy`` alone does not tell: others may insert rows into a table that the query has
    created, even while its backlog is read. Commits that add no rows are not looked at: they compact files, delete rows
    or set properties.

    Parameters
    ----------
    spark : SparkSession
    log_path : object
        Hadoop path of the table's log.
    txn_app_id : str
        The query.
    """

    def __init__(self, spark: SparkSession, log_path: Any, txn_app_id: str) -> None:
        self._spark = spark
        self._log_path = log_path
        self._txn_app_id = txn_app_id
        self._checked = -1
        self._is_sole = True

    def up_to(self, version: int) -> bool:
        """Whether no commit up to a version has added rows of others. False too if the log lacks one of them."""
        if self._is_sole and version > self._checked:
            found = read_commits(self._spark, self._log_path, range(self._checked + 1, version + 1), self._txn_app_id)
            self._is_sole = all(c is not None and (c.batch is not None or not c.adds) for c in found)
            self._checked = version
        return self._is_sole

    def check_batch(self, path: str, versions: range, batch_id: int) -> None:
        """Check a batch that Spark has appended: no rows of others came between the check and the commit.

        `noticing_others` covers the time of the write. Left are the milliseconds before it.

        Parameters
        ----------
        versions : range
            Those after the one that `up_to` has found to be right.

        Raises
        ------
        BacklogError
            A key may be in the table twice.
        """
        for commit in read_commits(self._spark, self._log_path, versions, self._txn_app_id):
            if commit is not None and commit.batch == batch_id:
                return
            if commit is None or commit.adds:
                raise BacklogError(
                    f"Another writer added rows to the Delta table at {path} in the moment before batch {batch_id} was "
                    f"appended (versions {versions[0]} to {versions[-1]}): a key may be there twice.",
                    "Start with a new checkpointLocation and an empty path, or remove the other writer's rows of these "
                    "versions. Let nobody else insert rows while a snapshot is written.",
                )


def noticing_others(rows: DataFrame, path: str, key: str) -> DataFrame:
    """The same rows. An append of them fails if another writer adds rows to the table meanwhile.

    Delta does not compare an append with other writers' rows. It does so for a transaction that also reads the table.
    So a scan of the table is united with the rows. It gives no rows, and reads only files with a NULL key.
    """
    table = rows.sparkSession.read.format("delta").load(path).select(*map(quoted, rows.columns))
    # Spark evaluates the second condition only when it runs; otherwise it would leave out the scan.
    nothing = table.where(F.col(quoted(key)).isNull()).where(F.spark_partition_id() < 0)
    return rows.unionByName(nothing)
