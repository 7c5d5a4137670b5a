"""Adds a query's rows to an Iceberg table, one commit per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backlog_spark.sinks.iceberg.sink import IcebergSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

    from backlog_spark.sinks.base import SinkContext
    from backlog_spark.sinks.iceberg.commits import Changes
    from backlog_spark.sinks.iceberg.marks import IcebergState
    from backlog_spark.sinks.table_sink import PendingBatch

__all__ = ["IcebergAppend"]


class IcebergAppend(IcebergSink):
    """Appends rows to an Apache Iceberg table, exactly once, through pyiceberg. Spark needs no package of Iceberg.

    A batch is one commit of the table. The commit also sets a property of the table that names the query and the
    batch, so a batch that the table already has is skipped before any row is read. All columns are stored.

    Parameters
    ----------
    table : str
        Namespace and name, such as ``shop.clicks``. The first start creates both. An existing table may be of any
        origin in format 1 or 2, and several queries may append to it.
    catalog : mapping of str to str
        The catalog's properties, under pyiceberg's names: ``type`` (``rest``, ``sql``, ``hive``, ``glue``, …),
        ``uri``, ``warehouse``, credentials of the catalog and of the storage. ``name`` is the catalog's name, by
        default ``default``; its properties in pyiceberg's own configuration are used, too. With a local ``warehouse``
        alone, the catalog is a file of SQLite there. Only the name, type, address and warehouse are ever shown.
    partition_by : sequence of str, default ()
        Partitions of a table that the sink creates: columns, or Iceberg's transforms ``years(x)``, ``months(x)``,
        ``days(x)`` and ``hours(x)`` of a date or timestamp, in UTC, ``bucket(16, x)`` and ``truncate(4, x)``.
    computed : mapping of str to str
        Columns that the sink adds: SQL expressions of a row, by name.
    properties : mapping of str to str
        Table properties of a table that the sink creates.
    merge_schema : bool, default False
        Add columns that the stream has and the table lacks; they are NULL in existing rows. And widen columns that are
        wider in the stream, as far as Iceberg does without a rewrite of files. The sink does so when the query starts.
    small_batch_rows : int, default 100,000
        The driver writes the file of a live batch of up to this many rows. Spark's tasks write larger ones. 0: Spark's
        tasks write all.
    small_batch_bytes : int, default 64 MiB
        Maximum bytes of such a batch, in Arrow.
    expire_snapshots : str, optional
        Between batches remove snapshots of this age, such as ``7 days``, and the files that only they need. Other
        queries must not read older snapshots, and tags and branches stay. None: all snapshots stay.
    compact : bool, default False
        Merge small files between live batches. Streaming readers of the table see the merged files as an overwrite.

    Notes
    -----
    The query continues after commits of other writers. A rollback of the table to a snapshot before the query's last
    batch stops it, at once or at the next start. The error says how to go on. A rollback is not noticed if the snapshot
    of the last batch has expired before the query looks.

    Examples
    --------
    >>> IcebergAppend("shop.clicks", {"warehouse": "/lake"}, partition_by=["day"])
    IcebergAppend('shop.clicks')
    """

    def described(self) -> dict[str, Any]:
        return {**super().described(), "kind": "IcebergAppend"}

    def _stored_fields(self, context: SinkContext) -> list[StructField]:
        return list(context.schema.fields)

    def small(self, rows: pa.Table, state: IcebergState) -> Changes | str:
        from backlog_spark.sinks.iceberg.commits import Changes
        from backlog_spark.sinks.iceberg.files import TableFiles

        return Changes(TableFiles.of(state.table).write(rows))

    def added(self, batch: PendingBatch, state: IcebergState) -> DataFrame:
        return self._stored_rows(batch.rows)
