"""Adds a query's rows to a Delta table, one Delta transaction per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backlog_spark.sinks.delta.sink import DeltaSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from backlog_spark.sinks.base import BatchInfo, SinkContext
    from backlog_spark.sinks.delta.deltars.commits import DirectTable

__all__ = ["DeltaAppend"]


class DeltaAppend(DeltaSink):
    """Appends rows to a Delta table, exactly once.

    A batch is one Delta transaction that carries ``(txn_app_id, batch_id)``. A batch id that the table already has
    is skipped before any row is read. An empty batch is a transaction without files. All columns are stored: the table
    is the log of a change stream's changes, or of a keyed operator's results.

    Parameters
    ----------
    path : str
        Location of the table on any filesystem that Delta supports. The first start creates it if nothing is there. An
        existing table may be of any origin, and several queries may append to it.
    table : str, optional
        Name of the table in a catalog of the session, such as ``shop.clicks``, in place of `path`. The first start
        creates it if the catalog has none: at `path` if that is given too, else where the catalog wants it.
    partition_by : sequence of str, default ()
        Partition columns of a table that the sink creates. ``days(x)``, ``months(x)`` and ``years(x)`` of a date or
        timestamp become columns ``x_day``, ``x_month`` and ``x_year``.
    cluster_by : sequence of str, default ()
        Columns by which Delta clusters a table that the sink creates. Spark then writes all batches.
    computed : mapping of str to str
        Columns that the sink adds: SQL expressions of a row, by name.
    properties : mapping of str to str
        Table properties of a table that the sink creates.
    merge_schema : bool, default False
        Add columns that the stream has and the table lacks; they are NULL in existing rows. The sink does so when the
        query starts, and when it restarts after the source's table was altered.
    small_batch_rows : int, default 100,000
        A live batch of up to this many rows goes to the driver, where delta-rs commits it in a few tenths of a second.
        Spark writes larger ones. 0: Spark writes all.
    small_batch_bytes : int, default 64 MiB
        Maximum bytes of such a batch, in Arrow.
    storage_options : mapping of str to str
        delta-rs's options for the table's store, with its credentials. Without them Spark also writes small batches of
        a table on S3. See docs/sinks.md for stores where this is safe.
    compact : bool, default True
        Merge the table's small files between batches. Not done where Spark writes small batches.

    Notes
    -----
    Columns of an existing table that the rows lack are NULL in new rows. Do not set
    ``delta.setTransactionRetentionDuration`` shorter than the longest stop of the query: without the transaction,
    Delta does not know which batches it has.

    The query continues after a DELETE, UPDATE, MERGE, OPTIMIZE or overwrite by others: these are edits of rows. RESTORE
    to a version before the query's last batch, REPLACE TABLE and CLONE stop the query, at once or at the next start:
    they remove batches that the table still counts as written. The error says how to restore the rows, and how to
    continue without them. Keep the table's log for longer than the longest stop (``delta.logRetentionDuration``).

    Examples
    --------
    >>> DeltaAppend("/lake/clicks", partition_by=["day"])
    DeltaAppend('/lake/clicks')
    """

    def described(self) -> dict[str, Any]:
        return {**super().described(), "kind": "DeltaAppend"}

    def _stored_fields(self, context: SinkContext) -> list[StructField]:
        return list(context.schema.fields)

    def _added(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> DataFrame:
        return batch_df

    def _write_small(self, rows: pa.Table, table: DirectTable, txn_app_id: str, batch_id: int) -> None:
        table.append(rows.select(self._columns), txn_app_id, batch_id)
