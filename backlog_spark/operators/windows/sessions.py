"""Session windows: they end after a pause, and they grow and merge.

A session is a span of time from its first row to a gap after its last row. Rows and sessions whose spans touch form one
session. The order does not matter, so sessions of parts of the rows merge to the sessions of all rows.

Source: Flink's ``MergingWindowSet``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.model.changes import refuse_changes
from backlog_spark.operators.windows.columns import END, START, last_millisecond
from backlog_spark.operators.windows.fold import MakeInner, WindowFold, WindowOptions
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.seeds import gathered
from backlog_spark.state.tables import GROUP, HASH, StateSchema, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["SessionFold", "session_runs"]

_FIRED: Final = "fired"


def session_runs(keys: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Combine spans that touch.

    Parameters
    ----------
    keys : numpy.ndarray of int64
        A number for each key. Equal ones need not be next to each other.
    starts, ends : numpy.ndarray of int64
        Bounds of each span.

    Returns
    -------
    (numpy.ndarray, numpy.ndarray)
        An order of the spans, by key and start, and the index in it at which each session begins.
    """
    if not len(keys):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    order: np.ndarray = np.lexsort((starts, keys))
    key, start = keys[order], starts[order]
    is_key = np.concatenate(([True], key[1:] != key[:-1]))
    # The greatest end so far within a key. Computed over rank plus key number, which never falls.
    ranked, rank = np.unique(ends[order], return_inverse=True)
    number = np.cumsum(is_key) - 1
    reached = ranked[np.maximum.accumulate(number * len(ranked) + rank) - number * len(ranked)]
    begins = is_key.copy()
    begins[1:] |= start[1:] > reached[:-1]
    return order, np.flatnonzero(begins)


class SessionFold(WindowFold):
    """A fold by key and session; see `WindowFold`.

    Raises
    ------
    BacklogError
        For a change stream: a session cannot tell what it would be without a row.
    """

    def __init__(
        self, keys: Sequence[str], make: MakeInner, schema: StructType, options: WindowOptions, changes: str = ""
    ) -> None:
        refuse_changes("a session window", schema, keys)
        super().__init__(keys, make, schema, options, changes)

    def _window_keys(self) -> tuple[str, ...]:
        return ()

    def _state(self, long: Any, boolean: Any) -> StateSchema:
        inner = self.inner.state
        return StateSchema(inner.keys, (boolean, long, long, *inner.slots), (_FIRED, START, END, *inner.slot_names))

    def _more(self) -> list[Column]:
        from pyspark.sql import functions as F

        return [F.col(START), F.col(END), *super()._more()]

    def _merged_schema(self) -> pa.Schema:
        return pa.schema([field for field in self.state.arrow() if field.name != _FIRED])

    def describe(self) -> dict[str, Any]:
        said = super().describe()
        return {**said, "meaning": f"{said['meaning']}, in microseconds"}

    def _lasts(self, rows: pa.RecordBatch) -> np.ndarray:
        found: np.ndarray = (self._ends(rows) - 1) // 1_000
        return found

    @staticmethod
    def _ends(rows: pa.RecordBatch) -> np.ndarray:
        found: np.ndarray = rows.column(END).to_numpy()
        return found

    def _runs(self, rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """An order of rows with a key and a span, and the index in it at which each session begins."""
        by_key, firsts = equal_runs(rows.column(HASH).to_numpy(), [rows.column(n) for n in self.state.key_names])
        number = np.empty(rows.num_rows, dtype=np.int64)
        number[by_key] = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, rows.num_rows)))
        return session_runs(number, rows.column(START).to_numpy(), rows.column(END).to_numpy())

    def merge(self, batch: pa.RecordBatch, *, lifted: bool) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
        order, begins = self._runs(batch)
        width = 1 + len(self.inner.keys)
        at = width if lifted else width + 2
        count = batch.schema.get_field_index(START) - width if lifted else len(self.inner.state.slots)
        rows = pa.array(order)
        values = [column.take(rows) for column in batch.columns[at : at + count]]
        slots = self.inner.pack_groups(values, begins) if lifted else self.inner.merge_groups(values, begins)
        firsts = pa.array(order[begins])
        spans = [batch.column(START).take(firsts), pa.array(np.maximum.reduceat(self._ends(batch)[order], begins))]
        columns = [*(column.take(firsts) for column in batch.columns[:width]), *spans, *slots]
        return pa.RecordBatch.from_arrays(columns, schema=self._merged_schema()), order, begins

    def _late(self, live: pa.RecordBatch, watermark: int, kept: pa.RecordBatch) -> np.ndarray:
        late = super()._late(live, watermark, kept)
        if not late.any():
            return late
        # A row that is late alone is not if later rows or a session that goes on continue it.
        names = [HASH, *self.state.key_names, START, END]
        both = combine(
            [kept.select(names), live.select(names)], pa.schema([self.state.arrow().field(n) for n in names])
        )
        order, begins = self._runs(both)
        over = np.logical_and.reduceat((self._given_up(both) <= watermark)[order], begins)
        late = np.empty(both.num_rows, dtype=bool)
        late[order] = np.repeat(over, np.diff(np.append(begins, both.num_rows)))
        return late[kept.num_rows :]

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def version_schema(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType([f for f in self.state.spark() if f.name != _FIRED])

    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        lifted = self.lift(rows).drop(GROUP)
        schema = self.version_schema()
        # First merge sessions per partition: fewer rows are shuffled.
        parts = map_in_arrow(lifted, _MergeParts(self, arrow_schema(lifted.schema), is_lifted=True), schema)
        both = parts if base is None else base.unionByName(parts)
        placed = both.repartition(HASH).sortWithinPartitions(HASH)
        return map_in_arrow(placed, _MergeParts(self, arrow_schema(schema), is_lifted=False), schema)

    def reduces_by(self) -> Sequence[Column]:
        return ()

    def state_of(self, version: DataFrame) -> DataFrame:
        return version

    def _last_millisecond(self) -> Column:
        from pyspark.sql import functions as F

        return last_millisecond(F.col(END), self.options.assigner.micros_a_unit)

    def _span(self) -> list[Column]:
        from pyspark.sql import functions as F

        return [F.col(START), F.col(END)]


class _MergeParts:
    """For ``mapInArrow``: turns lifted rows (in any order), or sessions sorted by hash, into sessions.

    Sessions of the last hash are held back until another hash comes. So each session is emitted once.
    """

    def __init__(self, fold: SessionFold, schema: pa.Schema, *, is_lifted: bool) -> None:
        self._fold = fold
        self._schema = schema
        self._is_lifted = is_lifted

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        for pending in gathered(batches):
            whole = self._merged([*held, *pending])
            if self._is_lifted:
                yield whole
                continue
            hashes = whole.column(0).to_numpy()
            first = int(np.searchsorted(hashes, hashes[-1]))
            held = [whole.slice(first)]
            if first:
                yield whole.slice(0, first)
        yield from held

    def _merged(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        sessions, _, _ = self._fold.merge(combine(batches, self._schema), lifted=self._is_lifted)
        # By hash, because equal keys were numbered in another order.
        return sessions.take(pa.array(np.argsort(sessions.column(0).to_numpy(), kind="stable")))
