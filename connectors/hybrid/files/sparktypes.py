"""Converts the types that a file declares to Spark's (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from backlog_spark.errors import BacklogError

__all__ = ["spark_schema"]

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.null(): pa.string(),
}
_SAME = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_date32,
    pa.types.is_string,
    pa.types.is_binary,
)


def spark_schema(name: str, schema: pa.Schema, physical: Iterable[str] = ()) -> pa.Schema:
    """The columns in types of a Spark stream, all nullable.

    Parameters
    ----------
    name : str
        Name of the file, for errors.
    schema : pyarrow.Schema
    physical : iterable of str
        Physical Parquet types of the leaves. INT96 is always an instant, although the file does not say so.

    Raises
    ------
    BacklogError
        If Spark has no such type.
    """
    leaves = iter(physical)
    fields = []
    for field in schema:
        found = _type(field.type, leaves)
        if found is None:
            raise BacklogError(
                f"{name}: column {field.name} is {field.type}: Spark has no such type.",
                "Declare the schema without it.",
            )
        fields.append(pa.field(field.name, found))
    return pa.schema(fields)


def _type(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType | None:
    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _type(kind.storage_type, leaves)
    if t.is_dictionary(kind):
        return _type(kind.value_type, leaves)
    if t.is_struct(kind):
        made = [(field.name, _type(field.type, leaves)) for field in kind]
        return None if any(found is None for _, found in made) else pa.struct(made)
    if t.is_map(kind):
        key, item = _type(kind.key_type, leaves), _type(kind.item_type, leaves)
        return None if key is None or item is None else pa.map_(key, item)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        value = _type(kind.value_type, leaves)
        return None if value is None else pa.list_(value)
    return _leaf(kind, next(leaves, ""))


def _leaf(kind: pa.DataType, physical: str) -> pa.DataType | None:
    t = pa.types
    if t.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz is not None or physical == "INT96" else None)
    if t.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 and 0 <= kind.scale <= 38 else None
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
        return pa.binary()
    if kind in _WIDER:
        return _WIDER[kind]
    return kind if any(is_same(kind) for is_same in _SAME) else None
