"""Finds values that a Delta table changes on their way in, so that a sink would not find their rows again.

Delta and Spark store most values as they are, or refuse them: a type that is not the stream's is refused at the start
(`backlog_spark.sinks.delta.schema.check_table`), and VARCHAR(n) refuses a text of more than n characters. Two things
change a value without an error:

* CHAR(n) pads it with blanks, also inside of arrays, maps and structs;
* a text in a partition column becomes NULL if it is empty or Hive's name for NULL.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["becomes_null", "refuse_padded", "without_lost_keys"]

# Spark keeps the declared type of a column with CHAR or VARCHAR here; the column itself is a string.
_DECLARED: Final = "__CHAR_VARCHAR_TYPE_STRING"
_PADDED: Final = re.compile(r"(?<!var)char(?=\()", re.IGNORECASE)
# Source: Delta's DelayedCommitProtocol, which reads a partition's values back from the name of its directory.
_NULL_IN_PATH: Final = ("", "__HIVE_DEFAULT_PARTITION__")


def refuse_padded(path: str, found_by: Collection[str], table: StructType) -> None:
    """Reject a table that pads a column by whose values a sink finds rows again.

    Parameters
    ----------
    found_by : collection of str
        Names of these columns, in any case.
    table : StructType
        Columns of the table, with their metadata.
    """
    names = {name.lower() for name in found_by}
    for field in table.fields:
        declared = str((field.metadata or {}).get(_DECLARED, ""))
        if field.name.lower() in names and _PADDED.search(declared):
            raise BacklogError(
                f"The Delta table at {path} has the column {field.name!r} of type {declared}; in the stream it is "
                f"{field.dataType.simpleString()}. The table pads its values with blanks, and the sink finds rows by "
                "it: an update would add a second row, and a delete would find none.",
                f"Create the table with {field.name} {_PADDED.sub('varchar', declared)}, and copy its rows with rtrim. "
                "Or use a path without a table: the sink creates one.",
            )


def becomes_null(keys: Collection[str], partition_columns: Collection[str], table: StructType) -> tuple[str, ...]:
    """Those of `keys` in which some texts would become NULL: partition columns of type string."""
    partitions = {name.lower() for name in partition_columns}
    texts = {field.name.lower() for field in table.fields if isinstance(field.dataType, StringType)}
    return tuple(key for key in keys if key.lower() in partitions & texts)


def without_lost_keys(rows: DataFrame, keys: Collection[str], sink: str) -> DataFrame:
    """The same rows. A key that would become NULL fails the query when the rows are evaluated.

    Parameters
    ----------
    keys : collection of str
        Columns that `becomes_null` names.
    sink : str
        The sink's name for messages.
    """
    for key in keys:
        lost = F.raise_error(
            F.concat(
                F.lit(f"{sink}: the key column {key} is a partition column of the table, where Delta stores '"),
                F.col(quoted(key)),
                F.lit("' as NULL. Partition the table by another column, or leave the row out."),
            )
        )
        rows = rows.where(F.when(F.col(quoted(key)).isin(*_NULL_IN_PATH), lost.cast("boolean")).otherwise(F.lit(True)))
    return rows
