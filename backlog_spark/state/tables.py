"""State in Arrow: the table of a key group, its bounded buckets, and their serialized form.

A row of state is a key's hash, its key columns and its accumulators. Column names are internal (``k0`` …, ``s0`` …), so
they cannot clash with a user's names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from backlog_spark.errors import BacklogError

from .keys import ATOMIC, equal_runs, is_in, order_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


__all__ = [
    "EMIT",
    "GROUP",
    "HASH",
    "PIECE_BYTES",
    "StateSchema",
    "bucket_bits",
    "combine",
    "cut",
    "from_bytes",
    "rows_among",
    "split_by",
    "to_bytes",
]

GROUP, HASH, EMIT = "__group", "__hash", "__emit"

PIECE_BYTES = 64 << 20
"""Most bytes of rows in one piece, unless a single row has more: an Arrow column of text ends at 2 GiB."""

# Average number of keys per bucket at which a group's buckets are doubled. A batch reads and writes whole buckets:
# smaller buckets cost more calls when many keys change, larger ones more bytes when few do. With all cores busy a call
# takes 0.2 to 0.3 ms, as long as 80 KB of text. 3000 keys of 24 bytes are 60 KB.
BUCKET_KEYS = 4096
# The bits of the hash that select the bucket. The low bits select the key group if the number of groups is a power of
# 2.
_BUCKET_SHIFT = 32
_UPPER_BITS = 14


@dataclass(frozen=True)
class StateSchema:
    """Types of a fold's state.

    Parameters
    ----------
    keys, slots : tuple of DataType
        Spark types of the key columns and of the accumulators.
    names : tuple of str, optional
        Names of the accumulators. Default: ``s0`` …
    """

    keys: tuple[DataType, ...]
    slots: tuple[DataType, ...]
    names: tuple[str, ...] = ()

    @property
    def is_read_from_files(self) -> bool:
        """Whether Arrow reads exactly the values that Spark has written to Parquet files."""
        return all(map(_is_of_atomic, (*self.keys, *self.slots)))

    @functools.cached_property
    def is_of_numbers(self) -> bool:
        """Whether all columns have a fixed width: numbers, times, flags."""
        return all(pa.types.is_primitive(f.type) or pa.types.is_decimal(f.type) for f in self.arrow())

    @property
    def key_names(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.keys))]

    @property
    def slot_names(self) -> list[str]:
        return list(self.names) or [f"s{i}" for i in range(len(self.slots))]

    def first(self, slots: int) -> StateSchema:
        """The schema with only the first accumulators."""
        if slots not in self._firsts:
            self._firsts[slots] = StateSchema(self.keys, self.slots[:slots], tuple(self.slot_names[:slots]))
        return self._firsts[slots]

    def widened(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add accumulators that were added since, as NULL."""
        missing = list(self.arrow())[batch.num_columns :]
        for field in missing:
            batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
        return batch

    @functools.cached_property
    def _firsts(self) -> dict[int, StateSchema]:
        return {}

    @functools.cached_property
    def _arrow(self) -> pa.Schema:
        return arrow_schema(self.spark())

    def spark(self) -> StructType:
        """Hash, keys, accumulators."""
        from pyspark.sql.types import LongType, StructType

        out = StructType().add(HASH, LongType())
        for name, kind in zip(self.key_names + self.slot_names, (*self.keys, *self.slots), strict=True):
            out = out.add(name, kind)
        return out

    def arrow(self) -> pa.Schema:
        """The schema in Arrow, timestamps in UTC."""
        return self._arrow

    def text(self) -> str:
        """The text in the checkpoint."""
        return self.spark().simpleString()


def arrow_schema(schema: StructType) -> pa.Schema:
    """Arrow's form of a Spark schema, as in batches in a worker. Nested fields may be NULL.

    Spark gives ``struct(1 AS q)`` a field that is never NULL. If the struct itself is NULL, as on the other side's
    rows, Arrow still has a value for the field, and would refuse a NULL there. The bytes are the same.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    schema = StructType([StructField(f.name, f.dataType._as_nullable(), f.nullable, f.metadata) for f in schema])
    # A worker gets the session's zone. The instants are the same in UTC, and a fixed name keeps the bytes comparable.
    return to_arrow_schema(schema, timezone="UTC", prefers_large_types=False)


def _is_of_atomic(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return all(_is_of_atomic(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _is_of_atomic(kind.elementType)
    if isinstance(kind, MapType):
        return _is_of_atomic(kind.keyType) and _is_of_atomic(kind.valueType)
    return type(kind).__name__ in ATOMIC


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """The bytes of a batch, without its schema."""
    data: bytes = batch.serialize().to_pybytes()
    return data


def from_bytes(data: bytes | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of `to_bytes`."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def combine(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All rows in one batch of ``schema``."""
    table = pa.Table.from_batches([_cast(b, schema) for b in batches], schema).combine_chunks()
    found = table.to_batches()
    if len(found) > 1:  # a plain string column of Arrow ends at 2 GiB
        raise BacklogError(
            f"{table.num_rows} rows of state have more than 2 GiB in one text or binary column.",
            "Raise spark.backlog.keyGroups on a new checkpointLocation, or keep less state in an aggregate.",
        )
    return found[0] if found else pa.RecordBatch.from_pylist([], schema)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
    )


class Merging(Protocol):
    """Merges rows of one key into one row of state. Folds that merge implement it."""

    state: StateSchema

    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]: ...
    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]: ...


def merged(
    batch: pa.RecordBatch, schema: StateSchema, fold: Merging, *, lifted: bool
) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
    """Merge rows into one row per key, sorted by hash.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        Hash, keys, and lifted values or accumulators; older rows first.

    Returns
    -------
    (pyarrow.RecordBatch, numpy.ndarray, numpy.ndarray)
        The rows of state, the order that was applied to the input, and the index in it at which each key begins.
    """
    keys = len(schema.keys)
    hashes = batch.column(0).to_numpy()
    order, starts = equal_runs(hashes, batch.columns[1 : 1 + keys])
    firsts = pa.array(order[starts])
    rows = pa.array(order)
    values = [column.take(rows) for column in batch.columns[1 + keys :]]
    slots = fold.pack_groups(values, starts) if lifted else fold.merge_groups(values, starts)
    columns = [column.take(firsts) for column in batch.columns[: 1 + keys]] + slots
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow()), order, starts


def bucket_bits(keys: int) -> int:
    """How many bits of the hash select the bucket, for a group with this many keys."""
    return max(0, (max(1, keys) - 1) // BUCKET_KEYS).bit_length()


def buckets_of(hashes: np.ndarray, bits: int) -> np.ndarray:
    """The bucket of each key."""
    return (hashes >> _BUCKET_SHIFT) & ((1 << bits) - 1)


def split_by(numbers: np.ndarray, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each number. Row order is kept."""
    if not len(numbers):
        return
    order = order_of(numbers)
    ordered = numbers[order]
    whole = batch.take(pa.array(order))
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        yield int(ordered[start]), whole.slice(start, end - start)


def rows_among(rows: pa.RecordBatch, hashes: np.ndarray) -> pa.RecordBatch:
    """The rows with these hashes. ``hashes`` must be sorted; row order is kept."""
    own = rows.column(0).to_numpy()
    # Most hashes differ in their upper bits already, so only the rest is searched. Half of the upper parts are negative
    # numbers, which index the array from its end.
    there = np.zeros(1 << _UPPER_BITS, dtype=bool)
    there[hashes >> 64 - _UPPER_BITS] = True
    found = np.flatnonzero(there[own >> 64 - _UPPER_BITS])
    return rows.take(pa.array(found[is_in(own[found], hashes)]))


def cut(batch: pa.RecordBatch, rows: int, size: int = PIECE_BYTES) -> list[pa.RecordBatch]:
    """Cut a batch into pieces with at most this many rows and bytes. A single row may have more bytes."""
    found = []
    for start in range(0, batch.num_rows, rows):
        piece = batch.slice(start, rows)
        if piece.nbytes <= size or piece.num_rows == 1:
            found.append(piece)
        else:
            found += cut(piece, -(-piece.num_rows // 2), size)
    return found
