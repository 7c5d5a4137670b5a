"""Tracks which batches of a query a Delta table has, and whether they are still there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.counted_batches import CountedBatches
from backlog_spark.sinks.delta.history import Commit, TableState, commits_back, read_commits, undoing

if TYPE_CHECKING:
    from backlog_spark.sinks.base import SinkContext

__all__ = ["ACCEPTED", "KnownBatches"]

ACCEPTED: Final = "backlog_spark.acceptedVersion"
"""Table property. The table's owner accepts with it whatever happened to batches up to this version of the table."""

_TXN_RETENTION: Final = "delta.setTransactionRetentionDuration"


class KnownBatches:
    """Compares a query's batches with those of its table, at the start and before and after each batch.

    Parameters
    ----------
    path : str
        Qualified path of the table.
    log_path : object
        Hadoop path of its log.
    context : SinkContext
    newest : int or None
        The newest batch that this process has found in the table or written.
    """

    def __init__(self, path: str, log_path: Any, context: SinkContext, newest: int | None = None) -> None:
        self._path = path
        self._log_path = log_path
        self._context = context
        lost = (
            f"The table was removed, replaced or restored from an older copy, or {_TXN_RETENTION} made it forget them."
        )
        self._batches = CountedBatches(f"The Delta table at {path}", lost, "Delta", context, newest)
        self._checked = -1  # the table version up to which the log has been checked

    @property
    def newest(self) -> int | None:
        """The newest batch that this process has found in the table or written."""
        return self._batches.newest

    def check_at_start(self, state: TableState) -> None:
        """Check the table before the first batch of a run.

        Raises
        ------
        BacklogError
            If the table lacks batches that the checkpoint has, or the reverse, or was restored or replaced.
        """
        self._batches.check_at_start(state.batch)
        self._check_since_committed(state)
        self._batches.note(state.batch)

    def has(self, state: TableState, batch_id: int) -> bool:
        """Whether the table has a batch. If so, it also has all earlier ones.

        Raises
        ------
        BacklogError
            If the table lacks the previous batch, if it was restored or replaced, or if another query has written a
            batch under this query's id.
        """
        if state.batch is not None:
            self._check_since(self._checked, state)
        found = self._batches.has(state.batch, batch_id)
        self._checked = state.version
        return found

    def wrote(self, before: TableState, after: TableState, batch_id: int) -> None:
        """Note that a batch was written between two versions.

        Raises
        ------
        BacklogError
            If the table was restored or replaced meanwhile.
        """
        if after.version != before.version + 1:  # else it is the batch's own commit
            self._check_since(before.version if before.batch is not None else -1, after)
        self._checked = after.version
        self._batches.note(batch_id)

    def _check_since_committed(self, state: TableState) -> None:
        """Check the log back to the newest batch that counts as written. Earlier commits were checked then."""
        context, done = self._context, state.batch
        self._checked = state.version
        if self._checked < 0:
            return
        # Only then can a planned, uncommitted batch have been written without the table still knowing it.
        forgets = _TXN_RETENTION in state.configuration and context.newest_planned is not None
        if done is None and not forgets:
            return
        counted = context.newest_committed if context.newest_committed is not None else done
        accepted = _accepted(state)
        seen: list[Commit] = []
        for commit in commits_back(context.spark, self._log_path, self._checked, context.txn_app_id):
            if commit.version <= accepted:
                break
            seen.append(commit)
            if commit.batch is not None and (counted is None or commit.batch <= counted):
                break
        else:
            if done is not None:
                raise self._log_is_cut(counted, self._checked)
        if done is None and any(commit.batch is not None for commit in seen):
            raise self._batches.lacks(0, done)
        self._refuse_undone(seen, accepted)

    def _check_since(self, base: int, state: TableState) -> None:
        """Check the commits after `base`, up to which everything was correct; -1 if no batch had been written."""
        first, newest = max(base, self._checked) + 1, state.version
        if first > newest:
            return
        accepted = _accepted(state)
        versions = range(max(first, accepted + 1), newest + 1)
        found = read_commits(self._context.spark, self._log_path, versions, self._context.txn_app_id)
        commits = [commit for commit in found if commit is not None]
        if len(commits) < len(found):
            raise self._log_is_cut(None, newest)
        self._refuse_undone(commits, max(base, accepted))

    def _refuse_undone(self, commits: Sequence[Commit], base: int) -> None:
        found = undoing(commits, base)
        if found is None:
            return
        before = found.version - 1
        back = undoing([commit for commit in commits if commit.version <= before], base) is None
        raise BacklogError(
            f"The Delta table at {self._path} no longer has all batches of this query that it counts as written: "
            f"{found.operation} in its version {found.version} took rows out and kept the transaction numbers.",
            (f"Put them back with RESTORE TABLE {self._name} TO VERSION AS OF {before}, or start" if back else "Start")
            + " with a new checkpointLocation and an empty path. To go on without these rows: "
            + self._accepting(found.version),
        )

    def _log_is_cut(self, counted: int | None, newest: int) -> BacklogError:
        return BacklogError(
            f"The log of the Delta table at {self._path} does not reach back to the last batch of this query"
            f"{'' if counted is None else f' ({counted} of {self._context.txn_app_id})'}: the sink cannot tell whether "
            "the table was restored or replaced since.",
            "If it was not, confirm it: " + self._accepting(newest)
            + " Keep the log (delta.logRetentionDuration) longer than the query may be stopped or idle.",
        )  # fmt: skip

    @property
    def _name(self) -> str:
        return f"delta.{quoted(self._path)}"

    def _accepting(self, version: int) -> str:
        return f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{ACCEPTED}' = '{version}')."


def _accepted(state: TableState) -> int:
    """The version that the table's owner accepted; -1 if none."""
    text = state.configuration.get(ACCEPTED)
    if text is None:
        return -1
    if not (text.isascii() and text.isdecimal() and int(text) <= state.version):
        raise SettingError(
            f"table property {ACCEPTED}", text, f"must be a version of the table; the newest is {state.version}.",
            "DESCRIBE HISTORY lists them.",
        )  # fmt: skip
    return int(text)
