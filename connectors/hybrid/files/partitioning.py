"""Columns whose values are in directory names (``name=value``), as written by Hive and Spark (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date
from urllib.parse import unquote

import pyarrow as pa

from backlog_spark.errors import BacklogError

__all__ = ["NULL_VALUE", "constant", "inferred_type", "repeated", "values_in"]

# Hive's name for the directory of NULL.
NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def values_in(path: str) -> tuple[tuple[str, str | None], ...]:
    """Names and values of the directories of a relative path.

    Examples
    --------
    >>> values_in("/day=2024-01-01/town=K%C3%B6ln/part-0.parquet")
    (('day', '2024-01-01'), ('town', 'Köln'))
    """
    found = []
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            found.append((unquote(name), None if value == NULL_VALUE else unquote(value)))
    return tuple(found)


def inferred_type(values: Iterable[str | None]) -> pa.DataType:
    """The narrowest of int, long, double, date and string that fits all values; string if there are none.

    Spark also infers timestamps and decimals. Here these must be declared.
    """
    texts = {value for value in values if value is not None}
    if not texts:
        return pa.string()
    if all(_INTEGER.fullmatch(text) for text in texts):
        largest = max(max(int(text), -1 - int(text)) for text in texts)
        if largest < 2**63:
            return pa.int32() if largest < 2**31 else pa.int64()
    if all(_DOUBLE.fullmatch(text) for text in texts):
        return pa.float64()
    return pa.date32() if all(_is_date(text) for text in texts) else pa.string()


def _is_date(text: str) -> bool:
    try:
        return bool(re.fullmatch(r"\d{4}-\d{2}-\d{2}", text)) and bool(date.fromisoformat(text))
    except ValueError:
        return False


def repeated(scalar: pa.Scalar) -> Callable[[int], pa.Array]:
    """A function that returns arrays of one value, in any length. They share one array while it is long enough."""
    longest = pa.repeat(scalar, 0)

    def give(rows: int) -> pa.Array:
        nonlocal longest
        if rows > len(longest):
            longest = pa.repeat(scalar, rows)
        return longest.slice(0, rows)

    return give


def constant(file: str, field: pa.Field, value: str | None) -> Callable[[int], pa.Array]:
    """A function that returns arrays of one value, in any length.

    Parameters
    ----------
    file : str
        Name of the file, for errors.
    field : pyarrow.Field
        The declared column. A timestamp without an offset is in UTC.
    value : str or None

    Raises
    ------
    BacklogError
        If the text is not a value of the type.
    """
    if value is None:
        return repeated(pa.scalar(None, field.type))
    try:
        scalar = _parsed(value, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        raise BacklogError(
            f"{file}: the directory says {field.name}={value}, which is not {field.type}.",
            f"Declare the column {field.name} with a type that fits all its directories, such as string.",
        ) from None
    return repeated(scalar)


def _parsed(value: str, kind: pa.DataType) -> pa.Scalar:
    text = pa.scalar(value)
    if pa.types.is_binary(kind):
        return pa.scalar(value.encode(), kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        if re.search(r"([zZ]|[+-]\d\d(:?\d\d)?)$", value[10:]):
            return text.cast(kind)
        return text.cast(pa.timestamp(kind.unit)).cast(kind)
    return text.cast(kind)
