"""Packs the rows of an operator's inputs into few columns for their way from Spark to its workers.

Every column costs time in the shuffle, in the sort and in Arrow. Rows in the form of state hold their keys twice. With
two inputs they hold the columns of both, and half of them are NULL. Narrow rows hold a key once, and two columns of the
same type, one from each input, become one. The worker separates them again.
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
    """The narrow form of placed rows, for `backlog_spark.operators.rows.RowsFold`.

    Parameters
    ----------
    placed : DataFrame
        Rows with all their columns.
    key_names : sequence of str
        The key columns of ``placed``, in the form that the operator compares.
    side_of : str
        The column of ``placed`` with the number of a row's input, from 0.
    sides : sequence of (Side, sequence of str)
        Each input, and the names of its columns in ``placed``. They are NULL in the other input's rows. An operator
        that does not need a column may leave it out of ``placed``.
    """

    def __init__(
        self, placed: DataFrame, key_names: Sequence[str], side_of: str, sides: Sequence[tuple[Side, Sequence[str]]]
    ) -> None:
        from pyspark.sql.types import DoubleType, FloatType

        self._side_of = side_of
        self._placed = arrow_schema(placed.schema)
        self._types = {column.name: column.dataType for column in placed.schema}
        # For each column of an input: the input's number, and the narrow column that holds it.
        self._found: dict[str, tuple[int, str]] = {}
        shared: list[tuple[DataType, dict[int, str]]] = []
        for number, (side, names) in enumerate(sides):
            for column, name in zip(side.schema, names, strict=True):
                kind = column.dataType
                if name not in placed.columns:
                    continue
                # Floating point keys are compared in a normalised form, which does not give the value back.
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
        """The narrow rows' schema in Arrow."""

    def of(self, placed: DataFrame) -> DataFrame:
        """Make rows narrow. Columns that belong to no input keep their names and order."""
        from pyspark.sql import functions as F

        others = [quoted(name) for name in placed.columns if name not in self._found]
        shared = [F.coalesce(*map(quoted, names)).alias(f"n{i}") for i, names in enumerate(self._shared)]
        return placed.select(*others, *shared)

    def placed(self, rows: DataFrame) -> DataFrame:
        """The placed rows again, in Spark, without columns that were dropped meanwhile."""
        from pyspark.sql import functions as F

        columns = []
        for name in self._types:
            number, taken = self._found.get(name, (None, name))
            if taken in rows.columns:
                (value,) = self.columns([name])
                columns.append(value if number is None else F.when(quoted(self._side_of) == number, value).alias(name))
        return rows.select(*columns)

    def columns(self, names: Sequence[str]) -> list[Column]:
        """These columns of the placed rows, in Spark. Valid only in rows of the input that they belong to."""
        found = [(name, self._found.get(name, (None, name))[1]) for name in names]
        return [quoted(taken).cast(self._types[name]).alias(name) for name, taken in found]

    def widened(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The placed rows again, in a worker."""
        rows = combine(batches, self.schema)
        side = rows.column(self._side_of).to_numpy() if self._found else np.empty(0)
        rows_of: dict[int, pa.Array] = {}
        columns = []
        for field in self._placed:
            number, name = self._found.get(field.name, (None, field.name))
            column = rows.column(name)
            if number is not None and (side != number).any():
                if number not in rows_of:
                    rows_of[number] = pa.array(np.arange(len(side)), mask=side != number)
                column = column.take(rows_of[number])
            columns.append(column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._placed)
