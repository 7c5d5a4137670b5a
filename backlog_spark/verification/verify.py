"""``bs.verify``: compares a target with its source, exactly, while the query runs and writers write.

1. The target's newest version is fixed. It names the query's batch: by a transaction id in Delta, a table property in
   Iceberg, a row of another table in a database. Spark's offset log has the position in the source's log where that
   batch ends.
2. The connector gives its tables' rows as of exactly that position, however late it reads them; see
   `backlog_spark.spi.tables_at`.
3. Spark compares 128-bit digests of both sides' rows by key, in one shuffle. The source's rows go through the same
   conversion as in the query, and both sides go through the same hash function.
4. The rows of the first differing keys are read again, for the names of the columns.

Nothing is locked, and the query does not wait. The server cannot make the digests: it only aggregates its present rows,
not those at an earlier position of its log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.api.streams import BacklogStream
from backlog_spark.common.familiar_names import checked_arguments, described
from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.runner.query import BacklogQuery
from backlog_spark.sinks.base import Sink
from backlog_spark.sinks.tables import TablesSink
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.jvm.session import session_copy
from backlog_spark.spi.registry import table_names, tables_at
from backlog_spark.verification.comparison import Comparison
from backlog_spark.verification.query import query_of
from backlog_spark.verification.repair import BothSides
from backlog_spark.verification.result import Verification
from backlog_spark.verification.targets import TargetTable, TargetVersion, explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.spi.tables_at import TablesAt

__all__ = ["verify", "verify_tables"]

_log = logging.getLogger(__name__)

_SMALLEST_CHUNK: Final = 2_000
_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


@checked_arguments
def verify(
    of: BacklogQuery | BacklogStream,
    sink: Sink | None = None,
    *,
    checkpoint: str | None = None,
    table: str = "",
    max_differences: int = 20,
    values: bool = False,
    max_rows_per_second: int | None = None,
    repair: bool = False,
    spark: SparkSession | None = None,
) -> Verification:
    """Compare a target with the source that a query copies into it, exactly, while the query runs.

    Both sides are compared as of one position of the source's log: where the newest batch in the target ends. So a
    target that lags behind the source does not differ. Nothing is locked, and the query need not stop. See
    docs/verify.md.

    Parameters
    ----------
    of : BacklogQuery or BacklogStream
        The query, running or stopped, or its source, as ``bs.source`` returned it. There must be no step between source
        and sink.
    sink : DeltaUpsert, DeltaAppend, DeltaTables, IcebergUpsert, IcebergAppend, IcebergTables or JdbcUpsert, optional
        Default: the query's sink. With `DeltaAppend` and `IcebergAppend` the newest row of each key is compared.
    checkpoint : str, optional
        The query's ``checkpointLocation``. Required with a source.
    table : str, optional
        One of several tables, ``"database.table"``. The first dot separates the two; a database with a dot is
        quoted with backquotes, as in MySQL. Default: all. With a sink of many tables it is needed; `verify_tables`
        compares all.
    max_differences : int, default 20
        Most keys in `Verification.differences`. All differing keys are counted.
    values : bool, default False
        Whether the differences contain the rows' values. By default they contain keys and names of columns only.
    max_rows_per_second : int, optional
        Most rows per second to read from the source, on average, by all tasks together. Default: no limit.
    repair : bool, default False
        Write the source's rows of the differing keys into the table, in one commit. Not for `DeltaAppend` and
        `IcebergAppend`, and not for a table with history. Only chunks of the source with such keys are read again. The
        batches of a running query wait for the commit, and keys that the query has written since the comparison keep
        these newer rows. A stopped query continues from its checkpoint afterwards. Refused if anybody else has written
        to a table of Delta or Iceberg since the comparison; a database does not tell it.
    spark : SparkSession, optional
        Default: the active session.

    Returns
    -------
    Verification

    Raises
    ------
    SettingError
        For arguments that cannot work.
    BacklogError
        The snapshot is not complete; the source's log since that position or files of the table's version are gone; a
        column has another type in the table; or table and checkpoint belong to different queries.

    Examples
    --------
    >>> result = bs.verify(query, max_rows_per_second=50_000)  # doctest: +SKIP
    >>> result.raise_for_differences()  # doctest: +SKIP
    """
    if max_differences < 0:
        raise SettingError(
            "max_differences", max_differences, "must be a whole number, 0 or more.", "The default is 20."
        )
    rate = max_rows_per_second
    if rate is not None and rate < 1:
        raise SettingError("max_rows_per_second", rate, "must be a whole number, 1 or more.", "None: no limit.")
    table = _known_as(table)
    found = both_sides(of, sink, checkpoint=checkpoint, table=table, spark=spark, max_rows_per_second=rate)
    with closing(found.table):
        if repair:
            found.table.refuse_repair()
        if repair and found.target.version < 0:
            raise BacklogError(
                f"There is no Delta table at {found.target.place} to repair: the query has written no row of {table}.",
                "Start again with a new checkpoint.",
            )
        running = of if isinstance(of, BacklogQuery) and of.isActive else None
        return compare(
            found, table=table, max_differences=max_differences, values=values, max_rows_per_second=rate,
            repair=repair, running=running,
        )  # fmt: skip


@checked_arguments
def verify_tables(
    of: BacklogQuery | BacklogStream,
    sink: TablesSink | None = None,
    *,
    checkpoint: str | None = None,
    max_differences: int = 20,
    values: bool = False,
    max_rows_per_second: int | None = None,
    repair: bool = False,
    spark: SparkSession | None = None,
) -> dict[str, Verification]:
    """Compare each table of a whole-database copy with its Delta table: see `verify` and docs/verify.md.

    Each table is compared as of a position of its own. A table that was dropped at the source is left out.

    Parameters
    ----------
    of : BacklogQuery or BacklogStream
        The query, running or stopped, or its source.
    sink : DeltaTables or IcebergTables, optional
        Default: the query's sink.
    checkpoint, max_differences, values, max_rows_per_second, repair, spark
        As in `verify`.

    Returns
    -------
    dict of str to Verification
        By ``database.table``, written as for `verify`.

    Raises
    ------
    BacklogError
        As `verify`.
    """
    query = query_of(of, sink, checkpoint, spark)
    if not isinstance(query.sink, TablesSink):
        raise SettingError("sink", described(query.sink), "is no DeltaTables or IcebergTables.", "Use bs.verify.")
    newest = TargetVersion(repr(query.sink), -1, query.committed())
    names = table_names(query.spec.format, query.offset(newest))
    gone = sorted(query.begun().keys() - set(names))
    if gone:
        _log.warning("verify: not compared, because the source's stream has no such tables: %s", ", ".join(gone))
    return {
        name: verify(
            of,
            query.sink,
            checkpoint=query.location,
            table=name,
            max_differences=max_differences,
            values=values,
            max_rows_per_second=max_rows_per_second,
            repair=repair,
            spark=spark,
        )
        for name in names
    }


def _known_as(table: str) -> str:
    """A table's name as sinks and connectors write it."""
    try:
        return str(TableName.parse(table)) if table else ""
    except ValueError:
        raise SettingError(
            "table", table, "is not database.table.", 'For example "shop.orders", or "`my.shop`.orders".'
        ) from None


def both_sides(
    of: BacklogQuery | BacklogStream,
    sink: Sink | None = None,
    *,
    checkpoint: str | None = None,
    table: str = "",
    max_rows_per_second: int | None = None,
    spark: SparkSession | None = None,
) -> BothSides:
    """Fix the target's version and the position in the source's log that belongs to it. Parameters as in `verify`."""
    query = query_of(of, sink, checkpoint, spark)
    if isinstance(query.sink, TablesSink) and not table:
        kind = type(query.sink).__name__
        raise SettingError("table", table, f"is needed with {kind}.", "bs.verify_tables compares all tables.")
    side = query.target(table)
    per_chunk = None if max_rows_per_second is None else max(_SMALLEST_CHUNK, max_rows_per_second)

    def newest() -> tuple[TargetVersion, Mapping[str, Any]]:
        found = side.newest()
        return found, query.offset(found)

    def rows_at(offset: Mapping[str, Any]) -> TablesAt:
        return tables_at(query.spec.format, query.spec.options, offset, table=table, rows_per_chunk=per_chunk)

    try:
        target, offset = newest()
        tables = rows_at(offset)
        _check_keys(side, tables)
        sized, columns = _sized_session(query.spark, tables.chunks), tables.columns
        with explained(side, target):
            target = side.held(sized, target, columns)
        if (later := query.offset(target)) != offset:
            offset, tables = later, rows_at(later)
        if tables.columns != columns:
            raise BacklogError("The source was altered while verify began.", "Verify again.")
    except BaseException:
        side.close()
        raise
    return BothSides(sized, side, target, tables, offset, newest)


def _check_keys(side: TargetTable, tables: TablesAt) -> None:
    if side.keys and {key.lower() for key in side.keys} != {key.lower() for key in tables.key}:
        raise SettingError(
            "keys", list(side.keys), f"are not the source's key ({', '.join(tables.key)}).",
            "Such a target is not a copy of the source.",
        )  # fmt: skip


def _sized_session(spark: SparkSession, chunks: int) -> SparkSession:
    """A session whose shuffles have as many tasks as the source has chunks, or as there are cores.

    By default Spark shuffles into 200 tasks, and Delta reads its log with 50, however few rows there are: half a minute
    a table on two cores.
    """
    made = session_copy(spark)
    if made is not spark:
        most, cores = int(str(spark.conf.get(_SHUFFLE_PARTITIONS))), spark.sparkContext.defaultParallelism
        made.conf.set(_SHUFFLE_PARTITIONS, str(min(most, max(chunks, cores))))
        for name, value in delta_log.snapshot_conf(made).items():
            made.conf.set(name, value)
    return made


def compare(
    at: BothSides,
    *,
    table: str = "",
    max_differences: int = 20,
    values: bool = False,
    max_rows_per_second: int | None = None,
    repair: bool = False,
    running: BacklogQuery | None = None,
) -> Verification:
    """Compare both sides. Parameters as in `verify`. ``running``: the query, if it runs."""
    began = time.monotonic()
    _log.info(
        "verify: %s at version %d, batch %d, %s",
        at.target.place, at.target.version, at.target.batch, at.tables.position,
    )  # fmt: skip
    try:
        with explained(at.table, at.target):
            result = Comparison(at, table, max_rows_per_second).result(
                began, max_differences, values=values, repair=repair, running=running
            )
    finally:
        at.table.close()
    _log.log(logging.INFO if result.is_equal else logging.WARNING, "verify: %s", result.summary)
    return result
