"""Sorts the rows of a partition by hash in a worker, for backlog, and cuts them between whole keys.

Spark's own sort sorts pointers and then fetches each row from anywhere in memory. Sorting Arrow's columns is faster,
and the rows are needed in Arrow anyway.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backlog_spark.state.keys import order_of
from backlog_spark.state.tables import combine

__all__ = ["HELD_BYTES", "WHOLE_KEYS", "sorted_by_hash"]

HELD_BYTES: Final = 64 << 20
"""Partitions with more bytes than this are split into files by ranges of hashes, and sorted file by file."""
WHOLE_KEYS: Final = 100_000
"""Rows processed at a time: enough to spread the fixed cost of a call, and a few MB."""

_RANGE_BITS: Final = 6
_RANGE_MASK: Final = (1 << _RANGE_BITS) - 1


def sorted_by_hash(
    batches: Iterable[pa.RecordBatch],
    held_bytes: int = HELD_BYTES,
    whole_keys: int = WHOLE_KEYS,
    check: Callable[[pa.RecordBatch, int, int], None] | None = None,
    *,
    shift: int = 64 - _RANGE_BITS,
) -> Iterator[pa.RecordBatch]:
    """All rows, sorted by their first column, and cut only between two of its values.

    Rows with equal hashes keep their order. Needs memory for ``held_bytes``, plus the rows of one hash.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch
        Batches with the same schema. The first column is a 64-bit hash without NULLs.
    held_bytes : int
        How much is sorted in memory.
    whole_keys : int
        The smallest number of rows in a result, except for the last one of a range of hashes.
    check : callable, optional
        Called before the rows of one hash with more than ``held_bytes`` are read into memory, with its first row, the
        number of its rows and their bytes. May raise.
    shift : int
        Ranges are told apart by this bit of the hash and the five above it. Default: the greatest.
    """
    with ExitStack() as stack:
        held: list[pa.RecordBatch] = []
        size = 0
        ranges: _Ranges | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(batch)
            size += batch.nbytes
            if size > held_bytes:
                ranges = ranges or _Ranges(batch.schema, stack, shift)
                ranges.add(combine(held, batch.schema))
                held, size = [], 0
        if ranges is None:
            yield from _sorted(held, whole_keys)
            return
        if held:
            ranges.add(combine(held, held[0].schema))
        del held
        for range_ in ranges.in_order():
            if range_.nbytes > held_bytes and range_.first_hash != range_.last_hash:
                finer = max(0, shift - _RANGE_BITS)
                yield from sorted_by_hash(range_.batches(), held_bytes, whole_keys, check, shift=finer)
                continue
            if range_.nbytes > held_bytes and check is not None:
                check(range_.first_row, range_.rows, range_.nbytes)
            yield from _sorted(list(range_.batches()), whole_keys)


def _sorted(batches: list[pa.RecordBatch], whole_keys: int) -> Iterator[pa.RecordBatch]:
    if not batches:
        return
    rows = combine(batches, batches[0].schema)
    batches.clear()
    hashes = rows.column(0).to_numpy()
    order = order_of(hashes)
    hashes = hashes[order]
    begin = 0
    while begin < len(order):
        end = begin + whole_keys
        end = len(order) if end >= len(order) else int(np.searchsorted(hashes, hashes[end - 1], "right"))
        yield rows.take(pa.array(order[begin:end]))
        begin = end


class _Ranges:
    """Rows in files, by a few bits of their hashes."""

    def __init__(self, schema: pa.Schema, stack: ExitStack, shift: int) -> None:
        # In the executor's own directories. A file without a name leaves nothing behind when a worker is killed.
        directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        self._directory = directory if directory and Path(directory).is_dir() else None
        self._schema = schema
        self._stack = stack
        self._shift = shift
        self._ranges: dict[int, _Range] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        hashes = rows.column(0).to_numpy()
        ranges = (hashes >> self._shift) & _RANGE_MASK
        if self._shift == 64 - _RANGE_BITS:
            ranges ^= 1 << (_RANGE_BITS - 1)  # The greatest bit is the sign.
        order = order_of(ranges)
        bounds = np.searchsorted(ranges[order], np.arange(_RANGE_MASK + 2))
        for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
            if begin < end:
                part = rows.take(pa.array(order[begin:end]))
                if number not in self._ranges:
                    file = self._stack.enter_context(tempfile.TemporaryFile(dir=self._directory))  # noqa: SIM115
                    writer = self._stack.enter_context(pa.ipc.new_stream(file, self._schema))
                    self._ranges[number] = _Range(file, writer, part.slice(0, 1))
                self._ranges[number].add(part)

    def in_order(self) -> Iterator[_Range]:
        for number in sorted(self._ranges):
            yield self._ranges.pop(number)


class _Range:
    """The rows of one range."""

    def __init__(self, file: Any, writer: Any, first_row: pa.RecordBatch) -> None:
        self._file = file
        self._writer = writer
        self.first_row = first_row.take(pa.array([0]))  # A copy, which does not keep the other rows.
        self.first_hash = self.last_hash = int(first_row.column(0)[0].as_py())
        self.rows = self.nbytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        hashes = rows.column(0).to_numpy()
        self.first_hash = min(self.first_hash, int(hashes.min()))
        self.last_hash = max(self.last_hash, int(hashes.max()))
        self.rows += rows.num_rows
        self.nbytes += rows.nbytes
        self._writer.write_batch(rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in order of arrival. Called once."""
        self._writer.close()
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            yield from reader
        self._file.truncate(0)  # It is closed with the others.
