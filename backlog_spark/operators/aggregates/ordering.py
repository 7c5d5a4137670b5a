"""Finds the smallest or greatest row of each group, for every type with an order, in Spark's order. No Spark here.

Spark's order: NaN is greater than all numbers, -0.0 equals 0.0, strings and binaries compare by unsigned bytes, structs
field by field with NULL smallest. Fields that are or contain an array, a map or a variant are skipped, as in `ordered`
on the Spark side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.operators.aggregates import groups

__all__ = ["distinct", "extremes", "keys"]

Integers = npt.NDArray[np.int64]


def extremes(array: pa.Array, starts: Integers, *, greatest: bool) -> pa.Array:
    """The smallest value of each group, or the greatest. NULLs do not count; a group of NULLs gives NULL.

    Parameters
    ----------
    array : pyarrow.Array
        Any type. Of equal rows the first one is taken.
    starts : numpy.ndarray of int64
        Index of each group's first row.
    greatest : bool
        Take the greatest.
    """
    group_of = np.repeat(np.arange(len(starts)), groups.group_sizes(starts, len(array)))
    rows = np.flatnonzero(groups.is_valid(array))
    for key in keys(array):
        alone = _starts(group_of[rows])
        if len(alone) == len(rows):
            break  # one row per group is left
        rows = rows[_best(key, rows, alone, greatest=greatest)]
    alone = _starts(group_of[rows])
    found = np.full(len(starts), -1)
    found[group_of[rows[alone]]] = rows[alone]
    return array.take(pa.array(found, mask=found < 0))


def distinct(values: pa.Array, group_of: Integers, numbers: Integers) -> tuple[Integers, Integers]:
    """The distinct values of each group.

    Parameters
    ----------
    values : pyarrow.Array
        Without NULL.
    group_of, numbers : numpy.ndarray of int64
        The group of each value, and the number to sum.

    Returns
    -------
    (numpy.ndarray, numpy.ndarray)
        The first index of each value, sorted, and the sum of its numbers.
    """
    columns = {str(index): key for index, key in enumerate(keys(values))}
    table = pa.table({**columns, "group": group_of, "row": np.arange(len(values)), "number": numbers})
    found = table.group_by([*columns, "group"], use_threads=False).aggregate([("row", "min"), ("number", "sum")])
    rows = found["row_min"].to_numpy()
    order = np.argsort(rows)  # Arrow does not promise an order of its groups
    return rows[order], found["number_sum"].to_numpy()[order]


def _starts(group_of: Integers) -> Integers:
    return np.flatnonzero(np.diff(group_of, prepend=-1))


def _best(key: Integers | pa.Array, rows: Integers, starts: Integers, *, greatest: bool) -> npt.NDArray[np.bool_]:
    """Which of ``rows`` have the smallest key of their group, or the greatest."""
    sizes = groups.group_sizes(starts, len(rows))
    if isinstance(key, np.ndarray):
        chosen = key[rows]
        best = (np.maximum if greatest else np.minimum).reduceat(chosen, starts)
        return np.asarray(chosen == np.repeat(best, sizes))
    texts = key.take(pa.array(rows))
    function = "max" if greatest else "min"
    number = np.repeat(np.arange(len(starts)), sizes)
    table = pa.table({"group": number, "text": texts}).group_by("group", use_threads=False)
    found = table.aggregate([("text", function)])
    position = np.empty(len(starts), dtype=np.int64)
    position[found["group"].to_numpy()] = np.arange(len(starts))  # Arrow's groups have no fixed order
    same = pc.equal(texts, found[f"text_{function}"].combine_chunks().take(pa.array(position[number])))
    return np.asarray(same.to_numpy(zero_copy_only=False))


def keys(array: pa.Array) -> Iterator[Integers | pa.Array]:
    """Arrays that order and distinguish the values of an array: integers, or texts without NULL.

    Rows compare by the first array, if equal by the second, and so on. The keys of NULL rows are arbitrary.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for child in filter(_is_comparable, array.flatten()):
            if child.null_count:
                yield groups.is_valid(child).astype(np.int64)
            yield from keys(child)
    elif pa.types.is_floating(kind):
        yield _float_bits(groups.values(array, 0.0))
    elif pa.types.is_decimal(kind):
        yield from _decimal_halves(array)
    elif _is_text(kind):
        yield array.fill_null(pa.scalar(b"").cast(kind))
    elif pa.types.is_temporal(kind):
        yield groups.values(array.view(pa.int32() if kind.bit_width == 32 else pa.int64())).astype(np.int64)
    else:
        yield groups.values(array.cast(pa.int64()))


def _is_comparable(array: pa.Array) -> bool:
    kind = array.type
    if pa.types.is_struct(kind):
        return all(map(_is_comparable, array.flatten()))
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or _is_text(kind))


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(holds(kind) for holds in texts)


def _float_bits(numbers: npt.NDArray[Any]) -> Integers:
    """Integers in the order of floating-point numbers."""
    doubles = numbers.astype(np.float64) + 0.0  # -0.0 becomes 0.0
    doubles[np.isnan(doubles)] = np.nan  # one NaN, with a positive sign: greater than infinity below
    bits = doubles.view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


def _decimal_halves(array: pa.Array) -> Iterator[Integers]:
    halves = np.where(groups.is_valid(array)[:, np.newaxis], groups.words(array), 0).astype(np.uint32).view(np.uint64)
    yield halves[:, 1].view(np.int64)
    yield (halves[:, 0] ^ np.uint64(2**63)).view(np.int64)  # so that a signed comparison orders them
