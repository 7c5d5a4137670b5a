"""Finds the files of an Iceberg table that may hold keys of a batch, by the bounds in its manifests."""

from __future__ import annotations

import bisect
import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions
from pyiceberg.conversions import from_bytes
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table

__all__ = ["KeyRanges"]

_terms: Any = expressions  # its type hints leave out the positional arguments of its documentation

# Types whose bounds and values are ordered alike. A boolean skips no file; floats have NaN and two zeros.
_ORDERED: Final = (
    BinaryType, DateType, DecimalType, IntegerType, LongType, StringType, TimestampType, TimestamptzType,
)  # fmt: skip


class KeyRanges:
    """The keys of a batch, or ranges of them, to compare with the bounds of files.

    Parameters
    ----------
    schema : Schema
        The table's columns.
    keys : pyarrow.Table
        The key columns in Arrow types of the table. NULL is a key like any other.
    only_ends : bool
        `keys` has only the least and greatest value of each column, and NULL if there is one.
    """

    def __init__(self, schema: Schema, keys: pa.Table, *, only_ends: bool = False) -> None:
        self._only_ends = only_ends
        self._columns: list[tuple[NestedField, list[Any], bool]] = []
        for name in keys.column_names:
            field = schema.find_field(name)
            if isinstance(field.field_type, _ORDERED):
                values = pc.unique(keys[name].drop_null())
                self._columns.append((field, sorted(_plain(values)), keys[name].null_count > 0))

    def candidates(self, table: Table) -> list[FileScanTask]:
        """The files of the table that may hold one of the keys, in any order."""
        terms = [_between(field, values, has_null) for field, values, has_null in self._columns]
        found = table.scan(row_filter=functools.reduce(operator.and_, terms, _terms.AlwaysTrue())).plan_files()
        return [task for task in found if all(self._may_hold(task, *column) for column in self._columns)]

    def _may_hold(self, task: FileScanTask, field: NestedField, values: Sequence[Any], has_null: bool) -> bool:
        file, number = task.file, field.field_id
        if has_null and (file.null_value_counts or {}).get(number) != 0:
            return True
        least, greatest = ((bounds or {}).get(number) for bounds in (file.lower_bounds, file.upper_bounds))
        kind: Any = field.field_type
        low = None if least is None else from_bytes(kind, least)
        high = None if greatest is None else from_bytes(kind, greatest)
        first = 0 if low is None else bisect.bisect_left(values, low)
        last = len(values) if high is None else bisect.bisect_right(values, high)
        if self._only_ends:
            return bool(values) and first < len(values) and last > 0
        return first < last


def _plain(values: pa.Array) -> list[Any]:
    """Values as pyiceberg has bounds: days and microseconds for times."""
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return list(values.to_pylist())


def _between(field: NestedField, values: Sequence[Any], has_null: bool) -> Any:
    is_null = _terms.IsNull(field.name)
    if not values:
        return is_null
    low, high = _terms.GreaterThanOrEqual(field.name, values[0]), _terms.LessThanOrEqual(field.name, values[-1])
    return (low & high) | is_null if has_null else low & high
