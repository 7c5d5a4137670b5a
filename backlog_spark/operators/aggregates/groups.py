"""Vectorised folds over groups of neighbouring rows. Their sums never wrap around. No Spark here.

``starts`` always has the index of each group's first row. It is sorted and begins with 0, so no group is empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlog_spark.errors import BacklogError

__all__ = [
    "any_valid",
    "from_values",
    "group_sizes",
    "is_valid",
    "list_lengths",
    "lists_of",
    "sum_decimals",
    "sum_doubles",
    "sum_longs",
    "words",
]

Starts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def is_valid(array: pa.Array) -> Mask:
    """Which rows are not NULL."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))


def any_valid(array: pa.Array, starts: Starts) -> Mask:
    """Which groups have a row that is not NULL."""
    if array.null_count == 0:
        return np.ones(len(starts), dtype=np.bool_)
    return np.logical_or.reduceat(is_valid(array), starts)


def group_sizes(starts: Starts, rows: int) -> npt.NDArray[np.int64]:
    """Number of rows of each group."""
    return np.diff(starts, append=rows)


def values(array: pa.Array, null: Any = 0) -> npt.NDArray[Any]:
    """The values of a number array, with ``null`` for NULL."""
    filled = array.fill_null(null) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def from_values(result: npt.NDArray[Any], valid: Mask, kind: pa.DataType) -> pa.Array:
    """The inverse of `values`: an array of ``kind``, NULL where not ``valid``."""
    return pa.array(result, type=kind, mask=None if valid.all() else ~valid)


def sum_doubles(array: pa.Array, starts: Starts) -> pa.Array:
    """Sum of each group; NULL if all values are NULL. Infinities and NaN follow IEEE 754, as in Spark."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Spark starts from 0.0: its sum of negative zeros is 0.0.
        sums = np.add.reduceat(values(array, 0.0), starts) + 0.0
    return from_values(sums, any_valid(array, starts), array.type)


def sum_longs(array: pa.Array, starts: Starts, label: str) -> pa.Array:
    """Sum of each group of 64-bit integers; NULL if all values are NULL.

    Raises
    ------
    BacklogError
        If a sum does not fit. Only the final sum counts, whatever the order of the rows.
    """
    if len(starts) == len(array):
        return array
    longs = np.ascontiguousarray(values(array))
    total, fits = _sum_words(longs.view(np.uint32).reshape(-1, 2), starts)
    if not fits.all():
        raise _overflow(label, "bigint", "decimal(38, 0)")
    return from_values(total.view(np.int64).ravel(), any_valid(array, starts), array.type)


def sum_decimals(array: pa.Array, starts: Starts, label: str) -> pa.Array:
    """Sum of each group of decimals; NULL if all values are NULL.

    Raises
    ------
    BacklogError
        If a sum does not fit into the type. Only the final sum counts, whatever the order of the rows.
    """
    if len(starts) == len(array):
        return array
    parts = words(array)
    if array.null_count:
        parts = parts.copy()  # Arrow's memory may be read-only
        parts[~is_valid(array)] = 0  # the value under a NULL is undefined
    total, fits = _sum_words(parts, starts)
    halves = total.view(np.uint64)
    low, high = halves[:, 0], halves[:, 1].view(np.int64)
    limit = 10**array.type.precision
    fits &= _less(high, low, limit) & ~_less(high, low, 1 - limit)
    if not fits.all():
        raise _overflow(label, str(array.type), "a decimal with less scale, or double")
    groups = any_valid(array, starts)
    validity = None if groups.all() else pa.array(groups).buffers()[1]
    return pa.Array.from_buffers(array.type, len(starts), [validity, pa.py_buffer(total)])


def list_lengths(lists: pa.Array) -> npt.NDArray[np.int64]:
    """The number of values in each list; 0 for NULL."""
    lengths: npt.NDArray[np.int64] = np.diff(lists.offsets.to_numpy().astype(np.int64))
    lengths[~is_valid(lists)] = 0  # the value under a NULL is undefined
    return lengths


def lists_of(offsets: npt.NDArray[np.int64], values: pa.Array, valid: Mask, kind: pa.DataType) -> pa.Array:
    """Lists of contiguous values, from one offset to the next; NULL where not ``valid``.

    Raises
    ------
    BacklogError
        If an Arrow array cannot have that many values.
    """
    if offsets[-1] > 2**31 - 1:
        raise BacklogError(
            f"The lists of one key group have {offsets[-1]} values; the limit of Arrow is 2147483647.",
            "Use more key groups, or an aggregate that does not keep all values.",
        )
    mask = None if valid.all() else pa.array(~valid)
    return pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), values, type=kind, mask=mask)


def words(array: pa.Array) -> npt.NDArray[np.uint32]:
    """The four 32-bit words of each 128-bit decimal, least significant first. Undefined for NULL."""
    flat = np.frombuffer(array.buffers()[1], dtype=np.uint32)
    return flat.reshape(-1, 4)[array.offset : array.offset + len(array)]


def _sum_words(parts: npt.NDArray[np.uint32], starts: Starts) -> tuple[npt.NDArray[np.uint32], Mask]:
    """Add two's complement numbers of several words, and find the sums that fit into as many words.

    Each word is summed in 64 bits, enough for two thousand million rows. Carries are added at the end.
    """
    last = parts.shape[1] - 1
    total = np.empty((len(starts), last + 1), dtype=np.uint32)
    carry: npt.NDArray[np.int64] = np.zeros(len(starts), dtype=np.int64)
    for index in range(last):
        carry = carry + np.add.reduceat(parts[:, index], starts, dtype=np.int64)
        total[:, index] = carry & 0xFFFFFFFF
        carry >>= 32
    top = carry + np.add.reduceat(parts[:, last].view(np.int32), starts, dtype=np.int64)
    total[:, last] = top & 0xFFFFFFFF
    return total, (top >= -(2**31)) & (top < 2**31)


def _less(high: npt.NDArray[np.int64], low: npt.NDArray[np.uint64], bound: int) -> Mask:
    """Which 128-bit numbers are below ``bound``."""
    bound_high, bound_low = np.int64(bound >> 64), np.uint64(bound & (2**64 - 1))
    return np.asarray((high < bound_high) | ((high == bound_high) & (low < bound_low)))


def _overflow(label: str, kind: str, wider: str) -> BacklogError:
    return BacklogError(
        f"{label} overflows {kind}, which Spark's own sum refuses as well (ARITHMETIC_OVERFLOW).",
        f"Cast its argument to a wider type: {wider}.",
    )
