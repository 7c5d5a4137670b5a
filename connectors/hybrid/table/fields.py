"""What the columns in a Delta table's log say beside names and types, and what of it can be read (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..files.entries import Names

__all__ = ["chars_of", "names_of", "own_name", "unsupported"]

# Where Spark's tables keep the type of a column of type CHAR, which Delta does not have.
_CHAR_TYPE, _CHAR = "__CHAR_VARCHAR_TYPE_STRING", re.compile(r"char\((\d+)\)")

# Table features that do not matter to a reader, or that are supported. (Delta protocol, "Table Features")
_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}


def unsupported(features: Collection[str], configuration: Mapping[str, str]) -> list[str]:
    """The features of a table that cannot be read here."""
    found = sorted(set(features) - _FEATURES)
    if configuration.get("delta.columnMapping.mode", "none") == "id":
        found.append("columnMapping by id")
    return found


def chars_of(fields: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, int], ...]:
    """Columns of type CHAR(n), with n. Spark pads them also when it reads: other writers do not."""
    kinds = ((column["name"], _CHAR.fullmatch(column["metadata"].get(_CHAR_TYPE, ""))) for column in fields)
    return tuple((name, int(kind[1])) for name, kind in kinds if kind)


def own_name(column: Mapping[str, Any]) -> str:
    """A column's name in the files."""
    found: str = column["metadata"].get("delta.columnMapping.physicalName", column["name"])
    return found


def names_of(fields: Sequence[Mapping[str, Any]]) -> tuple[Names, ...]:
    """Names of columns in the files of a table with column mapping; empty without column mapping."""
    found: list[Names] = []
    for column in fields:
        inner = _names_in(column["type"])
        if own_name(column) != column["name"] or inner:
            found.append((own_name(column), column["name"], inner))
    return tuple(found)


def _names_in(kind: Any) -> tuple[Names, ...]:
    if not isinstance(kind, dict):
        return ()
    if kind["type"] == "struct":
        return names_of(kind["fields"])
    parts = {"array": {"element": "elementType"}, "map": {"key": "keyType", "value": "valueType"}}.get(kind["type"], {})
    named = ((part, _names_in(kind[key])) for part, key in parts.items())
    return tuple((part, part, inner) for part, inner in named if inner)
