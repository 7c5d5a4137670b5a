"""What the sinks of Delta tables share: one transaction a batch, and all that is checked before it."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import logging
import os
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pyspark.sql.types import StructField, StructType

from backlog_spark.common.failure_causes import was_interrupted
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.delta_columns import RESERVED, check_table, quoted, refuse_reserved
from backlog_spark.sinks.delta_history import TableState
from backlog_spark.sinks.delta_known import KnownBatches
from backlog_spark.sinks.roads import CommitConflict, RowBudget, refusal_of_creation, refusal_of_store
from backlog_spark.spark import delta_log
from backlog_spark.spark.batch_frames import empty_frame, kept, nullable
from backlog_spark.spark.session import session_conf, session_copy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.delta_direct import DirectTable

__all__ = ["CREATED_BY", "SMALL_BATCH_BYTES", "SMALL_BATCH_ROWS", "DeltaSink"]

CREATED_BY: Final = "backlog_spark.createdBy"
"""Table property that marks a table as created by one query: its value is the query's ``txn_app_id``."""

_log = logging.getLogger(__name__)

SMALL_BATCH_ROWS: Final = 100_000
SMALL_BATCH_BYTES: Final = 64 * 1024 * 1024

_TXN_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"
# A form that delta-rs reads as Spark does, whatever the year.
_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
_NO_TABLE: Final = "there is no table"
# Each try begins anew at the newest version; another writer that is faster so many times in a row writes without pause.
_ATTEMPTS: Final = 20


class _Files(NamedTuple):
    """Files of a batch that are not committed yet."""

    declared: tuple[str, str]
    """Metadata and protocol of the table that they were written for."""
    actions: list[dict[str, Any]]

    @property
    def rows(self) -> int:
        """How many they have."""
        return sum(json.loads(action["stats"])["numRecords"] for action in self.actions)


class DeltaSink(Sink):
    """A sink that makes each batch one transaction of a Delta table, with ``(txn_app_id, batch_id)`` in it.

    Delta keeps the newest batch id of every query with the table. A batch that the table has is skipped before
    anything is read; one that does not follow the last is refused, as rows in between are missing. An empty
    batch is a transaction too, so that this can be told. RESTORE, REPLACE TABLE and CLONE take rows out of a table
    and keep the batch ids; so all commits beside the sink's own are looked through for them, before a batch is
    written or skipped and, as one may come meanwhile, before it counts as written.

    A batch takes one of three roads to the same rows. A small live batch goes to the driver as Arrow, and delta-rs
    commits it. Of a larger one, or one of backlog, Spark writes the files and delta-rs commits them, if the rows are
    added as they are. Any other is written and committed by Spark (`backlog_spark.sinks.roads`). When another writer's
    commit comes in between, a batch is tried again at the newest version, if its rows or files are at hand.

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
    small_batch_rows, small_batch_bytes : int
        The most that a live batch may have to be committed by delta-rs; 0 rows: never.
    storage_options : mapping of str to str
        delta-rs's options for the table's store.
    compact : bool
        Whether small files are merged between batches.
    """

    keys: tuple[str, ...] = ()
    """Columns that identify a row, where a sink has such."""

    def __init__(
        self,
        path: str,
        *,
        partition_by: Sequence[str],
        properties: Mapping[str, str],
        merge_schema: bool,
        small_batch_rows: int = SMALL_BATCH_ROWS,
        small_batch_bytes: int = SMALL_BATCH_BYTES,
        storage_options: Mapping[str, str] = MappingProxyType({}),
        compact: bool = True,
    ) -> None:
        if isinstance(partition_by, str):
            hint = f"Write partition_by=[{partition_by!r}]."
            raise SettingError("partition_by", partition_by, "must be a list of column names.", hint)
        self.path = path
        self.partition_by = tuple(partition_by)
        self.properties = dict(properties)
        self.merge_schema = merge_schema
        for setting, value in (("small_batch_rows", small_batch_rows), ("small_batch_bytes", small_batch_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingError(setting, value, "must be a whole number, 0 or more.")
        self.small_batch_rows = small_batch_rows
        self.small_batch_bytes = small_batch_bytes
        self.storage_options = dict(storage_options)
        self.compact = compact
        self._context: SinkContext | None = None
        self._stored: tuple[StructField, ...] = ()
        self._columns: tuple[str, ...] = ()
        self._fitting = ""  # the table's columns that the stream's are known to fit
        self._is_ours = False
        self._known: KnownBatches | None = None
        self._direct: DirectTable | str = "it is not open"  # or why delta-rs cannot write to it
        self._adds_files = True
        self._budget = RowBudget(0, 0, ())
        self._replayed = -1  # up to this batch they may have failed before

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
        return RESERVED

    @abstractmethod
    def _added(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> DataFrame | None:
        """The rows of a batch that are added as they are; None if they are to be merged."""

    def _write_rows(self, batch_df: DataFrame, batch: BatchInfo, context: SinkContext) -> None:
        """Write a batch that the table lacks by Spark, in exactly one commit, also where it has no rows.

        Called with the session's confs set so that Delta puts the transaction's id into that commit.
        """
        rows = self._added(batch_df, batch, context)
        if rows is None:
            self._merge(batch_df)
        else:
            rows.select(*map(quoted, self._columns)).write.format("delta").mode("append").save(self.path)

    def _merge(self, batch_df: DataFrame) -> None:
        """Write a batch whose rows are not added as they are."""
        raise AssertionError(f"{self!r} merges nothing")

    def _unfit(self, fields: Sequence[StructField]) -> str | None:
        """Why no batch of these columns can be written by `_write_small`; None if some can. Once per `open`."""
        return None

    def _needed(self) -> Sequence[str]:
        """The columns that `_write_small` is given."""
        return self._columns

    @abstractmethod
    def _write_small(self, rows: pa.Table, table: DirectTable, txn_app_id: str, batch_id: int) -> None:
        """Write the batch that `_write_rows` would write, in exactly one commit, from the driver.

        Raises
        ------
        CommitConflict
            Nothing was written, as another writer was faster.
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
        delta_log.refuse_without_delta(spark)
        # Delta compares locations as texts in places, and resolves a relative one in others.
        self.path = delta_log.qualified_text(spark, self.path)
        log_path = delta_log.log_path(spark, self.path)
        self._known = KnownBatches(self.path, log_path, context)
        refusal = self._refusal_of_direct(context.schema.fields)
        self._direct = refusal or self._opened_direct()
        with session_conf(spark, delta_log.snapshot_conf(spark)):
            state = self._state(spark, context)
            self._known.check_at_start(state)
            if state.version < 0:
                refuse_reserved(self.path, self._reserved(), [field.name for field in stored], self.properties)
                self._create(spark, stored, context.txn_app_id)
                self._direct = refusal or self._opened_direct()
                state = self._state(spark, context)
        # After a creation too: another query may have been faster, and its table wins.
        table = StructType.fromJson(json.loads(state.schema))
        refuse_reserved(
            self.path, self._reserved(), [*table.names, *(field.name for field in stored)], state.configuration
        )
        if self.merge_schema:
            table = self._add_columns(spark, table, stored)
        check_table(self.path, self.keys, table, stored)
        self._is_ours = state.configuration.get(CREATED_BY) == context.txn_app_id
        self._stored, self._fitting = tuple(stored), ""
        self._columns = tuple(field.name for field in stored)
        self._replayed = -1 if context.newest_planned is None else context.newest_planned
        if self._context is None:
            self._budget = RowBudget(self.small_batch_rows, self.small_batch_bytes, context.schema.fields)
        self._context = context

    def _refusal_of_direct(self, fields: Sequence[StructField]) -> str | None:
        """Why delta-rs is not to write a table here, whichever it is."""
        if not self.small_batch_rows:
            return "small_batch_rows is 0"
        if importlib.util.find_spec("deltalake") is None:
            return "the package deltalake is not installed"
        return refusal_of_store(self.path, self.storage_options, os.environ) or self._unfit(fields)

    def _opened_direct(self) -> DirectTable | str:
        """The table as delta-rs sees it, or why it does not."""
        from deltalake.exceptions import DeltaError, TableNotFoundError

        from backlog_spark.sinks.delta_direct import DirectTable

        try:
            return DirectTable(self.path, self.storage_options, compact=self.compact)
        except TableNotFoundError:
            return _NO_TABLE
        except (DeltaError, OSError, ValueError) as error:
            # Its text may show storage options.
            return f"delta-rs cannot open the table ({type(error).__name__})"

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Write a batch in one transaction, or nothing if the table has it already. See :meth:`Sink.write`.

        Raises
        ------
        BacklogError
            If the sink is not open, the table lacks the batch before this one, it was restored or replaced, another
            query has written a batch under this one's id, or the table's columns no longer fit.
        """
        context, known = self._context, self._known
        if context is None or known is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        spark, began = batch_df.sparkSession, time.monotonic()
        with session_conf(spark, delta_log.snapshot_conf(spark)), contextlib.ExitStack() as stack:
            rows, small, reason = batch_df, None, ""
            files: _Files | None = None
            for attempt in range(1, _ATTEMPTS + 1):
                state = self._state(spark, context)
                if known.has(state, batch.batch_id):
                    self.written = Written(batch.batch_id, "none", "the table has the batch", attempts=attempt)
                    return
                if state.schema != self._fitting:  # or another writer has changed it
                    found = StructType.fromJson(json.loads(state.schema)) if state.schema else StructType()
                    check_table(self.path, self.keys, found, self._stored)
                    self._fitting = state.schema
                if attempt == 1:
                    reason = self._refusal(batch)
                    if not batch.is_backlog and (self.keys or not reason):
                        rows = stack.enter_context(kept(batch_df))
                    if not reason:
                        small, reason = self._collected(rows)
                elif small is not None and (changed := self._refusal(batch)):
                    small, reason = None, changed
                try:
                    if small is not None:
                        self._write_small(small, cast("DirectTable", self._direct), context.txn_app_id, batch.batch_id)
                    elif (files := self._written_files(rows, files, batch, context)) is not None:
                        self._add_files(files, context.txn_app_id, batch.batch_id)
                    else:
                        self._write_by_spark(rows, batch, context)
                except _conflicts():
                    if attempt == _ATTEMPTS or (rows is batch_df and files is None):
                        raise
                    continue
                except BacklogError:
                    raise
                except Exception as error:
                    if small is None or was_interrupted(error):
                        raise
                    # The rows are at hand for Spark, if the table lacks them still.
                    small, reason = None, self._give_up(error)
                    continue
                break
            if small is not None or files is not None:
                known.wrote(state, replace(state, version=state.version + 1))
            else:
                known.wrote(state, self._state(spark, context))
            if not isinstance(self._direct, str) and (files is not None or not batch.is_backlog):
                self._direct.look_after(merge=not batch.is_backlog)
            count = small.num_rows if small is not None else files.rows if files is not None else None
            self.written = Written(
                batch.batch_id,
                "direct" if small is not None else "files" if files is not None else "spark",
                reason,
                rows=count,
                attempts=attempt,
                seconds=time.monotonic() - began,
            )

    def _written_files(
        self, rows: DataFrame, before: _Files | None, batch: BatchInfo, context: SinkContext
    ) -> _Files | None:
        """The files of a batch whose rows are added as they are, for delta-rs to commit; None if Spark is to commit.

        Parameters
        ----------
        rows : DataFrame
        before : _Files or None
            Written for an earlier try.
        """
        table = self._direct
        if isinstance(table, str) or not self._adds_files or table.refusal(merges=False):
            declared = None
        else:
            declared = table.declared()
        if before is not None:
            if before.declared == declared:
                return before
            # The rows are not at hand any more, unless they were counted.
            raise BacklogError(
                f"Another writer changed columns or properties of the Delta table at {self.path} while batch "
                f"{batch.batch_id} was written.",
                "Start the query again; it writes the batch for the table as it is now.",
            )
        added = None if declared is None else self._added(rows, batch, context)
        if declared is None or added is None:
            return None
        with session_conf(rows.sparkSession, {_TIMESTAMPS: "TIMESTAMP_MICROS"}):
            actions = delta_log.write_files(added.select(*map(quoted, self._columns)), self.path, *declared)
        if actions is None:
            self._adds_files = False
            _log.warning("Spark commits to the table at %s, as its Delta is another one than expected.", self.path)
            return None
        return _Files(declared, actions)

    def _add_files(self, files: _Files, txn_app_id: str, batch_id: int) -> None:
        try:
            cast("DirectTable", self._direct).add_files(files.actions, txn_app_id, batch_id)
        except CommitConflict:
            raise
        except Exception as error:
            # The rows are not at hand any more; so the batch is replayed, if the table lacks it still.
            self._adds_files = False
            _log.warning("Spark commits to the table at %s: %s", self.path, type(error).__name__)
            raise BacklogError(
                f"delta-rs failed to commit to the Delta table at {self.path} ({type(error).__name__}).",
                "Spark commits when the query starts again; small_batch_rows=0 leaves all to it.",
            ) from None

    def _give_up(self, error: Exception) -> str:
        """From now on Spark writes, until the query starts again. Only the class is told: texts may show secrets."""
        self._direct = f"delta-rs failed with {type(error).__name__}"
        _log.warning("The table at %s is written by Spark from now on: %s", self.path, self._direct)
        return self._direct

    def _refusal(self, batch: BatchInfo) -> str:
        """Why Spark writes a batch, whatever its size; empty if it need not."""
        if batch.is_backlog:
            return "it is backlog"
        if batch.batch_id <= self._replayed:
            return "it is replayed"  # it may have been too large for the driver
        return self._direct if isinstance(self._direct, str) else self._direct.refusal(merges=bool(self.keys)) or ""

    def _collected(self, rows: DataFrame) -> tuple[pa.Table | None, str]:
        """A small batch, or why it is none."""
        most = self._budget.rows
        needed = rows.select(*map(quoted, self._needed()))
        # Where a struct is NULL, Spark's Arrow has NULL in its fields too, and refuses that of one that cannot be.
        try:
            found = needed.limit(most + 1).to(nullable(needed.schema)).toArrow()
        except Exception:
            self._budget.shrink()  # they may have been too large for the driver
            raise
        self._budget.take(found.num_rows, found.nbytes)
        if found.num_rows > most:
            return None, f"it has more than {most} rows"
        if found.nbytes > self.small_batch_bytes:
            return None, f"it has {found.nbytes} bytes"
        if not cast("DirectTable", self._direct).fits(found):
            return None, "a partition column has the value ''"
        return found, ""

    def _write_by_spark(self, rows: DataFrame, batch: BatchInfo, context: SinkContext) -> None:
        # Unset at once: these confs would mark, and so silently drop, any further write on this session.
        settings = {_TXN_APP_ID: context.txn_app_id, _TXN_VERSION: str(batch.batch_id), _TIMESTAMPS: "TIMESTAMP_MICROS"}
        with session_conf(rows.sparkSession, settings):
            self._write_rows(rows, batch, context)

    def _state(self, spark: SparkSession, context: SinkContext) -> TableState:
        """The table's newest version. delta-rs needs a few milliseconds for it, Spark a job."""
        if isinstance(self._direct, str):
            return TableState(*delta_log.newest_version(spark, self.path, context.txn_app_id))
        try:
            return self._direct.state(context.txn_app_id)
        except Exception as error:
            self._give_up(error)
            return self._state(spark, context)

    def _check_columns(self, setting: str, names: Sequence[str], stored: Sequence[StructField]) -> None:
        found = {field.name for field in stored}
        for name in names:
            if name not in found:
                raise SettingError(
                    f"{type(self).__name__} {setting}",
                    list(names),
                    f"there is no column {name!r} to store; there are {', '.join(sorted(found))}.",
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

    def _create(self, spark: SparkSession, stored: Sequence[StructField], txn_app_id: str) -> None:
        """Create the table; another query may be faster, and its table wins."""
        foreign = delta_log.foreign_file(spark, self.path)
        if foreign is not None:
            raise BacklogError(
                f"{self.path} is not a Delta table but holds {foreign!r}.",
                "Use an empty path, or convert the files first (CONVERT TO DELTA).",
            )
        # All nullable: whether a stream's column is nullable is an accident of its plan and may change with
        # it. Field metadata is left out: Spark keeps an event-time column's watermark there.
        columns = StructType([StructField(field.name, field.dataType) for field in stored])
        properties = {**self.properties, CREATED_BY: txn_app_id}
        defaults = delta_log.default_properties(spark)
        if self._direct == _NO_TABLE and not refusal_of_creation(columns, self.partition_by, properties, defaults):
            from deltalake.exceptions import DeltaError

            from backlog_spark.sinks.delta_direct import create_table

            with contextlib.suppress(DeltaError, OSError, ValueError):
                create_table(self.path, self.storage_options, columns.json(), self.partition_by, properties)
                return
        delta_log.create(spark, self.path, columns, self.partition_by, properties)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"


def _conflicts() -> tuple[type[Exception], ...]:
    """What says that nothing was written, as another writer was faster."""
    return CommitConflict, *delta_log.conflicts()
