"""Vectorised functions over frames of neighbouring rows, which over aggregation computes in a worker.

Rows are ordered, the rows of a key are together. A frame is a pair of indices, ``low`` and ``high`` (exclusive), within
the rows of one key. It is never empty. No Spark here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregates import groups, ordering

__all__ = [
    "ascending",
    "averages",
    "best",
    "counts",
    "first_at_least",
    "rank_keys",
    "running_doubles",
    "sliding_doubles",
    "sums",
    "total_order",
]

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

# Segments with more rows than this are summed one by one. All shorter ones are summed together, position by position.
_LONG = 64
_INT64_SAFE = 2**61


def rank_keys(array: pa.Array) -> list[Integers]:
    """Integers that order the rows like Spark's ascending sort, NULL first. Earlier arrays decide first."""
    found = [groups.is_valid(array).astype(np.int64)] if array.null_count else []
    for key in ordering.keys(array):
        found.append(key if isinstance(key, np.ndarray) else _text_ranks(key))
    return found


def ascending(array: pa.Array) -> Integers:
    """Row indices in the order of Spark's ascending sort, NULL first. The sort is stable."""
    if pa.types.is_floating(array.type):
        # In Arrow's order NaN comes first, in Spark's order last.
        return np.lexsort(rank_keys(array)[::-1])
    found: Integers = pc.array_sort_indices(array, null_placement="at_start").to_numpy()
    return found


def _text_ranks(texts: pa.Array) -> Integers:
    encoded = pc.dictionary_encode(texts)
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    codes: Integers = rank[encoded.indices.to_numpy()]
    return codes


def total_order(numbers: Integers, times: Integers, ties: Sequence[pa.Array]) -> Integers:
    """The order of rows by key, then time, then columns.

    Parameters
    ----------
    numbers : numpy.ndarray of int64
        The number of each row's key.
    times : numpy.ndarray of int64
        Event times.
    ties : sequence of pyarrow.Array
        Columns that order rows of the same key and time. The first one has the highest priority.
    """
    order = np.lexsort((times, numbers))
    keys, instants = numbers[order], times[order]
    same = (keys[1:] == keys[:-1]) & (instants[1:] == instants[:-1])
    if same.any():
        tied = np.zeros(len(order), dtype=np.bool_)
        tied[1:] |= same
        tied[:-1] |= same
        run = np.cumsum(np.concatenate(([True], ~same)))[tied]
        rows = order[tied]
        picked = pa.array(rows)
        ranks = [rank for column in ties for rank in rank_keys(column.take(picked))]
        order[tied] = rows[np.lexsort((*reversed(ranks), run))]
    return order


def first_at_least(times: Integers, begin: Integers, end: Integers, wanted: Integers) -> Integers:
    """In each span ``[begin, end)`` of sorted times: the first index not before ``wanted``, else ``end``."""
    low, high = begin.copy(), end.copy()
    while True:
        searching = low < high
        if not searching.any():
            return low
        middle = (low + high) >> 1
        # A finished span may be at the end of the rows.
        before = searching & (times[np.minimum(middle, len(times) - 1)] < wanted)
        low = np.where(before, middle + 1, low)
        high = np.where(searching & ~before, middle, high)


def counts(each: Integers, low: Integers, high: Integers) -> Integers:
    """The sum of small numbers, such as whether a value is not NULL."""
    up_to = np.concatenate(([0], np.cumsum(each, dtype=np.int64)))
    found: Integers = up_to[high] - up_to[low]
    return found


def sums(array: pa.Array, low: Integers, high: Integers, label: str) -> pa.Array:
    """Exact sums of 64-bit integers or of 128-bit decimals; NULL where all values of a frame are.

    Raises
    ------
    BacklogError
        If a sum does not fit into the type. Only the final sum counts, not intermediate ones.
    """
    is_decimal = pa.types.is_decimal(array.type)
    valid = groups.is_valid(array)
    if is_decimal:
        parts = groups.words(array).copy()
        parts[~valid] = 0  # the value under a NULL is undefined
    else:
        parts = np.ascontiguousarray(groups.values(array)).view(np.uint32).reshape(-1, 2)
    words = parts.shape[1]
    total = np.empty((len(low), words), dtype=np.uint32)
    # Two's complement in words of 32 bits: 2^31 words, and the carry, fit into 64 bits.
    carry: Integers = np.zeros(len(low), dtype=np.int64)
    for word in range(words):
        mine = parts[:, word].astype(np.int64) if word < words - 1 else parts[:, word].view(np.int32).astype(np.int64)
        carry = carry + counts(mine, low, high)
        total[:, word] = carry & 0xFFFFFFFF
        carry >>= 31 if word == words - 1 else 32
    # Only the sign of the top word may be left over.
    if not ((carry == 0) | (carry == -1)).all():
        raise _overflow(label, array.type)
    any_valid = counts(valid.astype(np.int64), low, high) > 0
    if not is_decimal:
        return groups.from_values(total.view(np.int64).ravel(), any_valid, array.type)
    return _decimals(total, any_valid, array.type, label)


def _decimals(words: npt.NDArray[Any], valid: npt.NDArray[np.bool_], kind: pa.DataType, label: str) -> pa.Array:
    validity = None if valid.all() else pa.array(valid).buffers()[1]
    found = pa.Array.from_buffers(kind, len(valid), [validity, pa.py_buffer(np.ascontiguousarray(words))])
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        raise _overflow(label, kind) from None
    return found


def _overflow(label: str, kind: pa.DataType) -> BacklogError:
    name = "bigint" if pa.types.is_integer(kind) else str(kind)
    return BacklogError(
        f"{label} overflows {name}, which Spark's own function refuses as well (ARITHMETIC_OVERFLOW).",
        "Cast its argument to a wider type.",
    )


def averages(totals: pa.Array, number: Integers, result: pa.DataType, label: str) -> pa.Array:
    """Averages of decimals, rounded half up, from their sums and counts. NULL where a sum is NULL.

    Parameters
    ----------
    totals : pyarrow.Array
        Decimals.
    number : numpy.ndarray of int64
    result : pyarrow.DataType
        A decimal type with at least the same scale.
    """
    valid = groups.is_valid(totals)
    halves = np.where(valid[:, np.newaxis], groups.words(totals), 0).astype(np.uint32).view(np.uint64)
    low, high = halves[:, 0].view(np.int64), halves[:, 1].view(np.int64)
    shift = 10 ** (result.scale - totals.type.scale)
    count = np.maximum(number, 1)
    limit = _INT64_SAFE // shift
    small = bool((high == low >> 63).all() and (low < limit).all() and (low > -limit).all() and (count < limit).all())
    digits: npt.NDArray[Any] = low
    if not small:
        digits = high.astype(object) * 2**64 + halves[:, 0].astype(object)
        count = count.astype(object)
    positive = digits >= 0
    quotient = (2 * abs(digits) * shift + count) // (2 * count)
    signed = np.where(positive, quotient, -quotient)
    if small:
        words = np.stack((signed, signed >> 63), axis=1).astype(np.int64)
    else:
        if max(map(abs, signed), default=0) >= 2**127:
            raise _overflow(label, result)
        words = np.frombuffer(b"".join(int(n).to_bytes(16, "little", signed=True) for n in signed), dtype=np.int64)
    return _decimals(words, valid, result, label)


def running_doubles(numbers: Doubles, starts: Integers, ends: Integers) -> Doubles:
    """For each row the sum from the start of its span, added row by row like in Spark.

    Parameters
    ----------
    numbers : numpy.ndarray of float64
    starts, ends : numpy.ndarray of int64
        Spans that do not overlap. Rows outside of them are returned unchanged.
    """
    out = numbers + 0.0  # Spark starts from 0.0: its sum of negative zeros is 0.0
    lengths = ends - starts
    with np.errstate(over="ignore", invalid="ignore"):
        for start, end in zip(starts[lengths > _LONG].tolist(), ends[lengths > _LONG].tolist(), strict=True):
            np.cumsum(out[start:end], out=out[start:end])
        short = lengths <= _LONG
        order = np.argsort(-lengths[short], kind="stable")
        firsts, sizes = starts[short][order], lengths[short][order]
        for position in range(1, int(sizes[0]) if len(sizes) else 0):
            at = firsts[: np.searchsorted(-sizes, -position)] + position
            out[at] += out[at - 1]
    return out


def sliding_doubles(numbers: Doubles, low: Integers, high: Integers) -> Doubles:
    """Sums of frames, each added from its first row on like in Spark."""
    lengths = high - low
    order = np.argsort(-lengths, kind="stable")
    firsts, sizes = low[order], lengths[order]
    total = np.zeros(len(low))
    with np.errstate(over="ignore", invalid="ignore"):
        for position in range(int(sizes[0]) if len(sizes) else 0):
            still = int(np.searchsorted(-sizes, -position))
            total[:still] += numbers[firsts[:still] + position]
    out = np.empty_like(total)
    out[order] = total
    return out


def best(array: pa.Array, low: Integers, high: Integers, *, greatest: bool) -> Integers:
    """The index of each frame's smallest or greatest value, the first one of several; -1 if all are NULL."""
    rows = len(array)
    keys = list(rank_keys(array))
    position = np.arange(rows)
    # Scores: greater for a better value and, among equal values, for an earlier row; 0 for NULL.
    if greatest:
        order = np.lexsort((-position, *reversed(keys)))
    else:
        order = np.lexsort((-position, *[-1 - key for key in reversed(keys)]))
    score = np.empty(rows, dtype=np.int64)
    score[order] = position + 1
    score[~groups.is_valid(array)] = 0
    found = _greatest(score, low, high)
    index: Integers = np.full(len(low), -1, dtype=np.int64)
    index[found > 0] = order[found[found > 0] - 1]
    return index


def _greatest(score: Integers, low: Integers, high: Integers) -> Integers:
    """The index of each frame's greatest score. Uses spans of doubling length; two of them cover a frame."""
    lengths = high - low
    out: Integers = np.zeros(len(low), dtype=np.int64)
    width, table = 1, score
    while True:
        mine = (lengths >= width) & (lengths < 2 * width)
        out[mine] = np.maximum(table[low[mine]], table[high[mine] - width])
        if not (lengths >= 2 * width).any():
            return out
        table = np.maximum(table[:-width], table[width:])
        width *= 2


def chosen(mask: npt.NDArray[np.bool_], first: pa.Array, second: pa.Array) -> pa.Array:
    """Values of ``first`` where ``mask`` is set, else of ``second``. For arrays of any type."""
    rows = np.arange(len(mask))
    return pa.concat_arrays([first, second]).take(pa.array(np.where(mask, rows, rows + len(mask))))
