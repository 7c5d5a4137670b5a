"""Reads a whole table as of one moment, with the query's mark of that moment, in a task of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.database.address import Place
from backlog_spark.sinks.database.columns import StoredColumn
from backlog_spark.sinks.database.connection import Database
from backlog_spark.sinks.database.marks import Marks
from backlog_spark.sinks.database.rows import array_of

__all__ = ["BATCH", "IS_ROW", "TableReader"]

BATCH: Final = "__backlog_spark_batch"
"""The newest batch that the rows contain; NULL if there is none."""
IS_ROW: Final = "__backlog_spark_is_row"
"""False only in the first row, which tells the batch of an empty table too."""
_MOST_ROWS: Final = 10_000
_MOST_BYTES: Final = 8 << 20


class TableReader:
    """Function for ``mapInArrow`` of one partition.

    One task reads in one transaction, as the server's own tools do. MySQL cannot share a snapshot between connections.

    Parameters
    ----------
    database : Database
    place : Place
    marks : Marks
    columns : sequence of StoredColumn
        `StoredColumn.kind` is the type that is read.
    names : sequence of str
        Names of the columns in the result.
    """

    def __init__(
        self, database: Database, place: Place, marks: Marks, columns: Sequence[StoredColumn], names: Sequence[str]
    ) -> None:
        self._database = database
        self._place = place
        self._marks = marks
        self._columns = tuple(columns)
        fields = [StructField(name, column.kind) for name, column in zip(names, columns, strict=True)]
        self.schema = StructType([*fields, StructField(BATCH, LongType()), StructField(IS_ROW, BooleanType())])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from self._read()

    def _read(self) -> Iterator[pa.RecordBatch]:
        dialect, schema = self._database.dialect, to_arrow_schema(self.schema, timezone="UTC")
        names = ", ".join(dialect.read_exactly(column.column) for column in self._columns)
        with self._database.transaction(is_long=True) as session:
            for statement in dialect.begin_snapshot:
                session.run(statement)
            batch = self._marks.read(session.run).batch
            of_all = ((batch, pa.int64()), (True, pa.bool_()))
            yield pa.RecordBatch.from_pylist([{BATCH: batch, IS_ROW: False}], schema)
            select = f"SELECT {names} FROM {dialect.quoted_table(self._place)}"
            for rows in _parts(dialect.stream(session.connection, select)):
                arrays = [self._array(at, values, schema) for at, values in enumerate(zip(*rows, strict=True))]
                arrays += [pa.repeat(pa.scalar(value, kind), len(rows)) for value, kind in of_all]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _array(self, at: int, values: Sequence[Any], schema: pa.Schema) -> pa.Array:
        try:
            return array_of(values, schema.field(at).type)
        except ValueError as error:
            column = self._columns[at]
            raise BacklogError(
                f"The column {column.name} of {self._place} has a value that is no {column.kind.simpleString()}, the "
                f"stream's type: {error}.",
                "This query cannot have written it. Correct the row.",
            ) from None


def _parts(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Lists of rows of bounded size."""
    part: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        part.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(part) >= _MOST_ROWS or size >= _MOST_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
