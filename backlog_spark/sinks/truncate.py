"""Carries out a TRUNCATE or DROP of a source's table in a Delta table.

The change stream has one row for such a statement. All older rows of the table are removed: those in the batch are left
out, and the MERGE deletes those in the target, unless the batch has a newer row of the key.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import TABLE_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Emptied", "Statement", "emptied_tables", "is_of", "rows_of", "since_emptied", "statements_of"]

_TABLE: Final = ("_database", "_table")
Emptied = Mapping[tuple[str, ...], Any]
"""By database and name of a table, or () for all rows: the sequence of the last statement that emptied it."""


class Statement(NamedTuple):
    """A TRUNCATE or DROP in a batch.

    Parameters
    ----------
    table : tuple of str
        As in `Emptied`.
    sequence : Any
    time : Column
        When it ran.
    """

    table: tuple[str, ...]
    sequence: Any
    time: Column


_SKIP: Final = "or set the source's option tableEvents=skip to keep the rows. The query continues."


def emptied_tables(
    rows: DataFrame,
    columns: Sequence[str],
    change_type: str | None,
    sequence: str | None,
    *,
    of_one_table: bool,
    sink: str,
) -> Emptied:
    """The tables that were emptied in a batch. Runs the batch's plan.

    Parameters
    ----------
    columns : sequence of str
        The stored columns.
    change_type, sequence : str or None
        Columns of the batch.
    of_one_table : bool
        Whether all rows are of one table.
    sink : str
        For messages.

    Raises
    ------
    BacklogError
        The columns that tell the rows to remove from other tables' rows, or from later rows, are missing.
    """
    if change_type is None:
        empty = [F.col(quoted(name)).isNull() for name in columns if name not in _TABLE]
        if rows.where(functools.reduce(operator.and_, empty)).limit(1).count():
            raise BacklogError(
                f"{sink}: a table was truncated or dropped, and change_type is None.", f"Set change_type, {_SKIP}"
            )
        return {}
    names: tuple[str, ...] = _TABLE if set(_TABLE) <= set(columns) else ()
    at = F.lit(None) if sequence is None else F.max(quoted(sequence))
    events = rows.where(F.col(quoted(change_type)).isin(*TABLE_EVENTS)).groupBy(*names)
    found = events.agg(F.count("*").alias("n"), at.alias("at")).where("n > 0").collect()
    if any(row[name] is None for row in found for name in names):
        names = ()  # columns of the table itself: the row of a statement does not fill them
    if found and (sequence is None or not (names or of_one_table)):
        needed = "a sequence column" if sequence is None else f"the columns {' and '.join(_TABLE)}"
        raise BacklogError(
            f"{sink}: a table was truncated or dropped, and without {needed} the rows to remove are not known.",
            f"Store {needed}, {_SKIP}",
        )
    emptied: dict[tuple[str, ...], Any] = {}
    for row in found:
        name = tuple(row[each] for each in names)
        emptied[name] = max(row["at"], emptied.get(name, row["at"]))
    return emptied


def since_emptied(rows: DataFrame, emptied: Emptied, change_type: str, sequence: str) -> DataFrame:
    """The changes that came after their table was emptied."""
    rows = rows.where(~F.coalesce(F.col(quoted(change_type)).isin(*TABLE_EVENTS), F.lit(False)))
    for name, at in emptied.items():
        is_later = F.coalesce(F.col(quoted(sequence)) > F.lit(at), F.lit(False))
        rows = rows.where(~is_of("", name) | is_later)
    return rows


def statements_of(
    rows: DataFrame, emptied: Emptied, change_type: str, sequence: str, time: str | None
) -> list[Statement]:
    """All statements of a batch, in their order, for targets that keep rows. Runs the batch's plan.

    Parameters
    ----------
    emptied : Emptied
        Of the same batch.
    time : str or None
        Column of type TIMESTAMP. None: the times are NULL.
    """
    names = _TABLE if any(emptied) else ()
    events = rows.where(F.col(quoted(change_type)).isin(*TABLE_EVENTS))
    micros = F.lit(None) if time is None else F.unix_micros(quoted(time))
    found = events.select(*names, F.col(quoted(sequence)).alias("at"), micros.cast("long").alias("micros")).collect()
    made = [
        Statement(tuple(row[each] for each in names), row["at"], F.timestamp_micros(F.lit(row["micros"]).cast("long")))
        for row in found
    ]
    return sorted(made, key=lambda each: each.sequence)


def rows_of(tables: Iterable[tuple[str, ...]], alias: str) -> Column:
    """Whether a row of the target, under this alias, is of one of the tables, named as in `Emptied`."""
    return functools.reduce(operator.or_, [is_of(f"{alias}.", name) for name in tables])


def is_of(prefix: str, name: tuple[str, ...]) -> Column:
    """Whether a row, whose columns have this prefix, is of the table."""
    columns = [F.col(f"{prefix}{quoted(column)}") for column in _TABLE]
    of = [column.eqNullSafe(F.lit(value)) for column, value in zip(columns, name, strict=False)]
    return functools.reduce(operator.and_, of, F.lit(True))
