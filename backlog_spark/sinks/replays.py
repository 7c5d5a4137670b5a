"""Replayed batches: which of them the driver may write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backlog_spark.spark.checkpoint.store import CheckpointStore

if TYPE_CHECKING:
    from backlog_spark.sinks.base import SinkContext

__all__ = ["Replays"]

_NOTE: Final = "replayed"


class Replays:
    """Batches that an earlier run may have failed to write, because they were too large for the driver.

    Most runs end for other reasons. So the driver may write a batch at its first replay, and only Spark at later ones.
    With Spark's MERGE a query that was killed needs 10 to 20 s for its first batch. A file in the checkpoint says which
    batch was tried.

    Parameters
    ----------
    context : SinkContext
        Without a directory, the driver writes no replayed batch.
    """

    def __init__(self, context: SinkContext) -> None:
        self._planned = -1 if context.newest_planned is None else context.newest_planned
        self._context = context
        self._tried = -1

    def refuse(self, batch_id: int) -> bool:
        """Whether only Spark may write a batch. If not, note that the driver tries it."""
        if batch_id > self._planned or batch_id == self._tried:
            return False
        if not self._context.directory:
            return True
        files = CheckpointStore(self._context.spark, self._context.directory)
        if (files.newest_metadata(_NOTE) or {}).get("batch") == batch_id:
            return True
        files.replace_metadata(_NOTE, {"batch": batch_id})
        self._tried = batch_id
        return False
