"""The fast path for Avro: decodes all records of a block together.

The fields of a schema are read one after the other, each for all records at once. Numpy arrays have the offset in each
record. Records that do not match the schema are only detected here; the exact path decodes them. Arrays, maps and other
unions than of null and one type are not supported.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .avro_block import Block
from .avro_schema import Avro
from .avro_values import matched
from .blocks import not_utf8

__all__ = ["Column", "column_readers"]

_DAY_NS = 24 * 3600 * 10**9

# Takes the indices of some records and returns their values.
Column = Callable[["Block", np.ndarray], pa.Array | None]


def column_readers(avro: Avro, fields: list[pa.Field]) -> list[tuple[Column, int]] | None:
    """For each field of a record its reader, and the index of the declared field (-1: none).

    None for a schema that is not supported here. `record_reader` has checked before that the types fit.
    """
    slots = {index: i for i, index in enumerate(matched(avro, [f.name for f in fields])) if index is not None}
    found: list[tuple[Column, int]] = []
    for index, child in enumerate(avro.children):
        slot = slots.get(index, -1)
        column = _column(child, fields[slot].type if slot >= 0 else None)
        if column is None:
            return None
        found.append((column, slot))
    return found


def _column(avro: Avro, type: pa.DataType | None) -> Column | None:
    """A reader of a type as a declared one. With None it skips the value."""
    if avro.kind == "union":
        return _optional(avro, type)
    if avro.kind == "record":
        return _struct(avro, type)
    if avro.kind in ("array", "map"):
        return None
    if type is None:
        return _skipped(avro)
    if avro.logical == "decimal":
        return _decimals(avro, type)
    return _scalars(avro, type)


def _optional(avro: Avro, type: pa.DataType | None) -> Column | None:
    nullable = avro.nullable
    value = _column(nullable[1], type) if nullable else None
    if nullable is None or value is None:
        return None
    null_at = nullable[0]

    def read(block: Block, rows: np.ndarray) -> pa.Array | None:
        branch = block.longs(rows)
        block.refuse(rows, (branch < 0) | (branch > 1))
        there = branch == 1 - null_at
        found = value(block, rows if there.all() else rows[there])
        if found is None or there.all():
            return found
        return found.take(pa.array(np.cumsum(there) - 1, mask=~there))

    return read


def _struct(avro: Avro, type: pa.DataType | None) -> Column | None:
    fields = list(type) if type is not None else []
    columns = column_readers(avro, fields)
    if columns is None or (type is not None and not fields):
        return None

    def read(block: Block, rows: np.ndarray) -> pa.Array | None:
        children: list[pa.Array] = [pa.nulls(len(rows), f.type) for f in fields]
        for column, slot in columns:
            found = column(block, rows)
            if slot >= 0:
                children[slot] = found
        return pa.StructArray.from_arrays(children, fields=fields) if type is not None else None

    return read


_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def _skipped(avro: Avro) -> Column:
    def skip(block: Block, rows: np.ndarray) -> None:
        if avro.kind in ("bytes", "string"):
            block.skip(rows, block.lengths(rows))
        elif avro.kind == "enum":
            _indices(block, rows, len(avro.names))
        elif avro.kind == "boolean":
            _booleans(block, rows)
        elif avro.kind == "long":
            block.longs(rows)
        elif avro.kind == "int":
            _ints(block, rows)
        else:
            block.skip(rows, avro.size if avro.kind == "fixed" else _SIZES[avro.kind])

    return skip


def _booleans(block: Block, rows: np.ndarray) -> np.ndarray:
    values = block.data[block.skip(rows, 1)]
    block.refuse(rows, values > 1)
    return np.asarray(values == 1)


def _ints(block: Block, rows: np.ndarray) -> np.ndarray:
    values = block.longs(rows)
    block.refuse(rows, values.astype(np.int32) != values)
    return values


def _indices(block: Block, rows: np.ndarray, count: int) -> np.ndarray:
    values = block.longs(rows)
    wrong = (values < 0) | (values >= count)
    block.refuse(rows, wrong)
    return np.where(wrong, 0, values)


def _scalars(avro: Avro, type: pa.DataType) -> Column | None:
    kind = avro.kind
    if kind in ("int", "long"):
        return _whole(avro, type)
    if kind in ("bytes", "string"):
        return _texts if pa.types.is_string(type) else lambda block, rows: _variable(block, rows)[0]
    if kind == "boolean":
        return lambda block, rows: pa.array(_booleans(block, rows))
    if kind == "enum":
        symbols = pa.array(avro.names, pa.string())
        return lambda block, rows: symbols.take(pa.array(_indices(block, rows, len(symbols))))
    if kind == "fixed":
        return lambda block, rows: block.gathered(*block.fixed(rows, avro.size))
    if kind in ("float", "double"):
        size, dtype = _SIZES[kind], "<f4" if kind == "float" else "<f8"

        def read(block: Block, rows: np.ndarray) -> pa.Array:
            values = block.matrix(block.skip(rows, size), size).view(dtype)[:, 0]
            return pa.array(values).cast(type)

        return read
    return None


def _variable(block: Block, rows: np.ndarray) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    sizes = block.lengths(rows)
    starts = block.skip(rows, sizes)
    return block.gathered(starts, sizes), starts, sizes


def _texts(block: Block, rows: np.ndarray) -> pa.Array:
    found, starts, sizes = _variable(block, rows)
    wrong = not_utf8(found)
    if wrong is not None:
        block.refuse(rows, wrong)
        found = block.gathered(starts, np.where(wrong, 0, sizes))
    return found.cast(pa.string())


def _whole(avro: Avro, type: pa.DataType) -> Column:
    factor, low, high = 1, -(2**63), 2**63 - 1
    if pa.types.is_temporal(type) and avro.logical != "date":
        factor = 1000 if avro.logical.endswith("-millis") else 1
        if pa.types.is_time(type):
            factor *= 1000
            low, high = 0, _DAY_NS - 1
        low, high = -(-low // factor), high // factor

    def read(block: Block, rows: np.ndarray) -> pa.Array:
        values = _ints(block, rows) if avro.kind == "int" else block.longs(rows)
        wrong = (values < low) | (values > high)
        if wrong.any():
            block.refuse(rows, wrong)
            values = np.where(wrong, 0, values)
        if pa.types.is_floating(type):
            return pa.array(values.astype(np.float32 if pa.types.is_float32(type) else np.float64))
        if type.bit_width == 32:
            return pa.array(values.astype(np.int32)).view(type)
        return pa.array(values * factor).view(type)

    return read


def _decimals(avro: Avro, type: pa.DataType) -> Column:
    limit = pa.scalar(10**avro.precision, pa.decimal256(76, 0))
    wide = pa.decimal128(38, avro.scale)

    def read(block: Block, rows: np.ndarray) -> pa.Array:
        if avro.kind == "fixed":
            starts, sizes = block.fixed(rows, avro.size)
        else:
            sizes = block.lengths(rows)
            starts = block.skip(rows, sizes)
        block.refuse(rows, sizes > 16)
        least = np.zeros((len(rows), 16), np.uint8)
        there = sizes > 0
        least[there & (block.data[starts] >= 0x80)] = 0xFF
        for k in range(min(16, int(sizes.max(initial=0)))):
            some = np.flatnonzero(sizes > k)
            least[some, k] = block.data[(starts + sizes - 1 - k)[some]]
        found = pa.Array.from_buffers(wide, len(rows), [None, pa.py_buffer(least)])
        whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(rows), [None, pa.py_buffer(least)])
        fits = pc.less(pc.abs(whole.cast(pa.decimal256(76, 0))), limit)
        if not pc.all(fits).as_py():
            block.refuse(rows, ~fits.to_numpy(zero_copy_only=False))
            found = pc.if_else(fits, found, None)
        return found.cast(type)

    return read
