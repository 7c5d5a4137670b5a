"""The three writers of a batch into a Delta table. The first one that can take it writes it, with equal results.

1. delta-rs writes and commits a small batch, which goes to the driver as Arrow.
2. Spark writes the files of a batch that is only appended, and delta-rs commits them.
3. Spark writes and commits any other batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from backlog_spark.common.failure_causes import was_interrupted
from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError
from backlog_spark.sinks.delta.deltars.limits import CommitConflict
from backlog_spark.sinks.table_sink import PendingBatch, TableWriter
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.jvm.session import session_conf

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from backlog_spark.sinks.delta.access import TableAccess
    from backlog_spark.sinks.delta.deltars.commits import DirectTable
    from backlog_spark.sinks.small_batches import RowBudget

__all__ = ["DirectWriter", "FilesWriter", "SparkWriter", "retriable"]

_TXN_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"
# delta-rs reads this form as Spark does, in all years.
_TIMESTAMPS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


class _GivenUp(Exception):
    """delta-rs failed. Spark writes the batch if the table lacks it."""


def retriable() -> tuple[type[Exception], ...]:
    """Errors after which the sink reads the table again. Most mean that another writer committed first."""
    return CommitConflict, _GivenUp, *delta_log.conflicts()


@dataclass
class DeltaWriter(TableWriter):
    """One way to write a batch into a Delta table."""

    batch: PendingBatch
    access: TableAccess


@dataclass
class DirectWriter(DeltaWriter):
    """delta-rs writes and commits a small batch from the driver.

    Parameters
    ----------
    budget : RowBudget
        Maximum size of a small batch.
    columns : sequence of str
        The columns that `commit` needs.
    merges : bool
        Whether files of the table are rewritten.
    commit : callable
        Receives the rows, the table, the transaction's app id and the batch id.
    """

    name = "direct"
    budget: RowBudget
    columns: Sequence[str]
    merges: bool
    commit: Callable[[pa.Table, DirectTable, str, int], None]
    reason: str = ""  # it stays refused
    _small: pa.Table | None = None

    def refusal(self) -> str:
        self.reason = self.reason or self._refusal_of_batch()
        if not self.reason and self._small is None:
            self.batch.keep()
            self._small, self.reason = self._collected()
        return self.reason

    def _refusal_of_batch(self) -> str:
        """Why Spark writes the batch, whatever its size; empty if delta-rs may."""
        if self.merges and self.batch.info.has_table_events:
            return "it has a row for a TRUNCATE or DROP"
        if self.merges and self.batch.info.fills:
            return "it fills a new column"
        if reason := self.batch.refusal_of_driver():
            return reason
        table = self.access.direct
        return table if isinstance(table, str) else table.refusal(merges=self.merges) or ""

    def _collected(self) -> tuple[pa.Table | None, str]:
        """The batch, or the reason why it is not small."""
        found, reason = self.budget.collected(self.batch.rows, self.columns)
        if found is not None and not cast("DirectTable", self.access.direct).fits(found):
            return None, "a partition column has the value ''"
        return found, reason

    def write(self) -> None:
        table = cast("DirectTable", self.access.direct)
        try:
            self.commit(self._small, table, self.batch.txn_app_id, self.batch.info.batch_id)
        except (BacklogError, CommitConflict):
            raise
        except Exception as error:
            if was_interrupted(error):
                raise
            self.reason = self.access.give_up(error)
            raise _GivenUp(self.reason) from None

    @property
    def rows(self) -> int | None:
        return None if self._small is None else int(self._small.num_rows)


@dataclass
class FilesWriter(DeltaWriter):
    """Spark writes the files of a batch that is only appended, and delta-rs commits them.

    Parameters
    ----------
    columns : sequence of str
        The columns that are stored.
    added : callable
        Receives the batch's rows and returns the rows to append; None if they must be merged. Asked again at each
        attempt.
    """

    name = "files"
    columns: Sequence[str]
    added: Callable[[DataFrame], DataFrame | None]
    _declared: tuple[str, str] | None = None  # metadata and protocol of the table when the files were written
    _files: list[dict[str, Any]] | None = None

    def refusal(self) -> str:
        table, path = self.access.direct, self.access.path
        refusal = self.access.adds_no_files or (table if isinstance(table, str) else table.refusal(merges=False) or "")
        declared = None if refusal else cast("DirectTable", table).declared()
        if self._files is not None:
            # The rows are no longer available, unless they were counted.
            if self.added(self.batch.rows) is None:
                raise BacklogError(
                    f"Another writer added rows to the Delta table at {path} while batch "
                    f"{self.batch.info.batch_id} was written.",
                    "Start the query again; it merges the batch.",
                )
            if declared == self._declared:
                return ""
            raise BacklogError(
                f"Another writer changed columns or properties of the Delta table at {path} while batch "
                f"{self.batch.info.batch_id} was written.",
                "Start the query again; it writes the batch for the table as it is now.",
            )
        rows = None if declared is None else self.added(self.batch.rows)
        if declared is None or rows is None:
            return refusal or "it is merged"
        with session_conf(rows.sparkSession, _TIMESTAMPS):
            self._files = delta_log.write_files(rows.select(*map(quoted, self.columns)), path, *declared)
        if self._files is None:
            self.access.add_no_files("this version of Delta has other internals than expected")
            return self.access.adds_no_files
        self._declared, self.batch.at_hand = declared, True
        return ""

    def write(self) -> None:
        assert self._files is not None
        table = cast("DirectTable", self.access.direct)
        try:
            table.add_files(self._files, self.batch.txn_app_id, self.batch.info.batch_id)
        except CommitConflict:
            raise
        except Exception as error:
            # The rows are no longer available, so the batch is replayed if the table still lacks it.
            self.access.add_no_files(type(error).__name__)
            raise BacklogError(
                f"delta-rs failed to commit to the Delta table at {self.access.path} ({type(error).__name__}).",
                "Start the query again; Spark then commits. With small_batch_rows=0 Spark commits all batches.",
            ) from None

    @property
    def rows(self) -> int | None:
        return sum(int(json.loads(file["stats"])["numRecords"]) for file in self._files or ())


@dataclass
class SparkWriter(DeltaWriter):
    """Spark writes and commits any batch.

    Parameters
    ----------
    merges : bool
        Whether live batches are merged. Then a commit of another writer is likely to conflict.
        Statements that emptied a table are looked for first.
    write_rows : callable
        Receives the batch's rows. The session's confs are set so that Delta puts the transaction's id into the commit.
    """

    name = "spark"
    makes_next_version = False
    merges: bool
    write_rows: Callable[[DataFrame], None]

    def refusal(self) -> str:
        return ""

    def write(self) -> None:
        if self.merges and (self.batch.info.has_table_events or not self.batch.info.is_backlog):
            self.batch.keep()
        # Unset at once: Delta would otherwise mark, and so silently drop, any later write of this session.
        transaction = {_TXN_APP_ID: self.batch.txn_app_id, _TXN_VERSION: str(self.batch.info.batch_id)}
        with session_conf(self.batch.rows.sparkSession, {**transaction, **_TIMESTAMPS}):
            self.write_rows(self.batch.rows)
