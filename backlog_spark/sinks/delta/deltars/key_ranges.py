"""Builds a predicate from the keys of a batch, so that a merge can skip files.

deltalake's merge reads all files of the table and rewrites those that have a key of the batch. With this predicate it
skips files whose minimum and maximum in Delta's log do not match. Example: 2,500 changes around the middle of 10^7 keys
and 2,500 new keys, in 16 files. A merge takes 0.45 s with the predicate, 1.6 s with only the minimum and maximum key of
the batch, and 2.5 s when it reads all files. The result is the same without the predicate.

deltalake computes the minimum and maximum key itself, but only for ``=``, which does not match NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["key_ranges"]

# More ranges skip hardly more files: most files that can be skipped lie in the widest gaps between keys.
_RANGES: Final = 32
# Longer texts would make long predicates, and Delta's statistics keep only the first 32 characters.
_LONGEST_TEXT: Final = 256
# deltalake writes statistics of decimals as doubles, which are exact up to 15 digits. Keys have at most 15 digits here;
# a value with more digits is greater than all of them, also after rounding. So the column's precision does not matter.
_DIGITS: Final = 15
# The years 1 to 9999; other years have no literal.
_DAYS: Final = (-719_162, 2_932_896)
_DAY_US: Final = 86_400_000_000


class _Keys(NamedTuple):
    """The distinct keys of a batch in one column, ascending."""

    lows: Sequence[Any]
    """The lower bound of a range that begins with the key."""
    highs: Sequence[Any]
    positions: np.ndarray[Any, Any]
    """Numbers whose distances approximate the distances of the keys."""
    literal: Callable[[Any], str]


def key_ranges(keys: pa.Table, target: str = "t") -> str | None:
    """A predicate on the table's key columns. It is true for every row that a key of the batch can match.

    Parameters
    ----------
    keys : pyarrow.Table
        The batch's key columns, with the table's names and types. NULL is a key like any other.
    target : str, default "t"
        The table's alias in the merge.

    Returns
    -------
    str or None
        For deltalake's ``merge``: append it to the merge predicate with AND. It has one condition for each key column
        whose type has exact literals and reliable statistics: integers, strings, dates, timestamps, and decimals with
        up to 15 digits. None if there is no such column, or no row.

    Examples
    --------
    >>> key_ranges(pa.table({"id": [7, 1001, 1000, 8, None]}))
    '((t."id" >= 7 AND t."id" <= 8) OR (t."id" >= 1000 AND t."id" <= 1001) OR t."id" IS NULL)'
    """
    if not keys.num_rows:
        return None
    found = [_condition(target, name, keys.column(name)) for name in keys.column_names]
    return " AND ".join(condition for condition in found if condition is not None) or None


def _condition(target: str, name: str, column: pa.ChunkedArray) -> str | None:
    keys = _keys(column) if _has_literals(column.type) else None
    if keys is None:
        return None
    quoted = '{}."{}"'.format(target, name.replace('"', '""'))
    parts = [f"({quoted} >= {keys.literal(low)} AND {quoted} <= {keys.literal(high)})" for low, high in _ranges(keys)]
    if column.null_count:
        parts.append(f"{quoted} IS NULL")
    return f"({' OR '.join(parts)})"


def _ranges(keys: _Keys) -> Iterator[tuple[Any, Any]]:
    """Ranges that contain all keys, split at the widest gaps between keys."""
    gaps = np.diff(keys.positions)
    widest = np.argsort(gaps)[max(0, len(gaps) - _RANGES + 1) :]
    ends = [*np.sort(widest[gaps[widest] > 1]).tolist(), len(keys.highs) - 1]
    begin = 0
    for end in ends if len(keys.highs) else ():
        yield keys.lows[begin], keys.highs[end]
        begin = end + 1


def _has_literals(kind: pa.DataType) -> bool:
    of_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    of_time = pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")
    return bool(of_text or of_time or pa.types.is_signed_integer(kind) or pa.types.is_decimal128(kind))


def _keys(column: pa.ChunkedArray) -> _Keys | None:
    """None if a value has no exact literal or statistics."""
    kind = column.type
    values = pc.unique(column.drop_null())
    values = values.take(pc.sort_indices(values))
    if pa.types.is_signed_integer(kind):
        numbers = values.to_numpy()
        return _Keys(numbers, numbers, numbers.astype(np.float64), str)
    if pa.types.is_decimal128(kind):
        return _decimals(values)
    if pa.types.is_timestamp(kind):
        return _timestamps(values)
    if pa.types.is_date32(kind):
        days = values.cast(pa.int32()).to_numpy()
        if len(days) and not _DAYS[0] <= days[0] <= days[-1] <= _DAYS[1]:
            return None
        return _Keys(days, days, days.astype(np.float64), lambda day: f"CAST('{np.datetime64(int(day), 'D')}' AS DATE)")
    texts = values.to_pylist()
    if any(len(text) > _LONGEST_TEXT for text in texts):
        return None
    return _Keys(texts, texts, _positions(texts), lambda text: "'{}'".format(text.replace("'", "''")))


def _timestamps(values: pa.Array) -> _Keys | None:
    micros = values.cast(pa.int64()).to_numpy()
    if len(micros) and not _DAYS[0] * _DAY_US <= micros[0] <= micros[-1] < (_DAYS[1] + 1) * _DAY_US:
        return None
    utc, zone = ("Z", 'Some("UTC")') if values.type.tz else ("", "None")

    def literal(at: Any) -> str:
        return f"arrow_cast('{np.datetime64(int(at), 'us')}{utc}', 'Timestamp(Microsecond, {zone})')"

    # The maximum timestamp in a file's statistics is truncated to milliseconds.
    return _Keys(micros // 1000 * 1000, micros, micros.astype(np.float64), literal)


def _decimals(values: pa.Array) -> _Keys | None:
    kind = values.type
    decimals = values.to_pylist()
    ends = [abs(int(value.scaleb(kind.scale))) for value in (*decimals[:1], *decimals[-1:])]
    if kind.scale > _DIGITS or any(end >= 10**_DIGITS for end in ends):
        return None
    sql = f"DECIMAL({kind.precision}, {kind.scale})"
    return _Keys(decimals, decimals, values.cast(pa.float64()).to_numpy(), lambda value: f"CAST('{value:f}' AS {sql})")


def _positions(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """The eight bytes after the common prefix of the sorted `texts`, as numbers."""
    encoded = [text.encode() for text in texts]
    same = 0
    if encoded:
        first, last = encoded[0], encoded[-1]
        same = next((at for at, byte in enumerate(first) if last[at : at + 1] != bytes([byte])), len(first))
    return np.array([int.from_bytes(text[same : same + 8].ljust(8, b"\0")) for text in encoded], np.float64)
