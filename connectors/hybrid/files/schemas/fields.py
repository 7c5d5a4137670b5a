"""Compares fields of files with a schema: which are new, and a schema with them (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

__all__ = ["added", "ddl", "missing", "names_of", "shown"]


def shown(kind: pa.DataType) -> str:
    """A type as Spark writes it, for errors."""
    return from_arrow_type(kind).simpleString()


def ddl(fields: Iterable[pa.Field]) -> str:
    """Fields as Spark writes them, for errors."""
    return ", ".join(f"{field.name} {shown(field.type)}" for field in fields)


def missing(schema: Iterable[pa.Field], found: Iterable[pa.Field]) -> list[pa.Field]:
    """The fields that a schema does not have, also of structs. Names that differ in case only are not new."""
    known = {field.name.casefold(): field for field in schema}
    new = []
    for field in found:
        own = known.get(field.name.casefold())
        if own is None:
            new.append(field)
        elif own.name == field.name and (inner := _missing_in(own.type, field.type)) is not None:
            new.append(field.with_type(inner))
    return new


def _missing_in(kind: pa.DataType, found: pa.DataType) -> pa.DataType | None:
    t = pa.types
    if t.is_struct(kind) and t.is_struct(found):
        new = missing(kind, found)
        return pa.struct(new) if new else None
    if t.is_list(kind) and t.is_list(found):
        inner = _missing_in(kind.value_type, found.value_type)
        return None if inner is None else pa.list_(inner)
    return None


def added(schema: pa.Schema, found: Iterable[pa.Field]) -> pa.Schema:
    """A schema with new fields at its end, and at the end of its structs. Types that it has stay as they are."""
    return pa.schema(_added(schema, found))


def _added(fields: Iterable[pa.Field], found: Iterable[pa.Field]) -> list[pa.Field]:
    made = {field.name.casefold(): field for field in fields}
    for field in found:
        own = made.get(field.name.casefold())
        made[field.name.casefold()] = field if own is None else own.with_type(_added_in(own.type, field.type))
    return list(made.values())


def _added_in(kind: pa.DataType, found: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_struct(kind) and t.is_struct(found):
        return pa.struct(_added(kind, found))
    if t.is_list(kind) and t.is_list(found):
        return pa.list_(_added_in(kind.value_type, found.value_type))
    return kind


def names_of(fields: Iterable[pa.Field], known: Iterable[pa.Field]) -> Iterator[str]:
    """The names of new fields, with dots in structs and lists."""
    own = {field.name.casefold(): field.type for field in known}
    for field in fields:
        kind, inner = own.get(field.name.casefold()), field.type
        while kind is not None and pa.types.is_list(kind) and pa.types.is_list(inner):
            kind, inner = kind.value_type, inner.value_type
        if kind is None or not pa.types.is_struct(inner):
            yield field.name
        else:
            yield from (f"{field.name}.{name}" for name in names_of(inner, kind))
