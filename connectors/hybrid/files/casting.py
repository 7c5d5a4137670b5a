"""Casts values of a file to the types of the stream, exactly: a value stays the same, or there is an error (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Caster", "Uncastable", "caster", "find_field"]

Caster = Callable[[pa.Array], pa.Array]


class Uncastable(Exception):
    """A type cannot be cast safely, or field names are ambiguous."""


def find_field(names: Sequence[str], name: str) -> int | None:
    """Index of a column: one with exactly this name, else the only one that differs in case, as in Spark.

    Raises
    ------
    Uncastable
        If several differ only in case.
    """
    if name in names:
        return names.index(name)
    found = [i for i, other in enumerate(names) if other.casefold() == name.casefold()]
    if len(found) > 1:
        raise Uncastable(f"the columns {', '.join(names[i] for i in found)} differ in case only")
    return found[0] if found else None


def caster(source: pa.DataType, target: pa.DataType) -> Caster:
    """A function that casts arrays of one type to another.

    Integers, floats and decimals are cast within their kind, and integers also to floats and decimals, if no value
    changes; each value is checked. Floats that are whole are cast to integers. Timestamps become microseconds if
    nothing is lost. Timestamps without a zone count as UTC if one with zone is declared, as in Spark's Parquet reader.
    Struct fields are matched by name; missing ones are NULL.

    Raises
    ------
    Uncastable
        For types that do not fit. The caster itself raises pyarrow.ArrowInvalid for a value.
    """
    if source == target and not pa.types.is_nested(source):
        return lambda array: array
    if pa.types.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if pa.types.is_dictionary(source):
        inner = caster(source.value_type, target)
        return lambda array: inner(array.cast(source.value_type))
    if isinstance(source, pa.BaseExtensionType):
        inner = caster(source.storage_type, target)
        return lambda array: inner(array.storage)
    if pa.types.is_nested(target):
        return _nested(source, target)
    found = _flat(source, target)
    if found is None:
        raise Uncastable(f"is {source} there and declared as {target}")
    return found


def _flat(source: pa.DataType, target: pa.DataType) -> Caster | None:
    t = pa.types
    if t.is_floating(target):
        if t.is_integer(source):
            return lambda array: array.cast(target)
        if t.is_floating(source):
            return _rounded(target) if source.bit_width > target.bit_width else _safe(target)
        return None
    if t.is_integer(target):
        return _safe(target) if t.is_integer(source) or t.is_floating(source) or t.is_decimal(source) else None
    if t.is_decimal(target):
        return _decimal(target) if t.is_integer(source) or t.is_decimal(source) else None
    if t.is_timestamp(target):
        if t.is_date(source) and target.tz is None:
            return _safe(target)  # its midnight, like a column that Delta has widened
        # The wall clock of an instant depends on the location, which the file does not know.
        fits = t.is_timestamp(source) and (source.tz is None or target.tz is not None)
        return _safe(target) if fits else None
    if t.is_string(target) or t.is_binary(target):
        texts = (t.is_string, t.is_large_string, t.is_string_view, t.is_binary, t.is_large_binary, t.is_binary_view)
        return _safe(target) if any(is_text(source) for is_text in (*texts, t.is_fixed_size_binary)) else None
    if t.is_date(target):
        return _safe(target) if t.is_date(source) else None
    return None


def _safe(target: pa.DataType) -> Caster:
    return lambda array: array.cast(target)


def _rounded(target: pa.DataType) -> Caster:
    """Cast to a float of another width. Arrow itself would round."""

    def cast(array: pa.Array) -> pa.Array:
        made = array.cast(target, safe=False)
        back = made.cast(array.type)
        same = pc.or_(pc.equal(array, back), pc.and_(pc.is_nan(array), pc.is_nan(back)))
        if not pc.all(same, min_count=0).as_py():
            lost = array.filter(pc.invert(same))[0].as_py()
            raise pa.ArrowInvalid(f"{lost!r} is not a value of {target}")
        return made

    return cast


def _decimal(target: pa.DataType) -> Caster:
    """Cast through a decimal that fits any integer, because Arrow judges integers by their type, not their values."""
    wide = pa.decimal256(76, target.scale)
    return lambda array: array.cast(target) if pa.types.is_decimal128(array.type) else array.cast(wide).cast(target)


def _nested(source: pa.DataType, target: pa.DataType) -> Caster:
    t = pa.types
    if t.is_struct(target) and t.is_struct(source):
        return _struct(source, target)
    if t.is_map(target) and t.is_map(source):
        return _map(source, target)
    if t.is_list(target) and (t.is_list(source) or t.is_large_list(source) or t.is_fixed_size_list(source)):
        return _list(source, target)
    raise Uncastable(f"is {source} there and declared as {target}")


def _struct(source: pa.StructType, target: pa.StructType) -> Caster:
    names = [source.field(i).name for i in range(source.num_fields)]
    fields = [target.field(i) for i in range(target.num_fields)]
    indexes = [find_field(names, field.name) for field in fields]
    if fields and all(index is None for index in indexes):
        raise Uncastable(f"is {source} there and declared as {target}")
    casters = [
        None if index is None else caster(source.field(index).type, field.type)
        for index, field in zip(indexes, fields, strict=True)
    ]

    def cast(array: pa.StructArray) -> pa.Array:
        children = [
            pa.nulls(len(array), field.type) if make is None else make(array.field(index))
            for index, make, field in zip(indexes, casters, fields, strict=True)
        ]
        if not fields:
            return array.cast(target)
        return pa.StructArray.from_arrays(children, fields=fields, mask=_mask_of(array))

    return cast


def _list(source: pa.DataType, target: pa.ListType) -> Caster:
    values = caster(source.value_type, target.value_type)

    def cast(array: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays(_offsets_of(array), values(array.values), type=target, mask=_mask_of(array))

    return cast


def _map(source: pa.MapType, target: pa.MapType) -> Caster:
    keys, items = caster(source.key_type, target.key_type), caster(source.item_type, target.item_type)

    def cast(array: pa.MapArray) -> pa.Array:
        made = pa.MapArray.from_arrays(_offsets_of(array), keys(array.keys), items(array.items), mask=_mask_of(array))
        # The names of inner fields are part of the type.
        return made.cast(target)

    return cast


def _mask_of(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _offsets_of(array: pa.Array) -> pa.Array:
    """The offsets of a list array. A copy, because Arrow takes no mask with a slice of offsets."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return pa.array((np.arange(len(array) + 1) + array.offset) * size).cast(pa.int32())
    return pa.array(array.offsets.to_numpy(zero_copy_only=False)).cast(pa.int32())
