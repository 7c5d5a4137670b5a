"""Constraints of a Delta table as conditions on one row: CHECK, NOT NULL, and the lengths of VARCHAR and CHAR."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from backlog_spark.common.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["CHECKS", "table_constraints"]

CHECKS: Final = "delta.constraints."
"""How the properties with a table's CHECK constraints begin."""
_TEXT_TYPE: Final = "__CHAR_VARCHAR_TYPE_STRING"  # in a column's metadata, by Spark
_LENGTH: Final = re.compile(r"(?:var)?char\((\d+)\)")


def table_constraints(schema: StructType, configuration: Mapping[str, str]) -> dict[str, Column]:
    """Whether a row violates a constraint, by the constraint's text.

    Constraints inside of arrays and maps are left out. Delta itself checks them.

    Parameters
    ----------
    schema : StructType
        The table's columns.
    configuration : mapping of str to str
        The table's properties.
    """
    found = {
        f"CHECK {name.removeprefix(CHECKS)} ({text})": ~F.coalesce(F.expr(text), F.lit(False))
        for name, text in configuration.items()
        if name.startswith(CHECKS)
    }
    return {**found, **dict(_of_fields(schema, ()))}


def _of_fields(schema: StructType, above: tuple[str, ...]) -> Iterator[tuple[str, Column]]:
    for field in schema.fields:
        path = (*above, field.name)
        name, value = ".".join(path), F.col(".".join(map(quoted, path)))
        there = F.col(".".join(map(quoted, above))).isNotNull() if above else F.lit(True)
        if not field.nullable:
            yield f"NOT NULL of {name}", there & value.isNull()
        if (length := _length(field)) is not None:
            # Appends of Spark cut blanks that are too many, MERGE does not. Such a value is too long for both.
            yield f"the length of {name}, {field.metadata[_TEXT_TYPE]}", F.length(value) > length
        if isinstance(field.dataType, StructType):
            yield from _of_fields(field.dataType, path)


def _length(field: StructField) -> int | None:
    found = _LENGTH.fullmatch(str(field.metadata.get(_TEXT_TYPE, "")))
    return None if found is None else int(found[1])
