"""Rows of an operator's inputs in few columns, on their way from Spark to its workers.

A column is paid for in the shuffle, in the sort and in Arrow. Rows as the state has them hold their keys twice, and of
two inputs they hold the columns of both, one half of them NULL. On the way a key goes once, and columns of one type
share a place, one of each input. The worker takes them apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from backlog_spark.operators.sides import Side, quoted
from backlog_spark.state.tables import arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["Narrow"]


class Narrow:
    """The columns of placed rows on their way, for `backlog_spark.operators.rows.RowsFold`.

    Parameters
    ----------
    placed : DataFrame
        Rows with all of their columns.
    key_names : sequence of str
        The key columns of ``placed``, as the operator compares them.
    side_of : str
        The column of ``placed`` that tells which input a row is of, from 0.
    sides : sequence of (Side, sequence of str)
        Each input, and what its columns are called in ``placed``, where they are NULL in the other one's rows. An
        operator that needs something else of its rows may leave them out.
    """

    def __init__(
        self, placed: DataFrame, key_names: Sequence[str], side_of: str, sides: Sequence[tuple[Side, Sequence[str]]]
    ) -> None:
        from pyspark.sql.types import DoubleType, FloatType

        self._side_of = side_of
        self._placed = arrow_schema(placed.schema)
        self._types = {column.name: column.dataType for column in placed.schema}
        # Of each column of an input: the input, and the column that it travels in.
        self._found: dict[str, tuple[int, str]] = {}
        shared: list[tuple[DataType, dict[int, str]]] = []
        for number, (side, names) in enumerate(sides):
            for column, name in zip(side.schema, names, strict=True):
                kind = column.dataType
                if name not in placed.columns:
                    continue
                # Floating point keys are compared in one form of several.
                if column.name in side.keys and not isinstance(kind, FloatType | DoubleType):
                    self._found[name] = number, key_names[side.keys.index(column.name)]
                    continue
                free = [taken for its, taken in shared if its == kind and number not in taken]
                taken = free[0] if free else {}
                if not free:
                    shared.append((kind, taken))
                taken[number] = name
        self._shared = [list(taken.values()) for _, taken in shared]
        for i, (_, taken) in enumerate(shared):
            self._found.update({name: (number, f"n{i}") for number, name in taken.items()})
        self.schema = arrow_schema(self.of(placed).schema)
        """Of the rows on their way, in Arrow."""

    def of(self, placed: DataFrame) -> DataFrame:
        """The rows on their way; columns that are no input's keep name and place."""
        from pyspark.sql import functions as F

        others = [quoted(name) for name in placed.columns if name not in self._found]
        shared = [F.coalesce(*map(quoted, names)).alias(f"n{i}") for i, names in enumerate(self._shared)]
        return placed.select(*others, *shared)

    def placed(self, rows: DataFrame) -> DataFrame:
        """The rows as they were placed, in Spark; without columns that are not there any more."""
        from pyspark.sql import functions as F

        columns = []
        for name in self._types:
            number, taken = self._found.get(name, (None, name))
            if taken in rows.columns:
                (value,) = self.columns([name])
                columns.append(value if number is None else F.when(quoted(self._side_of) == number, value).alias(name))
        return rows.select(*columns)

    def columns(self, names: Sequence[str]) -> list[Column]:
        """These columns of the rows as they were placed, in Spark, in rows of the input that they are of."""
        found = [(name, self._found.get(name, (None, name))[1]) for name in names]
        return [quoted(taken).cast(self._types[name]).alias(name) for name, taken in found]

    def widened(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The rows as they were placed, in a worker."""
        rows = combine(batches, self.schema)
        side = rows.column(self._side_of).to_numpy() if self._found else np.empty(0)
        places: dict[int, pa.Array] = {}
        columns = []
        for field in self._placed:
            number, name = self._found.get(field.name, (None, field.name))
            column = rows.column(name)
            if number is not None and (side != number).any():
                if number not in places:
                    places[number] = pa.array(np.arange(len(side)), mask=side != number)
                column = column.take(places[number])
            columns.append(column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._placed)
