"""Global windows with a count trigger: the last rows of a key at every n-th row.

Source: Flink's ``CountTrigger`` and ``CountEvictor``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.model.changes import refuse_changes
from backlog_spark.operators.by_key import ByKeyFold
from backlog_spark.operators.counted_rows import (
    NUMBER,
    ORDER,
    TIE,
    Integers,
    Numbered,
    check_order,
    merged_spans,
    of_fresh_keys,
    tie_of,
)
from backlog_spark.operators.fold import Clock
from backlog_spark.operators.joins.cogroup import Function, WindowRowsFold
from backlog_spark.operators.rows import RowsFold
from backlog_spark.operators.sides import quoted
from backlog_spark.operators.waiting_fold import StayEnd
from backlog_spark.operators.windows.assigners import FOREVER
from backlog_spark.operators.windows.columns import END, START, check_window_keys, unnamed_windows
from backlog_spark.operators.windows.fold import MakeInner, WindowOptions
from backlog_spark.operators.windows.functions import Groups, LazyRows, ProcessWindowFunction, Rows
from backlog_spark.operators.windows.triggers import CountedRows
from backlog_spark.state.tables import GROUP, HASH, StateSchema, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["CountFold", "CountRowsFold"]

# Rows of several windows in one call of a vectorised function. A row is in size / slide windows, so all windows
# together can have far more rows than a batch.
_ROWS_A_CALL: Final = 200_000


class CountFold(ByKeyFold):
    """Declared aggregates, or reduce, over the last rows at every n-th row of a key.

    State: one accumulator per group of neighbouring rows that are always in the same windows, with the number of the
    last row. Such a group is: all rows of a window if windows follow each other, ``gcd(size, slide)`` rows if windows
    overlap, and all rows so far if windows contain all rows.

    Parameters
    ----------
    keys, schema
        As for `RowsFold`.
    make : callable
        Takes keys, schema and hidden keys, and returns the fold that merges rows.
    key_groups : int
        ``spark.backlog.keyGroups``.
    counted : CountedRows
    order : str, optional
        Column that orders rows which arrive together.
    """

    timed = False

    def __init__(
        self,
        keys: Sequence[str],
        make: MakeInner,
        schema: StructType,
        key_groups: int,
        counted: CountedRows,
        order: str | None = None,
    ) -> None:
        from pyspark.sql.types import LongType

        refuse_changes("window", schema, keys)
        super().__init__("window", schema, keys, None, key_groups)
        check_window_keys(keys)
        check_order(order, schema)
        self.counted = counted
        self._order = order
        self._step = counted.every if counted.last is None else math.gcd(counted.every, counted.last)
        self.inner = make(keys, schema, ())
        own: list[tuple[str, DataType]] = [(NUMBER, LongType()), (TIE, LongType())]
        if order is not None:
            own.append((ORDER, schema[order].dataType))
        self._own = [name for name, _ in own]
        inner = self.inner.state
        slots = [*own, *zip(inner.slot_names, inner.slots, strict=True)]
        self.state = StateSchema(inner.keys, tuple(kind for _, kind in slots), tuple(name for name, _ in slots))
        self._lifted: pa.Schema | None = None

    def describe(self) -> dict[str, Any]:
        said = self.inner.describe()
        order = "" if self._order is None else f" by {self._order}"
        return {"meaning": f"{said['meaning']}: {self.counted.describe()}{order}", "slots": said["slots"]}

    # -- rows -----------------------------------------------------------------------------------------------

    def lift(self, rows: DataFrame) -> DataFrame:
        more = [tie_of(self.schema).alias(TIE)]
        if self._order is not None:
            more.append(quoted(self._order).alias(ORDER))
        return self.inner.lift(rows, *more)

    def placed(self, rows: DataFrame) -> DataFrame:
        return self.lift(rows).drop(GROUP)

    def packer(self, lifted: pa.Schema) -> Callable[[Any], Any]:
        # Only the plan knows the types of lifted values. The workers' copy is made after this.
        self._lifted = lifted.remove(0)
        return super().packer(lifted)

    def live_schema(self) -> pa.Schema:
        return self._lifted or self.state.arrow()

    def widened(self, live: pa.RecordBatch) -> pa.RecordBatch:
        """Lifted rows as rows of state, each with its own accumulators."""
        schema = self.state.arrow()
        if not live.num_rows:
            return combine([], schema)
        width = 1 + len(self.keys)
        lifted = live.columns[width : live.num_columns - len(self._own) + 1]
        slots = self.inner.pack_groups(lifted, np.arange(live.num_rows))
        own = [pa.nulls(live.num_rows, pa.int64()), *(live.column(name) for name in self._own[1:])]
        return pa.RecordBatch.from_arrays([*live.columns[:width], *own, *slots], schema=schema)

    def handed_over(self, version: DataFrame, end: StayEnd | None) -> DataFrame:
        if end is not None:
            return super().handed_over(version, end)
        placed = self.placed(version)
        return map_in_arrow(placed, _Widen(self, arrow_schema(placed.schema)), self.state.spark())

    def is_late(self, live: pa.RecordBatch, watermark: int, kept: pa.RecordBatch) -> np.ndarray:
        return np.zeros(live.num_rows, dtype=bool)

    # -- the work -------------------------------------------------------------------------------------------

    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        if not fresh.num_rows:
            return kept, []
        touched, others = of_fresh_keys(kept, fresh)
        order = None if self._order is None else ORDER
        work = Numbered.of(touched, fresh, self.state.key_names, order)
        every, last, step = self.counted.every, self.counted.last, self._step
        # Pieces: neighbouring rows of a key that are always in the same windows.
        piece = (work.numbers - 1) // step
        key = np.repeat(np.arange(len(work.firsts)), work.sizes)
        differs = (piece[1:] != piece[:-1]) | (key[1:] != key[:-1])
        starts = np.flatnonzero(np.concatenate(([True], differs)))
        lasts = np.append(starts[1:], len(key)) - 1
        slots = self.inner.merge_groups([work.rows.column(n) for n in self.inner.state.slot_names], starts)
        number, of = work.numbers[lasts], key[lasts]
        first, end = np.searchsorted(of, of), np.searchsorted(of, of, side="right")
        done = number[end - 1] // every * every

        high = np.flatnonzero((number % every == 0) & work.is_new[lasts])
        low = first[high] if last is None else np.maximum(first[high], high - last // step + 1)
        if last is None:
            # All rows of a key are left, as one piece.
            stays = np.unique(end - 1)
            spans = merged_spans(
                self.inner.merge_groups, slots, np.concatenate([low, first[stays]]), np.concatenate([high, stays])
            )
            results = [values.slice(0, len(high)) for values in spans]
            left = [values.slice(len(high)) for values in spans]
        else:
            results = merged_spans(self.inner.merge_groups, slots, low, high)
            # The next window ends ``every`` rows later.
            stays = np.flatnonzero((number - 1) // step * step >= done + every - last)
            left = [values.take(pa.array(stays)) for values in slots]
        if every == last:
            number = number - done
        indices = pa.array(starts[stays])
        own = [pa.array(number[stays], pa.int64())]
        own += [pa.nulls(len(stays), self.state.arrow().field(name).type) for name in self._own[1:]]
        names = [HASH, *self.state.key_names]
        columns = [*(work.rows.column(name).take(indices) for name in names), *own, *left]
        state = pa.RecordBatch.from_arrays(columns, schema=self.state.arrow())
        indices = pa.array(starts[high])
        columns = [*(work.rows.column(name).take(indices) for name in names[1:]), *results]
        out = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self.output_schema()))
        return combine([others, state], state.schema), [out]

    # -- what comes out -------------------------------------------------------------------------------------

    def output_schema(self) -> StructType:
        """Keys and accumulators: the output of the workers and the input of `finish_results`."""
        from pyspark.sql.types import StructType

        return StructType(self.inner.state.spark().fields[1:])

    def unpack(self, packed: DataFrame) -> DataFrame:
        return self.finish_results(super().unpack(packed))

    def finish_results(self, results: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        finished = self.inner.finish(results, F.lit(-FOREVER).alias(START), F.lit(FOREVER).alias(END))
        return unnamed_windows(finished, self.keys)

    def finish(self, state: DataFrame) -> DataFrame:
        """The results of the rows that later windows contain. With overlapping windows a key has several rows."""
        return self.inner.finish(state)


class _Widen:
    """For ``mapInArrow``: turns placed rows into rows of state."""

    def __init__(self, fold: CountFold, placed: pa.Schema) -> None:
        self._fold = fold
        self._placed = placed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        for batch in batches:
            yield self._fold.widened(combine([batch], self._placed))


class CountRowsFold(WindowRowsFold):
    """A function over the last rows at every n-th row of a key; parameters as for `WindowRowsFold`.

    State: the rows that a later window contains, with their numbers.
    """

    def __init__(
        self,
        function: Function,
        schema: StructType,
        keys: Sequence[str],
        key_groups: int,
        options: WindowOptions,
        *,
        order: str | None = None,
    ) -> None:
        from pyspark.sql.types import LongType

        assert options.counted is not None
        check_order(order, schema)
        own: list[tuple[str, DataType]] = [(NUMBER, LongType()), (TIE, LongType())]
        super().__init__(function, schema, keys, None, key_groups, options, order=order, own=own)
        self.counted = options.counted
        # Its context has the watermark. Otherwise no time is needed.
        self.timed = isinstance(function, ProcessWindowFunction)

    def describe(self) -> dict[str, Any]:
        order = "" if self._order is None else f" by {self._order}"
        return self.described(f"{self.counted.describe()}{order}")

    def more_placed(self) -> Sequence[Column]:
        return [tie_of(self.schema).alias(TIE)]

    def live_schema(self) -> pa.Schema:
        return super().live_schema().append(self.state.arrow().field(TIE))

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        return RowsFold.due(self, state)

    def _advanced(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock, *, calls_function: bool
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        if not fresh.num_rows:
            return kept, []
        touched, others = of_fresh_keys(kept, fresh)
        order = None if self._order is None else self.value(0, self._order)
        work = Numbered.of(touched, fresh, self.state.key_names, order)
        every, last = self.counted.every, self.counted.last
        ends = work.firsts + work.sizes - 1
        done = np.repeat(work.numbers[ends] // every * every, work.sizes)
        high = np.flatnonzero((work.numbers % every == 0) & work.is_new)
        first = np.repeat(work.firsts, work.sizes)[high]
        low = first if last is None else np.maximum(first, high - last + 1)
        out = self._windows(work.rows, low, high, clock.watermark) if calls_function else []
        stays = np.full(work.rows.num_rows, True) if last is None else work.numbers > done + every - last
        numbers = work.numbers - done if every == last else work.numbers
        columns = dict(zip(work.rows.schema.names, work.rows.columns, strict=True))
        columns[NUMBER], columns[TIE] = pa.array(numbers, pa.int64()), pa.nulls(len(numbers), pa.int64())
        state = pa.RecordBatch.from_arrays(list(columns.values()), schema=work.rows.schema).filter(pa.array(stays))
        return combine([others, state], self.state.arrow()), out

    def _windows(self, rows: pa.RecordBatch, low: Integers, high: Integers, watermark: int) -> list[pa.RecordBatch]:
        """Calls the function for windows, given their first and last rows."""
        if not len(high):
            return []
        keys = rows.select(self.state.key_names).take(pa.array(high))
        keys = pa.RecordBatch.from_arrays(keys.columns, names=list(self.keys))
        given = pa.RecordBatch.from_arrays([rows.column(n) for n in self.values(0)], schema=self._rows_of[0])
        starts, ends = np.full(len(high), -FOREVER), np.full(len(high), FOREVER)
        if not self._function._is_vectorised:
            made = LazyRows(given)
            spans = zip(low.tolist(), (high + 1).tolist(), strict=True)
            return self._call_each(keys, starts, ends, [[Rows(made, *span) for span in spans]], watermark)
        out = []
        counts = high - low + 1
        call = (np.cumsum(counts) - 1) // _ROWS_A_CALL
        for number in np.unique(call):
            chosen = slice(*np.searchsorted(call, (number, number + 1)))
            mine = counts[chosen]
            bounds = np.concatenate(([0], np.cumsum(mine)))
            index = np.repeat(low[chosen] - bounds[:-1], mine) + np.arange(bounds[-1])
            some = keys.slice(chosen.start, len(mine))
            sides = ((given.take(pa.array(index)), bounds),)
            out += self._call(Groups(some, starts[chosen], ends[chosen], sides), watermark)
        return out
