"""Columns that a Delta table has, or cannot have, for the rows of a stream (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.sql.types import StructField, StructType

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError

__all__ = ["ALWAYS", "CHANGE_DATA_FEED", "RESERVED", "check_table", "refuse_reserved"]

ALWAYS: Final = ""
CHANGE_DATA_FEED: Final = "delta.enableChangeDataFeed"
# By the table's property that makes them so. The first two Delta's reader takes for columns that it makes itself, and
# reads other values without a word.
RESERVED: Final = {
    ALWAYS: frozenset({"__delta_internal_is_row_deleted", "_tmp_metadata_row_index"}),
    CHANGE_DATA_FEED: frozenset({"_change_type", "_commit_version", "_commit_timestamp"}),
}


def refuse_reserved(
    path: str, reserved: Mapping[str, Collection[str]], names: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Refuse names that Delta takes for columns of its own.

    Parameters
    ----------
    path : str
        Of the table.
    reserved : mapping of str to collection of str
        Such names in small letters, by the property that has to be true for them, or by `ALWAYS`.
    names : sequence of str
    properties : mapping of str to str
        The table's.
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
    """Refuse a table that lacks one of the stream's columns, or has it with another type."""
    # Delta resolves column names without regard to case.
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
