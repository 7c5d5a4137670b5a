"""Removes rows from a chunk that, by the rewind log, were not there at the low watermark.

The log may be larger than memory. So the keys or rows to remove are Arrow tables in a temporary file, and each piece of
the chunk is compared with one table at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..output.rows import rows_to_table
from ..schema.keys import Key
from ..schema.table import TableSchema
from ..schema.types import kind_of

__all__ = ["Surplus", "TouchedKeys", "keys_among"]


class _Tables:
    """Tables of one schema: a single one in memory, several in a temporary file."""

    def __init__(self) -> None:
        self._only: pa.Table | None = None
        self._file: Any = None
        self._writer: pa.RecordBatchFileWriter | None = None
        self._count = 0

    def append(self, table: pa.Table) -> None:
        self._count += 1
        if self._count == 1:
            self._only = table
            return
        if self._only is not None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed with the chunk
            self._writer = pa.ipc.new_file(self._file, table.schema)
            self._put(self._only)
            self._only = None
        self._put(table)

    def _put(self, table: pa.Table) -> None:
        assert self._writer is not None
        (batch,) = table.combine_chunks().to_batches()
        self._writer.write_batch(batch)

    def __iter__(self) -> Iterator[pa.Table]:
        if self._only is not None:
            yield self._only
        if self._file is None:
            return
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        read = pa.ipc.open_file(self._file)
        for i in range(read.num_record_batches):
            yield pa.Table.from_batches([read.get_batch(i)])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class TouchedKeys:
    """Primary keys whose rows, as read, must be dropped.

    Parameters
    ----------
    schema : TableSchema
        The table's.
    keys : iterable of lists of keys
        In pieces that fit into memory.
    """

    def __init__(self, schema: TableSchema, keys: Iterable[Sequence[Key]]) -> None:
        self._keys = _Tables()
        for piece in keys:
            self._keys.append(_keys_table(schema, piece))

    def taken_out(self, table: pa.Table) -> pa.Table:
        """The rows without those that have one of the keys."""
        for keys in self._keys:
            maybe = _among(table, keys)
            if len(keys.column_names) == 1:
                table = table.filter(pc.invert(maybe))
                continue
            at = pc.indices_nonzero(maybe)  # each column's value is in some key, but perhaps not in the same one
            if len(at):
                some = set(_tuples(keys))
                found = _tuples(table.select(keys.column_names).take(at))
                table = _dropped(table, [i for i, key in zip(at.to_pylist(), found, strict=True) if key in some])
        return table

    def close(self) -> None:
        """Drop the temporary file."""
        self._keys.close()


def keys_among(table: pa.Table, schema: TableSchema, wanted: Collection[Key]) -> set[Key]:
    """Those of the wanted primary keys that rows have."""
    keys = _keys_table(schema, wanted)
    at = pc.indices_nonzero(_among(table, keys))
    found = set(_tuples(table.select(keys.column_names).take(at)))
    return {key for key, told in zip(wanted, _tuples(keys), strict=True) if told in found}


def _keys_table(schema: TableSchema, keys: Collection[Key]) -> pa.Table:
    arrays = [
        kind_of(c).build(c, list(values)).cast(kind_of(c).arrow(c))
        for c, values in zip(schema.key_columns, zip(*keys, strict=True), strict=True)
    ]
    return pa.table(arrays, names=list(schema.key))


class Surplus:
    """For a table without a primary key: rows to remove, and how many of each.

    Parameters
    ----------
    schema : TableSchema
        The table's.
    rows : iterable of lists of (row, count)
        Storage values; in pieces that fit into memory.
    """

    def __init__(self, schema: TableSchema, rows: Iterable[Sequence[tuple[list[Any], int]]]) -> None:
        self._rows = _Tables()
        self._left: list[np.ndarray] = []
        for piece in rows:
            self._rows.append(_comparable(rows_to_table(schema, [row for row, _ in piece])))
            self._left.append(np.array([count for _, count in piece], np.int64))

    def taken_out(self, table: pa.Table) -> pa.Table:
        """The rows that stay. Each removed row lowers its count."""
        read = _comparable(table)
        for rows, left in zip(self._rows, self._left, strict=True):
            wanted = np.flatnonzero(left)
            if len(wanted):
                some = rows.take(pa.array(wanted))
                near = _among(some, read).to_numpy()
                wanted, some = wanted[near], some.filter(pa.array(near))
            if len(wanted) and (gone := self._found(read, some, wanted, left)):
                table, read = _dropped(table, gone), _dropped(read, gone)
        return table

    @staticmethod
    def _found(table: pa.Table, some: pa.Table, wanted: np.ndarray, left: np.ndarray) -> list[int]:
        """Indexes of rows to remove. Lowers their counts."""
        wanted_at: dict[tuple[Any, ...], list[int]] = {}  # several if different stored values look the same here
        for row, index in zip(_tuples(some), wanted.tolist(), strict=True):
            wanted_at.setdefault(row, []).append(index)
        at = pc.indices_nonzero(_among(table, some))
        gone = []
        for i, row in zip(at.to_pylist(), _tuples(table.take(at)), strict=True):
            if of := wanted_at.get(row):
                left[of[-1]] -= 1
                if not left[of[-1]]:
                    of.pop()
                gone.append(i)
        return gone

    def left(self) -> int:
        """The number of rows that were not found."""
        return sum(int(left.sum()) for left in self._left)

    def close(self) -> None:
        """Drop the temporary file."""
        self._rows.close()


def _comparable(table: pa.Table) -> pa.Table:
    """The same rows without negative zeros: for FLOAT a SELECT loses the sign of zero, the log keeps it."""
    for i, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            table = table.set_column(i, field, pc.add(table.column(i), pa.scalar(0.0, field.type)))
    return table


def _among(table: pa.Table, values: pa.Table) -> pa.ChunkedArray:
    """For each row, whether the value of each of its columns is in that column of ``values``."""
    found = None
    for name in values.column_names:
        here = pc.is_in(table.column(name), value_set=values.column(name).combine_chunks())
        found = here if found is None else pc.and_(found, here)
    return found


def _dropped(table: pa.Table, gone: list[int]) -> pa.Table:
    if not gone:
        return table
    stay = np.ones(table.num_rows, bool)
    stay[gone] = False
    return table.filter(pa.array(stay))


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
