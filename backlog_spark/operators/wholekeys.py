"""Rows that are sorted by key, a batch of whole keys at a time, through an operator: in backlog, in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from backlog_spark.attributes import ALL_BACKLOG
from backlog_spark.garbage import collect_rarely, keep_imports
from backlog_spark.operators.fold import Clock, StayEnd
from backlog_spark.operators.narrow import Narrow
from backlog_spark.state.keys import groups_of
from backlog_spark.state.tables import GROUP, combine
from backlog_spark.watermarks import MIN_WATERMARK

if TYPE_CHECKING:
    from backlog_spark.operators.rows import RowsFold

__all__ = ["AdvanceKeys"]

# Rows of whole keys that are worked on at a time: enough for what a call costs once, and a few MB.
_WHOLE_KEYS: Final = 100_000


class AdvanceKeys:
    """For ``mapInArrow``: rows sorted by hash, as many whole keys at a time as make a good batch, through `advance`.

    Parameters
    ----------
    fold : RowsFold
    narrow : Narrow
        How the rows come in.
    end : StayEnd
    output : pyarrow.Schema or None
        Of what is put out; None gives the state that is left instead.
    """

    def __init__(self, fold: RowsFold, narrow: Narrow, end: StayEnd, output: pa.Schema | None) -> None:
        self._fold = fold
        self._narrow = narrow
        self._end = end
        self._output = output

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collect_rarely()
        keep_imports()
        held: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            hashes = batch.column(0).to_numpy()
            last = int(np.searchsorted(hashes, hashes[-1]))
            # Where the last key of the batch begins, if another one comes before it.
            is_other = bool(held) and held[-1].column(0)[-1].as_py() != hashes[-1]
            if (last or is_other) and count + last >= _WHOLE_KEYS:
                yield from self._advance([*held, batch.slice(0, last)])
                held, count, batch = [], 0, batch.slice(last)
            held.append(batch)
            count += batch.num_rows
        if held:
            yield from self._advance(held)

    def _advance(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fold = self._fold
        watermark = MIN_WATERMARK if self._end.watermark is None else self._end.watermark
        clock = Clock(before=MIN_WATERMARK, watermark=watermark, now=None, backlog=ALL_BACKLOG)
        fresh = fold.widened(self._narrow.widened(batches))
        if self._output is not None:
            _, out = fold.advance(combine([], fresh.schema), fresh, clock)
            yield from (combine([piece], self._output) for piece in out)
            return
        state = fold.left_by(fresh, clock)
        groups = pa.array(groups_of(state.column(0).to_numpy(), fold.key_groups), pa.int32())
        schema = state.schema.insert(0, pa.field(GROUP, pa.int32()))
        yield pa.RecordBatch.from_arrays([groups, *state.columns], schema=schema)
