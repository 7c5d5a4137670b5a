"""Runs a function over keys: Arrow rows and state in, Arrow rows and state out (pure; both vehicles use it).

State is one Python list for each column, with one entry for each key. The states that a function declares point into
these lists. So moving to the next key is one assignment, whatever the function declares.
"""

from __future__ import annotations

import copy
import datetime as dt
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import END_OF_TIME
from backlog_spark.operators.lifecycle import open_function
from backlog_spark.operators.process.functions import (
    KeyedProcessFunction,
    ListState,
    MapState,
    OutputTag,
    ProcessContext,
    State,
    TimerService,
)
from backlog_spark.operators.process.state_ttl import Stamps, state_column, times_column
from backlog_spark.operators.process.ttl_states import stamped
from backlog_spark.operators.row_types import row_type
from backlog_spark.operators.state_arrays import state_array

__all__ = ["KeyLoop", "LoopSchema", "as_batch", "epoch_millis", "python_values"]


@dataclass(frozen=True)
class LoopSchema:
    """The types that a loop works with.

    Parameters
    ----------
    rows : pyarrow.Schema
        The input rows in a worker.
    event_time : int or None
        Index of the event time column in ``rows``.
    state : pyarrow.Schema
        The declared states, then event-time timers, then processing-time timers.
    outputs : tuple of (str, pyarrow.Schema)
        The main output, then the side outputs by name.
    late : str or None
        The side output for late rows.
    clocked : bool
        Whether event time follows the system time, though rows have none (FLIP-326).
    """

    rows: pa.Schema
    event_time: int | None
    state: pa.Schema
    outputs: tuple[tuple[str, pa.Schema], ...]
    late: str | None = None
    clocked: bool = False


def epoch_millis(times: pa.Array) -> pa.Array:
    """Event times as milliseconds since 1970, rounded down."""
    whole = pc.floor_temporal(times, unit="millisecond")
    return whole.cast(pa.timestamp("ms", times.type.tz)).cast(pa.int64())


class KeyLoop:
    """One function in one task. Keys are loaded, processed by index, and their state is read back.

    Parameters
    ----------
    function : KeyedProcessFunction
        It is copied.
    schema : LoopSchema
    """

    def __init__(self, function: KeyedProcessFunction, schema: LoopSchema) -> None:
        self._schema = schema
        self._function = copy.copy(function)
        self._what = type(function).__name__
        self._cursor = [0]
        self._timers = TimerService()
        self.context = ProcessContext(self._timers)
        self.context._cursor = self._cursor
        # The kind of each column: a state, the times of a state's values, or (None, the last two) timers.
        self._kinds: list[type[State] | type[Stamps] | None] = [None] * len(schema.state)
        self._states: list[tuple[State, int]] = []
        self._stamps: list[tuple[Stamps, int, int]] = []
        for name, declared in function._declared_states().items():
            at = schema.state.get_field_index(state_column(name))
            if declared.ttl is None:
                state = copy.copy(declared)
            else:
                state, stamps = stamped(declared, self._cursor)
                times = schema.state.get_field_index(times_column(name))
                self._stamps.append((stamps, at, times))
                self._kinds[times] = Stamps
            state._typed(schema.state.field(at).type)
            setattr(self._function, name, state)
            self._states.append((state, at))
            self._kinds[at] = type(state)
        self._tags = {name: at for at, (name, _) in enumerate(schema.outputs) if at}
        self._collected: list[list[Any]] = [[] for _ in schema.outputs]
        self._batches: list[list[pa.RecordBatch]] = [[] for _ in schema.outputs]
        self._row = row_type(tuple(schema.rows.names))
        open_function(self._function)
        self.load([], [[] for _ in schema.state])

    @property
    def function(self) -> KeyedProcessFunction:
        """The task's own instance."""
        return self._function

    def close(self) -> None:
        """End the task."""
        self._function.close()

    def load(self, keys: list[Any], columns: list[list[Any]]) -> None:
        """Load keys and their state: a list for each column. The lists are changed in place."""
        self._keys, self._columns = keys, columns
        self.context._keys = keys
        for state, at in self._states:
            state._bind(columns[at], self._cursor)
        for stamps, of, at in self._stamps:
            stamps.bind(columns[at])
            stamps.expire(columns[of])
        self._event, self._processing = columns[-2], columns[-1]
        has_event_time = self._schema.event_time is not None or self._schema.clocked
        self._timers.bind(self._event, self._processing, self._cursor, has_event_time=has_event_time)

    def set_batch_time(self, now: int | None) -> None:
        """Set the time for state TTL: for values that are loaded or written from now on. None: time stands still."""
        for stamps, _, _ in self._stamps:
            stamps.now = now

    def set_clocks(self, watermark: int, processing_time: int) -> None:
        """Set the times that the timer service returns."""
        self._timers.watermark, self._timers.processing_time = watermark, processing_time

    # -- rows -----------------------------------------------------------------------------------------------

    def process(self, rows: pa.RecordBatch, starts: Sequence[int], indexes: Sequence[int]) -> None:
        """Call the function for rows that are sorted by key.

        Parameters
        ----------
        rows : pyarrow.RecordBatch
            Rows with the input's schema.
        starts : sequence of int
            Index of each key's first row.
        indexes : sequence of int
            Index of each of these keys among the loaded keys.
        """
        ends = [*starts[1:], rows.num_rows]
        if self._function._is_vectorised:
            for start, end, index in zip(starts, ends, indexes, strict=True):
                self._cursor[0] = index
                self._take(self._function.process_batch(rows.slice(start, end - start), self.context))
            return
        call, cursor, at = self._function.process_element, self._cursor, self.context._row
        if self._schema.event_time is not None:
            self.context._times = python_values(epoch_millis(rows.column(self._schema.event_time)))
        # Makes the same rows as calling the class, but without a Python call for each row.
        make = partial(tuple.__new__, self._row)
        made = list(map(make, zip(*(python_values(column) for column in rows.columns), strict=True)))
        take = self._take if self._tags else self._collected[0].extend
        context = self.context
        for start, end, index in zip(starts, ends, indexes, strict=True):
            cursor[0] = index
            at[0] = start
            for row in made[start:end]:
                result = call(row, context)
                if result is not None:
                    take(result)
                at[0] += 1

    def _take(self, result: Iterable[Any] | pa.RecordBatch | None) -> None:
        if result is None:
            return
        if isinstance(result, pa.RecordBatch):
            self._flush(0)
            self._batches[0].append(self._fitted(result))
            return
        for item in result:
            if type(item) is tuple and len(item) == 2 and isinstance(item[0], OutputTag):
                at = self._tags.get(item[0].name)
                if at is None:
                    raise BacklogError(
                        f"{self._what} emitted a row with the tag {item[0].name!r}, which the class lacks.",
                        "Declare the tag in the class: tag = bs.OutputTag('…').",
                    )
                self._collected[at].append(item[1])
            else:
                self._collected[0].append(item)

    # -- timers ---------------------------------------------------------------------------------------------

    def fire_event_timers(self, watermark: int, indexes: Iterable[int], most: int | None = None) -> int:
        """Fire timers that are due at the watermark, and due ones that these register; by time within a key.

        Parameters
        ----------
        watermark : int
        indexes : iterable of int
            Indexes of loaded keys.
        most : int, optional
            Stop after this many timers and questions of `ProcessContext.is_interrupted`. Default: fire all.

        Returns
        -------
        int
            The number of timers that fired, or of questions where a timer asked more than one.
        """
        self._timers.watermark = watermark
        return self._fire("event", self._event, watermark, indexes, most)

    def fire_processing_timers(self, now: int, indexes: Iterable[int], most: int | None = None) -> int:
        """Fire timers that are due by the clock, as `fire_event_timers` does."""
        self._timers.processing_time = max(self._timers.processing_time, now)
        return self._fire("processing", self._processing, now, indexes, most)

    def _fire(self, domain: str, timers: list[Any], until: int, indexes: Iterable[int], most: int | None) -> int:
        context, service, fired = self.context, self._timers, 0
        context._domain = domain
        try:
            for index in indexes:
                if not timers[index]:
                    continue
                self._cursor[0] = index
                due = [time for time in timers[index] if time <= until]
                if not due:
                    continue
                heapq.heapify(due)
                service.registered.clear()
                mine = service.timers_of(timers)
                while due:
                    if most is not None and fired >= most:
                        return fired
                    time = heapq.heappop(due)
                    if time not in mine:  # deleted, or registered twice
                        continue
                    del mine[time]
                    context._fired = time
                    if most is not None:
                        context._left, context._asked = most - fired, 0
                    self._take(self._function.on_timer(time, context))
                    fired += 1 if most is None else max(1, context._asked)
                    for registered in service.registered:
                        if registered <= until:
                            heapq.heappush(due, registered)
                    service.registered.clear()
        finally:
            context._domain, context._left = "", None
        return fired

    def end(self, indexes: Iterable[int], most: int | None = None) -> int:
        """Call ``on_end`` for keys with state, then drop the state. Nothing may be due. Returns how many keys."""
        ended = 0
        for index in indexes:
            if ended == most:
                break
            if not self._holds(index):
                continue
            self._cursor[0] = index
            self._take(self._function.on_end(self.context))
            # Nothing comes after on_end, so timers that it registers are due.
            self._fire("event", self._event, END_OF_TIME, (index,), None)
            for column in self._columns:
                column[index] = None
            ended += 1
        return ended

    def _holds(self, index: int) -> bool:
        """Whether a key has any state or timer."""
        for values, kind in zip(self._columns, self._kinds, strict=True):
            value = values[index]
            if kind is Stamps or value is None:
                continue
            if value or not (kind is None or issubclass(kind, ListState | MapState)):
                return True
        return False

    # -- output ---------------------------------------------------------------------------------------------

    def outputs(self) -> list[tuple[int, pa.RecordBatch]]:
        """Rows emitted since the last call, each batch with the number of its output."""
        out = []
        for at in range(len(self._collected)):
            self._flush(at)
            out += [(at, batch) for batch in self._batches[at]]
            self._batches[at] = []
        return out

    def put_late(self, rows: pa.RecordBatch) -> None:
        """Send late rows to their side output."""
        assert self._schema.late is not None
        self._batches[self._tags[self._schema.late]].append(rows)

    def state(self, end: int | None = None) -> list[pa.Array]:
        """The state of the first ``end`` keys (default: all), one array for each column."""
        out = []
        for field, values, kind in zip(self._schema.state, self._columns, self._kinds, strict=True):
            plain = values if end is None else values[:end]
            if kind is None:
                plain = [sorted(v) if v else None for v in plain]
            elif kind is Stamps:
                plain = [(list(v.values()) if type(v) is dict else v) or None for v in plain]
            elif issubclass(kind, ListState | MapState):
                # An empty list or map counts as no state.
                plain = [(list(v.items()) if type(v) is dict else v) or None for v in plain]
            elif pa.types.is_map(field.type):
                plain = [list(v.items()) if type(v) is dict else v for v in plain]
            try:
                out.append(state_array(plain, field.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
                raise BacklogError(
                    f"{self._what} keeps a value in state {field.name.removeprefix('s_')!r} that is not {field.type}: "
                    f"{error}.",
                    "Use values of the declared type.",
                ) from None
        return out

    def _flush(self, at: int) -> None:
        rows = self._collected[at]
        if not rows:
            return
        name, schema = self._schema.outputs[at]
        self._batches[at].append(as_batch(rows, schema, self._what, name if at else ""))
        self._collected[at].clear()

    def _fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._schema.outputs[0][1]
        if rows.schema.names != schema.names:
            raise BacklogError(
                f"{self._what} emitted the columns {', '.join(rows.schema.names)}.", f"Give {', '.join(schema.names)}."
            )
        return rows.cast(schema)


def as_batch(rows: list[Any], schema: pa.Schema, what: str, output: str = "") -> pa.RecordBatch:
    """The rows that a user's function emitted, as an Arrow batch.

    Parameters
    ----------
    rows : list of tuple
        Not empty.
    schema : pyarrow.Schema
    what : str
        The function's class, for messages.
    output : str, optional
        Name of a side output, for messages.

    Raises
    ------
    BacklogError
        If a row has other columns, or a value does not fit.
    """
    try:
        columns = list(zip(*rows, strict=True))
    except (TypeError, ValueError):
        columns = []
    if len(columns) != len(schema):
        wrong = next((r for r in rows if not isinstance(r, tuple | list) or len(r) != len(schema)), rows[0])
        raise BacklogError(
            f"{what} emitted {wrong!r:.100} as a row{f' of {output}' if output else ''}.",
            f"Yield tuples of {len(schema)} values: {', '.join(schema.names)}.",
        )
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise BacklogError(
                f"{what} emitted a value for {field.name!r} that is not {field.type}: {error}.",
                "Emit values of the declared type.",
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def python_values(column: pa.Array) -> list[Any]:
    """A column as Python values. Timestamps are aware, in UTC."""
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        plain: list[Any] = column.to_numpy().tolist()
        return plain
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
        return [v if v is None else v.replace(tzinfo=dt.UTC) for v in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values
