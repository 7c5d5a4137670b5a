"""Keeps a Delta table equal to the newest change of every key, one Delta transaction a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.session import session_conf
from backlog_spark.sinks import BatchInfo, Sink, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CREATED_BY", "DEFAULT_PROPERTIES", "DeltaUpsert"]

CREATED_BY: Final = "backlog_spark.createdBy"
"""Table property that marks a table as created by one query: its value is the query's ``txn_app_id``."""

# Deletion vectors: a MERGE marks the replaced rows instead of rewriting their files. Measured on 2*10^6 rows,
# local[2]: 2*10^3 changed keys 2.4 to 3.0 s against 3.1 to 3.2 s, 1.3 against 3.2 s when the keys were
# changed a moment ago; 5*10^5 changed keys 4.3 against 5.0 s.
DEFAULT_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({"delta.enableDeletionVectors": "true"})
"""Properties of a table that the sink creates."""

# The columns of a change stream, as the sources name them.
_CHANGE_TYPE: Final = "_change_type"
_SEQUENCE: Final = "_commit_seq"
_METADATA: Final = (_CHANGE_TYPE, "_commit_timestamp", _SEQUENCE)

_UPSERTS: Final = ("insert", "update_postimage")
# A before-image removes its key unless the after-image puts it back: the same as dropping it when the key
# stays, and right when the update changed the key or a filter upstream kept only the before-image.
_DELETES: Final = ("delete", "update_preimage")

_RANK: Final = "__backlog_spark_rank"
_IS_DELETE: Final = "__backlog_spark_is_delete"

_TXN_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_MATERIALIZE: Final = "spark.databricks.delta.merge.materializeSource"
_SNAPSHOT_PARTITIONS: Final = "spark.databricks.delta.snapshotPartitions"
# Delta's own default for _SNAPSHOT_PARTITIONS.
_DELTA_SNAPSHOT_PARTITIONS: Final = 50


class DeltaUpsert(Sink):
    """Upserts change rows into a Delta table by key, exactly once.

    A batch is one Delta transaction that carries ``(txn_app_id, batch_id)``; a batch id that the table
    already has is skipped before anything is read. How a batch is written:

    * *append*, when the batch is backlog, this query created the table (the property
      ``backlog_spark.createdBy``), and the runner promises that keys are unique in backlog: all rows are
      inserts then, and no key can be there yet.
    * *MERGE* of the newest change of each key otherwise.

    An empty batch is a transaction too. With `sequence` ties within a key, an upsert wins over a delete.

    Parameters
    ----------
    path : str
        Location of the table on any filesystem Delta supports. Created at the first start if nothing is
        there.
    keys : sequence of str
        Columns that identify a row. NULL is a value like any other: a NULL key matches a NULL key.
    change_type : str or None, default "_change_type"
        Column with ``insert``, ``update_preimage``, ``update_postimage`` or ``delete``, as in Delta's change
        data feed; any other value fails the query. An ``update_preimage`` removes its key unless the update's
        after-image keeps it. None: rows carry no change type and each is an upsert.
    sequence : str or None, default "_commit_seq"
        Column by which the newest change of a key within a batch is found; any orderable type, increasing
        with each change of a key, NULL is oldest. None: a batch never has two rows of one key; if it has, the
        query fails.
    metadata_columns : sequence of str, default ("_change_type", "_commit_timestamp", "_commit_seq")
        Columns of the batch that are not stored. All must exist; but when these three defaults stand, the rows are
        results of a keyed operator and have none of the columns, each row is an upsert and a batch never has two rows
        of one key.
    partition_by : sequence of str, default ()
        Partition columns of a table that the sink creates.
    properties : mapping of str to str
        Table properties of a table that the sink creates, added to (and overruling) ``DEFAULT_PROPERTIES``.

    Raises
    ------
    SettingError
        If `keys` is empty or names a metadata column.

    Notes
    -----
    Columns of an existing table that the batch lacks are left as they are, and NULL in new rows. Do not set
    ``delta.setTransactionRetentionDuration`` shorter than the longest stop of the query: with the
    transaction, Delta forgets which batches it has.

    Examples
    --------
    >>> sink = DeltaUpsert("/lake/orders", keys=["order_id"])
    >>> rows = {"change_type": None, "sequence": None, "metadata_columns": ()}  # each row is an upsert
    >>> totals = DeltaUpsert("/lake/totals", keys=["user_id"], **rows)
    """

    def __init__(
        self,
        path: str,
        keys: Sequence[str],
        *,
        change_type: str | None = _CHANGE_TYPE,
        sequence: str | None = _SEQUENCE,
        metadata_columns: Sequence[str] = _METADATA,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if isinstance(keys, str):
            raise SettingError("keys", keys, "must be a list of column names.", f"Write keys=[{keys!r}].")
        if not keys:
            raise SettingError("keys", list(keys), "an upsert needs at least one key column.")
        hidden = [key for key in keys if key in metadata_columns]
        if hidden:
            raise SettingError("keys", list(keys), f"{hidden[0]!r} is a metadata column and is not stored.")
        self.path = path
        self.keys = tuple(keys)
        self.change_type = change_type
        self.sequence = sequence
        self.metadata_columns = tuple(metadata_columns)
        self._by_default = (change_type, sequence, self.metadata_columns) == (_CHANGE_TYPE, _SEQUENCE, _METADATA)
        self.partition_by = tuple(partition_by)
        self.properties = {**DEFAULT_PROPERTIES, **properties}
        self._context: SinkContext | None = None
        self._columns: tuple[str, ...] = ()
        self._is_ours = False

    def open(self, context: SinkContext) -> None:
        """Create the table if there is none, else check that it fits. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            If a key, change type, sequence, metadata or partition column is not in the schema.
        BacklogError
            If `path` holds files that are no Delta table, or a table without one of the columns or with
            another type.
        """
        if self._by_default:
            plain = context.rows_are_results and not set(_METADATA) & set(context.schema.names)
            self.change_type, self.sequence = (None, None) if plain else (_CHANGE_TYPE, _SEQUENCE)
            self.metadata_columns = () if plain else _METADATA
        stored = self._stored_fields(context.schema)
        spark = context.spark
        with session_conf(spark, _snapshot_conf(spark)):
            snapshot = self._snapshot(spark)
            self._check_history(snapshot, context)
            if snapshot.version() < 0:
                self._refuse_foreign_files(spark)
                self._create(spark, stored, context.txn_app_id)
                snapshot = self._snapshot(spark)
        # After a creation too: another query may have been faster, and its table wins.
        metadata = snapshot.metadata()
        self._check_table(StructType.fromJson(json.loads(metadata.schemaString())), stored)
        mark = metadata.configuration().get(CREATED_BY)
        self._is_ours = mark.isDefined() and mark.get() == context.txn_app_id
        self._columns = tuple(field.name for field in stored)
        self._context = context

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Write a batch in one transaction, or nothing if the table has it already. See :meth:`Sink.write`.

        Raises
        ------
        BacklogError
            If the sink is not open.
        """
        context = self._context
        if context is None:
            raise BacklogError(f"DeltaUpsert({self.path!r}) is not open.", "Call open() before write().")
        spark = batch_df.sparkSession
        with session_conf(spark, _snapshot_conf(spark)):
            done = _last_batch(self._snapshot(spark), context.txn_app_id)
            if done is not None and done >= batch.batch_id:
                return
            # Every batch is a transaction, an empty one too, so one that is missing is rows that are missing.
            if (-1 if done is None else done) < batch.batch_id - 1:
                raise self._lacks(batch.batch_id - 1, done)
            # Unset at once: these confs would mark, and so silently drop, any further write on this session.
            txn = {_TXN_APP_ID: context.txn_app_id, _TXN_VERSION: str(batch.batch_id)}
            # MERGE evaluates its source twice unless it keeps a copy; one that we persist it would refuse.
            with session_conf(spark, {**txn, _MATERIALIZE: "all"}):
                if batch.is_backlog and self._is_ours and context.key_is_unique_in_backlog:
                    self._append(batch_df)
                else:
                    self._merge(spark, batch_df)

    def _check_history(self, snapshot: Any, context: SinkContext) -> None:
        done = _last_batch(snapshot, context.txn_app_id)
        committed, planned = context.newest_committed, context.newest_planned
        if committed is not None and (-1 if done is None else done) < committed:
            raise self._lacks(committed, done)
        if done is not None and (planned is None or done > planned):
            raise BacklogError(
                f"The Delta table at {self.path} has batch {done} of this query, but the newest batch in its "
                f"checkpoint is {planned}: Delta would take the next batches for ones that it has, and drop them.",
                "Restore the checkpoint's directories offsets and commits, or start with a new checkpointLocation "
                "and a new table.",
            )

    def _lacks(self, wanted: int, done: int | None) -> BacklogError:
        return BacklogError(
            f"The Delta table at {self.path} lacks batches of this query: the checkpoint has committed up to {wanted}, "
            f"the table {'none of them' if done is None else f'has them up to {done}'}. It was removed, replaced or "
            "restored to an older version.",
            "Put the table back, or start with a new checkpointLocation and an empty path.",
        )

    def _append(self, batch_df: DataFrame) -> None:
        rows = batch_df
        if self.change_type is not None:
            # Costs next to nothing; a wrong promise of unique inserts would leave stale rows for ever.
            kind = F.col(_quoted(self.change_type))
            rows = rows.where(
                F.when(kind == "insert", F.lit(True)).otherwise(
                    F.raise_error(
                        F.concat(
                            F.lit(f"DeltaUpsert({self.path!r}): a backlog batch of unique inserts "),
                            F.lit(f"has a row with {self.change_type} = "),
                            F.coalesce(kind.cast("string"), F.lit("NULL")),
                            F.lit(". Declare the keys as not unique in backlog."),
                        )
                    ).cast("boolean")
                )
            )
        rows.select(*map(_quoted, self._columns)).write.format("delta").mode("append").save(self.path)

    def _merge(self, spark: SparkSession, batch_df: DataFrame) -> None:
        from delta.tables import DeltaTable

        # NULL-safe: with a plain "=" a NULL key would be inserted again by each batch.
        on = " AND ".join(f"t.{_quoted(key)} <=> s.{_quoted(key)}" for key in self.keys)
        values: dict[str, Any] = {_quoted(name): f"s.{_quoted(name)}" for name in self._columns}
        (
            DeltaTable.forPath(spark, self.path)
            .alias("t")
            .merge(self._newest(batch_df).alias("s"), on)
            .whenMatchedDelete(f"s.{_IS_DELETE}")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert(f"NOT s.{_IS_DELETE}", values)
            .execute()
        )

    def _newest(self, batch_df: DataFrame) -> DataFrame:
        """The newest change of each key: the stored columns and `_IS_DELETE`."""
        stored = [F.col(_quoted(name)) for name in self._columns]
        keys = [F.col(_quoted(key)) for key in self.keys]
        is_delete = F.lit(False)
        if self.change_type is not None:
            kind = F.col(_quoted(self.change_type))
            is_delete = (
                F.when(kind.isin(*_UPSERTS), F.lit(False))
                .when(kind.isin(*_DELETES), F.lit(True))
                .otherwise(
                    F.raise_error(
                        F.concat(
                            F.lit(f"DeltaUpsert({self.path!r}): unknown {self.change_type} = "),
                            F.coalesce(kind.cast("string"), F.lit("NULL")),
                            F.lit("; known: " + ", ".join(_UPSERTS + _DELETES) + "."),
                        )
                    ).cast("boolean")
                )
            )
        rows = batch_df.withColumn(_IS_DELETE, is_delete)
        if self.sequence is not None:
            order = Window.partitionBy(*keys).orderBy(F.col(_quoted(self.sequence)).desc_nulls_last(), _IS_DELETE)
            newest = rows.withColumn(_RANK, F.row_number().over(order)).where(F.col(_RANK) == 1)
        else:
            # MERGE itself refuses two rows of one key only if the key is in the table: new keys would be
            # doubled.
            twice = F.raise_error(
                F.lit(f"DeltaUpsert({self.path!r}): two rows of one key in a batch; name a sequence column.")
            ).cast("boolean")
            count = F.count(F.lit(1)).over(Window.partitionBy(*keys))
            newest = rows.withColumn(_RANK, count).where(F.when(F.col(_RANK) == 1, F.lit(True)).otherwise(twice))
        return newest.select(*stored, _IS_DELETE)

    def _stored_fields(self, schema: StructType) -> list[StructField]:
        """The batch's columns that go into the table; refuses a schema that lacks one that is needed."""
        names = set(schema.names)
        needed = [("metadata_columns", name) for name in self.metadata_columns]
        needed += [("change_type", self.change_type)] if self.change_type is not None else []
        needed += [("sequence", self.sequence)] if self.sequence is not None else []
        for setting, name in needed:
            if name not in names:
                raise SettingError(
                    f"DeltaUpsert {setting}",
                    name,
                    f"the stream has no such column; it has {', '.join(schema.names)}.",
                    "For rows that are no changes, write with Spark's own Delta sink "
                    "(writeStream.format('delta')), or upsert each row with "
                    "DeltaUpsert(…, change_type=None, sequence=None, metadata_columns=()).",
                )
        stored = [field for field in schema.fields if field.name not in self.metadata_columns]
        names = {field.name for field in stored}
        for setting, columns in (("keys", self.keys), ("partition_by", self.partition_by)):
            for name in columns:
                if name not in names:
                    raise SettingError(
                        f"DeltaUpsert {setting}",
                        list(columns),
                        f"there is no column {name!r} to store; there are {', '.join(sorted(names))}.",
                    )
        return stored

    def _check_table(self, table: StructType, stored: Sequence[StructField]) -> None:
        # Delta resolves column names without regard to case.
        types = {field.name.lower(): field.dataType.simpleString() for field in table.fields}
        for field in stored:
            wanted, found = field.dataType.simpleString(), types.get(field.name.lower())
            if found == wanted:
                continue
            problem = f"no column {field.name!r}" if found is None else f"column {field.name!r} of type {found}"
            role = "key column" if field.name in self.keys else "column"
            raise BacklogError(
                f"The Delta table at {self.path} has {problem}; the stream's {role} {field.name!r} is {wanted}.",
                "Change the table (ALTER TABLE … ADD COLUMNS), cast the column, or use another path.",
            )

    def _create(self, spark: SparkSession, stored: Sequence[StructField], txn_app_id: str) -> None:
        from delta.tables import DeltaTable

        # All nullable: whether a stream's column is nullable is an accident of its plan and may change with
        # it. Field metadata is left out: Spark keeps an event-time column's watermark there.
        columns = StructType([StructField(field.name, field.dataType) for field in stored])
        table = DeltaTable.createIfNotExists(spark).location(self.path).addColumns(columns)
        if self.partition_by:
            table = table.partitionedBy(*self.partition_by)
        for name, value in {**self.properties, CREATED_BY: txn_app_id}.items():
            table = table.property(name, value)
        table.execute()

    def _refuse_foreign_files(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(self.path)
        files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        names = [status.getPath().getName() for status in files.listStatus(path)] if files.exists(path) else []
        # A crash within the very first commit leaves an empty log directory.
        foreign = [name for name in names if name != "_delta_log"]
        if foreign:
            raise BacklogError(
                f"{self.path} is not a Delta table but holds {foreign[0]!r}.",
                "Use an empty path, or convert the files first (CONVERT TO DELTA).",
            )

    def _snapshot(self, spark: SparkSession) -> Any:
        """Delta's newest snapshot of the path; its version is -1 when there is no table."""
        jvm: Any = spark._jvm
        log_class = jvm.org.apache.spark.sql.delta.DeltaLog
        if isinstance(log_class, JavaPackage):
            raise BacklogError(
                "Delta is not on Spark's class path.",
                "Start with --packages io.delta:delta-spark_4.2_2.13:4.4.0, "
                "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
                "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog.",
            )
        none = jvm.scala.Option.empty()
        return log_class.forTable(spark._jsparkSession, self.path).update(False, none, none)


def _last_batch(snapshot: Any, txn_app_id: str) -> int | None:
    """The newest batch id of a query that a table has."""
    done = snapshot.transactions().get(txn_app_id)
    return int(done.get()) if done.isDefined() else None


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _snapshot_conf(spark: SparkSession) -> dict[str, str]:
    """Partitions for rebuilding the table's state, unless the user has set them.

    A transaction with an id needs the state, and Delta takes 50 tasks to build it whatever the machine:
    2.5 s a batch on two cores, 0.3 s with two tasks.
    """
    if spark.conf.get(_SNAPSHOT_PARTITIONS, None) is not None:
        return {}
    return {_SNAPSHOT_PARTITIONS: str(min(_DELTA_SNAPSHOT_PARTITIONS, spark.sparkContext.defaultParallelism))}
