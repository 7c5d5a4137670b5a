"""Decoded columns as plain, comparable values: dates and times as numbers, floats as text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.connectors.hybrid.decode import Decoded, decoder, parse

__all__ = ["both_roads", "decoded", "plain", "rows"]


def plain(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values. NaN equals NaN, 0.0 differs from -0.0, and any year is allowed."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    if pa.types.is_struct(kind):
        children = [plain(array.field(i)) for i in range(kind.num_fields)]
        there = array.is_valid().to_pylist()
        return [row if valid else None for valid, row in zip(there, zip(*children, strict=True), strict=True)]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        lists = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))) if pa.types.is_map(kind) else array
        items = plain(lists.flatten())
        found: list[Any] = []
        at = 0
        for length in pc.list_value_length(lists).to_pylist():
            found.append(None if length is None else items[at : at + length])
            at += length or 0
        return found
    if pa.types.is_date32(kind):
        array = array.view(pa.int32())
    elif pa.types.is_temporal(kind):
        array = array.view(pa.int64())
    elif pa.types.is_string(kind):
        # Spark's strings may be no UTF-8.
        return [None if v is None else v.decode(errors="replace") for v in array.view(pa.binary()).to_pylist()]
    values: list[Any] = array.to_pylist()
    return [None if v is None else repr(v) for v in values] if pa.types.is_floating(kind) else values


def decoded(format: str, schema: pa.Schema, records: list[bytes | None], **options: str) -> Decoded:
    """The result of decoding records with some options."""
    result = decoder(parse({"valueFormat": format, **options}), schema).decode(pa.array(records, pa.binary()))
    for column, field in zip(result.columns, schema, strict=True):
        column.validate(full=True)
        assert column.type == field.type
    return result


def rows(format: str, schema: pa.Schema, records: list[bytes | None], **options: str) -> list[tuple[Any, ...]]:
    """The same as plain rows."""
    columns = decoded(format, schema, records, **options).columns
    return list(zip(*(plain(column) for column in columns), strict=True))


def both_roads(format: str, schema: pa.Schema, records: list[bytes], **options: str) -> int:
    """Decode records by both paths, alone and as a block, and compare. Returns how many took the fast path."""
    either: Any = decoder(parse({"valueFormat": format, **options}), schema)
    exact = either.exact(records)
    expected = [plain(column) for column in exact.columns]
    fast = 0
    for i, record in enumerate(records):
        found = either.fast(pa.array([record], pa.binary()))
        if found is None or (found[1] is not None and found[1][0]):
            continue
        fast += 1
        assert i not in exact.bad, record
        for column, field, values in zip(found[0], schema, expected, strict=True):
            column.validate(full=True)
            assert column.type == field.type
            assert plain(column) == [values[i]], record
    whole = either.decode(pa.array(records, pa.binary()))
    assert [plain(column) for column in whole.columns] == expected
    return fast
