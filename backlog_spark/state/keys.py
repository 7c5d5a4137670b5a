"""Which key group a key belongs to, and how equal keys are found.

A key's hash is Spark's ``xxhash64`` of its columns, and its key group the hash modulo the number of groups. Both
vehicles take them from here: if they differed, a key would have its state in two places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
"""Names of Spark's types that Spark can hash and that Arrow has exactly, also when it reads them from Parquet files."""


def check_keys(keys: Sequence[str], schema: StructType) -> None:
    """Refuse keys that are no columns of the stream, or of a type whose equality is not plain.

    Raises
    ------
    BacklogError
        Naming the column and what to do.
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
                f"key_by: column {key!r} is {kind.simpleString()}; keys are of atomic types.",
                "Key by its fields, or by a string made of it.",
            )
        if type(kind).__name__ == "StringType" and kind.simpleString() != "string":
            raise BacklogError(
                f"key_by: column {key!r} is {kind.simpleString()}; keys compare byte by byte.",
                "Cast it to a string without collation, or key by its collation_key.",
            )


def normalised(key: str, schema: StructType) -> Column:
    """The key column with one form for each value, as Spark's own grouping sees it."""
    from pyspark.sql import functions as F

    column = F.col(_quoted(key))
    kind = schema[key].dataType
    if type(kind).__name__ in ("FloatType", "DoubleType"):
        # 0.0 = -0.0 and NaN = NaN when Spark groups, but their bits differ.
        column = F.when(F.isnan(column), F.lit(float("nan"))).when(column == 0, F.lit(0.0)).otherwise(column).cast(kind)
    return column


def hash_of(keys: Sequence[Column]) -> Column:
    """The 64-bit hash of normalised key columns; NULLs are left out, which costs only collisions."""
    from pyspark.sql import functions as F

    return F.xxhash64(*keys)


def group_of(hash_column: Column, key_groups: int) -> Column:
    """The key group, 0 to ``key_groups`` - 1."""
    from pyspark.sql import functions as F

    return F.pmod(hash_column, F.lit(key_groups)).cast("int")


def groups_of(hashes: np.ndarray, key_groups: int) -> np.ndarray:
    """The same in a worker."""
    found: np.ndarray = np.mod(hashes, key_groups).astype(np.int32)
    return found


def even_labels(key_groups: int, partitions: int) -> list[int]:
    """A number for each key group, by which Spark's hash partitioning gives each partition as many as the others.

    By their own numbers it would be by chance: of 32 key groups, 20 in one partition of two and 12 in the other.

    Parameters
    ----------
    key_groups, partitions : int

    Returns
    -------
    list of int
        All different; that of a key group ``g`` is in partition ``g % partitions``.
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
    """Spark's hash of integers by which a shuffle places rows: MurmurHash3 for 32 bits, of one word, with seed 42."""

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
    """The label of each key group in a column."""
    from pyspark.sql import functions as F

    # Spark plans a text a batch faster than a literal for each. Nullable as the group is: that is kept with the state.
    array, quoted = f"CAST(split('{','.join(map(str, labels))}', ',') AS array<int>)", _quoted(group)
    return F.expr(f"CASE WHEN {quoted} IS NOT NULL THEN element_at({array}, {quoted} + 1) END")


def order_of(numbers: np.ndarray) -> np.ndarray:
    """The order that sorts whole numbers, equal ones as they stand.

    What ``numpy.argsort(numbers, kind="stable")`` gives, several times as fast where numpy sorts by vector instructions
    or, within a range of 65,536, by digits: its stable sort of long numbers has neither.
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
        # Places of equal numbers ascend within a run, and runs ascend: to be sorted as one number each.
        runs = np.concatenate(([0], np.cumsum(differs))) * len(order)
        tied = np.concatenate(([False], ~differs)) | np.concatenate((~differs, [False]))
        order[tied] = np.sort(runs[tied] + order[tied]) - runs[tied]
    return order


def distinct(numbers: np.ndarray) -> np.ndarray:
    """The different ones of whole numbers, ascending: ``numpy.unique``, which hashes them, ten times as fast."""
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    found: np.ndarray = ordered[is_first]
    return found


def is_in(numbers: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Which numbers are among ``members``, which ascend; ``numpy.isin`` would sort both together."""
    if not len(members):
        return np.zeros(len(numbers), dtype=bool)
    places = np.searchsorted(members, numbers)
    places[places == len(members)] = 0
    found: np.ndarray = members[places] == numbers
    return found


def equal_runs(hashes: np.ndarray, keys: Sequence[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Bring rows of one key together.

    Parameters
    ----------
    hashes : numpy.ndarray of int64
    keys : sequence of pyarrow.Array
        The key columns, rows in the order of their age.

    Returns
    -------
    (numpy.ndarray, numpy.ndarray)
        An order of the rows, by hash and within a key by age, and where in it each key begins.
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
        # Two keys with one hash, which may even alternate: the keys themselves have to be sorted.
        order = np.lexsort((*codes, hashes))
        ordered = hashes[order]
        begins[1:] = ordered[1:] != ordered[:-1]
        for code in codes:
            taken = code[order]
            begins[1:] |= taken[1:] != taken[:-1]
    return order, np.flatnonzero(begins)


def _codes(key: pa.Array) -> np.ndarray:
    """Numbers that are equal exactly where the values are; NULL is a value."""
    if pa.types.is_integer(key.type) and not key.null_count:
        plain: np.ndarray = key.to_numpy()
        return plain
    encoded = pc.dictionary_encode(key, null_encoding="encode")
    indices: np.ndarray = encoded.indices.to_numpy(zero_copy_only=False)
    return indices


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
