"""Columns of Iceberg tables: of which type those of a stream are there, and whether a table fits a stream."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql import types as st

from backlog_spark.errors import BacklogError

__all__ = ["arrow_schema", "check_table", "conformed", "new_schema", "promotes", "widened"]

_PLAIN: dict[type[st.DataType], IcebergType] = {
    st.BinaryType: BinaryType(),
    st.BooleanType: BooleanType(),
    st.ByteType: IntegerType(),
    st.DateType: DateType(),
    st.DoubleType: DoubleType(),
    st.FloatType: FloatType(),
    st.IntegerType: IntegerType(),
    st.LongType: LongType(),
    st.ShortType: IntegerType(),
    st.StringType: StringType(),
    st.TimestampNTZType: TimestampType(),
    st.TimestampType: TimestamptzType(),
}


def new_schema(fields: Sequence[st.StructField]) -> Schema:
    """The schema of a table for these columns. All of them may be NULL, as rows of TRUNCATE are.

    Raises
    ------
    BacklogError
        Iceberg has no type for a column.
    """
    ids = itertools.count(1)
    numbered = [(next(ids), field) for field in fields]  # the columns first, as other writers do
    return Schema(*(_field(number, field, ids, field.name) for number, field in numbered))


def _field(number: int, field: st.StructField, ids: Iterator[int], column: str) -> NestedField:
    return NestedField(number, field.name, _type(field.dataType, ids, column), required=False)


def _type(kind: st.DataType, ids: Iterator[int], column: str) -> IcebergType:
    if isinstance(kind, st.DecimalType):
        return DecimalType(kind.precision, kind.scale)
    if isinstance(kind, st.ArrayType):
        return ListType(next(ids), _type(kind.elementType, ids, column), element_required=False)
    if isinstance(kind, st.MapType):
        key, value = next(ids), next(ids)
        types = (_type(each, ids, column) for each in (kind.keyType, kind.valueType))
        return MapType(key, next(types), value, next(types), value_required=False)
    if isinstance(kind, st.StructType):
        numbered = [(next(ids), field) for field in kind.fields]
        return StructType(*(_field(number, field, ids, column) for number, field in numbered))
    found = next((made for plain, made in _PLAIN.items() if isinstance(kind, plain)), None)
    if found is None:
        raise BacklogError(
            f"Column {column!r} is {kind.simpleString()}, for which Iceberg's format 2 has no type.",
            f"Cast it in the stream, for example {column} to STRING, or leave it out.",
        )
    return found


def promotes(old: IcebergType, new: IcebergType) -> bool:
    """Whether a column may change from one type to another one without a rewrite of files.

    Source: Iceberg's "Schema Evolution" of format 2.
    """
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return bool(old.scale == new.scale and old.precision < new.precision)
    return (type(old), type(new)) in ((IntegerType, LongType), (FloatType, DoubleType))


def _is_same(one: IcebergType, other: IcebergType) -> bool:
    """Whether two types have the same values; ids do not matter."""
    if isinstance(one, ListType) and isinstance(other, ListType):
        return _is_same(one.element_type, other.element_type)
    if isinstance(one, MapType) and isinstance(other, MapType):
        return _is_same(one.key_type, other.key_type) and _is_same(one.value_type, other.value_type)
    if isinstance(one, StructType) and isinstance(other, StructType):
        names = [[field.name for field in each.fields] for each in (one, other)]
        both = zip(one.fields, other.fields, strict=False)
        return names[0] == names[1] and all(_is_same(a.field_type, b.field_type) for a, b in both)
    return bool(one == other)


def widened(table: Schema, stream: Schema) -> tuple[list[NestedField], list[NestedField]]:
    """The stream's columns that the table lacks, and those for which a column of the table must become wider."""
    there = {field.name: field.field_type for field in table.fields}
    new = [field for field in stream.fields if field.name not in there]
    both = [field for field in stream.fields if field.name in there]
    return new, [field for field in both if promotes(there[field.name], field.field_type)]


def check_table(place: str, table: Schema, stream: Schema, keys: Collection[str] = ()) -> None:
    """Reject a table that lacks a column of the stream, has it with another type, or needs one that the stream lacks.

    A column that is wider in the table fits.
    """
    there = {field.name: field for field in table.fields}
    folded = {name.lower(): name for name in there}
    for field in stream.fields:
        found = there.get(field.name)
        if found is not None and (
            _is_same(found.field_type, field.field_type) or promotes(field.field_type, found.field_type)
        ):
            continue
        role = "key column" if field.name in keys else "column"
        if found is None:
            other = folded.get(field.name.lower())
            problem = f"no column {field.name!r}" + (f", but {other!r}" if other else "")
            hint = "Rename the column in the stream" if other else "merge_schema=True adds it"
        else:
            problem = f"column {field.name!r} of type {found.field_type}"
            hint = "merge_schema=True widens it" if promotes(found.field_type, field.field_type) else "Cast it"
        raise BacklogError(
            f"The Iceberg table {place} has {problem}; the stream's {role} {field.name!r} is {field.field_type}.",
            f"{hint}. Or name another table: the sink creates it.",
        )
    given = {field.name for field in stream.fields}
    for name, field in there.items():
        if field.required and name not in given:
            raise BacklogError(
                f"The Iceberg table {place} requires a value in column {name!r}, which the stream lacks.",
                "Make the column optional in the table, or add it to the stream.",
            )


def arrow_schema(table: Schema) -> pa.Schema:
    """The table's columns in Arrow, as pyiceberg reads and writes them."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(table, include_field_ids=False)


def conformed(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Rows with the columns of a table, which are NULL if the rows lack them."""
    names = set(rows.column_names)
    columns = [
        rows[field.name].cast(field.type) if field.name in names else pa.nulls(rows.num_rows, field.type)
        for field in target
    ]
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in target]))
