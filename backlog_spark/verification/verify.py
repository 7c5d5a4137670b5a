"""``bs.verify``: compares a Delta table with its source, exactly, while the query runs and writers write.

1. The table's newest version is fixed. The transaction id in it names the query's batch. Spark's offset log has the
   position in the source's log where that batch ends.
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
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from backlog_spark.api.streams import BacklogStream
from backlog_spark.common.failure_causes import first_line, next_step
from backlog_spark.common.familiar_names import checked_arguments, described
from backlog_spark.common.sql_names import quoted
from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.runner.query import BacklogQuery
from backlog_spark.sinks.delta.sink import DeltaSink
from backlog_spark.sinks.delta.tables import DeltaTables
from backlog_spark.sinks.delta.upsert import DeltaUpsert
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.jvm.quiet import end_console_progress, filter_messages
from backlog_spark.spark.jvm.session import session_copy
from backlog_spark.spark.plan.batch_frames import empty_frame
from backlog_spark.spi.registry import table_names, tables_at
from backlog_spark.verification.delta_rows import TargetVersion, rows_at
from backlog_spark.verification.query import query_of
from backlog_spark.verification.reading import ChunkReader, ReadingLine
from backlog_spark.verification.repair import BothSides, Repair
from backlog_spark.verification.result import Difference, Verification
from backlog_spark.verification.row_comparison import (
    DIFFERENT,
    DOUBLED,
    EXTRA,
    MISSING,
    PART,
    SAME,
    compared,
    differing_columns,
    is_same,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["verify", "verify_tables"]

_log = logging.getLogger(__name__)

_SMALLEST_CHUNK: Final = 2_000
_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
# Errors of Spark and Delta if files of a version are gone.
_GONE: Final = (
    "FILE_NOT_EXIST", "FileNotFoundException", "DELTA_FILE_NOT_FOUND", "DELTA_VERSION_NOT_FOUND",
    "DELTA_LOG_FILE_NOT_FOUND", "VersionNotFoundException", "DELTA_TRUNCATED_TRANSACTION_LOG",
)  # fmt: skip


@checked_arguments
def verify(
    of: BacklogQuery | BacklogStream,
    sink: DeltaSink | DeltaTables | None = None,
    *,
    checkpoint: str | None = None,
    table: str = "",
    max_differences: int = 20,
    values: bool = False,
    max_rows_per_second: int | None = None,
    repair: bool = False,
    spark: SparkSession | None = None,
) -> Verification:
    """Compare a Delta table with the source that a query copies into it, exactly, while the query runs.

    Both sides are compared as of one position of the source's log: where the newest batch in the table ends. So a
    target that lags behind the source does not differ. Nothing is locked, and the query need not stop. See
    docs/verify.md.

    Parameters
    ----------
    of : BacklogQuery or BacklogStream
        The query, running or stopped, or its source, as ``bs.source`` returned it. There must be no step between source
        and sink.
    sink : DeltaUpsert, DeltaAppend or DeltaTables, optional
        Default: the query's sink. With `DeltaAppend` the newest row of each key is compared.
    checkpoint : str, optional
        The query's ``checkpointLocation``. Required with a source.
    table : str, optional
        One of several tables, ``"database.table"``. The first dot separates the two; a database with a dot is
        quoted with backquotes, as in MySQL. Default: all. With `DeltaTables` it is needed; `verify_tables` compares
        all.
    max_differences : int, default 20
        Most keys in `Verification.differences`. All differing keys are counted.
    values : bool, default False
        Whether the differences contain the rows' values. By default they contain keys and names of columns only.
    max_rows_per_second : int, optional
        Most rows per second to read from the source, on average, by all tasks together. Default: no limit.
    repair : bool, default False
        Write the source's rows of the differing keys into the table, in one commit. Not for `DeltaAppend`. Only chunks
        of the source with such keys are read again. The batches of a running query wait for the commit, and keys that
        the query has written since the comparison keep these newer rows. A stopped query continues from its checkpoint
        afterwards. Refused if anybody else has written to the table since the comparison.
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
    if repair and not isinstance(found.sink, DeltaUpsert):
        raise SettingError(
            "repair", repair, "a table of DeltaAppend keeps all changes, so it cannot be repaired.", "Leave repair out."
        )
    if repair and found.target.version < 0:
        raise BacklogError(
            f"There is no Delta table at {found.target.path} to repair: the query has written no row of {table}.",
            "Start again with a new checkpoint.",
        )
    running = of if isinstance(of, BacklogQuery) and of.isActive else None
    return compare(
        found, table=table, max_differences=max_differences, values=values, max_rows_per_second=rate, repair=repair,
        running=running,
    )  # fmt: skip


@checked_arguments
def verify_tables(
    of: BacklogQuery | BacklogStream,
    sink: DeltaTables | None = None,
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
    sink : DeltaTables, optional
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
    if not isinstance(query.sink, DeltaTables):
        raise SettingError("sink", described(query.sink), "is not a DeltaTables.", "Use bs.verify.")
    newest = TargetVersion(query.sink.path, -1, query.committed())
    names = table_names(query.spec.format, query.offset(newest))
    gone = sorted(query.sink._begun(query.spark, query.app_id).keys() - set(names))
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
    sink: DeltaSink | DeltaTables | None = None,
    *,
    checkpoint: str | None = None,
    table: str = "",
    max_rows_per_second: int | None = None,
    spark: SparkSession | None = None,
) -> BothSides:
    """Fix the target's version and the position in the source's log that belongs to it. Parameters as in `verify`."""
    query = query_of(of, sink, checkpoint, spark)
    if isinstance(query.sink, DeltaTables) and not table:
        raise SettingError("table", table, "is needed with DeltaTables.", "bs.verify_tables compares all tables.")
    target, offset = query.newest(table)
    per_chunk = None if max_rows_per_second is None else max(_SMALLEST_CHUNK, max_rows_per_second)
    tables = tables_at(query.spec.format, query.spec.options, offset, table=table, rows_per_chunk=per_chunk)
    one = DeltaUpsert(target.path, list(tables.key)) if isinstance(query.sink, DeltaTables) else query.sink
    keys = {key.lower() for key in tables.key}
    if one.keys and {key.lower() for key in one.keys} != keys:
        raise SettingError(
            "keys", list(one.keys), f"are not the source's key ({', '.join(tables.key)}).",
            "Such a target is not a copy of the source.",
        )  # fmt: skip
    return BothSides(
        _sized_session(query.spark, tables.chunks), one, target, tables, offset, lambda: query.newest(table)
    )


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
        "verify: %s at version %d, batch %d, %s", at.target.path, at.target.version, at.target.batch, at.tables.position
    )
    try:
        result = _Comparison(at, table, max_rows_per_second).result(
            began, max_differences, values=values, repair=repair, running=running
        )
    except BacklogError:
        raise
    except Exception as error:
        raise _explained(error, at) from error
    _log.log(logging.INFO if result.is_equal else logging.WARNING, "verify: %s", result.summary)
    return result


class _Comparison:
    """The data frames of both sides, and their comparison."""

    def __init__(self, at: BothSides, table: str, rate: int | None) -> None:
        spark, tables = at.spark, at.tables
        self._at = at
        context = spark.sparkContext
        tasks = max(1, min(tables.chunks, context.defaultParallelism))
        self._reader = ChunkReader(
            tables, None if rate is None else rate / tasks, context.accumulator(0), context.accumulator(0)
        )
        begun = at.target.version >= 0
        target = rows_at(spark, at.sink, at.target, tables.key) if begun else empty_frame(spark, tables.columns)
        types = {name.lower() for name in target.columns}
        keys = {key.lower() for key in tables.key}
        self._values = [f for f in tables.columns if f.name.lower() in types and f.name.lower() not in keys]
        self._keys = [f for f in tables.columns if f.name.lower() in keys]
        _check_types(at, target.schema, [*self._keys, *self._values])
        names = [f.name for f in (*self._keys, *self._values)]
        known = {name.lower() for name in names}
        # Metadata columns of the source are not columns of its table.
        others = [n for n in target.columns if n.lower() not in known and n not in tables.added]
        self._left_out = (*(n for n in tables.columns.names if n.lower() not in known), *others)
        target = target.select(*(F.col(quoted(name)).alias(name) for name in names))
        if table:
            database, name = TableName.parse(table)
            if {"_database", "_table"} <= known:
                target = target.where((F.col("_database") == database) & (F.col("_table") == name))
        self._target = target

    def _source(self, chunks: Sequence[int] | None = None) -> DataFrame:
        """The rows of some chunks, by default all, with the column `PART`."""
        spark, tables = self._at.spark, self._at.tables
        schema = StructType([*tables.columns, StructField(PART, IntegerType())])
        count = tables.chunks if chunks is None else len(chunks)
        numbers = spark.range(0, count, 1, max(1, count))
        if chunks:
            numbers = numbers.select(F.element_at(F.array(*map(F.lit, chunks)), (F.col("id") + 1).cast("int")))
        return numbers.mapInArrow(self._reader, schema)

    def result(
        self, began: float, most: int, *, values: bool, repair: bool, running: BacklogQuery | None
    ) -> Verification:
        at = self._at
        keys = [f.name for f in self._keys]
        from pyspark import StorageLevel

        found = compared(self._source(), self._target, keys, self._values).persist(StorageLevel.DISK_ONLY)
        try:
            filter_messages(at.spark)
            end_console_progress(at.spark)
            with ReadingLine(self._reader, _named(at.tables.tables)):
                counts = found.groupBy("kind").agg(
                    F.count("*").alias("keys"),
                    F.sum("source").alias("source"),
                    F.sum("target").alias("target"),
                    F.collect_set("part").alias("parts"),
                ).collect()  # fmt: skip
            kinds = {row["kind"]: int(row["keys"]) for row in counts}
            differences: tuple[Difference, ...] = ()
            if most and set(kinds) - {SAME}:
                differences = self._first(found, most, values=values)
            if repair and set(kinds) - {SAME}:
                wrong = found.where(F.col("kind") != SAME)
                mending = Repair(at, self._keys, self._values, self._source)
                if running is None:
                    mending.stopped(wrong)
                else:
                    mending.between_batches(wrong, running, doubles=DOUBLED in kinds)
        finally:
            found.unpersist()
        return Verification(
            tables=at.tables.tables,
            target=at.target.path,
            version=at.target.version,
            batch_id=at.target.batch,
            position=at.tables.position,
            source_rows=sum(int(row["source"]) for row in counts),
            target_rows=sum(int(row["target"]) for row in counts),
            missing=kinds.get(MISSING, 0),
            extra=kinds.get(EXTRA, 0),
            different=kinds.get(DIFFERENT, 0),
            doubled=kinds.get(DOUBLED, 0),
            differences=differences,
            columns=tuple(f.name for f in (*self._keys, *self._values)),
            left_out=self._left_out,
            chunks=at.tables.chunks,
            differing_chunks=len({part for row in counts for part in row["parts"]}),
            repaired=sum(kinds.values()) - kinds.get(SAME, 0) if repair else 0,
            seconds=time.monotonic() - began,
        )

    def _first(self, found: DataFrame, most: int, *, values: bool) -> tuple[Difference, ...]:
        """The first differing keys. Their rows are read again if names of columns or values are needed."""
        keys = [f.name for f in self._keys]
        first = found.where(F.col("kind") != SAME).orderBy("key").limit(most).select("kind", "key", "part")
        wanted = first.where(F.col("kind") == DIFFERENT)
        if values:
            wanted = first.where(F.col("kind") != DOUBLED)
        listed = first.orderBy("key").collect()
        again = [r for r in listed if r["kind"] == DIFFERENT or (values and r["kind"] != DOUBLED)]
        if not again:
            return tuple(Difference(row["kind"], row["key"].asDict()) for row in listed)
        parts = sorted({row["part"] for row in again if row["part"] is not None})
        rows = [f.name for f in self._values]

        def side(frame: DataFrame, name: str) -> DataFrame:
            small = F.broadcast(wanted)
            found = frame.join(small, is_same(small, frame, keys), "inner")
            struct = F.struct(*(frame[quoted(c)].alias(c) for c in rows)) if rows else F.struct(F.lit(0).alias("_"))
            return found.select(small["key"], struct.alias(name))

        source = side(self._source(parts), "source")
        both = first.alias("f")
        for frame, name in ((source, "source"), (side(self._target, "target"), "target")):
            there = frame.withColumnRenamed("key", f"{name}_key")
            both = both.join(there, both["key"].eqNullSafe(there[f"{name}_key"]), "left")
        columns = F.when(F.col("kind") == DIFFERENT, differing_columns(self._values, "source", "target"))
        row_values = [F.col("source"), F.col("target")] if values else []
        listed = both.select("kind", "key", columns.alias("columns"), *row_values).orderBy("key").collect()
        return tuple(
            Difference(
                row["kind"],
                row["key"].asDict(),
                tuple(row["columns"] or ()),
                _values_of(row["source"], rows) if values else None,
                _values_of(row["target"], rows) if values else None,
            )
            for row in listed
        )


def _check_types(at: BothSides, target: StructType, fields: Sequence[StructField]) -> None:
    """Refuse a target without a key column, or with a column of another type than the source's."""
    types = {field.name.lower(): field.dataType.simpleString() for field in target.fields}
    for field in fields:
        wanted, there = field.dataType.simpleString(), types.get(field.name.lower())
        if there != wanted:
            raise BacklogError(
                f"The column {field.name!r} is {wanted} in the source, and {there or 'missing'} in the Delta table at "
                f"{at.target.path}.",
                "If the source was altered, verify again after the query has read the statement.",
            )


def _named(tables: Sequence[str]) -> str:
    return tables[0] if len(tables) == 1 else f"{len(tables)} tables"


def _values_of(row: Any, names: Sequence[str]) -> dict[str, Any] | None:
    return None if row is None else {name: row[name] for name in names}


def _explained(error: Exception, at: BothSides) -> BacklogError:
    """A failure of Spark as one line, with the next step if the cause is known."""
    text = f"{type(error).__name__}: {error}"
    if _any_in(_GONE, text):
        return BacklogError(
            f"Files of version {at.target.version} of the Delta table at {at.target.path} are gone.",
            "VACUUM has removed them. Verify again: verify then uses the newest version. Set "
            "delta.deletedFileRetentionDuration to more than the time of a verification.",
        )
    line = first_line(error)
    for name in ("BacklogError: ", "SettingError: ", "SchemaChanged: ", "StartAgain: "):
        line = line.partition(name)[2] or line
    return BacklogError(f"The comparison with {at.target.path} failed: {line}", next_step(line) or "Verify again.")


def _any_in(texts: Iterable[str], text: str) -> bool:
    return any(each in text for each in texts)
