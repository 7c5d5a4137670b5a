"""Runs an operator over rows of whole keys, several keys at a time: in backlog, in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from backlog_spark.common.gc_tuning import collect_rarely, keep_imports
from backlog_spark.model.record_attributes import ALL_BACKLOG
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.fold import Clock
from backlog_spark.operators.key_sort import sorted_by_hash
from backlog_spark.operators.narrow import Narrow
from backlog_spark.operators.waiting_fold import StayEnd
from backlog_spark.state.tables import combine

if TYPE_CHECKING:
    from backlog_spark.operators.rows import RowsFold

__all__ = ["AdvanceKeys"]


class AdvanceKeys:
    """For ``mapInArrow``: passes rows to `advance`, in order of their hash, whole keys at a time. The hash is first.

    Parameters
    ----------
    fold : RowsFold
    narrow : Narrow
        The form of the input rows.
    end : StayEnd
    output : pyarrow.Schema or None
        Schema of the output. None: return the remaining state instead.
    """

    def __init__(self, fold: RowsFold, narrow: Narrow, end: StayEnd, output: pa.Schema | None) -> None:
        self._fold = fold
        self._narrow = narrow
        self._end = end
        self._output = output

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collect_rarely()
        keep_imports()
        try:
            for piece in sorted_by_hash(batches):
                yield from self._advance(piece)
        finally:
            self._fold.close()

    def _advance(self, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        fold = self._fold
        watermark = MIN_WATERMARK if self._end.watermark is None else self._end.watermark
        clock = Clock(before=MIN_WATERMARK, watermark=watermark, now=None, backlog=ALL_BACKLOG)
        fresh = fold.widened(self._narrow.widened([piece]))
        if self._output is not None:
            _, out = fold.advance(combine([], fresh.schema), fresh, clock)
            yield from (combine([piece], self._output) for piece in out)
            return
        yield fold.left_by(fresh, clock)
