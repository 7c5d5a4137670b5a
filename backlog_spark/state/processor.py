"""The stream vehicle's worker side: a key group's state in Spark's state store, as Arrow buckets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from .seeds import DATA_ROWS, SEED_SILENT
from .tables import bucket_bits, buckets_of, combine, cut, from_bytes, merged, split_by, to_bytes

if TYPE_CHECKING:
    import pandas as pd

    from backlog_spark.operators.fold import Fold

__all__ = ["GroupProcessor"]

# From this share of a group's buckets on, reading all of them in one go is cheaper than asking for each.
_READ_ALL = 0.5


class GroupProcessor(StatefulProcessor):
    """Merges what arrives for a key group into its state and puts out the keys that input changed.

    The state is a map of buckets, each the Arrow rows of some of the group's keys. A batch reads and writes the
    buckets of the keys that it changes, so its cost follows those and not the size of the state.
    """

    def __init__(self, fold: Fold) -> None:
        self._fold = fold

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._schema = self._fold.state.arrow()
        self._size = handle.getValueState("size", "keys long, bits int")
        self._buckets = handle.getMapState("buckets", "bucket int", "rows binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        # Seeds first: what is handed over is older than what arrives with it.
        packed = sorted(
            ((origin, data) for frame in rows for origin, data in zip(frame["origin"], frame["data"], strict=True)),
            key=lambda p: -int(p[0]),
        )
        batches = [from_bytes(bytes(data), self._schema) for _, data in packed]
        loud = np.repeat([int(origin) != SEED_SILENT for origin, _ in packed], [b.num_rows for b in batches])
        changed = self._merge(combine(batches, self._schema), loud)
        yield pd.DataFrame({"data": [to_bytes(piece) for piece in cut(changed, DATA_ROWS)]}, dtype=object)

    def _merge(self, incoming: pa.RecordBatch, loud: np.ndarray) -> pa.RecordBatch:
        """Take rows into the state; the new rows of the keys for which ``loud`` is true."""
        # Asked first: for a missing value the store answers with a line in the log, one for every key group.
        found = self._size.get() if self._size.exists() else None
        keys, bits = (int(found[0]), int(found[1])) if found is not None else (0, 0)
        touched = set(np.unique(buckets_of(incoming.column(0).to_numpy(), bits)).tolist()) if keys else set()
        loaded = self._load(touched, 1 << bits) if touched else {}
        old = combine([b for n, b in loaded.items() if n in touched], self._schema)
        both = combine([old, incoming], self._schema)
        state, order, starts = merged(both, self._fold.state, self._fold, lifted=False)
        keys += state.num_rows - old.num_rows
        wanted = max(bits, bucket_bits(keys))
        kept = state
        if wanted > bits:
            rest = self._load(set(range(1 << bits)) - touched, 1 << bits) if keys > state.num_rows else {}
            kept = combine([state, *rest.values()], self._schema)
            for number in range(1 << bits):
                self._buckets.removeKey((number,))
        for number, batch in split_by(buckets_of(kept.column(0).to_numpy(), wanted), kept):
            self._buckets.updateValue((number,), (to_bytes(batch),))
        self._size.update((keys, wanted))
        flags = np.concatenate((np.zeros(old.num_rows, dtype=bool), loud))
        return state.filter(pa.array(np.logical_or.reduceat(flags[order], starts)))

    def _load(self, numbers: set[int], existing: int) -> dict[int, pa.RecordBatch]:
        if len(numbers) > _READ_ALL * existing:
            every = {int(k[0]): v[0] for k, v in self._buckets.iterator()}
            return {n: from_bytes(bytes(data), self._schema) for n, data in every.items() if n in numbers}
        out = {}
        for number in numbers:
            value = self._buckets.getValue((number,))
            if value is not None:
                out[number] = from_bytes(bytes(value[0]), self._schema)
        return out

    def close(self) -> None:
        pass
