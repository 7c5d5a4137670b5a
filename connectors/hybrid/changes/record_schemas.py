"""The columns that the schema of an envelope names: of Kafka Connect's JSON, or of Avro (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..decode.avro_schema import Avro, arrow_type, parse_schema
from .encodings import Field

__all__ = ["of_avro", "of_connect"]

_IMAGES = ("after", "before")
_AVRO_TYPES = {"int": "int32", "long": "int64", "float": "float", "fixed": "bytes", "enum": "string"}


def of_connect(schema: Any) -> dict[str, Field] | None:
    """By column. None: the schema is not that of an envelope."""
    for name in _IMAGES:
        for image in _parts(schema, "fields"):
            if image.get("field") == name:
                return {str(part.get("field")): _connect(part) for part in _parts(image, "fields")}
    return None


def _parts(schema: Any, name: str) -> list[Mapping[str, Any]]:
    found = schema.get(name) if isinstance(schema, dict) else None
    return [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []


def _connect(part: Mapping[str, Any]) -> Field:
    parameters = part.get("parameters") or {}
    return Field(str(part.get("type", "")), str(part.get("name") or ""), int(parameters.get("scale", 0)))


def of_avro(schema: Any) -> dict[str, Field] | None:
    """By column. None: the schema is not that of an envelope."""
    root = parse_schema(schema)
    records = _named(schema, {})
    for name in _IMAGES:
        if name not in root.names:
            continue
        image = _inner(root.children[root.names.index(name)])
        if image is None or image.kind != "record":
            continue
        meant = {
            part["name"]: _meaning(part["type"], records) for part in records.get(image.full, {}).get("fields", [])
        }
        found = {}
        for column, child in zip(image.names, image.children, strict=True):
            inner = _inner(child)
            kind = inner.kind if inner is not None else "union"
            meaning, scale = meant.get(column, ("", 0))
            found[column] = Field(_AVRO_TYPES.get(kind, kind), meaning, scale, arrow_type(child))
        return found
    return None


def _inner(avro: Avro) -> Avro | None:
    """The type that is not null."""
    if avro.kind != "union":
        return avro
    return avro.nullable[1] if avro.nullable else None


def _named(schema: Any, found: dict[str, Any], space: str = "") -> dict[str, Any]:
    """All records of a schema, by full name."""
    if isinstance(schema, list):
        for branch in schema:
            _named(branch, found, space)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            name = str(schema["name"])
            space = name.rpartition(".")[0] if "." in name else schema.get("namespace", space)
            found[name if "." in name or not space else f"{space}.{name}"] = schema
        for inner in (schema.get("type"), schema.get("items"), schema.get("values"), *schema.get("fields", [])):
            if isinstance(inner, dict | list):
                _named(inner, found, space)
    return found


def _meaning(kind: Any, records: Mapping[str, Any]) -> tuple[str, int]:
    """The name of the Connect type, and the scale."""
    if isinstance(kind, list):
        others = [branch for branch in kind if branch != "null"]
        return _meaning(others[0], records) if len(others) == 1 else ("", 0)
    if isinstance(kind, str):
        kind = records.get(kind, {})
    name = kind.get("connect.name", "")
    if not name and kind.get("logicalType") == "decimal":
        name = "org.apache.kafka.connect.data.Decimal"
    if not name and kind.get("type") == "record":
        name = f"{kind.get('namespace', '')}.{kind.get('name', '')}".lstrip(".")
    if not name and isinstance(kind.get("type"), dict):
        return _meaning(kind["type"], records)
    return str(name), int(kind.get("scale", 0))
