"""Records in the checkpoint how each stay in backlog ended, for operators that wait for the end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from backlog_spark.operators.waiting_fold import StayEnd

if TYPE_CHECKING:
    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["StayEnds"]

_NAME: Final = "stay-end"
_FILE: Final = re.compile(rf"{_NAME}-(\d+)\.json")


class StayEnds:
    """How the stays of one query ended. The key is the last batch of the stay."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def newest(self) -> int | None:
        """The last batch of the newest recorded stay; None if no end is recorded."""
        names = self._checkpoint.names_in("backlog")
        return max((int(m[1]) for name in names if (m := _FILE.fullmatch(name))), default=None)

    def of(self, batch_id: int) -> StayEnd | None:
        """The end of the stay that ended with this batch."""
        found = self._checkpoint.read_metadata(f"{_NAME}-{batch_id}")
        return None if found is None else StayEnd(found.get("watermark"))

    def newest_committed(self) -> StayEnd | None:
        """The end of the newest stay if its last batch has committed, else None."""
        batch_id, committed = self.newest(), self._checkpoint.latest_committed()
        if batch_id is None or committed is None or committed < batch_id:
            return None
        return self.of(batch_id)

    def keep(self, batch_id: int, end: StayEnd) -> None:
        """Record that a stay ends with this batch. Called before any result of the batch is written."""
        self._checkpoint.write_metadata(f"{_NAME}-{batch_id}", {"watermark": end.watermark})
