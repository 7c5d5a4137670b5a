"""The narrowest types that fit values of several records or files (pure).

A type of Arrow stands for one of Spark. ``pa.null()`` is the type of a value that is not known yet.

Source: Spark's JsonInferSchema, CSVInferSchema and TypeCoercion; for Parquet and Avro the widest type, as Databricks
Auto Loader takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

__all__ = ["Merge", "as_strings", "complete", "merged_fields", "of_csv", "of_files", "of_json", "of_proposals"]

#: The type that fits values of two types; None if there is none.
Merge = Callable[[pa.DataType, pa.DataType], "pa.DataType | None"]

_MOST_DIGITS = 38
# Digits of an integer of each width, as Spark's DecimalType.forType.
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}


def of_json(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Like Spark's inference from JSON: values of different kinds are text. Fields of structs are sorted by name."""
    if (found := _same(one, other, of_json)) is not None:
        return found
    t = pa.types
    if t.is_struct(one) and t.is_struct(other):
        return pa.struct(sorted(merged_fields([*one, *other], of_json) or (), key=lambda field: field.name))
    return _number(one, other) or pa.string()


def of_csv(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Like Spark's inference from CSV."""
    if (found := _same(one, other, of_csv)) is not None:
        return found
    t = pa.types
    if any(t.is_date(a) and t.is_timestamp(b) for a, b in ((one, other), (other, one))):
        return one if t.is_timestamp(one) else other
    return _number(one, other) or pa.string()


def of_files(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The wider of two types that files declare, if each value of the narrower one is a value of it."""
    t = pa.types
    if (found := _same(one, other, of_files)) is not None:
        return found
    if t.is_struct(one) and t.is_struct(other):
        fields = merged_fields([*one, *other], of_files)
        return None if fields is None else pa.struct(fields)
    if t.is_map(one) and t.is_map(other):
        key, item = of_files(one.key_type, other.key_type), of_files(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return _number(one, other)


def of_proposals(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a new column that several tasks have found. Kinds that do not fit are text."""
    found = of_files(one, other)
    return of_csv(one, other) if found is None else found


def _same(one: pa.DataType, other: pa.DataType, merge: Merge) -> pa.DataType | None:
    """The result for equal and unknown types, and for lists."""
    t = pa.types
    if one == other or t.is_null(other):
        return one
    if t.is_null(one):
        return other
    if t.is_list(one) and t.is_list(other):
        value = merge(one.value_type, other.value_type)
        return None if value is None else pa.list_(value)
    return None


def _number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that fits two kinds of numbers."""
    t = pa.types
    if t.is_integer(one) and t.is_integer(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    kinds = (one, other)
    if not all(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind) for kind in kinds):
        return None
    if any(t.is_floating(kind) for kind in kinds):
        return pa.float64()
    scales = [kind.scale if t.is_decimal(kind) else 0 for kind in kinds]
    digits = [kind.precision - kind.scale if t.is_decimal(kind) else _DIGITS[kind.bit_width] for kind in kinds]
    whole, scale = max(digits), max(scales)
    return pa.decimal128(whole + scale, scale) if whole + scale <= _MOST_DIGITS else pa.float64()


def merged_fields(fields: Iterable[pa.Field], merge: Merge) -> list[pa.Field] | None:
    """Fields with each name once, in the order of their first occurrence; None if the types of two do not fit."""
    found: dict[str, pa.DataType] = {}
    for field in fields:
        made = merge(found.get(field.name, pa.null()), field.type)
        if made is None:
            return None
        found[field.name] = made
    return [pa.field(name, kind) for name, kind in found.items()]


def complete(kind: pa.DataType) -> pa.DataType | None:
    """A type without unknown parts: these are text. None for a struct without fields, as in Spark."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        value = complete(kind.value_type)
        return None if value is None else pa.list_(value)
    if pa.types.is_struct(kind):
        fields = [pa.field(field.name, made) for field in kind if (made := complete(field.type)) is not None]
        return pa.struct(fields) if fields else None
    return kind


def as_strings(kind: pa.DataType) -> pa.DataType:
    """The same structure with all values as text."""
    if pa.types.is_list(kind):
        return pa.list_(as_strings(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, as_strings(field.type)) for field in kind])
    return pa.string()
