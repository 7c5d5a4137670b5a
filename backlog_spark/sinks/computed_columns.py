"""Columns that a sink computes of a batch's rows, and those that it partitions a new table by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from backlog_spark.common.failure_causes import first_line
from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import SettingError
from backlog_spark.spark.plan.batch_frames import empty_frame, is_projection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["partition_columns", "schema_with", "with_computed"]

_PARTS: Final = {
    "years": ("{}_year", "year({})"),
    "months": ("{}_month", "CAST(trunc({}, 'MM') AS DATE)"),
    "days": ("{}_day", "CAST({} AS DATE)"),
}
_CALL: Final = re.compile(r"(\w+)\((.+)\)", re.DOTALL)


def partition_columns(
    partition_by: Sequence[str], computed: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Names of the partition columns, and all computed columns with their expressions.

    Parameters
    ----------
    partition_by : sequence of str
        Columns, or ``years(x)``, ``months(x)`` and ``days(x)`` of a date or timestamp ``x``, in the session's time
        zone. Their columns are named ``x_year`` (INT), ``x_month`` and ``x_day`` (DATE).
    computed : mapping of str to str
        SQL expressions of the batch's columns, by the names of the columns that they give.

    Raises
    ------
    SettingError
    """
    names, found = [], dict(computed)
    for each in partition_by:
        call = _CALL.fullmatch(each.strip())
        if call is None:
            names.append(each)
            continue
        if call[1] not in _PARTS:
            known = ", ".join(f"{name}(column)" for name in _PARTS)
            raise SettingError(
                "partition_by", each, f"there is no {call[1]}(…) for partitions.",
                f"There are {known}. For others compute a column: computed={{'name': 'expression'}}.",
            )  # fmt: skip
        column = call[2].strip().strip("`")
        name, expression = _PARTS[call[1]]
        if name.format(column) in computed:
            raise SettingError(
                "computed", name.format(column), f"is the column that {each} makes.", "Choose another name."
            )
        names.append(name.format(column))
        found[name.format(column)] = expression.format(quoted(column))
    return tuple(names), found


def with_computed(rows: DataFrame, computed: Mapping[str, str]) -> DataFrame:
    """The rows with the computed columns."""
    return rows.withColumns({name: F.expr(text) for name, text in computed.items()}) if computed else rows


def schema_with(spark: SparkSession, schema: StructType, computed: Mapping[str, str]) -> StructType:
    """A batch's columns, followed by the computed ones.

    Raises
    ------
    SettingError
        A name is taken, or an expression does not fit the columns.
    """
    if not computed:
        return schema
    rows = empty_frame(spark, schema)
    for name, text in computed.items():
        if name.lower() in {each.lower() for each in schema.names}:
            raise SettingError("computed", name, "the stream has a column of this name.", "Choose another name.")
        hint = f"The columns are {', '.join(schema.names)}."
        try:
            made = with_computed(rows, {name: text})
        except Exception as error:
            problem = f"is no expression of one row: {first_line(error)}"
            raise SettingError("computed", {name: text}, problem, hint) from None
        if not is_projection(made):
            raise SettingError("computed", {name: text}, "is no expression of one row.", hint)
    return with_computed(rows, computed).schema
