"""The two writers of a batch into an Iceberg table. The first one that can take it writes it, with equal results.

1. The driver writes the files of a small batch, which goes there as Arrow.
2. Spark's tasks write the files of any other batch.

pyiceberg commits both from the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.iceberg.commits import Changes, conflicts, delete_files
from backlog_spark.sinks.iceberg.files import TableFiles, write_rows
from backlog_spark.sinks.small_batches import RowBudget
from backlog_spark.sinks.table_sink import PendingBatch, TableWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from backlog_spark.sinks.iceberg.marks import IcebergState

__all__ = ["BatchFiles", "DirectWriter", "FilesWriter"]


class BatchFiles(Protocol):
    """What the writers need of a sink. Each call gets the newest version of the table."""

    def present(self) -> IcebergState:
        """The version of the table on which the present attempt is based."""

    def commit(self, txn_app_id: str, batch_id: int, changes: Changes) -> None:
        """Commit a batch on top of the present version. Raises one of `conflicts` if another writer was faster."""

    def small(self, rows: pa.Table, state: IcebergState) -> Changes | str:
        """Write the files of a small batch; or why Spark should do it."""

    def added(self, batch: PendingBatch, state: IcebergState) -> DataFrame | None:
        """The rows of a batch if they are only appended; None if they must be merged."""

    def merged(self, batch: PendingBatch, state: IcebergState) -> Changes:
        """Write the files of a batch in Spark's tasks. It keeps the rows for another attempt."""


@dataclass
class IcebergWriter(TableWriter):
    """Writes files, and commits them.

    Parameters
    ----------
    batch : PendingBatch
    files : BatchFiles
    """

    batch: PendingBatch
    files: BatchFiles
    changes: Changes = field(default=Changes(), init=False)

    def _commit(self, *, again: bool) -> None:
        """Commit the files. ``again``: another attempt writes other files."""
        try:
            self.files.commit(self.batch.txn_app_id, self.batch.info.batch_id, self.changes)
        except conflicts()[0]:
            if again:
                delete_files(self.files.present().table.io, self.changes.added)
            raise


@dataclass
class DirectWriter(IcebergWriter):
    """The driver writes the files of a small batch.

    Parameters
    ----------
    budget : RowBudget
        Maximum size of a small batch.
    columns : sequence of str
        The columns that are needed of the batch.
    reason : str
        Why Spark writes the batch, whatever its size; empty if it may be small.
    """

    name = "direct"
    budget: RowBudget
    columns: Sequence[str]
    reason: str = ""
    _small: pa.Table | None = field(default=None, init=False)

    def refusal(self) -> str:
        if not self.reason and self._small is None:
            self.batch.keep()
            self._small, self.reason = self.budget.collected(self.batch.rows, self.columns)
        if not self.reason and self._small is not None:
            found = self.files.small(self._small, self.files.present())
            if isinstance(found, str):
                self.reason = found
            else:
                self.changes = found
        return self.reason

    def write(self) -> None:
        self._commit(again=True)

    @property
    def rows(self) -> int | None:
        return None if self._small is None else int(self._small.num_rows)


@dataclass
class FilesWriter(IcebergWriter):
    """Spark's tasks write the files of any batch."""

    name = "files"
    _form: tuple[int, int, str] | None = field(default=None, init=False)  # for which the added files were written

    def refusal(self) -> str:
        return ""

    def write(self) -> None:
        state = self.files.present()
        files, rows = TableFiles.of(state.table), self.files.added(self.batch, state)
        if self._form is None and rows is None:
            self.changes = self.files.merged(self.batch, state)
        elif self._form is None and rows is not None:
            self.changes = Changes(write_rows(rows, files))
            self._form, self.batch.at_hand = files.form, True
        elif rows is None or files.form != self._form:
            # The rows are no longer available, only the files.
            raise BacklogError(
                f"Another writer added rows to the Iceberg table or changed its columns while batch "
                f"{self.batch.info.batch_id} was written.",
                "Start the query again; it writes the batch for the table as it is now.",
            )
        self._commit(again=rows is None)

    @property
    def rows(self) -> int | None:
        return None if self._form is None else sum(file.record_count for file in self.changes.added)
