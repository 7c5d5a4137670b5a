"""What `bs.verify` needs of a target's format: its rows at one version, and a repair in one commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql import functions as F

from backlog_spark.common.failure_causes import first_line, next_step
from backlog_spark.errors import BacklogError
from backlog_spark.model import changes
from backlog_spark.sinks.newest_rows import newest_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "DELETE",
    "INSERT",
    "REMOVE",
    "STEP",
    "UPDATE",
    "TargetTable",
    "TargetVersion",
    "as_changes",
    "explained",
    "no_batch",
]

STEP: Final = "__backlog_spark_step"
INSERT, UPDATE, DELETE, REMOVE = "insert", "update", "delete", "remove"


@dataclass(frozen=True)
class TargetVersion:
    """A version of a target.

    Parameters
    ----------
    place : str
        Where the target is, for people.
    version : int
        A table's version or snapshot. In a database, which has none, the newest batch. -1: there is no table yet.
    batch : int
        The newest batch of the query in this version.
    state : object
        What the format needs to read this version.
    """

    place: str
    version: int
    batch: int
    state: Any = field(default=None, repr=False, compare=False)


class TargetTable(ABC):
    """The table that a sink keeps, of one format. The driver alone calls it.

    `verify` calls `newest`, `held`, `names`, `rows` in this order, `repair` at most once, and `close` at the end. While
    a running query waits, `newest`, `rows` and `repair` are called again, for a later version.
    """

    kind: ClassVar[str]
    """The format, for messages."""
    keys: tuple[str, ...] = ()
    """The sink's keys; empty if it has none."""
    keeps_removed: bool = False
    """Whether the target keeps rows that the source no longer has."""

    @abstractmethod
    def newest(self) -> TargetVersion:
        """The newest version.

        Raises
        ------
        BacklogError
            There is no table, or it has no batch of this query.
        """

    def held(self, spark: SparkSession, version: TargetVersion, columns: StructType) -> TargetVersion:
        """The version, or a later one, whose rows can be read until `close`.

        Parameters
        ----------
        columns : StructType
            The source's.
        """
        return version

    @abstractmethod
    def names(self, spark: SparkSession, version: TargetVersion, keys: Sequence[str]) -> Sequence[str]:
        """The columns of a version. ``keys``: the source's."""

    @abstractmethod
    def rows(self, spark: SparkSession, version: TargetVersion, names: Sequence[str], keys: Sequence[str]) -> DataFrame:
        """The rows of a version that count, with at least some columns.

        Parameters
        ----------
        names : sequence of str
            Columns that `names` has, in the letter case of the source.
        keys : sequence of str
            The source's.
        """

    def widens(self, source: DataType, target: DataType) -> bool:
        """Whether a column of one type may be stored in one of another type that has all its values."""
        return False

    @abstractmethod
    def refuse_repair(self) -> None:
        """Raise `SettingError` if a target of this kind cannot be repaired."""

    def check_repair(self, wrong: DataFrame, version: TargetVersion) -> None:  # noqa: B027 -- most can repair any key
        """Raise `BacklogError` if keys cannot be repaired. ``wrong``: rows of `row_comparison.compared`."""

    @abstractmethod
    def repair(self, version: TargetVersion, steps: DataFrame, keys: Sequence[str]) -> None:
        """Apply repair steps in one commit.

        Parameters
        ----------
        version : TargetVersion
            The version to which the steps belong.
        steps : DataFrame
            Compared columns, and `STEP`. Each key has one step, or a `DELETE` of all its rows and an `INSERT`. An
            `UPDATE` keeps the values of columns that are not given, and inserts the row if the key is not there.
            `REMOVE` deletes the row, or marks it.
        keys : sequence of str
            Columns that identify a row; NULL is a value like any other.

        Raises
        ------
        BacklogError
            Another writer has committed since that version.
        """

    def gone(self, text: str, version: TargetVersion) -> BacklogError | None:
        """The error if the text of a failure says that the version can no longer be read."""
        return None

    def scrubbed(self, text: str) -> str:
        """A text without secrets of the sink."""
        return text

    def close(self) -> None:  # noqa: B027 -- most hold nothing
        """Free what `held` has kept."""


def no_batch(kind: str, place: str, *, is_there: bool) -> BacklogError:
    """The error of `TargetTable.newest`."""
    what = "No batch of this checkpoint is in the" if is_there else "There is no"
    return BacklogError(f"{what} {kind} at {place}.", "Give verify the sink and the checkpoint of one query.")


def as_changes(steps: DataFrame, names: Sequence[str], keys: Sequence[str]) -> DataFrame:
    """Repair steps as the newest change of each key: what sinks merge. See `newest_rows` for the columns."""
    is_upsert = F.col(STEP).isin(INSERT, UPDATE)
    kinds = steps.withColumn(STEP, F.when(is_upsert, changes.INSERT).otherwise(changes.DELETE))
    # Ordered by itself: an insert is greater than the delete of the same key.
    return newest_rows(kinds, names, keys, STEP, STEP, "repair")


@contextmanager
def explained(side: TargetTable, target: TargetVersion) -> Iterator[None]:
    """Failures of Spark as one line, with the next step if the cause is known."""
    try:
        yield
    except BacklogError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        found, line = side.gone(text, target), side.scrubbed(first_line(error))
        for name in ("BacklogError: ", "SettingError: ", "SchemaChanged: ", "StartAgain: ", "Again: "):
            line = line.partition(name)[2] or line
        if found is None:
            told = f"The comparison with {target.place} failed: {line}"
            found = BacklogError(told, next_step(line) or "Verify again.")
        raise found from (error if side.scrubbed(text) == text else None)
