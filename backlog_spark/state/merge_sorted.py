"""Worker side of the sorted vehicle for folds in Python: merges sorted rows into one row of state per key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.state.tables import Merging, combine, merged

__all__ = ["MergeSorted"]


class MergeSorted:
    """For ``mapInArrow``: merges rows by key. The rows are sorted by hash and have a flag for new rows.

    Columns in and out: hash, keys, accumulators, changed. The merged rows of a batch's last hash are held back until
    another hash comes. So a key with any number of rows needs memory only for one batch of them.
    """

    def __init__(self, fold: Merging) -> None:
        self._fold = fold

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        held: pa.RecordBatch | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            whole = self._merged([batch] if held is None else [held, batch])
            hashes = whole.column(0).to_numpy()
            first = int(np.searchsorted(hashes, hashes[-1]))
            held = whole.slice(first)
            if first:
                yield whole.slice(0, first)
        if held is not None:
            yield held

    def _merged(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        schema = batches[-1].schema
        whole = combine(batches, schema)
        inner = combine([whole.remove_column(whole.num_columns - 1)], self._fold.state.arrow())
        state, order, starts = merged(inner, self._fold.state, self._fold, lifted=False)
        changed = whole.column(whole.num_columns - 1).to_numpy(zero_copy_only=False)[order]
        columns = [*state.columns, pa.array(np.logical_or.reduceat(changed, starts))]
        return pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
