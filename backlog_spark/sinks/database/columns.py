"""Columns of a database's table, and values of a batch that one of them would not store as they are (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import RejectedRowError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["Index", "Limit", "StoredColumn", "TableColumn", "check_values", "without_deleted"]


@dataclass(frozen=True)
class TableColumn:
    """A column as the server declares it.

    Parameters
    ----------
    name : str
    type : str
        With its length: ``varchar(20)``.
    base : str
        Without it: ``varchar``.
    size : int or None
        Length in characters or bytes, or digits after the second.
    scale : int or None
        Digits after the point; None if there is no limit.
    needs_value : bool
        Whether a new row must have a value in it.
    is_not_null : bool
        Whether it takes no NULL.
    is_generated : bool
        Whether the server alone writes it.
    collation : str
        Of a text; "" else.
    compares_bytes : bool
        Whether only equal values are equal there.
    pads : bool
        Whether blanks at the end of a value do not count when values are compared.
    definition : str
        The type for a column of another table with the same values.
    """

    name: str
    type: str
    base: str
    size: int | None = None
    scale: int | None = None
    needs_value: bool = False
    is_not_null: bool = False
    is_generated: bool = False
    collation: str = ""
    compares_bytes: bool = True
    pads: bool = False
    definition: str = ""


class Index(NamedTuple):
    """A unique index. ``columns``: empty if it is not of whole columns, or not of all rows."""

    name: str
    columns: tuple[str, ...]


class Limit(NamedTuple):
    """Values that a column changes silently: the sink refuses them.

    Parameters
    ----------
    kind : str
        ``longest``: texts of more than ``size`` characters, as blanks at their end are cut. ``length``: bytes of
        another length, which are filled up. ``fraction``: times with more digits after the second. ``blank``: texts
        that end with a blank.
    size : int
    """

    kind: Literal["longest", "length", "fraction", "blank"]
    size: int = 0

    def exceeded(self, values: pa.Array) -> pa.Array:
        """For each value whether the column would change it; NULL for NULL."""
        if self.kind == "longest":
            return pc.greater(pc.utf8_length(values), self.size)
        if self.kind == "length":
            return pc.not_equal(pc.binary_length(values), self.size)
        if self.kind == "blank":
            return pc.ends_with(values, " ")
        micros = values.cast(pa.int64())
        unit = 10 ** (6 - self.size)
        return pc.not_equal(pc.multiply(pc.divide(micros, unit), unit), micros)

    def __str__(self) -> str:
        return {
            "longest": f"is longer than {self.size} characters",
            "length": f"does not have {self.size} bytes",
            "fraction": f"has more than {self.size} digits after the second",
            "blank": "ends with a blank, which the column does not keep apart",
        }[self.kind]


@dataclass(frozen=True)
class StoredColumn:
    """A column of the stream that is stored in a column of the table.

    Parameters
    ----------
    name : str
        In the table.
    kind : DataType
        Spark's type.
    column : TableColumn
    is_key : bool
    limits : tuple of Limit
    """

    name: str
    kind: DataType
    column: TableColumn
    is_key: bool
    limits: tuple[Limit, ...] = ()


def check_values(rows: pa.Table | pa.RecordBatch, columns: Sequence[StoredColumn], sink: str) -> None:
    """Refuse rows with a value that the table cannot store as it is, or with a NULL in a key.

    Parameters
    ----------
    rows : Table or RecordBatch
        The stored columns in order.

    Raises
    ------
    RejectedRowError
        Names the column and the row's key.
    """
    for at, column in enumerate(columns):
        values = rows.column(at)
        if column.is_key and values.null_count:
            raise RejectedRowError(
                f"{sink}: a row has NULL in its key {column.name}, and a primary key has none.",
                "Filter such rows out of the stream, or name other keys.",
            )
        for limit in column.limits:
            exceeded = limit.exceeded(values)
            if pc.any(exceeded).as_py():
                row = pc.index(exceeded, pa.scalar(True)).as_py()
                keys = ", ".join(
                    f"{key.name} = {rows.column(number)[row].as_py()!r:.100}"
                    for number, key in enumerate(columns)
                    if key.is_key
                )
                raise RejectedRowError(
                    f"{sink}: the value of {column.name} in the row with {keys} {limit}. "
                    f"The column is {column.column.type}, and the server would change the value silently.",
                    "Change the column's type, or the values in the stream.",
                )


def without_deleted(rows: pa.RecordBatch, is_delete: pa.Array, columns: Sequence[StoredColumn]) -> pa.RecordBatch:
    """The stored columns. Rows that are deletes keep their keys alone."""
    if not pc.any(is_delete).as_py():
        return rows
    arrays = [
        array if column.is_key else pc.if_else(is_delete, pa.scalar(None, array.type), array)
        for array, column in zip(rows.columns, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, rows.schema.names)
