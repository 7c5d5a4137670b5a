"""Checks the columns of a Delta table against the rows of a stream (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.sql.types import StructField, StructType

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError

__all__ = ["ALWAYS", "CHANGE_DATA_FEED", "RESERVED", "check_table", "refuse_reserved"]

ALWAYS: Final = ""
CHANGE_DATA_FEED: Final = "delta.enableChangeDataFeed"
# By the table property that reserves them. Delta's reader takes the first two columns for columns that it computes
# itself, and returns other values without an error.
RESERVED: Final = {
    ALWAYS: frozenset({"__delta_internal_is_row_deleted", "_tmp_metadata_row_index"}),
    CHANGE_DATA_FEED: frozenset({"_change_type", "_commit_version", "_commit_timestamp"}),
}


def refuse_reserved(
    path: str, reserved: Mapping[str, Collection[str]], names: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Reject column names that Delta reserves for itself.

    Parameters
    ----------
    path : str
        Path of the table.
    reserved : mapping of str to collection of str
        Reserved names in lower case, by the property that must be true for Delta to reserve them, or by `ALWAYS`.
    names : sequence of str
    properties : mapping of str to str
        Properties of the table.
    """
    for name in names:
        for by, taken in reserved.items():
            if name.lower() in taken and (by == ALWAYS or properties.get(by, "").lower() == "true"):
                raise BacklogError(
                    f"The Delta table at {path} cannot have a column {name!r}: Delta uses the name itself"
                    f"{f' where {by} is true' if by else ''}, and no batch could be written.",
                    f"Give it another name, such as .map(…, '{quoted(name)} AS renamed')"
                    f"{f', or set {by} of the table to false' if by else ''}.",
                )


def check_table(path: str, keys: Collection[str], table: StructType, stored: Sequence[StructField]) -> None:
    """Reject a table that lacks one of the stream's columns, or has it with another type."""
    # Delta ignores case in column names.
    types = {field.name.lower(): field.dataType.simpleString() for field in table.fields}
    for field in stored:
        wanted, found = field.dataType.simpleString(), types.get(field.name.lower())
        if found == wanted:
            continue
        problem = f"no column {field.name!r}" if found is None else f"column {field.name!r} of type {found}"
        role = "key column" if field.name in keys else "column"
        raise BacklogError(
            f"The Delta table at {path} has {problem}; the stream's {role} {field.name!r} is {wanted}.",
            "ALTER TABLE … ADD COLUMNS (merge_schema=True does it), cast the column, or use another path.",
        )
