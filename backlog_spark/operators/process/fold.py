"""Processes the rows of a key with a Python function that has state, timers and side outputs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.errors import BacklogError
from backlog_spark.model.record_attributes import ALL_BACKLOG, RecordAttributes
from backlog_spark.model.watermarks import END_OF_TIME, MIN_WATERMARK, event_time_of
from backlog_spark.operators.fold import CHANGED, Arrived, Clock, EmittingFold, Step, describe_keys
from backlog_spark.operators.frames import ascending
from backlog_spark.operators.key_loop import KeyLoop, LoopSchema, epoch_millis, python_values
from backlog_spark.operators.process.functions import KeyedProcessFunction, MapState
from backlog_spark.operators.process.functions import ListState as ListStateOf
from backlog_spark.operators.process.state_ttl import (
    StateTtlConfig,
    due_of_stamps,
    state_column,
    times_column,
    with_times,
)
from backlog_spark.operators.rows import PackRowsUnchanged
from backlog_spark.operators.sorted_loop import DATA, ORIGIN, TAG, SortedLoop, key_values
from backlog_spark.operators.user_types import state_type, struct_of
from backlog_spark.state.keys import check_keys, equal_runs, group_of, hash_of, normalised
from backlog_spark.state.seeds import ChosenRows, Unpack
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import GROUP, HASH, StateSchema, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["ProcessFold"]

_EVENT_TIMERS, _PROCESSING_TIMERS = "t_event", "t_processing"
# Column of live rows, if state expires: when their batch started.
_ARRIVED: Final = "__backlog_arrived"
_MAIN: Final = "the main output"
# Due time of a key that waits for the end of its input: one before the last watermark.
_AT_END: Final = END_OF_TIME - 1


class ProcessFold(EmittingFold):
    """Runs a `KeyedProcessFunction` by key.

    Parameters
    ----------
    keys : sequence of str
        Key columns.
    function : KeyedProcessFunction
    schema : StructType
        The rows' schema.
    key_groups : int
        ``spark.backlog.keyGroups``.
    order : str, optional
        Column that orders a key's rows.
    late_output : str, optional
        Name of a side output for rows that come after the watermark.
    control_first : bool
        Whether a batch's watermark comes before its rows, as for the first operator of a chain. Later operators get
        rows that belong before the watermark.
    """

    timed = True
    mergeable = False
    sees_no_time_in_backlog = True

    def __init__(
        self,
        keys: Sequence[str],
        function: KeyedProcessFunction,
        schema: StructType,
        key_groups: int,
        *,
        order: str | None = None,
        late_output: str | None = None,
        control_first: bool = True,
    ) -> None:
        from pyspark.sql.types import ArrayType, LongType

        check_keys(keys, schema)
        if order is not None and order not in schema.names:
            raise BacklogError(
                f"key_by: the stream has no column {order!r} to order by; it has {', '.join(schema.names)}.",
                "Check the name and its case.",
            )
        self.keys = tuple(keys)
        self._function = function
        self._schema = schema
        self.key_groups = key_groups
        self._order = order
        self._control_first = control_first
        self._what = type(function).__name__
        self._loop: KeyLoop | None = None
        self.backlog = ALL_BACKLOG
        self._event_time = event_time_of(schema)
        timers = ArrayType(LongType())
        states: dict[str, Any] = {}
        self._ttls: list[tuple[str, str, StateTtlConfig]] = []
        for name, declared in function._declared_states().items():
            value, times = state_column(name), times_column(name)
            states[value] = state_type(declared)
            if declared.ttl is not None:
                # Each entry or element has its own time.
                states[times] = timers if isinstance(declared, ListStateOf | MapState) else LongType()
                self._ttls.append((value, times, declared.ttl))
        types = {**states, _EVENT_TIMERS: timers, _PROCESSING_TIMERS: timers}
        # Timers come first, so that states that a later version of the function adds are at the end.
        names = (_EVENT_TIMERS, _PROCESSING_TIMERS, *states)
        self.state = StateSchema(tuple(schema[k].dataType for k in keys), tuple(types[n] for n in names), names)
        self._output = self._timed(struct_of(function.output, f"{self._what}.output"))
        self._sides = {
            name: struct_of(t.schema, f"{self._what}.{name}") for name, t in function._declared_tags().items()
        }
        if late_output is not None:
            if late_output in self._sides:
                raise BacklogError(
                    f"late_output={late_output!r} is a side output of {self._what} already.", "Give it another name."
                )
            if self._event_time is None:
                raise BacklogError(
                    f"late_output={late_output!r}: the stream has no watermark, so no row is late.",
                    'Add .with_watermark("<column>", "<delay>") before key_by.',
                )
            self._sides[late_output] = schema
        self._loop_schema = LoopSchema(
            rows=arrow_schema(schema),
            event_time=None if self._event_time is None else schema.names.index(self._event_time),
            state=pa.schema([self.state.arrow().field(name) for name in (*states, _EVENT_TIMERS, _PROCESSING_TIMERS)]),
            outputs=((_MAIN, arrow_schema(self._output)), *((n, arrow_schema(s)) for n, s in self._sides.items())),
            late=late_output,
        )

    def _timed(self, output: StructType) -> StructType:
        """The output, with its event time column marked if it has one: later operators use it."""
        from pyspark.sql.types import StructField, StructType

        if self._event_time is None:
            return output
        mark = self._schema[self._event_time]
        return StructType(
            [
                StructField(f.name, f.dataType, f.nullable, mark.metadata)
                if (f.name, f.dataType) == (mark.name, mark.dataType)
                else f
                for f in output
            ]
        )

    def __getstate__(self) -> dict[str, Any]:
        # Each task makes its own loop.
        return {**self.__dict__, "_loop": None}

    def describe(self) -> dict[str, Any]:
        time_by = f"event time {self._event_time}" if self._event_time else "no event time"
        return {
            "meaning": f"{describe_keys(self.keys, self.state)}: process with {time_by}",
            "slots": [f"{n}: {k.simpleString()}" for n, k in zip(self.state.names, self.state.slots, strict=True)],
        }

    @property
    def side_outputs(self) -> Mapping[str, StructType]:
        return self._sides

    def _attributes_of_output(self, *inputs: RecordAttributes) -> RecordAttributes:
        return self._function._attributes_of_output(*inputs)

    def clocked(self) -> ProcessFold:
        fold = copy.copy(self)
        fold._loop_schema = replace(self._loop_schema, clocked=True)
        return fold

    def with_attributes(self, backlog: int) -> ProcessFold:
        fold = copy.copy(self)
        fold.backlog = backlog
        return fold

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def lift(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        keys = [normalised(k, self._schema).alias(n) for k, n in zip(self.keys, self.state.key_names, strict=True)]
        values: list[Column] = [
            F.col(f"`{n.replace('`', '``')}`").alias(f"r{i}") for i, n in enumerate(self._schema.names)
        ]
        if self._ttls:
            values.append(F.unix_millis(F.current_timestamp()).alias(_ARRIVED))
        hashed = rows.select(hash_of(keys).alias(HASH), *keys, *values)
        return hashed.select(group_of(hashed[HASH], self.key_groups).alias(GROUP), "*")

    def live_schema(self) -> pa.Schema:
        keys = list(self.state.arrow())[: 1 + len(self.keys)]
        arrived = [pa.field(_ARRIVED, pa.int64())] if self._ttls else []
        return pa.schema([*keys, *(f.with_name(f"r{i}") for i, f in enumerate(self._loop_schema.rows)), *arrived])

    def packer(self, lifted: pa.Schema) -> Callable[[Any], Any]:
        return PackRowsUnchanged(lifted, self.live_schema())

    @property
    def interruptible(self) -> bool:  # type: ignore[override]
        """Whether timers may be interrupted: the function decides."""
        return self._function.interruptible_timers

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        event = _first(state.column(_EVENT_TIMERS))
        if self._function._ends:
            event = np.minimum(event, _AT_END)
        processing = _first(state.column(_PROCESSING_TIMERS))
        for value, times, ttl in self._ttls:
            expires = due_of_stamps(state.column(value), state.column(times), ttl)
            processing = np.minimum(processing, expires)
        return event, processing

    def step(self, old: pa.RecordBatch, arrived: Arrived, clock: Clock) -> Step:
        now = self._batch_time(arrived.live, clock)
        old = combine([old, *(self._timed_from(now, batch) for batch, _ in arrived.seeds)], self.state.arrow())
        live = self._ordered(arrived.live)
        loop = self._loop = self._loop or KeyLoop(self._function, self._loop_schema)
        loop.set_batch_time(now)
        loop.function._take_attributes(clock.backlog)
        watermark = clock.watermark if self._control_first else clock.before
        late = 0
        drops = self._event_time is not None and not self._function._takes_late_rows
        if drops and watermark > MIN_WATERMARK and live.num_rows:
            live, late_rows = self._split_late(live, watermark)
            if self._loop_schema.late is None:
                late = late_rows.num_rows
            elif late_rows.num_rows:
                loop.put_late(self._rows(late_rows))
        width = 1 + len(self.keys)
        names = list(range(width))
        ids = combine([old.select(names), live.select(names)], pa.schema(list(self.state.arrow())[:width]))
        order, starts = equal_runs(ids.column(0).to_numpy(), ids.columns[1:])
        ends = np.append(starts[1:], len(order))
        # State has each key once and comes before the input, so it can only be the first in a key's run.
        firsts = order[starts] if len(starts) else starts
        known = firsts < old.num_rows
        has_rows = (ends - starts) > known
        active = has_rows.copy()
        active[known] |= self._chosen_due(old, clock, has_rows[known], firsts[known])
        if not active.any() and not arrived.seeds:
            return Step(None, loop.outputs(), late)
        chosen = np.flatnonzero(active)
        indexes = pa.array(np.where(known[chosen], firsts[chosen], 0), mask=~known[chosen])
        loaded = [old.column(name).take(indexes) for name in self._loop_schema.state.names]
        key_rows = ids.take(pa.array(firsts[chosen]))
        began = time.perf_counter()
        loop.load(key_values(key_rows), [python_values(column) for column in loaded])
        loop.set_clocks(watermark, int(time.time() * 1000))
        fired = loop.fire_event_timers(watermark, np.flatnonzero(has_rows[chosen]).tolist())
        paused = time.perf_counter()
        self._process(loop, live, order, starts, ends, known, chosen, old.num_rows)
        began += time.perf_counter() - paused
        # Timers of later operators, and timers that were registered for a time that has passed.
        fired += self._fire(loop, clock, range(len(chosen)), fired)
        new = self._state_rows(key_rows, loop.state())
        untouched = np.ones(old.num_rows, dtype=bool)
        untouched[firsts[chosen][known[chosen]]] = False
        state = combine([old.filter(pa.array(untouched)), new], self.state.arrow())
        return Step(state, loop.outputs(), late, fired, time.perf_counter() - began)

    def _batch_time(self, live: pa.RecordBatch, clock: Clock) -> int | None:
        """The time by which state expires. It is from Spark's offset log, so a repeated batch has the same time."""
        if not self._ttls:
            return None
        times = [] if clock.told_at is None else [clock.told_at]
        if live.num_rows:
            times.append(pc.max(live.column(_ARRIVED)).as_py())
        return max(times, default=None)

    def _timed_from(self, now: int | None, handed_over: pa.RecordBatch) -> pa.RecordBatch:
        """Give state of a stay in backlog, where time stood still, its time; without a time it waits for a tick."""
        if now is not None:
            for value, times, _ in self._ttls:
                at = handed_over.schema.get_field_index(times)
                found = with_times(handed_over.column(value), handed_over.column(at), now)
                handed_over = handed_over.set_column(at, handed_over.schema.field(at), found)
        return handed_over

    def _chosen_due(self, old: pa.RecordBatch, clock: Clock, has_rows: np.ndarray, indexes: np.ndarray) -> np.ndarray:
        """Which keys to process because of timers. With a budget: the first due keys, as many as the budget may cover.

        Keys with rows use the budget first: as without interruption, all their due timers fire.
        """
        event, processing = self.due(old) if old.num_rows else (np.zeros(0, np.int64), np.zeros(0, np.int64))
        now = MIN_WATERMARK if clock.now is None else clock.now
        is_due: np.ndarray = ((event <= clock.watermark) | (processing <= now))[indexes]
        if clock.budget is None or not is_due.any():
            return is_due
        first = np.minimum(event, processing)[indexes]
        by_time = np.lexsort((first, ~has_rows))
        by_time = by_time[is_due[by_time]]
        # Each of these keys has at least one timer.
        chosen = np.zeros(len(indexes), dtype=bool)
        chosen[by_time[: max(clock.budget, int((has_rows & is_due).sum()))]] = True
        return chosen

    def _fire(self, loop: KeyLoop, clock: Clock, indexes: range, spent: int) -> int:
        """Fire due timers within the budget; returns how many."""
        fired = 0

        def left() -> int | None:
            return None if clock.budget is None else max(0, clock.budget - spent - fired)

        fired += loop.fire_event_timers(clock.watermark, indexes, left())
        if clock.now is not None:
            fired += loop.fire_processing_timers(clock.now, indexes, left())
        if clock.watermark == END_OF_TIME and self._function._ends and left() != 0:
            fired += loop.end(indexes, left())
        return fired

    def _process(
        self, loop: KeyLoop, live: pa.RecordBatch, order: np.ndarray, starts: np.ndarray, ends: np.ndarray,
        known: np.ndarray, chosen: np.ndarray, old_rows: int,
    ) -> None:  # fmt: skip
        if not live.num_rows:
            return
        # In the order of keys, all that is not state is input.
        rows = self._rows(live.take(pa.array(order[order >= old_rows] - old_rows)))
        counts = (ends - starts - known)[chosen]
        with_rows = np.flatnonzero(counts)
        begins = np.concatenate(([0], np.cumsum(counts[with_rows])[:-1]))
        loop.process(rows, begins.tolist(), with_rows.tolist())

    def _ordered(self, live: pa.RecordBatch) -> pa.RecordBatch:
        if self._order is None or not live.num_rows:
            return live
        column = live.column(f"r{self._schema.names.index(self._order)}")
        return live.take(pa.array(ascending(column)))

    def _split_late(self, live: pa.RecordBatch, watermark: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        assert self._loop_schema.event_time is not None
        times = epoch_millis(live.column(1 + len(self.keys) + self._loop_schema.event_time))
        late = pc.fill_null(pc.less_equal(times, watermark), False)
        return live.filter(pc.invert(late)), live.filter(late)

    def _rows(self, live: pa.RecordBatch) -> pa.RecordBatch:
        """The input rows with the user's columns."""
        values = live.columns[1 + len(self.keys) :][: len(self._schema)]
        return pa.RecordBatch.from_arrays(values, schema=self._loop_schema.rows)

    def _state_rows(self, ids: pa.RecordBatch, state: list[pa.Array]) -> pa.RecordBatch:
        """Rows of state, without empty ones."""
        by_name = dict(zip(self._loop_schema.state.names, state, strict=True))
        columns = [*ids.columns, *(by_name[name] for name in self.state.names)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.state.arrow())
        holds = np.zeros(rows.num_rows, dtype=bool)
        for column in state:
            holds |= column.is_valid().to_numpy(zero_copy_only=False)
        return rows.filter(pa.array(holds))

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def version_schema(self) -> StructType:
        from pyspark.sql.types import BinaryType, BooleanType, IntegerType

        return self.state.spark().add(CHANGED, BooleanType()).add(TAG, IntegerType()).add(DATA, BinaryType())

    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        from pyspark.sql import functions as F

        # Each column that goes to the workers costs time. The key group follows from the hash.
        both = self.lift(rows).drop(GROUP, _ARRIVED)
        # Spark sorts a single 64-bit column by its bits. For several columns it compares rows and takes twice as long.
        by = [HASH]
        if base is not None:
            old = base.withColumn(ORIGIN, F.lit(0))
            both = both.withColumn(ORIGIN, F.lit(1)).unionByName(old, allowMissingColumns=True)
            by += [*self.state.key_names, ORIGIN]
        if self._order is not None:
            by += [*(self.state.key_names if base is None else ()), f"r{self._schema.names.index(self._order)}"]
        placed = both.repartition(HASH).sortWithinPartitions(*by)
        out = self.version_schema()
        loop = self.sorted_loop(arrow_schema(placed.schema), arrow_schema(out), has_base=base is not None)
        return map_in_arrow(placed, loop, out)

    def sorted_loop(self, placed: pa.Schema, out: pa.Schema, *, has_base: bool) -> SortedLoop:
        """The worker side of `fold`, for rows with this schema."""
        return SortedLoop(
            self._function, self._loop_schema, placed, out,
            keys=len(self.keys), backlog=self.backlog, has_base=has_base,
        )  # fmt: skip

    def state_of(self, version: DataFrame) -> DataFrame:
        return version.where(f"{TAG} IS NULL").drop(CHANGED, TAG, DATA)

    def chosen_rows(self) -> ChosenRows:
        return ChosenRows((TAG,), pc.is_null)

    def output_of(self, version: DataFrame) -> DataFrame:
        return self._unpacked(version, TAG, DATA, 0)

    def next_processing_timer(self, version: DataFrame) -> int | None:
        from pyspark.sql import functions as F

        row = version.agg(F.min(F.array_min(_PROCESSING_TIMERS))).first()
        return None if row is None else row[0]

    def output_of_stay(self, version: DataFrame) -> DataFrame:
        return self.output_of(version)

    def held_rows(self, version: DataFrame) -> DataFrame:
        return version.where(f"{TAG} IS NOT NULL")

    def side_output_of(self, version: DataFrame, name: str) -> DataFrame:
        return self._unpacked(version, TAG, DATA, 1 + list(self._sides).index(name))

    def unpack(self, packed: DataFrame) -> DataFrame:
        return self._unpacked(packed, "tag", "data", 0)

    def unpack_side_output(self, packed: DataFrame, name: str) -> DataFrame:
        return self._unpacked(packed, "tag", "data", 1 + list(self._sides).index(name))

    def _unpacked(self, rows: DataFrame, tag: str, data: str, number: int) -> DataFrame:
        schema = self._output if number == 0 else list(self._sides.values())[number - 1]
        packed_schema = self._loop_schema.outputs[number][1]
        chosen = rows.where(f"{tag} = {number}").select(data)
        return chosen.mapInArrow(Unpack(packed_schema, arrow_schema(schema)), schema)

    def finish(self, state: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        keys = [F.col(n).alias(k) for n, k in zip(self.state.key_names, self.keys, strict=True)]
        states = [F.col(state_column(n)).alias(n) for n in self._function._declared_states()]
        timers = [F.col(_EVENT_TIMERS).alias("event_time_timers"), F.col(_PROCESSING_TIMERS).alias("processing_timers")]
        return state.select(*keys, *states, *timers)


def _first(timers: pa.Array) -> np.ndarray:
    """The first of each row's sorted timers; `NEVER` if it has none."""
    first = pc.list_element(pc.if_else(pc.equal(pc.list_value_length(timers), 0), None, timers), 0)
    return np.asarray(pc.fill_null(first, NEVER))
