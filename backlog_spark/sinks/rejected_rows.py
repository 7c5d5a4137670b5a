"""Rows that a constraint of the target rejects: they stop the query with their key, or go to a table of their own.

Which rows these are is decided by conditions on single rows, which the target's sink gives. So a batch that is repeated
is divided in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from backlog_spark.common.failure_causes import first_line
from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import RejectedRowError
from backlog_spark.sinks.newest_changes import DELETES, UPSERTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from backlog_spark.sinks.base import Sink

__all__ = [
    "REJECTED_ROWS",
    "accepted_rows",
    "described_row",
    "named",
    "rejected_rows",
    "rejected_schema",
    "with_violations",
]

REJECTED_ROWS: Final = "rejected_rows"
"""The side output that every query has."""
_TARGET: Final = "_rejected_by"
_CONSTRAINT: Final = "_constraint"
_VIOLATES: Final = "__backlog_spark_violates"

# Error classes of Delta and Spark, and a text of Arrow, by which pyiceberg rejects NULL.
_REJECTIONS: Final = re.compile(
    r"DELTA_VIOLATE_CONSTRAINT|DELTA_NOT_NULL_CONSTRAINT_VIOLATED|DELTA_EXCEED_CHAR_VARCHAR_LIMIT|EXCEED_LIMIT_LENGTH|"
    r"NOT_NULL_ASSERT_VIOLATION|RejectedRowError|is declared non-nullable but contains nulls"
)
_LONGEST: Final = 100  # characters of a value in an error

_HINT: Final = (
    "Change the table's constraint, leave such rows out with .filter(…), or send them to a table of their own: "
    ".to(bs.DeltaAppend(path), side_output='rejected_rows') (docs/sinks.md#rejected-rows)."
)


def with_violations(rows: DataFrame, constraints: Mapping[str, Column], change_type: str | None) -> DataFrame | None:
    """The rows, with the constraint that each of them violates, or NULL, in a last column.

    Parameters
    ----------
    rows : DataFrame
    constraints : mapping of str to Column
        By a text for people: whether a row violates it. One on a column that the rows lack is left out.
    change_type : str or None
        The column with a row's change type. Rows that only remove violate nothing.

    Returns
    -------
    DataFrame or None
        None if no constraint is left.
    """
    known = [F.when(violated, F.lit(text)) for text, violated in constraints.items() if _resolves(rows, violated)]
    if not known:
        return None
    violates = F.coalesce(*known)
    if change_type is not None:
        violates = F.when(F.col(quoted(change_type)).isin(*UPSERTS), violates)
    return rows.withColumn(_VIOLATES, violates)


def _resolves(rows: DataFrame, column: Column) -> bool:
    try:
        rows.select(column)
    except Exception as error:
        if "UNRESOLVED" in str(error):
            return False
        raise
    return True


def rejected_schema(schema: StructType) -> StructType:
    """The columns of the side output. ``schema``: the main output's."""
    return StructType([*schema.fields]).add(_TARGET, StringType()).add(_CONSTRAINT, StringType())


def rejected_rows(marked: DataFrame, target: str) -> DataFrame:
    """The rows for the side output, of a batch with its violations."""
    found = marked.where(F.col(_VIOLATES).isNotNull()).withColumn(_TARGET, F.lit(target))
    return found.withColumnRenamed(_VIOLATES, _CONSTRAINT).select(*_but(marked), _TARGET, _CONSTRAINT)


def accepted_rows(marked: DataFrame, change_type: str | None) -> DataFrame:
    """The rows for the target, of a batch with its violations.

    Parameters
    ----------
    change_type : str or None
        The column with a row's change type, if the target may have an older version of a rejected row. That version
        goes, so that the target never shows one that the source no longer has.
    """
    is_violated = F.col(_VIOLATES).isNotNull()
    if change_type is None:
        return marked.where(~is_violated).select(*_but(marked))
    kind = F.when(is_violated, F.lit(DELETES[0])).otherwise(F.col(quoted(change_type)))
    return marked.withColumn(change_type, kind).select(*_but(marked))


def _but(marked: DataFrame) -> list[Column]:
    return [F.col(quoted(name)) for name in marked.columns if name != _VIOLATES]


@contextmanager
def named(sink: Sink, place: str, rows: DataFrame) -> Iterator[None]:
    """Turn an error of a sink about a row that its target rejects into one that names the row and the constraint."""
    try:
        yield
    except RejectedRowError:
        raise
    except Exception as error:
        if not _REJECTIONS.search(str(error)):
            raise
        marked = sink.with_violations(rows)
        first = None if marked is None else marked.where(F.col(_VIOLATES).isNotNull()).first()
        if first is None:
            raise RejectedRowError(f"{place} rejects a row: {first_line(error)}", _HINT) from error
        values = first.asDict()
        raise RejectedRowError(
            f"{place} rejects a row, because it violates {values.pop(_VIOLATES)}. It is the row with "
            f"{described_row(values, getattr(sink, 'keys', ()))}.",
            _HINT,
        ) from error


def described_row(values: dict[str, Any], keys: Sequence[str]) -> str:
    """A row by its keys; without keys by all of its columns."""
    return ", ".join(f"{name} = {values[name]!r:.{_LONGEST}}" for name in keys or values)
