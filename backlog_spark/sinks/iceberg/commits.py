"""Commits a batch to an Iceberg table: its files and its mark in one step, or nothing.

pyiceberg repeats a failed commit on top of the other writer's snapshot by itself. That must not happen here: the other
one may have this batch, or new rows of its keys. So it is told that there is nothing to repeat, and the sink looks at
the table again.

Reaches for ``Transaction._snapshot_producers`` and ``_stage``, and ``_clean_all_uncommitted``, of pyiceberg 0.12.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backlog_spark.sinks.iceberg.marks import COMPACTED, REPAIRED, IcebergState, Mark, mark_name

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Transaction

__all__ = ["Changes", "commit_batch", "commit_compacted", "commit_repaired", "conflicts", "delete_files"]


@dataclass(frozen=True)
class Changes:
    """What a batch does to the files of a table.

    Parameters
    ----------
    added, removed : sequence of DataFile
    """

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def conflicts() -> tuple[type[Exception], ...]:
    """Errors after which the table must be read again: another writer was faster, or the answer of a server is lost."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

    return CommitFailedException, CommitStateUnknownException


def commit_batch(state: IcebergState, txn_app_id: str, batch_id: int, changes: Changes) -> None:
    """Commit a batch on top of a version of the table.

    Raises
    ------
    Exception
        One of `conflicts`.
    """
    is_alone = state.is_alone(txn_app_id)
    # A batch without rows makes a snapshot too: else its mark, committed late, could replace that of a later batch.
    transaction = state.table.transaction()
    producer = _produced(transaction, changes, {mark_name(txn_app_id): str(batch_id)})
    made = Mark(batch_id, producer.snapshot_id, state.table.metadata.next_sequence_number(), is_alone)
    transaction.set_properties({mark_name(txn_app_id): made.to_text()})
    _commit(transaction, producer)


def commit_compacted(state: IcebergState, changes: Changes) -> None:
    """Replace files by others with the same rows.

    Raises
    ------
    Exception
        One of `conflicts`.
    """
    _commit_summary(state, changes, {COMPACTED: "true"})


def commit_repaired(state: IcebergState, changes: Changes) -> None:
    """Change rows as another writer does: the marks of queries stay, and the table no longer has one writer alone.

    Raises
    ------
    Exception
        One of `conflicts`.
    """
    _commit_summary(state, changes, {REPAIRED: "true"})


def _commit_summary(state: IcebergState, changes: Changes, summary: dict[str, str]) -> None:
    transaction = state.table.transaction()
    _commit(transaction, _produced(transaction, changes, summary))


def _produced(transaction: Transaction, changes: Changes, summary: dict[str, str]) -> Any:
    """A new snapshot in a transaction."""
    update = transaction.update_snapshot(snapshot_properties=summary)
    producer: Any = update.overwrite() if changes.removed else update.merge_append()
    with producer:
        for file in changes.added:
            producer.append_data_file(file)
        for file in changes.removed:
            producer.delete_data_file(file)
    return producer


def _commit(transaction: Transaction, producer: Any) -> None:
    from pyiceberg.exceptions import CommitFailedException

    transaction._snapshot_producers = []
    try:
        transaction.commit_transaction()
    except CommitFailedException:
        if producer is None:
            raise
        # A server may report a failure to a client that has sent a commit again which was done the first time.
        table = transaction._table.refresh()
        if table.metadata.snapshot_by_id(producer.snapshot_id) is None:
            producer._clean_all_uncommitted()
            raise


def delete_files(io: FileIO, files: Sequence[DataFile]) -> None:
    """Delete files that no snapshot refers to; those that cannot be deleted stay."""
    for file in files:
        with contextlib.suppress(Exception):
            io.delete(file.file_path)
