"""Notes the newest batch of each table of a sink of many tables, so that a table from an older copy is noticed.

Not every batch has rows of each table, so a table's own newest batch says nothing about lost ones. One small file says
it of all tables. It is written after each batch: when the tables have their rows, and before Spark commits. So each
committed batch is in it, and each batch in it is in its tables. A driver that dies before it is written repeats the
batch. The tables that have the batch then skip it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from backlog_spark.spark.checkpoint.store import CheckpointStore

__all__ = ["TableBatches"]

_NAME: Final = "batches"


class TableBatches:
    """The newest batch of each table that a query has written.

    Parameters
    ----------
    files : CheckpointStore
        The query's notes beside its tables.
    """

    def __init__(self, files: CheckpointStore) -> None:
        self._files = files
        found = files.newest_metadata(_NAME) or {"batch": None, "tables": []}
        self._newest: int | None = found["batch"]
        self._tables: dict[tuple[str, str], int] = {(db, table): batch for db, table, batch in found["tables"]}

    def of(self, database: str, table: str) -> int | None:
        """The newest batch with rows of a table; None if there is none."""
        return self._tables.get((database, table))

    def check(self, tables: str, committed: int | None, hint: str) -> None:
        """Check that the notes are not older than the checkpoint.

        Parameters
        ----------
        tables : str
            All tables of the sink, for the message.
        committed : int or None
            The checkpoint's newest committed batch.
        hint : str
            What to do if it has more than the notes.

        Raises
        ------
        BacklogError
            A committed batch is missing.
        """
        if committed is not None and (self._newest is None or self._newest < committed):
            noted = "none of them" if self._newest is None else f"them up to {self._newest}"
            raise BacklogError(
                f"{tables} lack batches of this query: the checkpoint has committed up to {committed}, the notes of "
                f"the tables have {noted}.",
                hint,
            )

    def note(self, batch: int, tables: Iterable[tuple[str, str]]) -> None:
        """Note a batch that these tables have. Others have no rows of it.

        Raises
        ------
        BacklogError
            Another driver writes here.
        """
        known = {**self._tables, **dict.fromkeys(tables, batch)}
        if (self._newest, self._tables) == (batch, known):
            return  # repeated
        listed = [[*name, newest] for name, newest in known.items()]
        if not self._files.replace_metadata(_NAME, {"batch": batch, "tables": listed}):
            raise BacklogError(
                f"Another driver has written its notes of batches into {self._files.location}.",
                "Start the query on one driver only.",
            )
        self._newest, self._tables = batch, known
