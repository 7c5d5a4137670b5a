"""Gives new columns of a source's table their value in all rows of a target: `BatchInfo.fills`."""

from __future__ import annotations

import base64
import datetime
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["filled_columns", "is_other", "names_of", "new_columns", "values_of"]


def values_of(text: str) -> pa.Table:
    """The one row of a fill."""
    import pyarrow as pa

    return pa.ipc.open_stream(base64.b64decode(text)).read_all()


def filled_columns(fills: Sequence[tuple[str, str, str]], columns: Sequence[str]) -> dict[str, Column]:
    """Values of the stored columns that are filled, all of one table."""
    found: dict[str, Column] = {}
    for _, _, text in fills:
        row = values_of(text)
        for name in row.column_names:
            if name in columns:
                found[name] = _literal(row.column(name).type, row.column(name)[0].as_py())
    return found


def names_of(fills: Sequence[tuple[str, str, str]], columns: Sequence[str]) -> list[tuple[str, ...]]:
    """The tables whose rows are filled, as `backlog_spark.sinks.truncate.rows_of` takes them.

    Others may have rows in the target, too. They can be told apart if the target has the names of the tables.
    """
    return [(database, table) if {"_database", "_table"} <= set(columns) else () for database, table, _ in fills]


def new_columns(fills: Sequence[tuple[str, str, str]]) -> dict[str, DataType]:
    """The columns that are filled, with their types."""
    from pyspark.sql.pandas.types import from_arrow_type

    return {field.name: from_arrow_type(field.type) for _, _, text in fills for field in values_of(text).schema}


def is_other(filled: Mapping[str, Column], alias: str) -> Column:
    """Whether a row of the target, under this alias, has another value in one of the columns."""
    same = [F.col(f"{alias}.{quoted(name)}").eqNullSafe(value) for name, value in filled.items()]
    return ~functools.reduce(operator.and_, same)


def _literal(kind: pa.DataType, value: Any) -> Column:
    """A value as a literal of Spark's type, whatever the session's time zone is."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_type

    if value is not None and pa.types.is_timestamp(kind) and kind.tz:
        since = value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return F.timestamp_micros(F.lit(since // datetime.timedelta(microseconds=1)))
    if value is not None and pa.types.is_date(kind):
        # F.lit has another calendar, and no years below 1000.
        return F.date_from_unix_date(F.lit((value - datetime.date(1970, 1, 1)).days))
    if value is not None and pa.types.is_timestamp(kind):
        value = value.isoformat(" ")  # F.lit takes a datetime for one of the session's time zone
    return F.lit(bytearray(value) if isinstance(value, bytes) else value).cast(from_arrow_type(kind))
