"""The newest batch of a query in an Iceberg table, and whether the table still has its rows (pure).

The mark is a property of the table, written in the same commit as the batch. A snapshot's summary has the batch, too,
for people: but snapshots expire, and other writers' snapshots lie between those of a query. A rollback keeps the
properties. So the mark names the snapshot that the batch made, and that must still be an ancestor of the newest one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from backlog_spark.common.stored_values import checked, reading_stored
from backlog_spark.errors import BacklogError
from backlog_spark.sinks.counted_batches import CountedBatches

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from backlog_spark.sinks.base import SinkContext

__all__ = [
    "ACCEPTED",
    "COMPACTED",
    "CREATED_BY",
    "REPAIRED",
    "IcebergState",
    "KnownBatches",
    "Mark",
    "mark_name",
]

CREATED_BY: Final = "backlog_spark.created-by"
"""Table property: the id of the query that created the table."""

ACCEPTED: Final = "backlog_spark.accepted-loss"
"""Table property: the id of a snapshot of this query that is gone, and whose loss the table's owner accepts."""

COMPACTED: Final = "backlog_spark.compacted"
"""In the summary of a snapshot that has the same rows as the one before."""

REPAIRED: Final = "backlog_spark.repaired"
"""In the summary of a snapshot that ``bs.verify`` made, for people."""


def mark_name(txn_app_id: str) -> str:
    """The property of a query's mark."""
    return f"backlog_spark.query-{hashlib.sha256(txn_app_id.encode()).hexdigest()[:32]}"


@dataclass(frozen=True)
class Mark:
    """The newest batch of a query.

    Parameters
    ----------
    batch : int
    snapshot : int or None
        The snapshot with which the query's newest batch with rows was committed; None if none had rows.
    sequence : int
        Its number among the table's commits.
    is_alone : bool
        Whether all rows of the table came from this query, up to that snapshot.
    """

    batch: int
    snapshot: int | None
    sequence: int
    is_alone: bool

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, properties: Mapping[str, str], txn_app_id: str) -> Mark | None:
        text = properties.get(mark_name(txn_app_id))
        if text is None:
            return None
        with reading_stored(f"The table property {mark_name(txn_app_id)}", "Restore the table's metadata."):
            return checked(cls(**json.loads(text)))


@dataclass(frozen=True)
class IcebergState:
    """A version of the table, and this query's newest batch in it."""

    table: Table
    mark: Mark | None

    @property
    def version(self) -> int:
        return int(getattr(self.table.metadata, "last_sequence_number", 0))  # format 1 has none

    @property
    def head(self) -> int | None:
        """The newest snapshot."""
        found: int | None = self.table.metadata.current_snapshot_id
        return found

    def is_alone(self, txn_app_id: str) -> bool:
        """Whether all rows of the table came from this query, which created it."""
        if self.table.metadata.properties.get(CREATED_BY) != txn_app_id:
            return False
        last = None if self.mark is None else self.mark.snapshot
        if self.mark is not None and not self.mark.is_alone:
            return False
        for snapshot in ancestors(self.table.metadata):
            if snapshot.snapshot_id == last:
                return True
            if snapshot.summary is None or COMPACTED not in snapshot.summary.additional_properties:
                return False
        return last is None


def ancestors(metadata: TableMetadata) -> Iterable[Snapshot]:
    """The newest snapshot, then its ancestors up to the first that has expired."""
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)


class KnownBatches:
    """Compares a query's batches with those of its table, at the start and before each batch.

    Parameters
    ----------
    place : str
        The table, for messages.
    context : SinkContext
    newest : int or None
        The newest batch that this process has found in the table or written.
    """

    def __init__(self, place: str, context: SinkContext, newest: int | None = None) -> None:
        self._place = place
        lost = "The table was dropped, replaced or registered again from older metadata."
        self._batches = CountedBatches(f"The Iceberg table {place}", lost, "The sink", context, newest)

    @property
    def newest(self) -> int | None:
        return self._batches.newest

    def check_at_start(self, state: IcebergState) -> None:
        """Check the table before the first batch of a run.

        Raises
        ------
        BacklogError
            The table lacks batches that the checkpoint has, or the reverse, or was rolled back.
        """
        done = self._done(state)
        self._batches.check_at_start(done)
        self._batches.note(done)

    def has(self, state: IcebergState, batch_id: int) -> bool:
        """Whether the table has a batch. If so, it also has all earlier ones.

        Raises
        ------
        BacklogError
            The table lacks the batch before, was rolled back, or another query writes under this query's id.
        """
        return self._batches.has(self._done(state), batch_id)

    def note(self, batch_id: int) -> None:
        """Note a batch that was written."""
        self._batches.note(batch_id)

    def _done(self, state: IcebergState) -> int | None:
        mark = state.mark
        if mark is None:
            return None
        if not _is_there(state.table.metadata, mark):
            raise BacklogError(
                f"The Iceberg table {self._place} no longer has all batches of this query that it counts as written: "
                f"the snapshot {mark.snapshot} of batch {mark.batch} is no ancestor of the newest one, {state.head}. "
                "The table was rolled back.",
                f"Make {mark.snapshot} the current snapshot again (set_current_snapshot), or start with a new "
                "checkpointLocation and another table. To go on without these rows, set the table's property "
                f"{ACCEPTED} to {mark.snapshot}.",
            )
        return mark.batch


def _is_there(metadata: TableMetadata, mark: Mark) -> bool:
    """Whether the rows of the mark's batch are in the table's history.

    Sequence numbers descend along the ancestors. If the snapshot has expired, the rollback of a table is not noticed
    when it has expired as well.
    """
    if mark.snapshot is None or metadata.properties.get(ACCEPTED) == str(mark.snapshot):
        return True
    for snapshot in ancestors(metadata):
        if snapshot.snapshot_id == mark.snapshot:
            return True
        if metadata.format_version > 1 and (snapshot.sequence_number or 0) < mark.sequence:
            return False
    return metadata.current_snapshot_id is not None and metadata.snapshot_by_id(mark.snapshot) is None
