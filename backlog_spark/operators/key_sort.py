"""Sorts the rows of a partition by hash in a worker, for backlog, and cuts them between whole keys.

Spark's own sort sorts pointers and then fetches each row from anywhere in memory. Sorting Arrow's columns is faster,
and the rows are needed in Arrow anyway.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
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


def sorted_by_hash(
    batches: Iterable[pa.RecordBatch], held_bytes: int = HELD_BYTES, whole_keys: int = WHOLE_KEYS
) -> Iterator[pa.RecordBatch]:
    """All rows, sorted by their first column, and cut only between two of its values.

    Rows with equal hashes keep their order. Needs memory for ``held_bytes``, or for a 64th of the partition if that is
    more, plus the rows of one hash.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch
        Batches with the same schema. The first column is a 64-bit hash without NULLs.
    held_bytes : int
        How much is sorted in memory.
    whole_keys : int
        The smallest number of rows in a result, except for the last one of a range of hashes.
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
                ranges = ranges or _Ranges(batch.schema, stack)
                ranges.add(combine(held, batch.schema))
                held, size = [], 0
        if ranges is None:
            yield from _sorted(held, whole_keys)
            return
        if held:
            ranges.add(combine(held, held[0].schema))
        del held
        for number in range(1 << _RANGE_BITS):
            yield from _sorted(ranges.of(number), whole_keys)


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
    """Rows in files, by the first bits of their hashes."""

    def __init__(self, schema: pa.Schema, stack: ExitStack) -> None:
        # In the executor's own directories. A file without a name leaves nothing behind when a worker is killed.
        directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        self._directory = directory if directory and Path(directory).is_dir() else None
        self._schema = schema
        self._stack = stack
        self._files: dict[int, tuple[Any, Any]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        hashes = rows.column(0).to_numpy()
        ranges = (hashes >> (64 - _RANGE_BITS)) + (1 << (_RANGE_BITS - 1))
        order = order_of(ranges)
        bounds = np.searchsorted(ranges[order], np.arange((1 << _RANGE_BITS) + 1))
        for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
            if begin < end:
                self._writer(number).write_batch(rows.take(pa.array(order[begin:end])))

    def _writer(self, number: int) -> Any:
        if number not in self._files:
            file = self._stack.enter_context(tempfile.TemporaryFile(dir=self._directory))  # noqa: SIM115
            self._files[number] = file, self._stack.enter_context(pa.ipc.new_stream(file, self._schema))
        return self._files[number][1]

    def of(self, number: int) -> list[pa.RecordBatch]:
        """A range's rows in order of arrival. Called once."""
        if number not in self._files:
            return []
        file, writer = self._files[number]
        writer.close()
        file.seek(0)
        with pa.ipc.open_stream(file) as reader:
            return list(reader)
