"""Change streams: rows that are changes of a table, with the names of Delta's change data feed.

A row of type ``insert`` or ``update_postimage`` is added, a row of type ``delete`` or ``update_preimage`` is removed.
A row of type ``truncate`` or ``drop`` removes all rows of a table. It is no image of them: sinks carry it out, keyed
operators refuse it.

Keyed operators whose results change emit such rows. The next operators retract rows accordingly.

Source: Delta's "Change data feed"; Flink's ``RowKind``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = [
    "ASKED",
    "CHANGE_TYPE",
    "DELETE",
    "EXACT_JSON",
    "IMPLIED",
    "INSERT",
    "MARK",
    "METADATA",
    "POSTIMAGE",
    "PREIMAGE",
    "TABLE_EVENTS",
    "TYPES",
    "identity_of",
    "is_change_stream",
    "lost_change_type",
    "refuse_change_type",
    "refuse_changes",
    "sign",
]

CHANGE_TYPE: Final = "_change_type"
METADATA: Final = (CHANGE_TYPE, "_commit_timestamp", "_commit_seq")
"""Columns about the change, not the row: they differ between a row's insert and its before-image."""

INSERT: Final = "insert"
PREIMAGE: Final = "update_preimage"
POSTIMAGE: Final = "update_postimage"
DELETE: Final = "delete"
TYPES: Final = (INSERT, PREIMAGE, POSTIMAGE, DELETE)
TABLE_EVENTS: Final = ("truncate", "drop")
"""All rows of the table, named by the row's ``_database`` and ``_table``, are gone; other columns are NULL."""

MARK: Final = "backlog_spark.model.changes"
"""Key in the metadata of a `CHANGE_TYPE` column that a keyed operator of ours has made."""
IMPLIED: Final = "implied"
"""Value of `MARK`: a later operator needs it. The user may not know about it."""
ASKED: Final = "asked"
"""Value of `MARK`: the user asked for it."""


EXACT_JSON: Final = {
    "timeZone": "UTC",
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of ``to_json`` that give different texts for different values, in every session time zone."""


def is_change_stream(schema: StructType, keys: Collection[str] = ()) -> bool:
    """Whether rows are changes. Grouping by the change type makes it data."""
    return (
        CHANGE_TYPE in schema.names and CHANGE_TYPE not in keys and schema[CHANGE_TYPE].dataType.typeName() == "string"
    )


def refuse_changes(what: str, schema: StructType, keys: Collection[str] = ()) -> None:
    """Refuse a change stream for an operator that cannot retract rows.

    Raises
    ------
    BacklogError
    """
    if not is_change_stream(schema, keys):
        return
    if MARK in schema[CHANGE_TYPE].metadata:
        raise BacklogError(
            f"{what}: the results of the operator before it change, and {what} cannot retract rows.",
            "Use an aggregate or a join as the next operator, or windows, whose results do not change.",
        )
    raise BacklogError(
        f"{what}: the stream's rows have a column {CHANGE_TYPE!r}, and {what} cannot retract rows.",
        f"Keep only inserts: .filter(\"{CHANGE_TYPE} = 'insert'\").transform(lambda f: f.drop({CHANGE_TYPE!r})).",
    )


def sign(column: Column) -> Column:
    """1 for added rows and -1 for retracted rows; another change type fails the query."""
    from pyspark.sql import functions as F

    message = F.concat(
        F.lit(f"{CHANGE_TYPE} is "), F.coalesce(column, F.lit("NULL")), F.lit(f"; known: {', '.join(TYPES)}.")
    )
    event = F.concat(
        F.lit("A table of the stream was emptied by a "), column,
        F.lit(": a keyed operator cannot tell which rows to retract. Set the source's option tableEvents=skip to keep "
              "the results as they are, and start the query again on the same checkpoint."),
    )  # fmt: skip
    return (
        F.when(column.isin(INSERT, POSTIMAGE), F.lit(1))
        .when(column.isin(DELETE, PREIMAGE), F.lit(-1))
        .when(column.isin(*TABLE_EVENTS), F.raise_error(event).cast("int"))
        .otherwise(F.raise_error(message).cast("int"))
    )


def identity_of(fields: Collection[tuple[StructField, Column]]) -> Column:
    """A 64-bit hash that equal rows share. It finds the row to retract.

    Different rows of the same key have different hashes, except one case in 2^64.

    Raises
    ------
    BacklogError
        For a column whose values have no hash.
    """
    from pyspark.sql import functions as F

    parts = []
    for field, column in fields:
        # Spark's hash skips NULLs: (1, NULL) and (NULL, 1) would be the same row.
        parts += [column.isNull(), _hashable(field.name, field.dataType, column)]
    return F.xxhash64(*parts) if parts else F.lit(0).cast("long")


def _hashable(name: str, kind: DataType, column: Column) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType, VariantType

    if isinstance(kind, ArrayType | StructType) and not _has(kind, MapType | VariantType):
        # The hash skips nested NULLs too; the text does not.
        return F.to_json(column, EXACT_JSON)
    if isinstance(kind, StringType):
        # Values that are equal under the collation have the same hash.
        return column.cast("binary")
    if _has(kind, MapType | VariantType):
        raise BacklogError(
            f"Column {name!r} is {kind.simpleString()}. Such values have no hash, so the rows cannot be retracted.",
            "Drop it before key_by, or make it a string with to_json.",
        )
    return column


def _has(kind: DataType, wanted: object) -> bool:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        return _has(kind.elementType, wanted)
    if isinstance(kind, StructType):
        return any(_has(field.dataType, wanted) for field in kind)
    return isinstance(kind, wanted)  # type: ignore[arg-type]


def lost_change_type(before: StructType, after: StructType) -> str | None:
    """The value of `MARK` if one of our operators made the column and it is gone now; else None."""
    if CHANGE_TYPE not in before.names or CHANGE_TYPE in after.names:
        return None
    found: str | None = before[CHANGE_TYPE].metadata.get(MARK)
    return found


def refuse_change_type(what: str, kind: str, names: Collection[str]) -> None:
    """Refuse columns named like `CHANGE_TYPE`, in any case: the results have a column of this name.

    Raises
    ------
    BacklogError
    """
    for name in names:
        if name.lower() == CHANGE_TYPE:
            raise BacklogError(
                f"{what}: the {kind} {name!r} has the name of the column with the change type of the results.",
                f"Rename it before key_by: .transform(lambda rows: rows.withColumnRenamed({name!r}, 'kind')).",
            )
