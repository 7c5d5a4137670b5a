"""Keeps in the checkpoint how stays in backlog ended, for operators that waited for the end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from backlog_spark.operators.fold import StayEnd

if TYPE_CHECKING:
    from backlog_spark.spark.checkpoint import Checkpoint

__all__ = ["StayEnds"]

_NAME: Final = "stay-end"
_FILE: Final = re.compile(rf"{_NAME}-(\d+)\.json")


class StayEnds:
    """The ends of one query's stays, each known by its last batch."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def newest(self) -> int | None:
        """The batch with which a stay ended, if it is written down."""
        names = self._checkpoint.names_in("backlog")
        return max((int(m[1]) for name in names if (m := _FILE.fullmatch(name))), default=None)

    def of(self, batch_id: int) -> StayEnd | None:
        """The end of the stay whose last batch this is."""
        found = self._checkpoint.read_metadata(f"{_NAME}-{batch_id}")
        return None if found is None else StayEnd(found.get("watermark"))

    def put_out(self) -> StayEnd | None:
        """How the stay ended whose results have been put out; None before that."""
        batch_id, committed = self.newest(), self._checkpoint.latest_committed()
        if batch_id is None or committed is None or committed < batch_id:
            return None
        return self.of(batch_id)

    def keep(self, batch_id: int, end: StayEnd) -> None:
        """Write down that a stay ends with a batch, before anything of it is put out."""
        self._checkpoint.write_metadata(f"{_NAME}-{batch_id}", {"watermark": end.watermark})
