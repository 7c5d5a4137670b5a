"""The worker side of the sorted vehicle for functions: rows sorted by key in, output and state out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from backlog_spark.common.gc_tuning import collect_rarely, keep_imports
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.fold import CHANGED
from backlog_spark.operators.key_loop import KeyLoop, LoopSchema, python_values
from backlog_spark.operators.process.functions import KeyedProcessFunction
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.tables import combine, to_bytes

__all__ = ["DATA", "ORIGIN", "TAG", "SortedLoop", "key_values"]

# Columns. TAG and DATA of the result: the number of the output (NULL for state) and its packed rows. ORIGIN of the
# input: 0 for state, 1 for rows.
TAG, DATA, ORIGIN = "__tag", "__data", "__origin"


class SortedLoop:
    """For ``mapInArrow``. Input: rows sorted by hash, a key's state before its rows. Result: output rows and state.

    Keys with a batch's last hash (nearly always one key) may continue in the next batch, so their state is held. A key
    with any number of rows needs memory only for one batch of them.
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        loop_schema: LoopSchema,
        placed: pa.Schema,
        out: pa.Schema,
        *,
        keys: int,
        backlog: int,
        has_base: bool,
    ) -> None:
        self._function = function
        self._loop_schema = loop_schema
        self._keys = keys
        self._backlog = backlog
        self._placed = placed
        self._out = out
        self._has_base = has_base

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collect_rarely()
        keep_imports()
        self._loop = KeyLoop(self._function, self._loop_schema)
        self._loop.function._take_attributes(self._backlog)
        try:
            yield from self._folded(batches)
        finally:
            self._loop.close()

    def _folded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        width = 1 + self._keys
        held: _Held | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = combine([batch], self._placed)
            order, starts = equal_runs(rows.column(0).to_numpy(), rows.columns[1:width])
            if (order[1:] < order[:-1]).any():
                # Rows of two keys with the same hash alternate.
                rows = rows.take(pa.array(order))
            is_row = rows.column(ORIGIN).to_numpy() == 1 if self._has_base else np.ones(rows.num_rows, dtype=bool)
            keys = rows.select(list(range(width))).take(pa.array(starts))
            hashes = keys.column(0).to_numpy()
            columns = self._initial(rows, starts, is_row)
            changed = np.logical_or.reduceat(is_row, starts)
            if held is not None:
                rest = held.resumed(keys.slice(0, int(np.searchsorted(hashes, hashes[0], "right"))), columns, changed)
                held = None
                if rest is not None and rest.hash == hashes[-1]:
                    held = rest
                elif rest is not None:
                    yield from self._given_back(rest)
            self._loop.load(key_values(keys), columns)
            now = int(time.time() * 1000)
            self._loop.set_clocks(MIN_WATERMARK, now)
            self._process(rows, starts, is_row)
            last = int(np.searchsorted(hashes, hashes[-1]))
            self._loop.fire_processing_timers(now, range(last))
            yield from self._emitted()
            yield from self._state(keys.slice(0, last), self._loop.state(last), changed[:last])
            these = _Held(keys.slice(last), [column[last:] for column in columns], changed[last:])
            held = these if held is None else held.and_(these)
        if held is not None:
            yield from self._given_back(held)

    def _initial(self, rows: pa.RecordBatch, starts: np.ndarray, is_row: np.ndarray) -> list[list[Any]]:
        names = self._loop_schema.state.names
        if not self._has_base:
            return [[None] * len(starts) for _ in names]
        indexes = pa.array(starts, mask=is_row[starts])
        return [python_values(rows.column(name).take(indexes)) for name in names]

    def _process(self, rows: pa.RecordBatch, starts: np.ndarray, is_row: np.ndarray) -> None:
        values = rows.columns[1 + self._keys :][: len(self._loop_schema.rows)]
        live = pa.RecordBatch.from_arrays(values, schema=self._loop_schema.rows)
        if not self._has_base:
            self._loop.process(live, starts.tolist(), range(len(starts)))
            return
        counts = np.add.reduceat(is_row, starts)
        indexes = np.flatnonzero(counts)
        if len(indexes):
            begins = np.concatenate(([0], np.cumsum(counts[indexes])[:-1]))
            self._loop.process(live.filter(pa.array(is_row)), begins.tolist(), indexes.tolist())

    def _given_back(self, held: _Held) -> Iterator[pa.RecordBatch]:
        """Output and state of keys that have no more rows."""
        keys = held.keys
        self._loop.load(key_values(keys), held.columns)
        now = int(time.time() * 1000)
        self._loop.set_clocks(MIN_WATERMARK, now)
        self._loop.fire_processing_timers(now, range(keys.num_rows))
        yield from self._emitted()
        yield from self._state(keys, self._loop.state(), held.changed)

    def _emitted(self) -> Iterator[pa.RecordBatch]:
        for tag, batch in self._loop.outputs():
            columns = {TAG: pa.array([tag], pa.int32()), DATA: pa.array([to_bytes(batch)], pa.binary())}
            yield self._batch(columns, 1)

    def _state(self, keys: pa.RecordBatch, state: list[pa.Array], changed: np.ndarray) -> Iterator[pa.RecordBatch]:
        names = self._loop_schema.state.names
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


@dataclass
class _Held:
    """Keys of one hash: their columns, a list of state for each column, and whether they have had a row."""

    keys: pa.RecordBatch
    columns: list[list[Any]]
    changed: np.ndarray

    @property
    def hash(self) -> int:
        return int(self.keys.column(0)[0].as_py())

    def resumed(self, first: pa.RecordBatch, columns: list[list[Any]], changed: np.ndarray) -> _Held | None:
        """Hand the state of keys that continue among a batch's first keys to these. Returns the others, or None."""
        mine = self.keys.num_rows
        both = combine([self.keys, first], first.schema)
        order, starts = equal_runs(both.column(0).to_numpy(), both.columns[1:])
        rest = []
        for members in np.split(order, starts[1:]):
            ours = [int(index) for index in members if index < mine]
            theirs = [int(index) - mine for index in members if index >= mine]
            if ours and not theirs:
                rest += ours
            elif ours:
                for column, values in zip(columns, self.columns, strict=True):
                    column[theirs[0]] = values[ours[0]]
                changed[theirs[0]] |= self.changed[ours[0]]
        if not rest:
            return None
        return _Held(self.keys.take(pa.array(rest)), [[c[r] for r in rest] for c in self.columns], self.changed[rest])

    def and_(self, other: _Held) -> _Held:
        """Both together; ``other`` has keys of the same hash."""
        columns = [mine + theirs for mine, theirs in zip(self.columns, other.columns, strict=True)]
        changed = np.concatenate([self.changed, other.changed])
        return _Held(combine([self.keys, other.keys], self.keys.schema), columns, changed)


def key_values(ids: pa.RecordBatch) -> list[Any]:
    """The keys in the form that the function sees, from hash and key columns."""
    columns = [python_values(column) for column in ids.columns[1:]]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
