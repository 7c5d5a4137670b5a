"""Aggregates the rows of a key with a Python function that keeps an accumulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.errors import BacklogError
from backlog_spark.operators.aggregates.reduce import RowsMergeFold
from backlog_spark.operators.aggregates.user_functions import Accumulators, AggregateFunction
from backlog_spark.operators.fold import describe_keys
from backlog_spark.operators.key_loop import as_batch, python_values
from backlog_spark.operators.lifecycle import open_function
from backlog_spark.operators.row_types import row_type
from backlog_spark.operators.user_types import struct_of, type_of
from backlog_spark.state.tables import StateSchema, arrow_schema, combine, merged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["FunctionAggregateFold"]


class FunctionAggregateFold(RowsMergeFold):
    """One accumulator per key, and the function's result for it.

    Parameters
    ----------
    keys : sequence of str
        Columns of the rows.
    function : AggregateFunction
    schema, key_groups, hidden, changes
        As for `RowsMergeFold`.
    """

    def __init__(
        self,
        keys: Sequence[str],
        function: AggregateFunction,
        schema: StructType,
        key_groups: int,
        hidden: Sequence[str] = (),
        changes: str = "",
    ) -> None:
        super().__init__(keys, schema, key_groups, hidden, changes)
        self._what = type(function).__name__
        self._function = function
        self._mine: Accumulators | None = None
        kind = type_of(function.accumulator, f"{self._what}.accumulator")
        self.output = struct_of(function.output, f"{self._what}.output")
        """The function's output columns, after the keys."""
        taken = {key.lower() for key in keys}
        for name in self.output.names:
            if name.lower() in taken:
                raise BacklogError(
                    f"{self._what}.output: the result would have two columns {name!r}.",
                    "Give it another name. The result has the keys already.",
                )
        self.state = StateSchema(tuple(schema[k].dataType for k in keys), (kind,))

    def __getstate__(self) -> dict[str, Any]:
        # Each task has its own instance.
        return {**self.__dict__, "_mine": None}

    def describe(self) -> dict[str, Any]:
        # Functions cannot be compared, and an improved one may replace an older one.
        return {
            "meaning": f"{describe_keys(self.keys, self.state)}: aggregate function{self.described_changes}",
            "slots": [f"accumulator: {self.state.slots[0].simpleString()}"],
        }

    @property
    def _accumulators(self) -> Accumulators:
        if self._mine is None:
            open_function(self._function)
            self._mine = Accumulators(self._function, self.state.arrow().field(self.state.slot_names[0]).type)
        return self._mine

    def new_rows(self, rows: DataFrame) -> DataFrame:
        # Add up before the shuffle: there is less to shuffle.
        hashed = self.hashed(rows, "l")
        return map_in_arrow(hashed, _AddUp(self, arrow_schema(hashed.schema)), self.state.spark())

    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        made, add = self._accumulators, self._accumulators.add
        rows = list(map(row_type(tuple(self.names))._make, zip(*map(python_values, lifted), strict=True)))
        found = []
        for first, end in _spans(starts, len(rows)):
            accumulator = None
            for row in rows[first:end]:
                accumulator = add(row, accumulator)
            found.append(accumulator)
        return [made.array(found)]

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        (slot,) = slots
        ends = np.append(starts[1:], len(slot))
        several = np.flatnonzero(ends - starts > 1)
        if not len(several):
            return [slot.take(pa.array(starts))]
        made, found = self._accumulators, []
        for first, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
            values = map(made.read, slot.slice(first, end - first).to_pylist())
            accumulator = next(values)
            for value in values:
                accumulator = made.merge(accumulator, value)
            found.append(accumulator)
        # The merged accumulators replace the first ones of their groups.
        indices = starts.copy()
        indices[several] = len(slot) + np.arange(len(several))
        return [pa.concat_arrays([slot, made.array(found)]).take(pa.array(indices))]

    def results_of(self, accumulators: pa.Array) -> pa.RecordBatch:
        """Rows of the output. In a worker."""
        made, width = self._accumulators, len(self.output)
        rows = [made.result(made.read(value)) for value in accumulators.to_pylist()]
        if width == 1:
            rows = [row if isinstance(row, tuple | list) else (row,) for row in rows]
        return as_batch(rows, arrow_schema(self.output), self._what)

    def finish(self, state: DataFrame, *more: Column) -> DataFrame:
        from pyspark.sql.types import StructField, StructType

        width = len(self.keys)
        chosen = state.select(*self.state.slot_names, *self.state.key_names, *more)
        fields = list(chosen.schema)[1:]
        keys = [StructField(name, f.dataType, f.nullable) for name, f in zip(self.keys, fields, strict=False)]
        schema = StructType([*keys, *self.output, *fields[width:]])
        return map_in_arrow(chosen, _Results(self, width, arrow_schema(schema)), schema)


class _AddUp:
    """For ``mapInArrow``: hashed rows become accumulators, one per key and batch."""

    def __init__(self, fold: FunctionAggregateFold, hashed: pa.Schema) -> None:
        self._fold = fold
        self._hashed = hashed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        for batch in batches:
            if batch.num_rows:
                yield merged(combine([batch], self._hashed), self._fold.state, self._fold, lifted=True)[0]


class _Results:
    """For ``mapInArrow``: accumulator, keys and further columns become keys, results and further columns."""

    def __init__(self, fold: FunctionAggregateFold, keys: int, schema: pa.Schema) -> None:
        self._fold = fold
        self._keys = keys
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        for batch in batches:
            if not batch.num_rows:
                continue
            results = self._fold.results_of(batch.column(0))
            others = batch.columns[1:]
            columns = [*others[: self._keys], *results.columns, *others[self._keys :]]
            typed = [column.cast(field.type) for column, field in zip(columns, self._schema, strict=True)]
            yield pa.RecordBatch.from_arrays(typed, schema=self._schema)


def _spans(starts: np.ndarray, count: int) -> Iterator[tuple[int, int]]:
    return zip(starts.tolist(), [*starts[1:].tolist(), count], strict=True)
