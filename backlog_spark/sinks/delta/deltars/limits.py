"""What delta-rs may write to a Delta table instead of Spark (pure).

delta-rs commits a small batch in a few tenths of a second; Spark takes seconds. A large batch should not go through
the driver. delta-rs gets only what it is known to write exactly as Spark does: the lists below name what is allowed,
never what is forbidden.
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
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
)

from backlog_spark.sinks.delta.constraints import CHECKS
from backlog_spark.sinks.small_batches import COMPARABLE

__all__ = [
    "CommitConflict",
    "has_exact_statistics",
    "in_range_of_int96",
    "refusal_of_creation",
    "refusal_of_store",
    "refusal_of_table",
]

# delta-rs parses a path as a URL, some paths twice, and with such characters it finds another location.
_OTHER_LOCATION: Final = re.compile(r"[#?%\[\]\\^|\x00-\x1f\x7f]|\s$")
# All names that delta-rs accepts for the option; first for object storage, then for the local filesystem.
_UNSAFE_RENAME: Final = (
    ("aws_s3_allow_unsafe_rename", "allow_unsafe_rename"),
    ("mount_allow_unsafe_rename", "allow_unsafe_rename"),
)
_CONDITIONAL_PUT: Final = ("aws_conditional_put", "conditional_put")
_FALSE: Final = ("", "0", "false", "no", "n", "off")
# Timestamps with 64 bits of nanoseconds.
_FIRST_YEAR, _LAST_YEAR = 1677, 2262
# Features of an empty table with which delta-rs writes as Spark does.
_WRITER_FEATURES: Final = frozenset({"appendOnly", "deletionVectors", "invariants", "timestampNtz"})
# Version 2 means appendOnly and invariants. Versions 3 to 6 add features that cannot be distinguished.
_WRITER_VERSIONS: Final = (2, 7)
_TRUE_MEANS_SPARK: Final = ("delta.enableChangeDataFeed", "delta.appendOnly")
# delta-rs writes other types' values into a path without their zone, or not at all.
_PARTITION_TYPES: Final = ("boolean", "byte", "short", "integer", "long", "date", "string")
# delta-rs treats longer decimals in partition columns as floating-point numbers.
_EXACT_DIGITS: Final = 15
_FIELD_METADATA: Final = ("delta.", "__CHAR_VARCHAR_TYPE_STRING")
# Column names. Spark rejects some others, as Parquet does.
_NAME: Final = re.compile(r"[\w.$@#:/+-]+")


class CommitConflict(Exception):
    """Another writer committed the intended version of the table first; nothing was written."""


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
        Whether files of the table are rewritten.
    """
    if writer_version not in _WRITER_VERSIONS and writer_version > 1:
        return f"the table has writer version {writer_version}"
    unknown = sorted(set(writer_features) - _WRITER_FEATURES)
    if unknown:
        return f"the table has the feature {unknown[0]}"
    for name in _TRUE_MEANS_SPARK:
        if configuration.get(name, "").lower() == "true":
            return f"the table has {name}"
    if any(name.startswith(CHECKS) for name in configuration):
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
        # A merge by delta-rs does not find Spark's files under a path that is not ASCII.
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
        Columns of the table.
    partition_by : sequence of str
        Partition columns of the table.
    properties : mapping of str to str
        Table properties. Spark checks Delta's properties: it rejects wrong ones, and some need features of the
        protocol.
    default_properties : iterable of str
        Names of session settings by which Spark adds table properties.
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
    if isinstance(type, (*COMPARABLE, FloatType, DoubleType)) or type == StringType():
        return None
    return f"its type is {type.simpleString()}"


def has_exact_statistics(type: pa.DataType) -> bool:
    """Whether delta-rs writes the exact minimum and maximum of a column.

    It rounds long decimals and leaves out NaN of floating-point columns. Statistics of struct fields cannot be
    checked.
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
    """Whether timestamps stored as INT96 keep their values in delta-rs: they are within the range of nanoseconds.

    Parameters
    ----------
    least, greatest : datetime or None
        Minimum and maximum of a file; None if unknown, or if the file has no timestamps.
    """
    return least is not None and greatest is not None and least.year > _FIRST_YEAR and greatest.year < _LAST_YEAR


def refusal_of_store(
    path: str, storage_options: Mapping[str, str], environment: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Why delta-rs must not commit to a storage system; None if it may.

    Parameters
    ----------
    path : str
        Qualified path of the table, with its scheme.
    storage_options : mapping of str to str
        delta-rs's options, given by the user.
    environment : mapping of str to str
        Environment variables of the process, where delta-rs looks for options that it was not given.
    """
    scheme = path.split(":", 1)[0]
    if _OTHER_LOCATION.search(path):
        return "delta-rs would use another location, because of a character in the table's path"
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
