"""Rows of Arrow as the databases' client libraries take them (pure)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["array_of", "copy_lines", "rows_of", "sliced", "values_of"]

_T = TypeVar("_T")


def values_of(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values in Python. Times with a zone are in UTC, whatever the session's zone is."""
    if pa.types.is_timestamp(array.type) and array.type.tz:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    return array.to_pylist()  # type: ignore[no-any-return]


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values of the client libraries in Arrow: the reverse of `values_of`. Times without a zone are in UTC.

    Raises
    ------
    ValueError
        A value is not one of this type.
    """
    try:
        if pa.types.is_integer(kind):  # a column of decimals may have whole numbers
            values = [None if v is None else _whole(v) for v in values]
        elif pa.types.is_boolean(kind):  # MySQL's are integers
            values = [None if v is None else v != 0 for v in values]
        return pa.array(values, kind)
    except (pa.ArrowException, ArithmeticError, TypeError) as error:
        raise ValueError(str(error)) from None


def _whole(value: Any) -> int:
    found = int(value)
    if found != value:  # Arrow would cut it
        raise ValueError(f"{value} is no whole number")
    return found


def rows_of(rows: pa.Table | pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(values_of(column) for column in rows.columns), strict=True)


def sliced(items: Iterable[_T], most: int) -> Iterator[list[_T]]:
    """Lists of up to so many items."""
    iterator = iter(items)
    while part := list(itertools.islice(iterator, most)):
        yield part


# Backslashes first, as the others add some.
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def copy_lines(rows: pa.RecordBatch, *more: str) -> bytes:
    r"""Rows in PostgreSQL's text format of ``COPY``: tabs between the values, ``\N`` for NULL.

    Parameters
    ----------
    *more : str
        Values of further columns, the same in all rows; letters and digits.
    """
    fields = [_texts(array) for array in rows.columns]
    fields += [pa.repeat(pa.scalar(value), rows.num_rows) for value in more]
    lines = pc.binary_join_element_wise(*fields, "\t", null_handling="replace", null_replacement="\\N")
    return "\n".join([*lines.to_pylist(), ""]).encode()


def _texts(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_float32(kind):  # the text of a float may be of another double
        array = array.cast(pa.float64())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if v is None else f"\\\\x{v.hex()}" for v in array.to_pylist()], pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        for plain, escaped in _ESCAPES:
            array = pc.replace_substring(array, plain, escaped)
        return array.cast(pa.string())
    if pa.types.is_timestamp(kind) and kind.tz:
        array = array.cast(pa.timestamp(kind.unit, "UTC"))
    return array.cast(pa.string())
