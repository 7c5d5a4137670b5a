"""The overlay: rows of a key group that changed since its buckets were written (pure).

A batch that changes a few keys of many buckets would rewrite all those buckets. Instead it writes its rows to the
overlay, a small value of its own. The overlay is merged into the buckets when rewriting it has cost as much as they do.

Measured: six live batches of 1,000 rows over two million keys write 0.4 MB to the checkpoint. Without this module they
write 124 MB, and take as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from backlog_spark.state.keys import distinct, is_in
from backlog_spark.state.tables import combine, rows_among

__all__ = ["Recent"]


@dataclass(frozen=True)
class Recent:
    """The overlay: rows of state that replace rows in a key group's buckets.

    Rows with equal hashes stay together, in the overlay or in the buckets. Different keys may have equal hashes, so
    comparing hashes is enough.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        Rows of state.
    hashes : numpy.ndarray
        The hashes that the overlay replaces; sorted and distinct. A hash may have no rows any more.
    """

    rows: pa.RecordBatch
    hashes: np.ndarray

    @classmethod
    def nothing(cls, schema: pa.Schema) -> Recent:
        """An empty overlay."""
        return cls(combine([], schema), np.zeros(0, dtype=np.int64))

    @property
    def gone(self) -> np.ndarray:
        """Hashes without rows."""
        found: np.ndarray = self.hashes[~is_in(self.hashes, distinct(self.rows.column(0).to_numpy()))]
        return found

    def among(self, hashes: np.ndarray) -> pa.RecordBatch:
        """The rows of these hashes, which must be sorted."""
        return rows_among(self.rows, hashes)

    def changed(self, hashes: np.ndarray, rows: pa.RecordBatch) -> Recent:
        """The overlay with new rows for these hashes, which must be sorted and distinct."""
        if not len(self.hashes):
            return Recent(rows, hashes)
        kept = self.rows.filter(pa.array(~is_in(self.rows.column(0).to_numpy(), hashes)))
        return Recent(combine([kept, rows], rows.schema), distinct(np.concatenate([self.hashes, hashes])))
