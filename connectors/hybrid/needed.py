"""The columns that a query reads of those declared, and batches with only these (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from backlog_spark.errors import SettingError

__all__ = ["Fields", "NeededColumns", "fields_of", "narrowed"]

Fields = Mapping[str, "Fields"]
"""Columns, each with the fields of a struct that are read, or nothing for the whole column."""


@dataclass(frozen=True)
class NeededColumns:
    """The value of the option ``neededColumns``.

    Parameters
    ----------
    declared, read : StructType
        All columns of the source, and the same without the columns and fields of structs that the query does not read.
    """

    declared: StructType
    read: StructType

    @classmethod
    def parse(cls, text: str) -> NeededColumns | None:
        """Of the option's text. None if it is not set.

        Raises
        ------
        SettingError
        """
        if not text:
            return None
        try:
            found = json.loads(text)
            return cls(StructType.fromJson(found["declared"]), StructType.fromJson(found["read"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SettingError("neededColumns", text, "is malformed.", "Leave it out: a query sets it.") from None


def fields_of(declared: pa.Schema | pa.StructType, read: pa.Schema | pa.StructType) -> Fields:
    """What is read of declared columns."""
    found: dict[str, Any] = {}
    for field in read:
        whole = declared.field(field.name)
        found[field.name] = {} if whole.type == field.type else fields_of(whole.type, field.type)
    return found


def narrowed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with only the columns of a schema, and of structs only its fields."""
    arrays = [_narrow(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    children = [_narrow(array.field(field.name), field.type) for field in kind]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=[*kind], mask=mask)
