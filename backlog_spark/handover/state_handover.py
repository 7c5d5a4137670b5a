"""Hands the state of the sorted vehicle over to the stream vehicle, and keeps the ledger.

While no run is active, the last version of each operator's state is published as seeds. The first batch of the next
stream run reads them. After that batch has committed, they are removed. Each step can be repeated without effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from backlog_spark.common.fault_points import reached
from backlog_spark.decide.ledger import Ledger
from backlog_spark.errors import BacklogError
from backlog_spark.handover.stay_ends import StayEnds
from backlog_spark.handover.versions import BatchState
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.state.seeds import seed_prefix, seeds_of

__all__ = ["StateHandover"]

_LEDGER = "plan"


class StateHandover:
    """The ledger and the handed-over state of one query.

    Parameters
    ----------
    checkpoint : Checkpoint
    stays : StayEnds
        The ends of stays in the same checkpoint.
    operators : sequence of str
        Names of the keyed operators.
    """

    def __init__(self, checkpoint: Checkpoint, stays: StayEnds, operators: Sequence[str]) -> None:
        self._checkpoint = checkpoint
        self._stays = stays
        self._operators = operators
        self._is_read = False

    def ledger(self) -> Ledger | None:
        """The checkpoint's ledger; None if there is none yet."""
        found = self._checkpoint.newest_metadata(_LEDGER)
        return None if found is None else Ledger.from_json(found)

    def write(self, ledger: Ledger) -> None:
        """Replace the ledger.

        Raises
        ------
        BacklogError
            Another driver has replaced it at the same moment.
        """
        if not self._checkpoint.replace_metadata(_LEDGER, ledger.to_json()):
            raise BacklogError(
                f"Another driver has just started this query: it wrote backlog/{_LEDGER}-….json at the same moment.",
                "Run a query once at a time on one checkpointLocation.",
            )

    def publish(self, ledger: Ledger) -> Ledger:
        """Publish the state of the newest epoch. Returns the new ledger."""
        reached("handover.publish")
        epoch = ledger.last_epoch
        ledger = ledger.begin_publication(epoch)
        self.write(ledger)
        self._is_read = False
        for name in self._operators:
            BatchState(self._checkpoint, name, epoch).publish()
            reached("handover.operator")
        ledger = ledger.publish(epoch)
        self.write(ledger)
        reached("handover.published")
        return ledger

    def read_by_stream(self) -> None:
        """Note that a stream run has read all seeds."""
        self._is_read = True

    def has_unread_seeds(self) -> bool:
        """Whether seeds exist that no stream run is known to have read."""
        return not self._is_read and any(self._checkpoint.names_in(seeds_of(name)) for name in self._operators)

    def seeds_emit(self, ledger: Ledger) -> bool | None:
        """Whether the stream plan emits the keys that are handed over.

        It emits those of later stays. It emits those of the first stay only if that stay has not emitted them itself.

        Returns
        -------
        bool or None
            None if the answer differs between seeds, or if there are none.
        """
        is_emitted = ledger.puts_out_each or self._stays.newest_committed() is not None
        names = [name for operator in self._operators for name in self._checkpoint.names_in(seeds_of(operator))]
        emit = {not (is_emitted and name.startswith(seed_prefix(0))) for name in names}
        if ledger.unpublished:
            emit.add(not (is_emitted and ledger.last_epoch == 0))
        return emit.pop() if len(emit) == 1 else None

    def clean(self) -> None:
        """Remove the state that was handed over. Called after the batch that read it has committed."""
        found = self.ledger()
        published = -1 if found is None else found.published
        for name in self._operators:
            for epoch in range(published + 1):
                state = BatchState(self._checkpoint, name, epoch)
                state.drop()
                state.drop_seeds()
