"""The two writers of a batch into a database's table, with equal results. Each is one transaction with the mark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import RejectedRowError
from backlog_spark.sinks.database.address import Place
from backlog_spark.sinks.database.columns import StoredColumn, check_values
from backlog_spark.sinks.database.connection import Again, Database
from backlog_spark.sinks.database.marks import Mark, Marks
from backlog_spark.sinks.database.staging import Stage
from backlog_spark.sinks.newest_changes import newest_changes
from backlog_spark.sinks.newest_rows import IS_DELETE, newest_rows, unique_inserts
from backlog_spark.sinks.table_sink import PendingBatch, TableWriter
from backlog_spark.sinks.truncate import Emptied, emptied_tables, since_emptied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlog_spark.sinks.database.dialect import Run
    from backlog_spark.sinks.small_batches import RowBudget

__all__ = ["LiveWriter", "StagedWriter", "Upsert"]

_TABLE: Final = ("_database", "_table")


@dataclass
class Upsert:
    """What both writers know of the sink.

    Parameters
    ----------
    database : Database
    place : Place
    marks : Marks
    app_id : str
    columns : tuple of str
        The stored columns, as the stream names them.
    stored : tuple of StoredColumn
        The same, as the table names them.
    keys : tuple of str
    change_type, sequence : str or None
    of_one_table, is_unique_in_backlog : bool
        As of `SinkContext`.
    mark : Mark
        The mark as it was last read.
    sink : str
        For messages.
    """

    database: Database
    place: Place
    marks: Marks
    app_id: str
    columns: tuple[str, ...]
    stored: tuple[StoredColumn, ...]
    keys: tuple[str, ...]
    change_type: str | None
    sequence: str | None
    of_one_table: bool
    is_unique_in_backlog: bool
    sink: str
    mark: Mark = field(default_factory=Mark)

    @property
    def key_columns(self) -> list[StoredColumn]:
        """The stored keys, in the order of the columns."""
        return [column for column in self.stored if column.is_key]


@dataclass
class LiveWriter(TableWriter):
    """The driver writes a small live batch, which it gets as Arrow.

    Parameters
    ----------
    batch : PendingBatch
    upsert : Upsert
    budget : RowBudget
        Most rows of a small batch.
    reason : str
        Why it refuses all batches; empty if it does not.
    """

    name = "direct"
    batch: PendingBatch
    upsert: Upsert
    budget: RowBudget
    reason: str = ""  # it stays refused
    _small: pa.Table | None = None

    def refusal(self) -> str:
        self.reason = self.reason or self._refusal_of_batch()
        if not self.reason and self._small is None:
            self.batch.keep()
            self._small, self.reason = self._collected()
        return self.reason

    def _refusal_of_batch(self) -> str:
        if self.batch.info.has_table_events:
            return "it has a row for a TRUNCATE or DROP"
        return self.batch.refusal_of_driver()

    def _collected(self) -> tuple[pa.Table | None, str]:
        """The batch, or the reason why it is not small."""
        more = (self.upsert.change_type, self.upsert.sequence)
        names = dict.fromkeys([*self.upsert.columns, *(name for name in more if name is not None)])
        return self.budget.collected(self.batch.rows, names)

    def write(self) -> None:
        assert self._small is not None
        upsert = self.upsert
        dialect = upsert.database.dialect
        newest, is_delete = newest_changes(self._small, upsert.keys, upsert.change_type, upsert.sequence, upsert.sink)
        newest = newest.select(upsert.columns)
        rows = newest.filter(pc.invert(is_delete)).combine_chunks()
        keys = [name for name, column in zip(upsert.columns, upsert.stored, strict=True) if column.is_key]
        deleted = newest.filter(is_delete).select(keys).combine_chunks()
        check_values(rows, upsert.stored, upsert.sink)
        check_values(deleted, upsert.key_columns, upsert.sink)
        with self._staged_if_rejected(), upsert.database.transaction() as session:
            upsert.marks.lock(session.run, upsert.mark)
            # Deletes first: a new row may have a value that must be unique and was that of a deleted one.
            if deleted.num_rows:
                dialect.delete(session.connection, upsert.place, upsert.key_columns, deleted)
            if rows.num_rows:
                dialect.upsert(session.connection, upsert.place, upsert.stored, rows)
            upsert.marks.set(session.run, self.batch.info.batch_id)

    @contextlib.contextmanager
    def _staged_if_rejected(self) -> Iterator[None]:
        try:
            yield
        except RejectedRowError as error:
            self.reason = "the table rejects a row of it"  # the other writer finds the row
            raise Again(error.problem, error.hint) from error

    @property
    def rows(self) -> int | None:
        return None if self._small is None else int(self._small.num_rows)


@dataclass
class StagedWriter(TableWriter):
    """Executors load the rows into a staging table, and the driver merges it: for batches of any size.

    Parameters
    ----------
    batch : PendingBatch
    upsert : Upsert
    """

    name = "spark"
    batch: PendingBatch
    upsert: Upsert
    _stage: Stage | None = None
    _emptied: Emptied = field(default_factory=dict)

    def refusal(self) -> str:
        return ""

    def write(self) -> None:
        stage = self._stage or self._loaded()
        upsert = self.upsert
        try:
            with upsert.database.transaction(is_long=True) as session:
                upsert.marks.lock(session.run, upsert.mark)
                self._empty(session.run)
                stage.merge(session.run, upsert.place)
                upsert.marks.set(session.run, self.batch.info.batch_id)
        except RejectedRowError as error:
            if row := stage.rejected(upsert.place):
                error.problem += f" It is the row with {row}."
            raise

    def _loaded(self) -> Stage:
        upsert, rows = self.upsert, self.batch.rows
        if self.batch.info.has_table_events:
            rows = self._since_emptied()
        info = self.batch.info
        if upsert.is_unique_in_backlog and info.is_backlog and not (info.has_table_events or info.has_changes):
            inserts = unique_inserts(rows, upsert.change_type, upsert.sink)
            newest = inserts.select(*map(quoted, upsert.columns), F.lit(False).alias(IS_DELETE))
        else:
            newest = newest_rows(rows, upsert.columns, upsert.keys, upsert.change_type, upsert.sequence, upsert.sink)
        stage = Stage(upsert.database, upsert.place.schema, upsert.app_id, upsert.stored, upsert.sink)
        self.batch.until_written.callback(stage.drop)
        stage.load(newest)
        # From now on another attempt needs no rows of the plan.
        self._stage, self.batch.at_hand = stage, True
        return stage

    def _since_emptied(self) -> DataFrame:
        upsert = self.upsert
        self.batch.keep()
        self._emptied = emptied_tables(
            self.batch.rows, upsert.columns, upsert.change_type, upsert.sequence,
            of_one_table=upsert.of_one_table, sink=upsert.sink,
        )  # fmt: skip
        if not self._emptied or upsert.change_type is None or upsert.sequence is None:
            return self.batch.rows
        return since_emptied(self.batch.rows, self._emptied, upsert.change_type, upsert.sequence)

    def _empty(self, run: Run) -> None:
        """Remove the rows of tables that were emptied."""
        dialect, table = self.upsert.database.dialect, self.upsert.place
        names = [self._name_of(column) for column in _TABLE] if () not in self._emptied and self._emptied else []
        for emptied in self._emptied:
            which = " AND ".join(dialect.same_text(name) for name in names) or "1 = 1"
            run(f"DELETE FROM {dialect.quoted_table(table)} WHERE {which}", emptied)

    def _name_of(self, column: str) -> str:
        return self.upsert.stored[self.upsert.columns.index(column)].name

    @property
    def rows(self) -> int | None:
        return None if self._stage is None else self._stage.rows
