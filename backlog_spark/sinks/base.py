"""The contract of sinks: what the query runner writes each micro-batch to, idempotent by batch id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BatchInfo", "Sink", "SinkContext", "Written"]


@dataclass(frozen=True)
class SinkContext:
    """What a sink learns about its query before the first batch of a run.

    Parameters
    ----------
    spark : SparkSession
        The driver's session. Batches come with a clone of it, so nothing set here reaches them after the
        start.
    txn_app_id : str
        Identity of the (checkpoint, output) pair: the same at every start on one checkpoint, another one on
        any other checkpoint. Batch ids mean something only together with it.
    schema : pyspark.sql.types.StructType
        Schema of every batch of the run.
    key_is_unique_in_backlog : bool
        True if the batches with ``is_backlog`` true together hold at most one row for each key, each of them
        an insert: the snapshot of a table by its primary key, or the final rows of a keyed operator. False
        when in doubt, when any input of the query can send changes in such a batch, and on a second stay in
        backlog.
    newest_planned, newest_committed : int or None
        Newest batch id in Spark's offset log and in its commit log; None if there is none. An output without a
        trace of a committed batch, or with one of a batch that was never planned, is not this checkpoint's.
    rows_are_results : bool
        The rows are a keyed operator's: each is the newest result of its key, not a change.
    """

    spark: SparkSession
    txn_app_id: str
    schema: StructType
    key_is_unique_in_backlog: bool
    newest_planned: int | None = None
    newest_committed: int | None = None
    rows_are_results: bool = False


@dataclass(frozen=True)
class BatchInfo:
    """A micro-batch.

    Parameters
    ----------
    batch_id : int
        Spark's batch id: from 0, one more each time, the same again when the batch is replayed.
    is_backlog : bool
        RecordAttributes of the batch; the same again when it is replayed.
    """

    batch_id: int
    is_backlog: bool


@dataclass(frozen=True)
class Written:
    """How a sink wrote a batch, for the query's progress.

    Parameters
    ----------
    batch_id : int
    road : "direct", "spark" or "none"
        By delta-rs from the driver, by Spark, or not at all, as the output had it.
    reason : str
        Why not ``direct``; empty if it was.
    rows : int or None
        None if they were not counted.
    attempts : int
        More than 1 if other writers' commits came in between.
    seconds : float
    """

    batch_id: int
    road: Literal["direct", "spark", "none"]
    reason: str = ""
    rows: int | None = None
    attempts: int = 1
    seconds: float = 0.0


class Sink(ABC):
    """An output that takes whole micro-batches, each exactly once however often it is handed over.

    The runner calls `open` and then `write` once a batch, in ascending batch ids, never two at a time.
    Nothing is called at the end of a run: it may end by a crash, and the next `open` must cope with what is
    there. An error from either fails the query; the runner may restart it and then hands the same batch over
    again.
    """

    written: Written | None = None
    """How the newest batch was written, if the sink tells."""

    def for_output(self) -> Sink:
        """The object that one output of one query opens and writes with; by default this one.

        A sink that keeps what `open` has found returns a copy, as one object may be given to several queries.
        """
        return self

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Prepare the target and refuse what cannot work.

        Called on the driver before each start of the query, first start or restart, before any row is read.
        Must leave an existing target as it is when called again with the same `txn_app_id`, also after a
        crash half-way through an earlier call, and must not write rows.

        Raises
        ------
        BacklogError
            If the target or the schema does not fit; it names the column or setting and the next step.
        """

    @abstractmethod
    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Make the batch's rows durable and visible, all or none, before returning.

        Called on the driver inside ``foreachBatch``. It may be called again for the same batch id with the
        same rows, in this run or a later one, whether the earlier call succeeded, failed or was killed, and
        must then change nothing that the earlier call completed. Must execute `batch_df` once at most: each
        action on it runs the whole plan and reads the sources again.

        Parameters
        ----------
        batch_df : DataFrame
            A batch DataFrame of ``context.schema``; set confs on ``batch_df.sparkSession``, a clone of the
            driver's.
        batch : BatchInfo
            The batch.
        """
