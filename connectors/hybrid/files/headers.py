"""Matches the header of a CSV file with the declared columns, by name (pure)."""

from __future__ import annotations

import pyarrow as pa

from backlog_spark.errors import BacklogError

from ..decode.csv_decoder import UNKNOWN

__all__ = ["in_order_of"]


def in_order_of(
    header: list[str], declared: pa.Schema, corrupt: str, name: str, *, rescues: bool = False, may_lack: bool = False
) -> pa.Schema:
    """The declared columns in the order of a file. Columns that are not declared are texts without a usable name.

    Names are compared without regard to case, as in Spark, and without white space around them.

    Parameters
    ----------
    header : list of str
        The names in the file.
    declared : pyarrow.Schema
    corrupt : str
        The column for malformed records. No file has it; it comes last.
    name : str
        Of the file, for errors.
    rescues : bool
        Whether columns that are not declared have their names, after `UNKNOWN`. Then names are compared with case.
    may_lack : bool
        Whether the file may lack declared columns.

    Raises
    ------
    BacklogError
        If the header lacks a declared column, or has it twice.
    """
    key_of = str.strip if rescues else _key
    fields = {key_of(field.name): field for field in declared if field.name != corrupt}
    found = [key_of(column) or f"_c{index}" for index, column in enumerate(header)]
    missing = [field.name for key, field in fields.items() if key not in found and not may_lack]
    twice = [field.name for key, field in fields.items() if found.count(key) > 1]
    if missing or twice:
        what = f"has no column {', '.join(missing)}" if missing else f"has {', '.join(twice)} more than once"
        raise BacklogError(
            f"{name}: the header {what}. It is {', '.join(header)}; declared are {', '.join(declared.names)}.",
            "Correct the header, the schema or sep, or exclude the file. With enforceSchema=true columns match by "
            "position, whatever the header says.",
        )
    own = [
        fields.get(key, pa.field(f"{UNKNOWN}{key if rescues else index}", pa.string()))
        for index, key in enumerate(found)
    ]
    at = declared.get_field_index(corrupt)
    return pa.schema([*own, declared.field(at)] if at >= 0 else own)


def _key(name: str) -> str:
    return name.strip().casefold()
