"""The contract of sinks that keep one table, whatever its format: a batch is exactly one commit of the table.

A commit carries the query's id and the batch's. So the table itself says which batches it has. A format implements
`TableSink`, and one or more `TableWriter`, the fastest first.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Literal, Protocol, TypeVar

from backlog_spark.common.fault_points import reached
from backlog_spark.sinks.base import BatchInfo, Sink, Written
from backlog_spark.sinks.small_batches import is_shared
from backlog_spark.spark.plan.batch_frames import kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.replays import Replays

__all__ = ["PendingBatch", "TableSink", "TableWriter"]

# Each attempt starts at the newest version. 20 failed attempts in a row mean that another writer never pauses.
_ATTEMPTS: Final = 20


class _State(Protocol):
    """A version of the table, as the format reads it."""

    @property
    def version(self) -> int: ...


S = TypeVar("S", bound=_State)


@dataclass
class PendingBatch:
    """A batch that is being written.

    Attributes
    ----------
    rows : DataFrame
    info : BatchInfo
    txn_app_id : str
    replays : Replays
    until_written : ExitStack
        Frees resources of the writers.
    at_hand : bool
        Whether another attempt needs no second run of the plan.
    """

    rows: DataFrame
    info: BatchInfo
    txn_app_id: str
    replays: Replays
    until_written: contextlib.ExitStack
    at_hand: bool = False

    def refusal_of_driver(self) -> str:
        """Why Spark writes the batch, whatever its size; empty if the driver may collect it.

        A batch of backlog can be of any size. If it has changes, the source limits its rows. For a replayed batch the
        checkpoint notes that the driver tries it.
        """
        if self.info.snapshot or (self.info.is_backlog and not self.info.has_changes):
            return "it is backlog"
        return "it is replayed" if self.replays.refuse(self.info.batch_id) else ""

    def keep(self) -> None:
        """Cache the rows in the first action on them."""
        if not self.at_hand:
            self.rows = self.rows if is_shared(self.rows) else self.until_written.enter_context(kept(self.rows))
            self.at_hand = True


class TableWriter(ABC):
    """One way to write a batch into the table. All writers of a sink give equal results.

    The sink calls `refusal` and then `write`, and repeats both if the table has changed meanwhile.
    """

    name: ClassVar[Literal["direct", "files", "spark"]]
    makes_next_version: ClassVar[bool] = True
    """Whether `write` creates exactly the version after the one that was read, or none."""
    reason: str = ""
    """Why it refused the batch, for `Written`."""

    @abstractmethod
    def refusal(self) -> str:
        """Why it cannot write the batch into the table as it is now; empty if it can. Prepares `write`."""

    @abstractmethod
    def write(self) -> None:
        """Write the batch in exactly one commit.

        Raises
        ------
        Exception
            One of `TableSink._conflicts`: read the table, and try again if `PendingBatch.at_hand` is still true.
        """

    @property
    def rows(self) -> int | None:
        """How many rows were written; None if unknown."""
        return None


class TableSink(Sink, Generic[S]):
    """A sink that makes each batch one commit of a table. ``S`` is what the format knows of a version of the table."""

    keys: tuple[str, ...] = ()
    """Columns that identify a row; empty if the sink has none."""

    @abstractmethod
    def _pending(self, batch_df: DataFrame, batch: BatchInfo, until_written: contextlib.ExitStack) -> PendingBatch:
        """The batch, with its rows as the table stores them. Raises `BacklogError` if the sink is not open."""

    @abstractmethod
    def _writers(self, batch: PendingBatch) -> Sequence[TableWriter]:
        """In the order in which the sink tries them. The last one refuses nothing."""

    @abstractmethod
    def _state(self, spark: SparkSession) -> S:
        """The table's newest version, and this query's newest batch in it."""

    @abstractmethod
    def _has(self, state: S, batch_id: int) -> bool:
        """Whether the table has the batch. If so, it also has all earlier ones.

        Raises
        ------
        BacklogError
            If the table lacks the batch before, was restored or replaced, or has batches of another query under this
            query's id.
        """

    @abstractmethod
    def _check(self, state: S) -> None:
        """Reject the table if another writer has changed it so that the batch no longer fits."""

    @abstractmethod
    def _conflicts(self) -> tuple[type[Exception], ...]:
        """Errors after which the sink reads the table again. Most mean that another writer committed first."""

    @abstractmethod
    def _wrote(self, spark: SparkSession, before: S, writer: TableWriter, batch: PendingBatch) -> None:
        """Note a batch that was written after the version ``before``, and check what came in between.

        Raises
        ------
        BacklogError
            If the table was restored or replaced meanwhile, or has rows that the batch cannot stand beside.
        """

    def _while_writing(self, spark: SparkSession) -> AbstractContextManager[object]:
        """Settings of the session while a batch is written."""
        return contextlib.nullcontext()

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Write a batch in one commit, or nothing if the table already has it. See :meth:`Sink.write`.

        Raises
        ------
        BacklogError
            If the sink is not open, if the table lacks the previous batch, if it was restored or replaced, if another
            query has written a batch under this query's id, or if the table's columns no longer fit.
        """
        spark, began = batch_df.sparkSession, time.monotonic()
        with self._while_writing(spark), contextlib.ExitStack() as stack:
            pending = self._pending(batch_df, batch, stack)
            writers = self._writers(pending)
            for attempt in range(1, _ATTEMPTS + 1):
                state = self._state(spark)
                if self._has(state, batch.batch_id):
                    self.written = Written(batch.batch_id, "none", "the table has the batch", attempts=attempt)
                    return
                self._check(state)
                writer = next(writer for writer in writers if not writer.refusal())
                reached("sink.commit")
                try:
                    writer.write()
                    break
                except self._conflicts():
                    if attempt == _ATTEMPTS or not pending.at_hand:
                        raise
            self._wrote(spark, state, writer, pending)
            seconds = time.monotonic() - began
            self.written = Written(batch.batch_id, writer.name, writers[0].reason, writer.rows, attempt, seconds)
