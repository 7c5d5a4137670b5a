"""The columns with a row's window: within operators, and in the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators.sides import quoted
from backlog_spark.operators.windows.assigners import FOREVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = [
    "END",
    "START",
    "WINDOW_COLUMNS",
    "check_window_keys",
    "check_window_result",
    "check_window_rows",
    "last_millisecond",
    "named_windows",
    "unnamed_windows",
]

START: Final = "__backlog_start"
END: Final = "__backlog_end"
WINDOW_COLUMNS: Final = ("window_start", "window_end", "window_time")
"""The window columns of the output, after the keys."""


def check_window_keys(keys: Sequence[str]) -> None:
    """Refuse keys with the name of one of `WINDOW_COLUMNS`, in any case, as in Spark.

    Raises
    ------
    BacklogError
    """
    taken = [name for name in keys if name.lower() in WINDOW_COLUMNS]
    if taken:
        raise BacklogError(
            f"window: the key {taken[0]!r} has the name of a column of the result.",
            f"Rename it before key_by: .map('*', '{taken[0]} AS …').",
        )


def check_window_result(name: str) -> None:
    """Refuse a result with the name of one of `WINDOW_COLUMNS`.

    Raises
    ------
    BacklogError
    """
    if name.lower() in WINDOW_COLUMNS:
        raise BacklogError(
            f"window: the aggregate {name!r} has the name of a column of the result.",
            "Give it another name: max(x) AS greatest.",
        )


def check_window_rows(schema: StructType) -> None:
    """Refuse rows that have some of `WINDOW_COLUMNS` but do not come from windows. Rows from windows have them all.

    In rows from windows these columns are replaced by those of the new window.

    Raises
    ------
    BacklogError
    """
    taken = [field for field in schema if field.name.lower() in WINDOW_COLUMNS]
    are_windows = {field.name for field in taken} == set(WINDOW_COLUMNS)
    if taken and not (are_windows and all(field.dataType.typeName() == "timestamp" for field in taken)):
        raise BacklogError(
            f"window: the column {taken[0].name!r} has the name of a column of the result.",
            f"Rename it before key_by: .transform(lambda rows: rows.withColumnRenamed({taken[0].name!r}, '…')).",
        )


def last_millisecond(end: Column, micros_a_unit: int) -> Column:
    """The last millisecond of a window: the watermark at which no row of it can come any more."""
    from pyspark.sql import functions as F

    return end - 1 if micros_a_unit == 1_000 else F.unix_millis(F.timestamp_micros(end - 1))


def named_windows(
    finished: DataFrame, keys: Sequence[str], event_time: str | None, micros_a_unit: int = 1_000
) -> DataFrame:
    """Keys, then `WINDOW_COLUMNS` in place of start and end, then the other columns.

    The window's last millisecond is the event time of the output, so windows can follow windows.
    """
    from pyspark.sql import functions as F

    start, end = F.col(START), F.col(END)
    bounded = (end < F.lit(FOREVER)) & (start > F.lit(-FOREVER))
    marks = {} if event_time is None else {EVENT_TIME: "window_time"}
    timestamp = F.timestamp_millis if micros_a_unit == 1_000 else F.timestamp_micros
    last = F.timestamp_millis(last_millisecond(end, micros_a_unit))
    span = [
        F.when(bounded, timestamp(start)).alias("window_start"),
        F.when(bounded, timestamp(end)).alias("window_end"),
        F.when(bounded, last).alias("window_time", metadata=marks),
    ]
    # Rows that come from windows and are reduced in others get the columns of the new window.
    gone = {START, END, *keys, *(name for name in finished.columns if name.lower() in WINDOW_COLUMNS)}
    rest = [name for name in finished.columns if name not in gone]
    return finished.select(*map(quoted, keys), *span, *map(quoted, rest))


def unnamed_windows(finished: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Like `named_windows`, for windows without start and end: the columns keep the rows' values, or are NULL."""
    from pyspark.sql import functions as F

    own = {name.lower(): name for name in finished.columns}
    nothing = F.lit(None).cast("timestamp")
    span = [quoted(own[name]) if name in own else nothing.alias(name) for name in WINDOW_COLUMNS]
    gone = {START, END, *keys, *(own.get(name) for name in WINDOW_COLUMNS)}
    return finished.select(*map(quoted, keys), *span, *(quoted(name) for name in finished.columns if name not in gone))
