"""The sorted vehicle's worker side for functions: rows sorted by key in, what they put out and state out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from backlog_spark.attributes import RecordAttributes
from backlog_spark.operators.fold import CHANGED
from backlog_spark.operators.functions import MIN_WATERMARK
from backlog_spark.operators.keyloop import KeyLoop, python_values
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.tables import combine, to_bytes

if TYPE_CHECKING:
    from backlog_spark.operators.process import ProcessFold

__all__ = ["DATA", "ORIGIN", "TAG", "SortedLoop", "key_values"]

# Of what comes out: the number of the output, NULL for state, and its packed rows. Of what goes in: 0 for state.
TAG, DATA, ORIGIN = "__tag", "__data", "__origin"


class SortedLoop:
    """For ``mapInArrow``: rows sorted by key, a key's state before its rows; what is put out, and state.

    The last key of a batch of rows may go on in the next one: its state is held, so a key with any number of rows needs
    memory for a batch of them.
    """

    def __init__(self, fold: ProcessFold, placed: pa.Schema, out: pa.Schema, *, has_base: bool) -> None:
        self._fold = fold
        self._placed = placed
        self._out = out
        self._has_base = has_base

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fold = self._fold
        width = 2 + len(fold.keys)
        self._loop = KeyLoop(fold._function, fold._loop_schema)
        self._loop.function.process_record_attributes(RecordAttributes(True))
        held: tuple[pa.RecordBatch, list[Any], bool] | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = combine([batch], self._placed)
            ids = rows.select(list(range(width)))
            before = None if held is None else held[0]
            starts, goes_on = _key_starts(ids, before)
            is_row = rows.column(ORIGIN).to_numpy() == 1
            keys = ids.take(pa.array(starts))
            columns = self._initial(rows, starts, is_row)
            changed = np.logical_or.reduceat(is_row, starts)
            if held is not None and not goes_on:
                yield from self._given_back(held[0], [[v] for v in held[1]], [held[2]])
            elif held is not None:
                for column, value in zip(columns, held[1], strict=True):
                    column[0] = value
                changed[0] |= held[2]
            self._loop.load(key_values(keys.select(list(range(1, width)))), columns)
            now = int(time.time() * 1000)
            self._loop.set_clocks(MIN_WATERMARK, now)
            self._process(rows, starts, is_row)
            last = len(starts) - 1
            self._loop.fire_processing_timers(now, range(last))
            yield from self._emitted()
            yield from self._state(keys.slice(0, last), self._loop.state(last), changed[:last])
            held = (keys.slice(last), [column[last] for column in columns], bool(changed[last]))
        if held is not None:
            yield from self._given_back(held[0], [[v] for v in held[1]], [held[2]])

    def _initial(self, rows: pa.RecordBatch, starts: np.ndarray, is_row: np.ndarray) -> list[list[Any]]:
        names = self._fold._loop_schema.state.names
        if not self._has_base:
            return [[None] * len(starts) for _ in names]
        places = pa.array(starts, mask=is_row[starts])
        return [python_values(rows.column(name).take(places)) for name in names]

    def _process(self, rows: pa.RecordBatch, starts: np.ndarray, is_row: np.ndarray) -> None:
        values = rows.columns[2 + len(self._fold.keys) :][: len(self._fold._schema)]
        live = pa.RecordBatch.from_arrays(values, schema=self._fold._loop_schema.rows)
        if not self._has_base:
            self._loop.process(live, starts.tolist(), range(len(starts)))
            return
        counts = np.add.reduceat(is_row, starts)
        places = np.flatnonzero(counts)
        if len(places):
            begins = np.concatenate(([0], np.cumsum(counts[places])[:-1]))
            self._loop.process(live.filter(pa.array(is_row)), begins.tolist(), places.tolist())

    def _given_back(self, keys: pa.RecordBatch, columns: list[list[Any]], changed: list[bool]) -> Any:
        """A key whose last row has been seen."""
        self._loop.load(key_values(keys.select(list(range(1, keys.num_columns)))), columns)
        now = int(time.time() * 1000)
        self._loop.set_clocks(MIN_WATERMARK, now)
        self._loop.fire_processing_timers(now, [0])
        yield from self._emitted()
        yield from self._state(keys, self._loop.state(), np.array(changed))

    def _emitted(self) -> Iterator[pa.RecordBatch]:
        for tag, batch in self._loop.outputs():
            columns = {TAG: pa.array([tag], pa.int32()), DATA: pa.array([to_bytes(batch)], pa.binary())}
            yield self._batch(columns, 1)

    def _state(self, keys: pa.RecordBatch, state: list[pa.Array], changed: np.ndarray) -> Iterator[pa.RecordBatch]:
        names = self._fold._loop_schema.state.names
        columns = {**dict(zip(keys.schema.names, keys.columns, strict=True)), **dict(zip(names, state, strict=True))}
        columns[CHANGED] = pa.array(changed)
        holds = np.zeros(keys.num_rows, dtype=bool)
        for column in state:
            holds |= column.is_valid().to_numpy(zero_copy_only=False)
        if holds.any():
            yield self._batch(columns, keys.num_rows).filter(pa.array(holds))

    def _batch(self, columns: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
        arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(rows, f.type) for f in self._out]
        return pa.RecordBatch.from_arrays(arrays, schema=self._out)


def _key_starts(ids: pa.RecordBatch, before: pa.RecordBatch | None) -> tuple[np.ndarray, bool]:
    """Where each key begins in rows that are sorted by key, and whether the first is the one before them."""
    whole = ids if before is None else combine([before, ids], ids.schema)
    # All columns but the key group, which follows from the hash.
    order, starts = equal_runs(whole.column(1).to_numpy(), whole.columns[2:])
    if (order[1:] < order[:-1]).any():
        # Keys of one hash stand one after another here, and are found in another order there.
        starts = np.sort(order[starts])
    if before is None:
        return starts, False
    goes_on = len(starts) == 1 or int(starts[1]) > 1
    return (starts[1:] - 1, False) if not goes_on else (np.concatenate(([0], starts[1:] - 1)), True)


def key_values(ids: pa.RecordBatch) -> list[Any]:
    """The keys as the function sees them, from hash and key columns."""
    columns = [python_values(column) for column in ids.columns[1:]]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
