"""Notes the newest batch of each table of `DeltaTables`, so that a table from an older copy is noticed.

Not every batch has rows of each table, so a table's own newest batch says nothing about lost ones. One small file says
it of all tables. It is written after each batch: when the tables have their rows, and before Spark commits. So each
committed batch is in it, and each batch in it is in its tables. A driver that dies before it is written repeats the
batch. The tables that have the batch then skip it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.delta.access import TableAccess
from backlog_spark.sinks.delta.committed_batches import KnownBatches
from backlog_spark.sinks.delta.deltars.limits import refusal_of_store
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.jvm.session import session_conf, session_copy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backlog_spark.sinks.base import SinkContext
    from backlog_spark.spark.checkpoint.store import CheckpointStore

__all__ = ["TableBatches", "check_table"]

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

    def check(self, path: str, committed: int | None) -> None:
        """Check that the notes are not older than the checkpoint.

        Raises
        ------
        BacklogError
            A committed batch is missing.
        """
        if committed is not None and (self._newest is None or self._newest < committed):
            noted = "none of them" if self._newest is None else f"them up to {self._newest}"
            raise BacklogError(
                f"The Delta tables below {path} lack batches of this query: the checkpoint has committed up to "
                f"{committed}, the notes of the tables there have {noted}. The directory is another one, or was "
                "replaced by an older copy.",
                "Put it back, or start with a new checkpointLocation and an empty path.",
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


def check_table(
    context: SinkContext, name: str, path: str, app_id: str, newest: int | None, options: Mapping[str, str]
) -> bool:
    """Check that a table has all batches that it had. Runs no Spark job if delta-rs can read the table.

    Parameters
    ----------
    context : SinkContext
        Of all tables.
    name, path, app_id : str
        The table, and the id of its transactions.
    newest : int or None
        The newest batch that it must have.
    options : mapping of str to str
        delta-rs's options for the table's storage.

    Returns
    -------
    bool
        Whether it has any.

    Raises
    ------
    BacklogError
        It lacks batches, was restored or replaced, or has batches that the query has not planned.
    """
    path = delta_log.qualified_text(context.spark, path)
    access = TableAccess(path, options, compact=False)
    access.open(refusal_of_store(path, options, os.environ))
    spark = session_copy(context.spark)  # other queries of the session must not get our settings
    with session_conf(spark, delta_log.snapshot_conf(spark)):
        state = access.state(spark, app_id)
    own = replace(context, txn_app_id=app_id, newest_committed=newest, has_gaps=True)
    if newest is not None or state.batch is not None:
        try:
            KnownBatches(path, delta_log.log_path(spark, path), own).check_at_start(state)
        except SettingError:
            raise
        except BacklogError as error:
            raise BacklogError(f"{name}: {error.problem}", error.hint) from error
    return state.batch is not None
