"""The rows of an OVER aggregation in a worker: sorts them, and makes the rows of state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlog_spark.operators import frames
from backlog_spark.operators.aggregates import groups
from backlog_spark.operators.rows import TIME
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.tables import HASH, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from backlog_spark.state.tables import StateSchema

__all__ = ["NUMBER", "UNTIL", "SortedRows"]

NUMBER: Final = "n"
"""Column of state. NULL: not emitted yet. Otherwise the row's number within its key if that is needed, else 0."""
UNTIL: Final = "until"
"""Column of state: the watermark from which an emitted row is in no frame any more; NULL: never."""

Integers = npt.NDArray[np.int64]


class OverColumns(Protocol):
    """The columns and frames of an operator over rows."""

    state: StateSchema
    counts_rows: bool

    def value(self, side: int, column: str) -> str: ...
    def values(self, side: int) -> Sequence[str]: ...
    def event_time_needed(self, side: int) -> str: ...
    def tie_columns(self, rows: pa.RecordBatch) -> list[pa.Array]: ...
    def spans(self, work: SortedRows) -> tuple[Integers, Integers]: ...
    def kept_after(self, work: SortedRows, watermark: int) -> tuple[npt.NDArray[np.bool_], pa.Array]: ...
    def output_schema(self) -> StructType: ...


class SortedRows:
    """Rows of some keys in order: first the emitted ones, then those that are emitted now.

    Attributes; all but ``new`` have one number per row
    ----------
    begins, ends : begin and end of the key's rows
    carries : the same begin, if the emitted rows are a single row, the last, with its accumulators
    peers : index after the last row of the same key and time
    new : indices of the rows that are emitted now
    numbers : number of the row within its key

    ``unbounded`` is false: a frame without a beginning has accumulators.
    """

    unbounded = False

    def __init__(self, fold: OverColumns, rows: pa.RecordBatch) -> None:
        self._fold = fold
        keys = [rows.column(name) for name in fold.state.key_names]
        by_age, firsts = equal_runs(rows.column(HASH).to_numpy(), keys)
        number = np.empty(rows.num_rows, dtype=np.int64)
        number[by_age] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=rows.num_rows))
        micros = groups.values(rows.column(fold.value(0, fold.event_time_needed(0))).view(pa.int64()))
        order = frames.total_order(number, micros, fold.tie_columns(rows))
        self.rows = rows.take(pa.array(order))
        self.size = rows.num_rows
        self.micros = micros[order]
        self.times: Integers = groups.values(self.rows.column(TIME))
        # The order uses the same numbers, so the keys begin at the same indices.
        sizes = np.diff(firsts, append=self.size)
        self.begins = np.repeat(firsts, sizes)
        self.ends = np.repeat(firsts + sizes, sizes)
        self.seen = groups.is_valid(self.rows.column(NUMBER))
        self.new: Integers = np.flatnonzero(~self.seen)
        before = np.add.reduceat(self.seen.astype(np.int64), firsts)
        self.starts = firsts + np.maximum(before - 1, 0)
        self.stops = firsts + sizes
        self.carries = np.repeat(self.starts, sizes)
        changes = np.flatnonzero(
            np.concatenate((self.micros[1:] != self.micros[:-1], [True]))
            | (np.arange(1, self.size + 1) == self.ends)
        )  # fmt: skip
        self.peers = changes[np.searchsorted(changes, np.arange(self.size))] + 1
        known = groups.values(self.rows.column(NUMBER))
        base = np.where(before > 0, known[self.starts], 0) - np.where(before > 0, before, 0) + 1
        counted = np.repeat(base, sizes) + np.arange(self.size) - self.begins
        self.numbers = counted if fold.counts_rows else np.zeros(self.size, dtype=np.int64)
        self.low, self.high = fold.spans(self)

    def argument(self, column: str) -> pa.Array:
        """A column of the input."""
        return self.rows.column(self._fold.value(0, column))

    def accumulator(self, name: str) -> pa.Array:
        """One of the operator's own columns."""
        return self.rows.column(name)

    def remembered(self, results: Sequence[tuple[pa.Array, dict[str, pa.Array]]], watermark: int) -> pa.RecordBatch:
        """The rows that are still needed, as rows of state."""
        wanted, until = self._fold.kept_after(self, watermark)
        own = {NUMBER: pa.array(self.numbers), UNTIL: until}
        index = np.zeros(self.size, dtype=np.int64)
        index[self.new] = np.arange(len(self.new))
        rows = pa.array(index)
        for _, accumulators in results:
            for name, values in accumulators.items():
                # Only the value at a key's last row counts. That may be an old row if keys have the same hash.
                own[name] = frames.chosen(self.seen, self.rows.column(name), values.take(rows))
        columns = [own.get(field.name, self.rows.column(field.name)) for field in self._fold.state.arrow()]
        whole = pa.RecordBatch.from_arrays(columns, schema=self._fold.state.arrow())
        return whole.filter(pa.array(wanted))

    def output(self, results: Sequence[pa.Array]) -> pa.RecordBatch:
        """The rows that are emitted now."""
        schema = arrow_schema(self._fold.output_schema())
        at = pa.array(self.new)
        columns = [self.rows.column(name).take(at) for name in self._fold.values(0)]
        return pa.RecordBatch.from_arrays([*columns, *results], schema=schema)
