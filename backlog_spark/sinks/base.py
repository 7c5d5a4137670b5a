"""The contract of sinks. The query runner writes each micro-batch to them; they are idempotent by batch id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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
        The driver's session. Batches come with a clone of it, so settings made here after the start do not
        reach them.
    txn_app_id : str
        Identity of the (checkpoint, output) pair: the same at every start on one checkpoint, different on
        any other checkpoint. Batch ids are unique only together with it.
    schema : pyspark.sql.types.StructType
        Schema of every batch of the run.
    key_is_unique_in_backlog : bool
        True if all batches with ``is_backlog`` true together have at most one row per key, and each row is an insert:
        the snapshot of a table by its primary key, or the final rows of a keyed operator. False when in doubt, when
        any input of the query can send changes in such a batch, and when the query returns to backlog.
    newest_planned, newest_committed : int or None
        Newest batch id in Spark's offset log and in its commit log; None if there is none. An output that lacks a
        committed batch, or has a batch that was never planned, does not belong to this checkpoint.
    rows_are_results : bool
        The rows come from a keyed operator: each is the newest result of its key, not a change.
    of_one_table : bool
        All rows come from one table of one source: its TRUNCATE removes all of them. False when in doubt.
    has_gaps : bool
        The output only gets the batches that have rows for it. ``newest_committed`` is then the newest of these.
    snapshot_of : tuple of tuple of str
        Database and name of each table that the first snapshots of the query's sources read. All rows of all batches up
        to the end of these snapshots are then all rows of the tables. Empty if there is no such snapshot, or in doubt.
    directory : str
        A directory of this output in the checkpoint, for the sink's own files; "" if there is none. It need not exist.
    writer : str
        Names the query and where its sources read; the same for a new checkpoint of the query. "" if unknown.
    """

    spark: SparkSession
    txn_app_id: str
    schema: StructType
    key_is_unique_in_backlog: bool
    newest_planned: int | None = None
    newest_committed: int | None = None
    rows_are_results: bool = False
    of_one_table: bool = False
    has_gaps: bool = False
    snapshot_of: tuple[tuple[str, ...], ...] = ()
    directory: str = ""
    writer: str = ""


@dataclass(frozen=True)
class BatchInfo:
    """A micro-batch.

    Parameters
    ----------
    batch_id : int
        Spark's batch id: 0 for the first batch, then ascending without gaps; a replay has the same id.
    is_backlog : bool
        RecordAttributes of the batch; a replay has the same value.
    has_table_events : bool
        It may have rows of type ``truncate`` and ``drop``. No other batch has.
    has_changes : bool
        It may have changes of rows of earlier batches, even if it is backlog with `key_is_unique_in_backlog`.
    fills : tuple of (str, str, str)
        Database and name of tables that got new columns right after the rows of this batch, and the values that all
        their rows then have in them, as `backlog_spark.spi.offset_flags.FILLS` has them. Only for a sink whose `fills`
        is true.
    snapshot : "", "part" or "end"
        With ``SinkContext.snapshot_of``: ``part`` if rows of a snapshot follow in later batches, ``end`` if this batch
        has the last ones. A replay has the same value. A source may read a snapshot again later.
    """

    batch_id: int
    is_backlog: bool
    has_table_events: bool = False
    has_changes: bool = False
    fills: tuple[tuple[str, str, str], ...] = ()
    snapshot: Literal["", "part", "end"] = ""


@dataclass(frozen=True)
class Written:
    """How a sink wrote a batch, for the query's progress.

    Parameters
    ----------
    batch_id : int
    writer : "direct", "files", "spark" or "none"
        ``direct``: the driver wrote it without Spark. ``files``: Spark wrote its files and the driver committed them.
        ``spark``: executors wrote it. ``none``: it was not written, as the output already had it.
    reason : str
        Why it was not ``direct``; empty if it was.
    rows : int or None
        None if the rows were not counted.
    attempts : int
        More than 1 if other writers committed meanwhile.
    seconds : float
    """

    batch_id: int
    writer: Literal["direct", "files", "spark", "none"]
    reason: str = ""
    rows: int | None = None
    attempts: int = 1
    seconds: float = 0.0


class Sink(ABC):
    """An output that takes whole micro-batches. Each batch takes effect exactly once, however often `write` gets it.

    The runner calls `open`, and then `write` once per batch, in ascending batch ids, never two at a time.
    It calls nothing at the end of a run, and `close` at the end of the query. A run may end by a crash, so the next
    `open` must accept any state of the target. An error from either method fails the query. The runner may restart it,
    and then calls `write` with the same batch again.
    """

    keeps_newest: ClassVar[bool] = False
    """Whether the target has only the newest change of each key. Rows that a source reads again are upserts there."""

    written: Written | None = None
    """How the newest batch was written, if the sink reports it."""

    change_type: str | None = None
    """The column that says what a row does to its key's row, if the sink reads one."""

    def for_output(self) -> Sink:
        """The sink object for one output of one query; by default this one.

        A sink that keeps state from `open` returns a copy, as several queries may get the same object.
        """
        return self

    def fills(self, *, of_one_table: bool) -> bool:
        """Whether `write` gives a table's new columns their value in all old rows: `BatchInfo.fills`.

        ``of_one_table`` is as in `SinkContext`.
        """
        return False

    def described(self) -> dict[str, Any]:
        """What the checkpoint records of the sink, as JSON. A later start with other values is refused.

        Known are ``kind``, ``path`` (of Hadoop), ``place`` (any other address), ``table``, ``topic``, ``keys``,
        ``format``, ``change_type``, ``sequence``, ``metadata_columns``, ``deletes``, ``deleted_column``, ``history``
        and ``version_columns``; see `backlog_spark.decide.query_record`. By default the kind is ``Sink``, whatever the
        class.
        """
        return {"kind": "Sink"}

    def has_rows_of(self, spark: SparkSession, txn_app_id: str) -> bool:
        """Whether the target has batches of a query. Asked when its path is not the recorded one: it may have moved."""
        return False

    @property
    def divides_rows(self) -> bool:
        """Whether rows that the target would reject can go to the side output ``rejected_rows``."""
        return False

    def with_violations(self, rows: DataFrame) -> DataFrame | None:
        """The rows of a batch, with the constraint of the target that each violates as a last column.

        Asked for the side output ``rejected_rows``, and to name the row that has made `write` fail.

        Returns
        -------
        DataFrame or None
            As of `backlog_spark.sinks.rejected_rows.with_violations`. None, the default: no constraint is known.
        """
        return None

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Prepare the target, or reject it.

        Called on the driver before each start and restart of the query, before any row is read. It must not write
        rows. Called again with the same `txn_app_id`, also after a crash inside an earlier call, it must not
        change an existing target.

        Raises
        ------
        BacklogError
            If the target or the schema does not fit. The error names the column or setting and the next step.
        """

    @abstractmethod
    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Make the batch's rows durable and visible, all or none, before it returns.

        Called on the driver inside ``foreachBatch``. It may be called again with the same batch id and the same
        rows, in this run or a later one, whether the earlier call succeeded, failed or was killed. It must then not
        change anything that the earlier call completed. It must execute `batch_df` at most once: each action
        runs the whole plan and reads the sources again.

        Parameters
        ----------
        batch_df : DataFrame
            A batch DataFrame of ``context.schema``. Set confs on ``batch_df.sparkSession``, a clone of the
            driver's session.
        batch : BatchInfo
            The batch.
        """

    def close(self) -> None:  # noqa: B027 -- most sinks hold nothing open
        """Close connections. Called at the end of the query, but not after a crash. `open` may follow.

        By default it does nothing. An error is logged.
        """
