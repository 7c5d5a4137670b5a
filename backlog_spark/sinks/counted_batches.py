"""Compares the newest batch that a target has with those of its query's checkpoint (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from backlog_spark.sinks.base import SinkContext

__all__ = ["CountedBatches"]


class CountedBatches:
    """What is known of the batches of one query in its target. Every batch is counted there, also an empty one.

    Parameters
    ----------
    target : str
        For messages: ``The table orders``.
    lost : str
        How the target may have lost its batches, as a sentence.
    skips : str
        Who would skip the next batches, if the checkpoint lacks some.
    context : SinkContext
    newest : int or None
        The newest batch that this process has found in the target or written.
    """

    def __init__(self, target: str, lost: str, skips: str, context: SinkContext, newest: int | None = None) -> None:
        self._target = target
        self._lost = lost
        self._skips = skips
        self._context = context
        self.newest = newest
        self._planned = -1 if context.newest_planned is None else context.newest_planned

    def check_at_start(self, done: int | None) -> None:
        """Check the target before the first batch of a run. ``done``: the newest batch that it has.

        Raises
        ------
        BacklogError
            The target lacks batches that the checkpoint has, or the reverse.
        """
        committed, planned = self._context.newest_committed, self._context.newest_planned
        if committed is not None and (-1 if done is None else done) < committed:
            raise self.lacks(committed, done)
        if done is not None and (planned is None or done > planned):
            raise BacklogError(
                f"{self._target} has batch {done} of this query, but the newest batch in its "
                f"checkpoint is {planned}: {self._skips} would skip the next batches as already written.",
                "Restore the checkpoint's directories offsets and commits, or start with a new checkpointLocation "
                "and a new table.",
            )

    def has(self, done: int | None, batch_id: int) -> bool:
        """Whether the target has a batch. If so, it also has all earlier ones.

        Raises
        ------
        BacklogError
            The target lacks the previous batch, or another query has written a batch under this query's id.
        """
        if done is not None and done > self._planned:
            raise BacklogError(
                f"{self._target} already has batch {done} of this query, which it has not run: "
                "another query writes under the same id, and differing rows would be dropped.",
                "Run one query on a checkpoint. A copy of a checkpoint cannot write to the same table.",
            )
        self._planned = max(self._planned, batch_id)
        # Every batch is counted, even an empty one, so a missing one means missing rows.
        there = self.newest if self._context.has_gaps else batch_id - 1
        if there is not None and (-1 if done is None else done) < there:
            raise self.lacks(there, done)
        self.note(done)
        return done is not None and done >= batch_id

    def note(self, batch: int | None) -> None:
        """Note a batch that the target has."""
        if batch is not None:
            self.newest = batch if self.newest is None else max(self.newest, batch)

    def lacks(self, wanted: int, done: int | None) -> BacklogError:
        """The error for a target without a batch that the checkpoint has."""
        return BacklogError(
            f"{self._target} lacks batches of this query: the checkpoint has committed up to {wanted},"
            f" the table {'none of them' if done is None else f'has them up to {done}'}. {self._lost}",
            "Put the table back, or start with a new checkpointLocation and an empty target.",
        )
