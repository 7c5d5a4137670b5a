"""A key group's rows in Spark's state store, in buckets by their hash that are read and written as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessorHandle

from backlog_spark.errors import BacklogError
from backlog_spark.garbage import keep_imports

from .keys import order_of
from .tables import HASH, StateSchema, combine, from_bytes, to_bytes
from .texts import as_text, from_text

__all__ = [
    "Buckets",
    "UnpackHashes",
    "UnpackRows",
    "packed_hashes",
    "packed_rows",
    "rows_of",
    "unpacked_hashes",
    "unpacked_rows",
]

# Rows of state, as text, and how many accumulators they were written with.
_TYPE: Final = "rows string, slots int"

# A third less on its way takes less time than compressing does.
_LZ4: Final = pa.Codec("lz4_raw")
_SIZE: Final = 8  # bytes in front: how many there are when they are decompressed
# A message of the state server, and a text in the JVM, have at most 2 GiB; LZ4 takes a little less.
_MOST_BYTES: Final = 1_700 << 20

# From this share of a group's buckets on, reading all of them in one go is cheaper than asking for each.
_READ_ALL = 0.5


def packed_rows(rows: pa.RecordBatch, schema: StateSchema) -> tuple[str, int]:
    """Rows of state as text, and the number of accumulators that they were written with.

    Raises
    ------
    BacklogError
        They are more than Spark's state server takes in one piece.
    """
    data = to_bytes(rows)
    if len(data) > _MOST_BYTES:
        raise BacklogError(
            f"{rows.num_rows} rows of state of one bucket have {len(data) >> 20} MiB; it can have {_MOST_BYTES >> 20}.",
            "Raise spark.backlog.keyGroups on a new checkpointLocation, or keep less for a key.",
        )
    return as_text(len(data).to_bytes(_SIZE, "little") + _LZ4.compress(data, asbytes=True)), len(schema.slots)


def unpacked_rows(text: str, slots: int, schema: StateSchema) -> pa.RecordBatch:
    """Read back what `packed_rows` gave; accumulators that were added since are NULL."""
    packed = from_text(text)
    data = _LZ4.decompress(packed[_SIZE:], int.from_bytes(packed[:_SIZE], "little"))
    if slots == len(schema.slots):
        return from_bytes(data, schema.arrow())
    return schema.widened(from_bytes(data, schema.first(slots).arrow()))


def packed_hashes(hashes: np.ndarray) -> str:
    """Hashes of keys as text."""
    return as_text(hashes.tobytes())


def unpacked_hashes(text: str) -> np.ndarray:
    """Read back what `packed_hashes` gave."""
    return np.frombuffer(from_text(text), dtype=np.int64)


class Buckets:
    """The buckets of the key group that is worked on.

    Parameters
    ----------
    handle : StatefulProcessorHandle
    schema : StateSchema
    """

    def __init__(self, handle: StatefulProcessorHandle, schema: StateSchema) -> None:
        self._schema = schema
        self._map = handle.getMapState("buckets", "bucket int", _TYPE)

    def read(self, numbers: Collection[int], count: int) -> dict[int, pa.RecordBatch]:
        """Those of these buckets that there are; ``count`` is how many the group has."""
        if len(numbers) > _READ_ALL * count:
            every = {int(key[0]): value for key, value in self._map.iterator()}
            return {n: self._rows(every[n]) for n in numbers if n in every}
        asked = ((number, self._map.getValue((number,))) for number in numbers)
        return {number: self._rows(value) for number, value in asked if value is not None}

    def write(self, number: int, rows: pa.RecordBatch) -> None:
        """Put rows in the place of those that the bucket has."""
        self._map.updateValue((number,), packed_rows(rows, self._schema))

    def remove(self, numbers: Iterable[int]) -> None:
        """Leave these buckets without rows."""
        for number in numbers:
            self._map.removeKey((number,))

    def _rows(self, value: tuple[str, int]) -> pa.RecordBatch:
        return unpacked_rows(*value, self._schema)


def rows_of(bucket: pa.RecordBatch, hashes: np.ndarray) -> pa.RecordBatch:
    """The rows of these hashes, which ascend and are few."""
    own = bucket.column(0).to_numpy()
    if (own[1:] < own[:-1]).any():
        order = order_of(own)
        bucket, own = bucket.take(pa.array(order)), own[order]
    begins, ends = np.searchsorted(own, hashes), np.searchsorted(own, hashes, side="right")
    if (ends - begins > 1).any():  # keys that share a hash
        return bucket.take(pa.array(np.concatenate([np.arange(*place) for place in zip(begins, ends, strict=True)])))
    return bucket.take(pa.array(begins[ends > begins]))


class UnpackRows:
    """For ``mapInArrow``: what `packed_rows` gave as rows of state, the hash in front."""

    def __init__(self, state: StateSchema, unpacked: pa.Schema) -> None:
        self._state = state
        self._unpacked = unpacked

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        for batch in batches:
            for text, slots in zip(batch.column(0), batch.column(1), strict=True):
                yield combine([unpacked_rows(text.as_py(), slots.as_py(), self._state)], self._unpacked)


class UnpackHashes:
    """For ``mapInArrow``: what `packed_hashes` gave, a hash a row."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        for batch in batches:
            for text in batch.column(0):
                yield pa.RecordBatch.from_arrays([pa.array(unpacked_hashes(text.as_py()))], [HASH])
