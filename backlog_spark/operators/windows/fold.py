"""Declared aggregates, and reduce, over windows of a key.

The window is part of the key: the same folds merge the rows of a key and window, and the result is emitted when the
window has ended, not at each change. In backlog Spark aggregates by key and window. When the stay ends, windows up to
its watermark are emitted at once, and only the others are handed over.

Source: Flink's ``WindowOperator``; FLIP-327, "Timer Service".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import ASKED, is_change_stream, refuse_change_type
from backlog_spark.model.watermarks import MIN_WATERMARK, event_time_of
from backlog_spark.operators.fold import Arrived, Clock, Step
from backlog_spark.operators.merge import CODE, MergeFold, change_type_of, codes_of
from backlog_spark.operators.sides import quoted
from backlog_spark.operators.waiting_fold import StayEnd, WaitingFold
from backlog_spark.operators.windows.assigners import FOREVER, WindowAssigner
from backlog_spark.operators.windows.columns import (
    END,
    START,
    check_window_keys,
    last_millisecond,
    named_windows,
    unnamed_windows,
)
from backlog_spark.operators.windows.triggers import CountedRows, Trigger
from backlog_spark.state.keys import check_keys
from backlog_spark.state.seeds import LIVE, Unpack, gathered, packed
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import GROUP, HASH, StateSchema, arrow_schema, combine, merged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["WindowFold", "WindowOptions"]

# Whether the window has been emitted. Then it is kept only for its allowed lateness.
_FIRED: Final = "fired"
# Column of live rows: how many of the user's rows they represent. A row of several windows counts in its last window.
_ROWS: Final = "__backlog_rows"
_WINDOW: Final = "__backlog_window"
# Up to this many windows per row each is an expression, which is faster. Hundreds of expressions take Spark minutes.
_MOST_WINDOWS: Final = 16


@dataclass(frozen=True)
class WindowOptions:
    """How long windows are kept, and when they are emitted.

    Parameters
    ----------
    assigner : WindowAssigner
    lateness_ms : int
        How long after its end a window accepts late rows. It is emitted again each time.
    late_output : str or None
        Name of a side output for later rows. Without it they are counted and dropped.
    control_first : bool
        Whether a batch's watermark comes before its rows, as for the first operator of a chain.
    counted : CountedRows or None
        For global windows: which rows are emitted, and when.
    trigger : Trigger or None
        For global windows: the user's own trigger.
    """

    assigner: WindowAssigner
    lateness_ms: int = 0
    late_output: str | None = None
    control_first: bool = True
    counted: CountedRows | None = None
    trigger: Trigger | None = None


MakeInner = Callable[[Sequence[str], "StructType", Sequence[str]], MergeFold]


class WindowFold(WaitingFold):
    """A fold by key and window, for windows whose bounds do not depend on other rows.

    A window without a result, because all its rows have been retracted, is not emitted.

    Parameters
    ----------
    keys : sequence of str
    make : callable
        Takes key columns, the schema of the rows, and those of the keys that are not user columns. Returns the fold
        that merges rows.
    schema : StructType
        Schema of the rows.
    options : WindowOptions
    changes : str, optional
        Value of `changes.MARK` if windows that are emitted again are emitted as changes: the earlier result as
        ``update_preimage`` or ``delete``. With an allowed lateness over a change stream that is always so.
    """

    timed = True
    mergeable = False
    # The output does not depend on when it is emitted.
    interruptible = True

    def __init__(
        self, keys: Sequence[str], make: MakeInner, schema: StructType, options: WindowOptions, changes: str = ""
    ) -> None:
        from pyspark.sql.types import BooleanType, LongType, StructType

        check_keys(keys, schema)
        check_window_keys(keys)
        assigner = options.assigner
        self.keys = tuple(keys)
        self.options = options
        takes_back = is_change_stream(schema, keys)
        self.changes = (changes or (ASKED if takes_back else "")) if options.lateness_ms else ""
        if self.changes:
            refuse_change_type("key_by", "key", keys)
        self._schema = schema
        self._time = event_time_of(schema)
        self._lifted: pa.Schema | None = None
        if assigner.is_event_time and not assigner.is_unbounded and self._time is None:
            raise BacklogError(
                f"{type(assigner).__name__}: the stream has no event time.",
                'Add .with_watermark("<column>", "<delay>") before key_by, or use windows of processing time.',
            )
        spans = StructType(list(schema.fields)).add(START, LongType()).add(END, LongType())
        self.inner = make((*keys, *self._window_keys()), spans, (START, END))
        self.state = self._state(LongType(), BooleanType())
        # With changes the version also has rows that are not windows.
        self.hands_over_version = not self.inner.changes

    def _window_keys(self) -> tuple[str, ...]:
        return (START, END)

    def _state(self, long: Any, boolean: Any) -> StateSchema:
        inner = self.inner.state
        return StateSchema(inner.keys, (boolean, *inner.slots), (_FIRED, *inner.slot_names))

    def describe(self) -> dict[str, Any]:
        said = self.inner.describe()
        time = f" of {self._time}" if self.options.assigner.is_event_time and self._time else ""
        return {**said, "meaning": f"{said['meaning']}: {self.options.assigner.describe()}{time}"}

    @property
    def side_outputs(self) -> Mapping[str, StructType]:
        return {} if self.options.late_output is None else {self.options.late_output: self._schema}

    # -- rows and their windows -----------------------------------------------------------------------------

    def _windowed(self, rows: DataFrame) -> DataFrame:
        """One row per window of each row: its columns, start, end, and whether it is the row's last window."""
        from pyspark.sql import functions as F

        assigner = self.options.assigner
        since_1970 = F.unix_millis if assigner.micros_a_unit == 1_000 else F.unix_micros
        if assigner.is_unbounded:
            time = F.lit(0).cast("long")
        elif assigner.is_event_time:
            assert self._time is not None
            message = f"{type(assigner).__name__}: the event time {self._time} is NULL in a row. Filter such rows out."
            column = quoted(self._time)
            time = since_1970(F.when(column.isNull(), F.raise_error(F.lit(message))).otherwise(column))
        else:
            time = since_1970(F.current_timestamp())
        count = assigner.windows_a_row
        if count == 1:
            start, end, _ = assigner.window_of(time, 0)
            return rows.select("*", start.alias(START), end.alias(END), F.lit(1).cast("long").alias(_ROWS))

        def window(number: Column | int) -> Column:
            start, end, inside = assigner.window_of(time, number)
            # Spark warns of a comparison of two literals.
            of_row = (F.lit(number == 0) if isinstance(number, int) else number == 0).cast("long")
            return F.when(inside, F.struct(start.alias(START), end.alias(END), of_row.alias(_ROWS)))

        if count <= _MOST_WINDOWS:
            made = F.array(*map(window, range(count)))
        else:
            made = F.transform(F.sequence(F.lit(0), F.lit(count - 1)), window)
        # `array_compact` is interpreted row by row, a filter behind the generator is compiled: five times as fast.
        listed = rows.select("*", F.explode(made).alias(_WINDOW)).where(F.col(_WINDOW).isNotNull())
        return listed.select(*map(quoted, self._schema.names), f"{_WINDOW}.*")

    def lift(self, rows: DataFrame) -> DataFrame:
        return self.inner.lift(self._windowed(rows), *self._more())

    def _more(self) -> list[Column]:
        """Columns of lifted rows after those of the inner fold."""
        from pyspark.sql import functions as F

        more = [F.col(_ROWS)]
        if self.options.late_output is not None:
            more += [quoted(name).alias(f"r{i}") for i, name in enumerate(self._schema.names)]
        return more

    def live_schema(self) -> pa.Schema:
        if self.options.late_output is None:
            return pa.schema([*self._merged_schema(), pa.field(_ROWS, pa.int64())])
        return self._lifted or self._merged_schema()

    def _merged_schema(self) -> pa.Schema:
        """Schema of rows that have been merged by key and window."""
        return self.inner.state.arrow()

    def merge(self, batch: pa.RecordBatch, *, lifted: bool) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
        """One row per key and window, from rows of lifted values or of accumulators; like `merged`."""
        # The columns of the original rows may follow.
        width = next((i for i, name in enumerate(batch.schema.names) if name == _ROWS), batch.num_columns)
        return merged(batch.select(list(range(width))), self.inner.state, self.inner, lifted=lifted)

    def packer(self, lifted: pa.Schema) -> Callable[[Any], Any]:
        # Only the plan knows the types of lifted values. The workers' copy is made after this.
        self._lifted = lifted.remove(0)
        return PackWindows(self, lifted)

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def _lasts(self, rows: pa.RecordBatch) -> np.ndarray:
        """The last milliseconds of windows, of merged rows or of rows of state."""
        found: np.ndarray = rows.column(f"k{len(self.inner.keys) - 1}").to_numpy() - 1
        return found

    def _given_up(self, rows: pa.RecordBatch) -> np.ndarray:
        """The watermarks at which windows are dropped."""
        return _plus(self._lasts(rows), self.options.lateness_ms)

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        lasts = self._lasts(state)
        never = np.full(len(lasts), NEVER, dtype=np.int64)
        if not self.options.assigner.is_event_time:
            return never, lasts + 1
        fired = state.column(_FIRED).to_numpy(zero_copy_only=False)
        return np.where(fired, _plus(lasts, self.options.lateness_ms), lasts), never

    def step(self, old: pa.RecordBatch, arrived: Arrived, clock: Clock) -> Step:
        assigner = self.options.assigner
        # Windows that a stay in backlog only collected have not fired. So they are emitted when they end.
        kept = combine([old, *(batch for batch, _ in arrived.seeds)], self.state.arrow())
        before_rows = clock.watermark if self.options.control_first else clock.before
        kept, over_before = self._over_before(kept, arrived.live, before_rows)
        fresh, late, outputs = self._on_time(arrived.live, before_rows, kept)
        if over_before.num_rows:
            outputs = [(0, over_before), *outputs]
        now = MIN_WATERMARK if clock.now is None else clock.now
        event, processing = self.due(kept) if kept.num_rows else (np.zeros(0, np.int64),) * 2
        if not fresh.num_rows and not arrived.seeds and not ((event <= clock.watermark) | (processing <= now)).any():
            state = kept if kept.num_rows < old.num_rows else None
            return Step(state, outputs, late)
        both = combine([kept.drop_columns([_FIRED]), fresh], self._merged_schema())
        rows, order, starts = self.merge(both, lifted=False)
        is_new = np.repeat([False, True], [kept.num_rows, fresh.num_rows])[order]
        was_fired = np.concatenate(
            [kept.column(_FIRED).to_numpy(zero_copy_only=False), np.zeros(fresh.num_rows, dtype=bool)]
        )[order].astype(bool)
        touched = np.logical_or.reduceat(is_new, starts)
        fired = np.logical_or.reduceat(was_fired, starts)
        lasts = self._lasts(rows)
        if assigner.is_event_time:
            over = lasts <= clock.watermark
            gone = self._given_up(rows) <= clock.watermark
        else:
            over = gone = lasts < now
        has = over & (touched | ~fired) & self.inner.results(rows)
        if self.changes:
            out = self._changes(both, was_fired, rows, order, starts, touched, has)
        else:
            out = rows.filter(pa.array(has))
        state = rows.filter(pa.array(~gone))
        columns = dict(zip(state.schema.names, state.columns, strict=True))
        columns[_FIRED] = pa.array(over[~gone])
        schema = self.state.arrow()
        state = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        return Step(state, [(0, out)] * bool(out.num_rows) + outputs, late)

    def _changes(
        self,
        before: pa.RecordBatch,
        was_fired: np.ndarray,
        after: pa.RecordBatch,
        order: np.ndarray,
        starts: np.ndarray,
        touched: np.ndarray,
        has: np.ndarray,
    ) -> pa.RecordBatch:
        """Windows with their codes: emitted ones that have changed, and those that are emitted now.

        ``before``, in its ``order``, becomes ``after``: one window from each index in ``starts``. If sessions have
        merged, the result is a new window.
        """
        of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
        had = np.flatnonzero(was_fired & touched[of] & self.inner.results(before.take(pa.array(order))))
        old, of = before.take(pa.array(order[had])), of[had]
        names = [name for name in self._merged_schema().names if name not in self.inner.state.slot_names]
        same = np.ones(len(of), dtype=bool)
        for name in names:
            same &= pc.equal(old.column(name), after.column(name).take(pa.array(of))).fill_null(True).to_numpy(False)
        goes_on = np.zeros(len(starts), dtype=bool)
        goes_on[of[same]] = True
        codes = codes_of(np.ones(len(of), dtype=bool), same & has[of])[0], codes_of(goes_on, has)[1]
        new = after.filter(pa.array(has))
        pieces = [
            rows.append_column(CODE, pa.array(code, pa.int32()))
            for rows, code in ((old, codes[0]), (new, codes[1][has]))
        ]
        return combine(pieces, self._coded_schema())

    def _coded_schema(self) -> pa.Schema:
        return self._merged_schema().append(pa.field(CODE, pa.int32()))

    def _over_before(
        self, kept: pa.RecordBatch, live: pa.RecordBatch, watermark: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Windows that the watermark before the rows leaves, and the output of those that it ends for good.

        Without this step a row that is late could still be merged into a session that is over.
        """
        nothing = combine([], self._coded_schema() if self.changes else self._merged_schema())
        if not live.num_rows or not kept.num_rows or not self.options.assigner.is_event_time:
            return kept, nothing
        gone = self._given_up(kept) <= watermark
        if not gone.any():
            return kept, nothing
        ended = kept.filter(pa.array(gone))
        waiting = ended.filter(pc.invert(ended.column(_FIRED))).drop_columns([_FIRED])
        out = waiting.filter(pa.array(self.inner.results(waiting)))
        if self.changes:
            codes = codes_of(np.zeros(out.num_rows, dtype=bool), np.ones(out.num_rows, dtype=bool))[1]
            out = out.append_column(CODE, pa.array(codes, pa.int32()))
        return kept.filter(pa.array(~gone)), out

    def _on_time(
        self, live: pa.RecordBatch, watermark: int, kept: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, int, list[tuple[int, pa.RecordBatch]]]:
        """Rows whose windows still accept them, merged by window; the number of late rows; rows for the side output."""
        shipped_raw = self.options.late_output is not None
        late = np.zeros(live.num_rows, dtype=bool)
        if live.num_rows and self.options.assigner.is_event_time and watermark > MIN_WATERMARK:
            late = self._late(live, watermark, kept)
        on_time = live.filter(pa.array(~late)) if late.any() else live
        late_rows = live.filter(pa.array(late))
        if not shipped_raw:
            return on_time.drop_columns([_ROWS]), pc.sum(late_rows.column(_ROWS)).as_py() or 0, []
        outputs = []
        # A row of several windows is late when its last window is over.
        late_rows = late_rows.filter(pc.equal(late_rows.column(_ROWS), 1))
        if late_rows.num_rows:
            columns = [late_rows.column(f"r{i}") for i in range(len(self._schema))]
            outputs = [(1, pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self._schema)))]
        if not on_time.num_rows:
            return combine([], self._merged_schema()), 0, outputs
        return self.merge(on_time, lifted=True)[0], 0, outputs

    def _late(self, live: pa.RecordBatch, watermark: int, kept: pa.RecordBatch) -> np.ndarray:
        """Which live rows belong only to windows that are over for good. ``kept``: the other windows."""
        late: np.ndarray = self._given_up(live) <= watermark
        return late

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def version_schema(self) -> StructType:
        return self.inner.version_schema()

    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        return self.inner.fold(self._windowed(rows).drop(_ROWS), base)

    def reduces_by(self) -> Sequence[Column]:
        return self.inner.reduces_by()

    def state_of(self, version: DataFrame) -> DataFrame:
        return self.inner.state_of(version)

    def _last_millisecond(self) -> Column:
        from pyspark.sql import functions as F

        return last_millisecond(F.col(f"k{len(self.inner.keys) - 1}"), self.options.assigner.micros_a_unit)

    def _is_over(self, end: StayEnd, lateness_ms: int = 0) -> Column:
        """Whether a window of a version has ended at least this long before the watermark."""
        from pyspark.sql import functions as F

        if end.watermark is None or not self.options.assigner.is_event_time:
            return F.lit(False)
        # The subtraction must not overflow. The end of a window may be the end of time.
        return self._last_millisecond() <= F.lit(max(end.watermark - lateness_ms, MIN_WATERMARK))

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        from pyspark.sql import functions as F

        windows = self.state_of(version).where(self._is_over(end))
        return self._emitted(windows, F.lit(codes_of(np.zeros(1, bool), np.ones(1, bool))[1].item()))

    def side_output_of(self, version: DataFrame, name: str) -> DataFrame:
        from pyspark.sql import functions as F

        # In backlog there is no watermark, so no row is late.
        nothing = [F.lit(None).cast(f.dataType).alias(f.name) for f in self._schema]
        return version.where("false").select(*nothing)

    def handed_over(self, version: DataFrame, end: StayEnd | None) -> DataFrame:
        from pyspark.sql import functions as F

        state = self.state_of(version)
        if end is None:
            state = state.withColumn(_FIRED, F.lit(False))
        else:
            state = state.where(~self._is_over(end, self.options.lateness_ms)).withColumn(_FIRED, self._is_over(end))
        return state.select(HASH, *self.state.key_names, *self.state.slot_names)

    # -- what comes out -------------------------------------------------------------------------------------

    def unpack(self, packed: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import IntegerType, StructType

        arrow = self._coded_schema() if self.changes else self._merged_schema()
        fields = [f for f in self.state.spark().fields if f.name != _FIRED]
        schema = StructType(fields[1:])
        if self.changes:
            schema = schema.add(CODE, IntegerType())
        chosen = packed.where("tag = 0").select("data")
        return self._emitted(chosen.mapInArrow(Unpack(arrow, arrow_schema(schema), skip=1), schema), F.col(CODE))

    def unpack_side_output(self, packed: DataFrame, name: str) -> DataFrame:
        arrow = arrow_schema(self._schema)
        return packed.where("tag = 1").select("data").mapInArrow(Unpack(arrow, arrow), self._schema)

    def _emitted(self, windows: DataFrame, code: Column) -> DataFrame:
        return self.finish(windows, *([change_type_of(code, self.changes)] if self.changes else []))

    def finish(self, state: DataFrame, *more: Column) -> DataFrame:
        """Keys, window, results."""
        finished = self.inner.finish(state, *self._span(), *more)
        if self.options.assigner.is_unbounded:
            return unnamed_windows(finished, self.keys)
        return named_windows(finished, self.keys, self._time, self.options.assigner.micros_a_unit)

    def _span(self) -> list[Column]:
        """Start and end in rows of state, if they are not keys of the inner fold."""
        return []


class PackWindows:
    """For ``mapInArrow``: packs lifted rows by key group. Merges them by key and window unless late rows are kept."""

    def __init__(self, fold: WindowFold, lifted: pa.Schema) -> None:
        self._fold = fold
        self._lifted = lifted

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for pending in gathered(batches):
            whole = combine(pending, self._lifted)
            if self._fold.options.late_output is not None:
                yield from packed(whole.column(0), whole.remove_column(0), LIVE)
                continue
            rows, order, starts = self._fold.merge(whole.drop_columns([GROUP, _ROWS]), lifted=True)
            counts = np.add.reduceat(whole.column(_ROWS).to_numpy()[order], starts)
            rows = rows.append_column(_ROWS, pa.array(counts, pa.int64()))
            yield from packed(whole.column(0).take(pa.array(order[starts])), rows, LIVE)


def _plus(times: np.ndarray, more: int) -> np.ndarray:
    """A sum that stops at the end of time."""
    found: np.ndarray = np.minimum(times, FOREVER - more) + more
    return found
