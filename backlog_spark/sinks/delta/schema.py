"""Checks the columns of a Delta table against the rows of a stream (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
)

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError

__all__ = [
    "ALWAYS",
    "CHANGE_DATA_FEED",
    "RESERVED",
    "TYPE_WIDENING",
    "changed_types",
    "check_table",
    "refuse_reserved",
    "widens",
    "with_columns",
]

ALWAYS: Final = ""
CHANGE_DATA_FEED: Final = "delta.enableChangeDataFeed"
TYPE_WIDENING: Final = "delta.enableTypeWidening"
# By the table property that reserves them. Delta's reader takes the first two columns for columns that it computes
# itself, and returns other values without an error.
RESERVED: Final = {
    ALWAYS: frozenset({"__delta_internal_is_row_deleted", "_tmp_metadata_row_index"}),
    CHANGE_DATA_FEED: frozenset({"_change_type", "_commit_version", "_commit_timestamp"}),
}

_NO_NAME: Final = frozenset(" ,;{}()\n\t=")
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)


def refuse_reserved(
    path: str, reserved: Mapping[str, Collection[str]], names: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Reject column names that Delta reserves for itself, and those that its files cannot have.

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
    plain = properties.get("delta.columnMapping.mode", "none").lower() == "none"
    for name in names:
        if plain and not _NO_NAME.isdisjoint(name):
            raise BacklogError(
                f"The Delta table at {path} cannot have a column {name!r}: Delta takes no space, line end or tab, and "
                "none of ,;{}()= in a name.",
                "Give the column another name, in SQL with AS.",
            )
        for by, taken in reserved.items():
            if name.lower() in taken and (by == ALWAYS or properties.get(by, "").lower() == "true"):
                raise BacklogError(
                    f"The Delta table at {path} cannot have a column {name!r}: Delta uses the name itself"
                    f"{f' where {by} is true' if by else ''}, and no batch could be written.",
                    f"Give it another name, such as .map(…, '{quoted(name)} AS renamed')"
                    f"{f', or set {by} of the table to false' if by else ''}.",
                )


def widens(old: DataType, new: DataType) -> bool:
    """Whether Delta's schema evolution widens a column from one type to another one, without rewriting files.

    Source: Delta's ``TypeWidening.isTypeChangeSupportedForSchemaEvolution``. Values of the old type are exact in the
    new one.
    """
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        more_scale = new.scale - old.scale
        return old != new and more_scale >= 0 and new.precision - old.precision >= more_scale
    if type(old) in _INTEGERS and type(new) in _INTEGERS:
        return _INTEGERS.index(type(old)) < _INTEGERS.index(type(new))
    return (type(old), type(new)) in ((FloatType, DoubleType), (DateType, TimestampNTZType))


def changed_types(table: StructType, stored: Sequence[StructField]) -> tuple[list[StructField], list[StructField]]:
    """The stream's columns for which the table must be widened, and the table's columns that are wider already."""
    there = {field.name.lower(): field for field in table.fields}
    both = [(there[field.name.lower()], field) for field in stored if field.name.lower() in there]
    wider = [StructField(old.name, new.dataType) for old, new in both if widens(old.dataType, new.dataType)]
    return wider, [StructField(new.name, old.dataType) for old, new in both if widens(new.dataType, old.dataType)]


def with_columns(table: StructType, new: Sequence[StructField]) -> StructType:
    """The table's columns after columns were added or got another type."""
    known = {f.name: f for f in table.fields} | {f.name: StructField(f.name, f.dataType) for f in new}
    return StructType([*known.values()])


def check_table(path: str, keys: Collection[str], table: StructType, stored: Sequence[StructField]) -> None:
    """Reject a table that lacks one of the stream's columns, or has it with another type."""
    # Delta ignores case in column names.
    types = {field.name.lower(): field.dataType for field in table.fields}
    for field in stored:
        wanted, found = field.dataType, types.get(field.name.lower())
        if found is not None and found.simpleString() == wanted.simpleString():
            continue
        role = "key column" if field.name in keys else "column"
        if found is None:
            problem, hint = f"no column {field.name!r}", "ALTER TABLE … ADD COLUMNS (merge_schema=True does it)"
        else:
            problem = f"column {field.name!r} of type {found.simpleString()}"
            hint = (
                f"Rewrite the table with the new type: read it, cast the column to {wanted.simpleString()}, and write "
                "it with mode('overwrite') and the option overwriteSchema=true; then start again"
            )
            if widens(found, wanted):
                hint = (
                    f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{TYPE_WIDENING}' = 'true'), and start again: "
                    "merge_schema=True then widens the column"
                )
        raise BacklogError(
            f"The Delta table at {path} has {problem}; the stream's {role} {field.name!r} is {wanted.simpleString()}.",
            f"{hint}. Or cast the column in the stream, or use another path.",
        )
