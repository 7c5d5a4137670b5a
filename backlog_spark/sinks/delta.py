"""What the sinks of Delta tables share: one transaction a batch, and all that is checked before it."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql.types import StructField, StructType

from backlog_spark.batchframes import empty_frame
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.jvm import java_class, qualified
from backlog_spark.session import session_conf, session_copy
from backlog_spark.sinks import BatchInfo, Sink, SinkContext
from backlog_spark.sinks.delta_history import Commit, commits_back, read_commits, undoing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ACCEPTED", "ALWAYS", "CHANGE_DATA_FEED", "CREATED_BY", "DeltaSink", "quoted"]

CREATED_BY: Final = "backlog_spark.createdBy"
"""Table property that marks a table as created by one query: its value is the query's ``txn_app_id``."""

ACCEPTED: Final = "backlog_spark.acceptedVersion"
"""Table property by which its owner says: go on, whatever became of batches up to this version of the table."""

ALWAYS: Final = ""
CHANGE_DATA_FEED: Final = "delta.enableChangeDataFeed"
# By the table's property that makes them so. The first two Delta's reader takes for columns that it makes itself, and
# reads other values without a word.
_RESERVED: Final = {
    ALWAYS: frozenset({"__delta_internal_is_row_deleted", "_tmp_metadata_row_index"}),
    CHANGE_DATA_FEED: frozenset({"_change_type", "_commit_version", "_commit_timestamp"}),
}
_TXN_RETENTION: Final = "delta.setTransactionRetentionDuration"
_TXN_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_SNAPSHOT_PARTITIONS: Final = "spark.databricks.delta.snapshotPartitions"
# Delta's own default for _SNAPSHOT_PARTITIONS.
_DELTA_SNAPSHOT_PARTITIONS: Final = 50


class DeltaSink(Sink):
    """A sink that makes each batch one transaction of a Delta table, with ``(txn_app_id, batch_id)`` in it.

    Delta keeps the newest batch id of every query with the table. A batch that the table has is skipped before
    anything is read; one that does not follow the last is refused, as rows in between are missing. An empty
    batch is a transaction too, so that this can be told. RESTORE, REPLACE TABLE and CLONE take rows out of a table
    and keep the batch ids; so all commits beside the sink's own are looked through for them, before a batch is
    written or skipped and, as one may come meanwhile, before it counts as written.

    Subclasses say which columns are stored and how a batch's rows come into the table.

    Parameters
    ----------
    path : str
        Location of the table, in any form that Hadoop takes. Created at the first start if nothing is there.
    partition_by : sequence of str
        Partition columns of a table that the sink creates.
    properties : mapping of str to str
        Table properties of a table that the sink creates.
    merge_schema : bool
        Whether columns that the table lacks are added to it, NULL in the rows that it has.
    """

    keys: tuple[str, ...] = ()
    """Columns that identify a row, where a sink has such."""

    def __init__(
        self, path: str, *, partition_by: Sequence[str], properties: Mapping[str, str], merge_schema: bool
    ) -> None:
        if isinstance(partition_by, str):
            hint = f"Write partition_by=[{partition_by!r}]."
            raise SettingError("partition_by", partition_by, "must be a list of column names.", hint)
        self.path = path
        self.partition_by = tuple(partition_by)
        self.properties = dict(properties)
        self.merge_schema = merge_schema
        self._context: SinkContext | None = None
        self._columns: tuple[str, ...] = ()
        self._is_ours = False
        self._planned = -1  # the newest batch that may be in the table by this checkpoint
        self._checked = -1  # the table's version up to which its log has been looked through

    def for_output(self) -> DeltaSink:
        return copy.copy(self)

    @abstractmethod
    def _stored_fields(self, context: SinkContext) -> list[StructField]:
        """The batch's columns that go into the table. First of all at each `open`.

        Raises
        ------
        SettingError
            If a setting names a column that the schema lacks.
        """

    def _reserved(self) -> dict[str, frozenset[str]]:
        """Names in small letters that Delta takes for columns of its own in what this sink does.

        Each under the table's property that has to be true for it, or under `ALWAYS`.
        """
        return _RESERVED

    @abstractmethod
    def _write_rows(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> None:
        """Write a batch that the table lacks, in exactly one commit, also where it has no rows.

        Called with the session's confs set so that Delta puts the transaction's id into that commit.
        """

    def open(self, context: SinkContext) -> None:
        """Create the table if there is none, else check that it fits. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            If a setting names a column that is not in the schema.
        BacklogError
            If `path` holds files that are no Delta table, or a table without one of the columns or with
            another type; if the table lacks batches that the checkpoint has, or has some that it lacks; if it was
            restored or replaced.
        """
        stored = self._stored_fields(context)
        self._check_columns("partition_by", self.partition_by, stored)
        # Other queries of the session get none of our settings.
        spark = session_copy(context.spark)
        # Delta compares locations as texts in places, and resolves a relative one in others.
        self.path = str(qualified(spark, self.path).toString())
        with session_conf(spark, _snapshot_conf(spark)):
            snapshot = self._snapshot(spark)
            self._check_history(snapshot, context)
            self._check_since_committed(snapshot, context)
            if snapshot.version() < 0:
                self._refuse_reserved([field.name for field in stored], self.properties)
                self._refuse_foreign_files(spark)
                self._create(spark, stored, context.txn_app_id)
                snapshot = self._snapshot(spark)
        # After a creation too: another query may have been faster, and its table wins.
        metadata = snapshot.metadata()
        table = StructType.fromJson(json.loads(metadata.schemaString()))
        told = {name: metadata.configuration().get(name) for name in self._reserved()}
        properties = {name: value.get() for name, value in told.items() if value.isDefined()}
        self._refuse_reserved([*table.names, *(field.name for field in stored)], properties)
        if self.merge_schema:
            table = self._add_columns(spark, table, stored)
        self._check_table(table, stored)
        mark = metadata.configuration().get(CREATED_BY)
        self._is_ours = mark.isDefined() and mark.get() == context.txn_app_id
        self._columns = tuple(field.name for field in stored)
        self._planned = -1 if context.newest_planned is None else context.newest_planned
        self._context = context

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Write a batch in one transaction, or nothing if the table has it already. See :meth:`Sink.write`.

        Raises
        ------
        BacklogError
            If the sink is not open, the table lacks the batch before this one, it was restored or replaced, or another
            query has written a batch under this one's id.
        """
        context = self._context
        if context is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        spark = batch_df.sparkSession
        with session_conf(spark, _snapshot_conf(spark)):
            snapshot = self._snapshot(spark)
            done = _last_batch(snapshot, context.txn_app_id)
            if done is not None:
                self._check_since(self._checked, snapshot, context)
            if done is not None and done > self._planned:
                raise BacklogError(
                    f"The Delta table at {self.path} already has batch {done} of this query, which it has not run: "
                    "another query writes under its id, and what differs would be dropped.",
                    "Run one query on a checkpoint. A copy of a checkpoint cannot write to the same table.",
                )
            self._planned = max(self._planned, batch.batch_id)
            self._checked = version = int(snapshot.version())
            if done is not None and done >= batch.batch_id:
                return
            # Every batch is a transaction, an empty one too, so one that is missing is rows that are missing.
            if (-1 if done is None else done) < batch.batch_id - 1:
                raise self._lacks(batch.batch_id - 1, done)
            # Unset at once: these confs would mark, and so silently drop, any further write on this session.
            with session_conf(spark, {_TXN_APP_ID: context.txn_app_id, _TXN_VERSION: str(batch.batch_id)}):
                self._write_rows(batch_df, batch, context)
            # The snapshot that the commit has left: one version further it is the commit itself, and costs nothing.
            after = snapshot.deltaLog().unsafeVolatileSnapshot()
            if after.version() != version + 1:
                after = self._snapshot(spark)
                self._check_since(version if done is not None else -1, after, context)
            self._checked = int(after.version())

    def _append(self, rows: DataFrame) -> None:
        """Write rows as they are."""
        rows.select(*map(quoted, self._columns)).write.format("delta").mode("append").save(self.path)

    def _check_columns(self, setting: str, names: Sequence[str], stored: Sequence[StructField]) -> None:
        found = {field.name for field in stored}
        for name in names:
            if name not in found:
                raise SettingError(
                    f"{type(self).__name__} {setting}",
                    list(names),
                    f"there is no column {name!r} to store; there are {', '.join(sorted(found))}.",
                )

    def _refuse_reserved(self, names: Sequence[str], properties: Mapping[str, str]) -> None:
        for name in names:
            for by, reserved in self._reserved().items():
                if name.lower() in reserved and (by == ALWAYS or properties.get(by, "").lower() == "true"):
                    raise BacklogError(
                        f"The Delta table at {self.path} cannot have a column {name!r}: Delta uses the name itself"
                        f"{f' where {by} is true' if by else ''}, and no batch could be written.",
                        f"Give it another name, such as .map(…, '{quoted(name)} AS renamed')"
                        f"{f', or set {by} of the table to false' if by else ''}.",
                    )

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

    def _check_since_committed(self, snapshot: Any, context: SinkContext) -> None:
        """Look through the log back to the newest batch that counts as written, which was checked then."""
        self._checked = int(snapshot.version())
        if self._checked < 0:
            return
        done, configuration = _last_batch(snapshot, context.txn_app_id), snapshot.metadata().configuration()
        # Only then a batch that was planned and not counted may have been written and be unknown to the table.
        forgets = configuration.contains(_TXN_RETENTION) and context.newest_planned is not None
        if done is None and not forgets:
            return
        counted = context.newest_committed if context.newest_committed is not None else done
        accepted = _accepted(configuration, self._checked)
        seen: list[Commit] = []
        for commit in commits_back(context.spark, snapshot.path(), self._checked, context.txn_app_id):
            if commit.version <= accepted:
                break
            seen.append(commit)
            if commit.batch is not None and (counted is None or commit.batch <= counted):
                break
        else:
            if done is not None:
                raise self._log_is_cut(counted, context.txn_app_id, self._checked)
        if done is None and any(commit.batch is not None for commit in seen):
            raise self._lacks(0, done)
        self._refuse_undone(seen, accepted)

    def _check_since(self, base: int, snapshot: Any, context: SinkContext) -> None:
        """Look through the commits behind `base`, up to which all was well; -1 if no batch had been written."""
        first, newest = max(base, self._checked) + 1, int(snapshot.version())
        if first > newest:
            return
        accepted = _accepted(snapshot.metadata().configuration(), newest)
        versions = range(max(first, accepted + 1), newest + 1)
        found = read_commits(context.spark, snapshot.path(), versions, context.txn_app_id)
        commits = [commit for commit in found if commit is not None]
        if len(commits) < len(found):
            raise self._log_is_cut(None, context.txn_app_id, newest)
        self._refuse_undone(commits, max(base, accepted))

    def _refuse_undone(self, commits: Sequence[Commit], base: int) -> None:
        found = undoing(commits, base)
        if found is None:
            return
        table, before = f"delta.{quoted(self.path)}", found.version - 1
        back = undoing([commit for commit in commits if commit.version <= before], base) is None
        raise BacklogError(
            f"The Delta table at {self.path} no longer has all batches of this query that it counts as written: "
            f"{found.operation} in its version {found.version} took rows out and kept the transaction numbers.",
            (f"Put them back with RESTORE TABLE {table} TO VERSION AS OF {before}, or start" if back else "Start")
            + " with a new checkpointLocation and an empty path. To go on without these rows: "
            + _accepting(table, found.version),
        )

    def _log_is_cut(self, counted: int | None, txn_app_id: str, newest: int) -> BacklogError:
        return BacklogError(
            f"The log of the Delta table at {self.path} does not reach back to the last batch of this query"
            f"{'' if counted is None else f' ({counted} of {txn_app_id})'}: nobody can tell whether the table was "
            "restored or replaced since.",
            "If it was not, say so: " + _accepting(f"delta.{quoted(self.path)}", newest)
            + " Keep the log (delta.logRetentionDuration) longer than the query may be stopped or idle.",
        )  # fmt: skip

    def _lacks(self, wanted: int, done: int | None) -> BacklogError:
        return BacklogError(
            f"The Delta table at {self.path} lacks batches of this query: the checkpoint has committed up to {wanted}, "
            f"the table {'none of them' if done is None else f'has them up to {done}'}. It was removed, "
            f"replaced or put back to an older copy, or {_TXN_RETENTION} let it forget them.",
            "Put the table back, or start with a new checkpointLocation and an empty path.",
        )

    def _add_columns(self, spark: SparkSession, table: StructType, stored: Sequence[StructField]) -> StructType:
        """Add what the table lacks, but for keys; the table's columns then."""
        found = {field.name.lower() for field in table.fields}
        new = [f for f in stored if f.name.lower() not in found and f.name not in self.keys]
        if not new:
            return table
        wider = StructType([*table.fields, *(StructField(f.name, f.dataType) for f in new)])
        # Not by ALTER TABLE: that needs Delta's catalog in the session.
        empty = empty_frame(spark, wider).write.format("delta").mode("append")
        empty.option("mergeSchema", "true").save(self.path)
        return wider

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
                "ALTER TABLE … ADD COLUMNS (merge_schema=True does it), cast the column, or use another path.",
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
        path = qualified(spark, self.path)
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
        log_class = java_class(spark, "org.apache.spark.sql.delta.DeltaLog")
        if isinstance(log_class, JavaPackage):
            raise BacklogError(
                "Delta is not on Spark's class path.",
                "Start with --packages io.delta:delta-spark_4.2_2.13:4.4.0, "
                "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
                "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog.",
            )
        none = java_class(spark, "scala.Option").empty()
        return log_class.forTable(spark._jsparkSession, self.path).update(False, none, none)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"


def quoted(name: str) -> str:
    """A column's name as Spark SQL takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _last_batch(snapshot: Any, txn_app_id: str) -> int | None:
    """The newest batch id of a query that a table has."""
    done = snapshot.transactions().get(txn_app_id)
    return int(done.get()) if done.isDefined() else None


def _accepted(configuration: Any, newest: int) -> int:
    """The version that the table's owner accepted; -1 if none."""
    told = configuration.get(ACCEPTED)
    if not told.isDefined():
        return -1
    text = str(told.get())
    if not (text.isascii() and text.isdigit() and int(text) <= newest):
        raise SettingError(
            f"table property {ACCEPTED}", text, f"must be a version that the table has; its newest is {newest}.",
            "DESCRIBE HISTORY lists them.",
        )  # fmt: skip
    return int(text)


def _accepting(table: str, version: int) -> str:
    return f"ALTER TABLE {table} SET TBLPROPERTIES ('{ACCEPTED}' = '{version}')."


def _snapshot_conf(spark: SparkSession) -> dict[str, str]:
    """Partitions for rebuilding the table's state, unless the user has set them.

    A transaction with an id needs the state, and Delta takes 50 tasks to build it whatever the machine:
    2.5 s a batch on two cores, 0.3 s with two tasks.
    """
    if spark.conf.get(_SNAPSHOT_PARTITIONS, None) is not None:
        return {}
    return {_SNAPSHOT_PARTITIONS: str(min(_DELTA_SNAPSHOT_PARTITIONS, spark.sparkContext.defaultParallelism))}
