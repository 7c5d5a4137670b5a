"""What delta-rs may write to a Delta table in place of Spark, and how much of it (pure).

delta-rs commits a small batch in a few tenths of a second, where Spark takes seconds. A large one should not go through
the driver. Only what delta-rs is known to write as Spark does is left to it: the lists below are of what is allowed,
never of what is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

__all__ = [
    "CommitConflict",
    "RowBudget",
    "has_exact_statistics",
    "in_range_of_int96",
    "is_comparable",
    "refusal_of_creation",
    "refusal_of_store",
    "refusal_of_table",
]

# It takes a path for a URL, in places twice.
_OTHER_PLACE: Final = re.compile(r"[#?%\[\]\\^|\x00-\x1f\x7f]|\s$")
# By whichever name delta-rs takes them; first in other stores, then in the local filesystem.
_UNSAFE_RENAME: Final = (
    ("aws_s3_allow_unsafe_rename", "allow_unsafe_rename"),
    ("mount_allow_unsafe_rename", "allow_unsafe_rename"),
)
_CONDITIONAL_PUT: Final = ("aws_conditional_put", "conditional_put")
_FALSE: Final = ("", "0", "false", "no", "n", "off")
# 64 bits of nanoseconds.
_FIRST_YEAR, _LAST_YEAR = 1677, 2262
# What an empty table may be declared to have, and delta-rs then does as Spark does.
_WRITER_FEATURES: Final = frozenset({"appendOnly", "deletionVectors", "invariants", "timestampNtz"})
# Writer version 2 is appendOnly and invariants; what later versions add cannot be told apart without features.
_WRITER_VERSIONS: Final = (2, 7)
_TRUE_MEANS_SPARK: Final = ("delta.enableChangeDataFeed", "delta.appendOnly")
# delta-rs writes other types' values into a path without their zone, or not at all.
_PARTITION_TYPES: Final = ("boolean", "byte", "short", "integer", "long", "date", "string")
# It takes longer decimals for floating-point numbers there.
_EXACT_DIGITS: Final = 15
_CONSTRAINT: Final = "delta.constraints."
_FIELD_METADATA: Final = ("delta.", "__CHAR_VARCHAR_TYPE_STRING")
_COMPARABLE: Final = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, IntegerType, LongType, ShortType, TimestampNTZType,
    TimestampType,
)  # fmt: skip
# Of columns; Spark refuses some others, as Parquet does.
_NAME: Final = re.compile(r"[\w.$@#:/+-]+")
# Bytes of a value whose type says nothing of its size, before a batch has been seen.
_UNKNOWN_SIZE: Final = 256
# A batch may be so many times wider than those before it.
_SLACK: Final = 4


class CommitConflict(Exception):
    """Another writer made the version of the table that was to be made; nothing was written."""


def refusal_of_table(
    writer_version: int,
    writer_features: Iterable[str],
    configuration: Mapping[str, str],
    fields: Iterable[Mapping[str, Any]],
    partition_columns: Iterable[str],
    *,
    merges: bool = True,
) -> str | None:
    """Why delta-rs must not write to a table; None if it may.

    Parameters
    ----------
    writer_version : int
        ``minWriterVersion`` of the table's protocol.
    writer_features : iterable of str
        Names as in the protocol.
    configuration : mapping of str to str
        Table properties.
    fields : iterable of mapping
        Columns as in the JSON of the table's schema.
    partition_columns : iterable of str
    merges : bool
        Whether files of the table are to be written anew.
    """
    if writer_version not in _WRITER_VERSIONS and writer_version > 1:
        return f"the table has writer version {writer_version}"
    unknown = sorted(set(writer_features) - _WRITER_FEATURES)
    if unknown:
        return f"the table has the feature {unknown[0]}"
    for name in _TRUE_MEANS_SPARK:
        if configuration.get(name, "").lower() == "true":
            return f"the table has {name}"
    if any(name.startswith(_CONSTRAINT) for name in configuration):
        return "the table has constraints"
    columns = {field["name"]: field for field in fields}
    for name, field in columns.items():
        if not field["nullable"]:
            return f"column {name} is NOT NULL"
        if any(key.startswith(_FIELD_METADATA) for key in field.get("metadata") or {}):
            return f"column {name} has properties of its own"
    for name in partition_columns:
        if columns[name]["type"] not in _PARTITION_TYPES:
            return f"partition column {name} is {columns[name]['type']}"
        # A merge of delta-rs misses files of Spark's below a path that is not ASCII.
        if merges and (columns[name]["type"] == "string" or not name.isascii()):
            return f"partition column {name} may have a path that is not ASCII"
    return None


def refusal_of_creation(
    columns: StructType,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    default_properties: Iterable[str],
) -> str | None:
    """Why Spark has to create a table; None if delta-rs makes the same one.

    Parameters
    ----------
    columns : StructType
        Of the table.
    partition_by : sequence of str
        Those of them that are partition columns.
    properties : mapping of str to str
        Of the table. Spark looks at those of Delta: it refuses wrong ones, and some need features of the protocol.
    default_properties : iterable of str
        Settings of the session by which Spark adds some.
    """
    for name in (*(name for name in properties if name.lower().startswith("delta.")), *default_properties):
        return f"{name} is set"
    if len(set(partition_by)) < len(partition_by) or len(partition_by) == len(columns.fields):
        return "a partition column is named twice, or there are no others"
    for name in partition_by:
        if (type := columns[name].dataType.typeName()) not in _PARTITION_TYPES:
            return f"partition column {name} is {type}"
    return _refusal_of_columns(columns)


def _refusal_of_columns(columns: StructType) -> str | None:
    lower = [name.lower() for name in columns.names]
    for field in columns.fields:
        if not _NAME.fullmatch(field.name) or lower.count(field.name.lower()) > 1:
            return f"Spark may refuse the name {field.name!r}"
        reason = "it may be NOT NULL" if not field.nullable else _refusal_of_type(field.dataType)
        if reason or field.metadata:
            return f"column {field.name}: {reason or 'it has properties of its own'}"
    return None


def _refusal_of_type(type: DataType) -> str | None:
    if isinstance(type, StructType):
        return _refusal_of_columns(type)
    if isinstance(type, ArrayType):
        return _refusal_of_type(type.elementType) if type.containsNull else "an element is NOT NULL"
    if isinstance(type, MapType):
        inner = _refusal_of_type(type.keyType) or _refusal_of_type(type.valueType)
        return inner if type.valueContainsNull else "a value is NOT NULL"
    if isinstance(type, (*_COMPARABLE, FloatType, DoubleType)) or type == StringType():
        return None
    return f"its type is {type.simpleString()}"


def has_exact_statistics(type: pa.DataType) -> bool:
    """Whether delta-rs writes the least and greatest value of a column as they are.

    Not of long decimals, which it rounds, and of floating-point numbers, whose NaN it leaves out. Fields of structs
    cannot be told apart.
    """
    if pa.types.is_decimal(type):
        return bool(type.precision <= _EXACT_DIGITS)
    return bool(
        pa.types.is_integer(type)
        or pa.types.is_string(type)
        or pa.types.is_boolean(type)
        or pa.types.is_date(type)
        or pa.types.is_timestamp(type)
    )


def in_range_of_int96(least: datetime | None, greatest: datetime | None) -> bool:
    """Whether timestamps, stored as INT96, come out of delta-rs as they went in: within the range of nanoseconds.

    Parameters
    ----------
    least, greatest : datetime or None
        Of a file; None if unknown, or if there are none.
    """
    return least is not None and greatest is not None and least.year > _FIRST_YEAR and greatest.year < _LAST_YEAR


def refusal_of_store(
    path: str, storage_options: Mapping[str, str], environment: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Why delta-rs must not commit in a store; None if it may.

    Parameters
    ----------
    path : str
        Qualified: with its scheme.
    storage_options : mapping of str to str
        Given by the user for delta-rs.
    environment : mapping of str to str
        Variables of the process, where delta-rs looks for options that it was not given.
    """
    scheme = path.split(":", 1)[0]
    if _OTHER_PLACE.search(path):
        return "delta-rs would look for the table in another place, by a character of its path"
    unsafe_rename = _UNSAFE_RENAME[scheme == "file"]
    for name, value in [*environment.items(), *storage_options.items()]:
        option, given = name.lower(), value.strip().lower()
        if option in unsafe_rename and given not in _FALSE:
            return f"{name} is set, and a commit may then replace another writer's"
        if option in _CONDITIONAL_PUT and given != "etag" and scheme != "file":
            return f"{name} is not etag, and a commit may then replace another writer's"
    if scheme == "file":
        return None
    if scheme in ("s3", "s3a", "s3n"):
        return None if storage_options else "storage_options are not set"
    return f"the store {scheme} is written by Spark alone"


def is_comparable(type: DataType) -> bool:
    """Whether keys and sequences of a type are the same, and in the same order, for Spark and Arrow."""
    # Not by isinstance: a string with a collation is a subclass. Floats have NaN and two zeros.
    return isinstance(type, _COMPARABLE) or type == StringType()


class RowBudget:
    """How many rows of a batch may come to the driver.

    Spark can limit rows and not bytes; so bytes become rows by the width of the rows seen so far.

    Parameters
    ----------
    most_rows, most_bytes : int
        Of a small batch; 0 rows means that there is none.
    fields : sequence of StructField
        Columns of a batch.
    """

    def __init__(self, most_rows: int, most_bytes: int, fields: Iterable[StructField]) -> None:
        self.most_rows = most_rows
        self.most_bytes = most_bytes
        self._width = sum(_width(field.dataType) for field in fields) or 1

    @property
    def rows(self) -> int:
        """The most rows that the next batch may have."""
        return min(self.most_rows, self.most_bytes // self._width)

    def shrink(self) -> None:
        """A batch could not be brought to the driver: the next ones are to be smaller."""
        self.most_rows //= 2

    def take(self, rows: int, nbytes: int) -> None:
        """Note how large a batch in Arrow was."""
        if rows:
            self._width = max(1, _SLACK * nbytes // rows)


def _width(type: DataType) -> int:
    return 16 if isinstance(type, _COMPARABLE) and not isinstance(type, BinaryType) else _UNKNOWN_SIZE
