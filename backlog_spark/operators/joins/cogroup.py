"""Functions over the rows of windows: of one stream (apply, process), and of two (co_group).

The rows of a window are kept until it ends, then the function gets them together. In backlog they are sorted by key
when the stay ends, and the function is called for the windows up to the stay's watermark.

Source: Flink's ``WindowOperator`` and ``CoGroupedStreams``; FLIP-327, "For keyed multi-input operators".
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import EVENT_TIME, MIN_WATERMARK
from backlog_spark.operators.by_key import ByKeyFold
from backlog_spark.operators.fold import Clock
from backlog_spark.operators.frames import ascending
from backlog_spark.operators.key_loop import as_batch, python_values
from backlog_spark.operators.lifecycle import open_function
from backlog_spark.operators.rows import SIDE_OF, TIME
from backlog_spark.operators.user_types import struct_of
from backlog_spark.operators.waiting_fold import StayEnd
from backlog_spark.operators.windows.assigners import FOREVER
from backlog_spark.operators.windows.fold import WindowOptions
from backlog_spark.operators.windows.functions import (
    CoGroupFunction,
    Groups,
    LazyRows,
    ProcessWindowFunction,
    Rows,
    TimeWindow,
    WindowContext,
    WindowFunction,
)
from backlog_spark.operators.windows.sessions import session_runs
from backlog_spark.state.keys import equal_runs, order_of
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import HASH, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["WindowRowsFold"]

_START: Final = "start"
_END: Final = "end"
_FIRED: Final = "fired"

# Rows of output that are Python objects at a time.
_OUTPUT_ROWS: Final = 1 << 16

Function = WindowFunction | ProcessWindowFunction | CoGroupFunction


class WindowRowsFold(ByKeyFold):
    """A function over the rows of a window, with one input or two.

    Parameters
    ----------
    function : WindowFunction, ProcessWindowFunction or CoGroupFunction
    schema, keys, right_keys, key_groups
        As for `RowsFold`.
    options : WindowOptions
    order : str, optional
        Column that orders the rows for the function. Each input must have it.
    own : sequence of (str, DataType), optional
        As for `RowsFold`, if windows are identified by more than their bounds.
    """

    def __init__(
        self,
        function: Function,
        schema: StructType,
        keys: Sequence[str],
        right_keys: Sequence[str] | None,
        key_groups: int,
        options: WindowOptions,
        *,
        order: str | None = None,
        own: Sequence[tuple[str, DataType]] | None = None,
    ) -> None:
        from pyspark.sql.types import BooleanType, LongType, StructField, StructType, TimestampType

        super().__init__(
            type(function).__name__,
            schema,
            keys,
            right_keys,
            key_groups,
            own=[(_START, LongType()), (_END, LongType()), (_FIRED, BooleanType())] if own is None else own,
            late_output=options.late_output,
            control_first=options.control_first,
        )
        assigner = options.assigner
        self.options = options
        self._function = function
        self._mine: Any = None
        if assigner.is_event_time and not assigner.is_unbounded:
            for side in range(len(self.sides)):
                self.event_time_needed(side)
        for each in self.sides:
            if order is not None and order not in each.schema.names:
                raise BacklogError(
                    f"key_by: the stream has no column {order!r} to order by; it has {', '.join(each.schema.names)}.",
                    "Check the name and its case.",
                )
        self._order = order
        declared = struct_of(function.output, f"{self.what}.output")
        is_time = [f.name == "window_time" and isinstance(f.dataType, TimestampType) for f in declared]
        self._output = StructType(
            [
                StructField(f.name, f.dataType, f.nullable, {EVENT_TIME: f.name} if marked else {})
                for f, marked in zip(declared, is_time, strict=True)
            ]
        )
        self._rows_of = [arrow_schema(side.schema) for side in self.sides]
        self._emitted = arrow_schema(self._output)

    def __getstate__(self) -> dict[str, Any]:
        # Each task has its own instance.
        return {**self.__dict__, "_mine": None}

    def describe(self) -> dict[str, Any]:
        return self.described(f"rows of {self.options.assigner.describe()}")

    def output_schema(self) -> StructType:
        return self._output

    # -- windows of rows ------------------------------------------------------------------------------------

    def is_late(self, live: pa.RecordBatch, watermark: int, kept: pa.RecordBatch) -> np.ndarray:
        assigner = self.options.assigner
        if not assigner.is_event_time or assigner.is_unbounded:
            return np.zeros(live.num_rows, dtype=bool)
        if assigner.is_session:
            return self._late_sessions(live, watermark, kept)
        index, _, ends = assigner.assign(self._times(live))
        greatest = np.full(live.num_rows, -FOREVER)
        np.maximum.at(greatest, index, ends)
        return self._given_up(greatest) <= watermark

    def _late_sessions(self, live: pa.RecordBatch, watermark: int, kept: pa.RecordBatch) -> np.ndarray:
        """A row that is late alone is not if later rows or a session that goes on continue it."""
        spanned = self._spanned(live, 0)
        if not (self._given_up(spanned.column(_END).to_numpy()) <= watermark).any():
            return np.zeros(live.num_rows, dtype=bool)
        gone = self._are_gone(combine([kept, spanned], self.state.arrow()), watermark)
        return gone[kept.num_rows :]

    def _are_gone(self, rows: pa.RecordBatch, watermark: int) -> np.ndarray:
        """Which rows are in windows that are dropped at the watermark."""
        order, begins, ends = self._groups(rows)
        gone = np.empty(rows.num_rows, dtype=bool)
        gone[order] = np.repeat(self._given_up(ends) <= watermark, np.diff(np.append(begins, rows.num_rows)))
        return gone

    def before_rows(
        self, kept: pa.RecordBatch, older: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, pa.RecordBatch, list[pa.RecordBatch]]:
        # A row that is late must not be merged into a session that is over. Other windows do not take it anyway.
        assigner = self.options.assigner
        if not assigner.is_session or not assigner.is_event_time or not (kept.num_rows or older.num_rows):
            return kept, older, []
        rows = combine([kept, self._spanned(older, 0)], self.state.arrow())
        if not (self._given_up(rows.column(_END).to_numpy()) <= clock.watermark).any():
            return rows, older.slice(0, 0), []
        gone = self._are_gone(rows, clock.watermark)
        if not gone.any():
            return rows, older.slice(0, 0), []
        _, out = self.advance(rows.filter(pa.array(gone)), older.slice(0, 0), clock)
        return rows.filter(pa.array(~gone)), older.slice(0, 0), out

    def _given_up(self, ends: np.ndarray) -> np.ndarray:
        """The watermarks at which windows with these ends are dropped."""
        lateness = self.options.lateness_ms
        found: np.ndarray = np.minimum(ends - 1, FOREVER - lateness) + lateness
        return found

    def _times(self, rows: pa.RecordBatch) -> np.ndarray:
        if self.options.assigner.is_unbounded:
            return np.zeros(rows.num_rows, dtype=np.int64)
        times = rows.column(TIME)
        if times.null_count:
            raise BacklogError(
                f"{self.what}: the event time is NULL in a row, so it belongs to no window.",
                "Filter such rows out before key_by.",
            )
        found: np.ndarray = times.to_numpy()
        return found

    def _spanned(self, fresh: pa.RecordBatch, now: int) -> pa.RecordBatch:
        """New rows, repeated for each of their windows."""
        assigner = self.options.assigner
        times = self._times(fresh) if assigner.is_event_time else np.full(fresh.num_rows, now, dtype=np.int64)
        if assigner.is_session:
            # State has milliseconds, rounded down. `_groups` merges by the rows' exact times.
            index, starts, ends = np.arange(len(times)), times, times + assigner.size_ms
        else:
            index, starts, ends = assigner.assign(times)
        rows = fresh if len(index) == fresh.num_rows else fresh.take(pa.array(index))
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns[_START], columns[_END] = pa.array(starts, pa.int64()), pa.array(ends, pa.int64())
        columns[_FIRED] = pa.array(np.zeros(len(index), dtype=bool))
        return pa.RecordBatch.from_arrays([columns[n] for n in rows.schema.names], schema=rows.schema)

    def _groups(self, rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """An order of rows by key and window, the index at which each window begins, and each window's end."""
        keys = [rows.column(name) for name in self.state.key_names]
        hashes = rows.column(HASH).to_numpy()
        ends = rows.column(_END).to_numpy()
        if not self.options.assigner.is_session:
            order, begins = equal_runs(hashes, [*keys, rows.column(_START), rows.column(_END)])
            return order, begins, ends[order[begins]] if len(begins) else ends
        by_key, firsts = equal_runs(hashes, keys)
        number = np.empty(rows.num_rows, dtype=np.int64)
        number[by_key] = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, rows.num_rows)))
        if self.options.assigner.is_event_time:
            _, exact, exact_ends = self.options.assigner.assign(self.micros_of(rows))
            order, begins = session_runs(number, exact, exact_ends)
            ends = (exact_ends - 1) // 1_000 + 1
        else:
            order, begins = session_runs(number, rows.column(_START).to_numpy(), ends)
        return order, begins, np.maximum.reduceat(ends[order], begins) if len(begins) else ends

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        order, begins, group_ends = self._groups(state)
        ends = np.empty(state.num_rows, dtype=np.int64)
        ends[order] = np.repeat(group_ends, np.diff(np.append(begins, state.num_rows)))
        never = np.full(state.num_rows, NEVER, dtype=np.int64)
        if not self.options.assigner.is_event_time:
            return never, ends
        fired = state.column(_FIRED).to_numpy(zero_copy_only=False)
        return np.where(fired, self._given_up(ends), ends - 1), never

    def still_relevant(self, rows: DataFrame, end: StayEnd) -> DataFrame:
        from pyspark.sql import functions as F

        assigner = self.options.assigner
        if not assigner.is_event_time or assigner.is_session or end.watermark is None:
            return rows
        # Most rows are in finished windows. They are found here without a sort.
        last = assigner.window_of(F.col(TIME), 0)[1] - 1
        return rows.where(last > max(end.watermark - self.options.lateness_ms, MIN_WATERMARK))

    # -- the work -------------------------------------------------------------------------------------------

    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        return self._advanced(kept, fresh, clock, calls_function=True)

    def left_by(self, fresh: pa.RecordBatch, clock: Clock) -> pa.RecordBatch:
        return self._advanced(combine([], fresh.schema), fresh, clock, calls_function=False)[0]

    def _advanced(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock, *, calls_function: bool
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        rows = combine([kept, self._spanned(fresh, int(time.time() * 1000))], self.state.arrow())
        order, begins, ends = self._groups(rows)
        if not len(begins):
            return rows, []
        counts = np.diff(np.append(begins, rows.num_rows))
        touched = np.logical_or.reduceat(order >= kept.num_rows, begins)
        fired = np.logical_or.reduceat(rows.column(_FIRED).to_numpy(zero_copy_only=False)[order], begins)
        if self.options.assigner.is_event_time:
            over, gone = ends - 1 <= clock.watermark, self._given_up(ends) <= clock.watermark
        else:
            over = gone = ends <= (-FOREVER if clock.now is None else clock.now)
        calls = over & (touched | ~fired) & calls_function
        out = self._called(rows, order, np.repeat(calls, counts), begins, ends, calls, clock.watermark)
        state = rows.take(pa.array(order[np.repeat(~gone, counts)]))
        flags = pa.array(np.repeat(over, counts)[np.repeat(~gone, counts)])
        state = state.set_column(state.schema.get_field_index(_FIRED), state.schema.field(_FIRED), flags)
        return state, out

    def _called(
        self, rows: pa.RecordBatch, order: np.ndarray, chosen: np.ndarray, begins: np.ndarray, ends: np.ndarray,
        calls: np.ndarray, watermark: int,
    ) -> list[pa.RecordBatch]:  # fmt: skip
        if not calls.any():
            return []
        counts = np.diff(np.append(begins, rows.num_rows))
        picked, group = order[chosen], np.repeat(np.arange(int(calls.sum())), counts[calls])
        firsts = order[begins[calls]]
        starts = np.minimum.reduceat(rows.column(_START).to_numpy()[order], begins)[calls]
        keys = rows.select(self.state.key_names).take(pa.array(firsts))
        keys = pa.RecordBatch.from_arrays(keys.columns, names=list(self.keys))
        groups = Groups(keys, starts, ends[calls], self._by_side(rows, picked, group, len(firsts)))
        return self._call(groups, watermark)

    def _by_side(
        self, rows: pa.RecordBatch, picked: np.ndarray, group: np.ndarray, count: int
    ) -> tuple[tuple[pa.RecordBatch, np.ndarray], ...]:
        side_of = rows.column(SIDE_OF).to_numpy()[picked]
        found = []
        for number, schema in enumerate(self._rows_of):
            mine = side_of == number
            indices, belongs = picked[mine], group[mine]
            if self._order is not None:
                values = rows.column(self.value(number, self._order)).take(pa.array(indices))
                sorted_by = ascending(values)
                by = sorted_by[order_of(belongs[sorted_by])]
                indices, belongs = indices[by], belongs[by]
            taken = rows.select(self.values(number)).take(pa.array(indices))
            bounds = np.searchsorted(belongs, np.arange(count + 1))
            found.append((pa.RecordBatch.from_arrays(taken.columns, schema=schema), bounds))
        return tuple(found)

    def _call(self, groups: Groups, watermark: int) -> list[pa.RecordBatch]:
        if self._function._is_vectorised:
            return [self._fitted(self._instance().process_groups(groups))]
        given = [[Rows(made, *span) for span in pairwise(bounds.tolist())] for made, bounds in self._lazy(groups)]
        return self._call_each(groups.keys, groups.starts, groups.ends, given, watermark)

    def _instance(self) -> Any:
        if self._mine is None:
            self._mine = copy.copy(self._function)
            open_function(self._mine)
        return self._mine

    def close(self) -> None:
        if self._mine is not None:
            self._mine.close()
            self._mine = None

    def _call_each(
        self, keys_of: pa.RecordBatch, first: np.ndarray, end: np.ndarray, given: list[list[Rows]], watermark: int
    ) -> list[pa.RecordBatch]:
        """One call per window. The arguments are as in `Groups`; ``given`` has a list for each input."""
        keys = [python_values(column) for column in keys_of.columns]
        key_values = keys[0] if len(keys) == 1 else list(zip(*keys, strict=True))
        starts, ends = first.tolist(), end.tolist()
        function = self._instance()
        if isinstance(function, CoGroupFunction):
            results = map(function.co_group, *given)
        elif isinstance(function, WindowFunction):
            results = map(function.apply, key_values, map(TimeWindow, starts, ends), *given)
        else:
            contexts = (WindowContext(TimeWindow(*span), watermark) for span in zip(starts, ends, strict=True))
            results = map(function.process, key_values, contexts, *given)
        rows = chain.from_iterable(result for result in results if result is not None)
        out = []
        while some := list(islice(rows, _OUTPUT_ROWS)):
            out.append(as_batch(some, self._emitted, self.what))
        return out

    @staticmethod
    def _lazy(groups: Groups) -> list[tuple[LazyRows, np.ndarray]]:
        return [(LazyRows(batch), bounds) for batch, bounds in groups.sides]

    def _fitted(self, rows: Any) -> pa.RecordBatch:
        if not isinstance(rows, pa.RecordBatch) or rows.schema.names != self._emitted.names:
            found = ", ".join(rows.schema.names) if isinstance(rows, pa.RecordBatch) else f"{rows!r:.100}"
            raise BacklogError(
                f"{self.what}.process_groups returned {found}.",
                f"Return a pyarrow.RecordBatch of {', '.join(self._emitted.names)}.",
            )
        return combine([rows], self._emitted)
