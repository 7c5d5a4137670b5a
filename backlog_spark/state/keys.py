"""Hashes keys, assigns them to key groups, and finds equal keys.

A key's hash is Spark's ``xxhash64`` of its columns. Its key group is the hash modulo the number of groups. Both
vehicles use these functions; otherwise a key could have state in two key groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

__all__ = [
    "ATOMIC",
    "check_keys",
    "distinct",
    "equal_runs",
    "even_labels",
    "group_of",
    "groups_of",
    "hash_of",
    "is_in",
    "labelled",
    "normalised",
    "order_of",
]

ATOMIC = (
    "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType",
    "StringType", "BinaryType", "DateType", "TimestampType", "TimestampNTZType",
)  # fmt: skip
"""Spark types that Spark can hash and that Arrow represents exactly, also when it reads them from Parquet files."""


def check_keys(keys: Sequence[str], schema: StructType) -> None:
    """Refuse keys that are not columns of the stream, or whose type has no plain equality.

    Raises
    ------
    BacklogError
        With the column and what to do.
    """
    if not keys:
        raise BacklogError("key_by needs at least one column.", 'For example key_by("user_id").')
    if len(set(keys)) != len(keys):
        raise BacklogError(f"key_by({', '.join(map(repr, keys))}) names a column twice.", "Name each once.")
    types = {field.name: field.dataType for field in schema}
    for key in keys:
        if key not in types:
            raise BacklogError(
                f"key_by: the stream has no column {key!r}; it has {', '.join(types)}.", "Check the name and its case."
            )
        kind = types[key]
        if type(kind).__name__ not in ATOMIC:
            raise BacklogError(
                f"key_by: column {key!r} is {kind.simpleString()}; keys must have an atomic type.",
                "Key by its fields, or by a string made of it.",
            )
        if type(kind).__name__ == "StringType" and kind.simpleString() != "string":
            raise BacklogError(
                f"key_by: column {key!r} is {kind.simpleString()}; keys compare byte by byte.",
                "Cast it to a string without collation, or key by its collation_key.",
            )


def normalised(key: str, schema: StructType) -> Column:
    """The key column with one representation per value, as in Spark's own grouping."""
    from pyspark.sql import functions as F

    column = F.col(quoted(key))
    kind = schema[key].dataType
    if type(kind).__name__ in ("FloatType", "DoubleType"):
        # Spark groups 0.0 with -0.0 and NaN with NaN, but their bits differ.
        column = F.when(F.isnan(column), F.lit(float("nan"))).when(column == 0, F.lit(0.0)).otherwise(column).cast(kind)
    return column


def hash_of(keys: Sequence[Column]) -> Column:
    """The 64-bit hash of normalised key columns. NULLs are skipped, which only causes more collisions."""
    from pyspark.sql import functions as F

    return F.xxhash64(*keys)


def group_of(hash_column: Column, key_groups: int) -> Column:
    """The key group, 0 to ``key_groups`` - 1."""
    from pyspark.sql import functions as F

    return F.pmod(hash_column, F.lit(key_groups)).cast("int")


def groups_of(hashes: np.ndarray, key_groups: int) -> np.ndarray:
    """The key groups of hashes, in a worker."""
    found: np.ndarray = np.mod(hashes, key_groups).astype(np.int32)
    return found


def even_labels(key_groups: int, partitions: int) -> list[int]:
    """A number for each key group. With it Spark's hash partitioning puts equally many key groups into each partition.

    The group's own number would give an uneven result: of 32 key groups, 20 in one partition of two and 12 in the
    other.

    Parameters
    ----------
    key_groups, partitions : int

    Returns
    -------
    list of int
        All different. The number of key group ``g`` is in partition ``g % partitions``.
    """
    found: list[list[int]] = [[] for _ in range(partitions)]
    wanted = -(-key_groups // partitions)
    begin = 0
    while min(map(len, found)) < wanted:
        candidates = np.arange(begin, begin + 2 * key_groups, dtype=np.int32)
        placed = np.mod(_murmur3(candidates), partitions)
        for partition, numbers in enumerate(found):
            numbers += candidates[placed == partition].tolist()
        begin += len(candidates)
    return [found[group % partitions][group // partitions] for group in range(key_groups)]


def _murmur3(values: np.ndarray) -> np.ndarray:
    """The hash that Spark's shuffle uses for integers: 32-bit MurmurHash3 of one word, with seed 42."""

    def rotated(word: np.ndarray, by: int) -> np.ndarray:
        return (word << np.uint32(by)) | (word >> np.uint32(32 - by))

    word = rotated(values.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    word = rotated(word ^ np.uint32(42), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    word ^= np.uint32(4)  # bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    hashed: np.ndarray = (word ^ (word >> np.uint32(16))).astype(np.int32)
    return hashed


def labelled(group: str, labels: Sequence[int]) -> Column:
    """The label of each key group, as a column."""
    from pyspark.sql import functions as F

    # Spark plans one text per batch faster than many literals. Nullable like the group: the state keeps that.
    array, name = f"CAST(split('{','.join(map(str, labels))}', ',') AS array<int>)", quoted(group)
    return F.expr(f"CASE WHEN {name} IS NOT NULL THEN element_at({array}, {name} + 1) END")


def order_of(numbers: np.ndarray) -> np.ndarray:
    """A stable order that sorts integers.

    Same result as ``numpy.argsort(numbers, kind="stable")``, but several times as fast: numpy's unstable sort uses
    vector instructions, and its stable sort of 16-bit numbers is a radix sort. Its stable sort of long numbers has
    neither.
    """
    if not len(numbers):
        return np.zeros(0, dtype=np.int64)
    lowest = numbers.min()
    if int(numbers.max()) - int(lowest) < 1 << 16:
        return np.argsort((numbers - lowest).astype(np.uint16), kind="stable")
    order: np.ndarray = np.argsort(numbers)
    ordered = numbers[order]
    differs = ordered[1:] != ordered[:-1]
    if not differs.all():
        # Within a run of equal numbers the indices must ascend. Runs ascend already, so run and index sort as one
        # number.
        runs = np.concatenate(([0], np.cumsum(differs))) * len(order)
        tied = np.concatenate(([False], ~differs)) | np.concatenate((~differs, [False]))
        order[tied] = np.sort(runs[tied] + order[tied]) - runs[tied]
    return order


def distinct(numbers: np.ndarray) -> np.ndarray:
    """The distinct values, sorted. Ten times as fast as ``numpy.unique``, which hashes them."""
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    found: np.ndarray = ordered[is_first]
    return found


def is_in(numbers: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Which numbers are among ``members``, which must be sorted. ``numpy.isin`` would sort both together."""
    if not len(members):
        return np.zeros(len(numbers), dtype=bool)
    indices = np.searchsorted(members, numbers)
    indices[indices == len(members)] = 0
    found: np.ndarray = members[indices] == numbers
    return found


def equal_runs(hashes: np.ndarray, keys: Sequence[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Group the rows of each key.

    Parameters
    ----------
    hashes : numpy.ndarray of int64
    keys : sequence of pyarrow.Array
        The key columns; older rows first.

    Returns
    -------
    (numpy.ndarray, numpy.ndarray)
        An order of the rows: by hash, and within a key by age. And the index in that order at which each key begins.
    """
    order = order_of(hashes)
    ordered = hashes[order]
    begins = np.empty(len(order), dtype=bool)
    begins[:1] = True
    begins[1:] = ordered[1:] != ordered[:-1]
    codes = [_codes(key) for key in keys]
    differs = np.zeros(len(order), dtype=bool)
    for code in codes:
        taken = code[order]
        differs[1:] |= taken[1:] != taken[:-1]
    if (differs & ~begins).any():
        # Different keys have the same hash, and may alternate: sort by the keys themselves.
        order = np.lexsort((*codes, hashes))
        ordered = hashes[order]
        begins[1:] = ordered[1:] != ordered[:-1]
        for code in codes:
            taken = code[order]
            begins[1:] |= taken[1:] != taken[:-1]
    return order, np.flatnonzero(begins)


def _codes(key: pa.Array) -> np.ndarray:
    """Codes that are equal exactly where the values are equal. NULL counts as a value."""
    if pa.types.is_integer(key.type) and not key.null_count:
        plain: np.ndarray = key.to_numpy()
        return plain
    encoded = pc.dictionary_encode(key, null_encoding="encode")
    indices: np.ndarray = encoded.indices.to_numpy(zero_copy_only=False)
    return indices
