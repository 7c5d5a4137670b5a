"""Puts the Avro types that a schema takes from other schemas into the schema itself (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["definitions", "inlined"]


def inlined(schema: Any, named: dict[str, Any], space: str = "") -> Any:
    """A schema with the definition of a type of other schemas where it is first named. Names become full names.

    Parameters
    ----------
    schema : parsed JSON
    named : dict of str to parsed JSON
        Definitions of the other schemas by full name, as of `definitions`. Those that are used are removed.
    space : str
        Namespace around the schema.
    """
    if isinstance(schema, str):
        full = schema if "." in schema or not space else f"{space}.{schema}"
        found = named.pop(full, None) or named.pop(schema, None)
        return schema if found is None else inlined(found, named)
    if isinstance(schema, list):
        return [inlined(branch, named, space) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    if isinstance(name := schema.get("name"), str):
        space = name.rpartition(".")[0] if "." in name else schema.get("namespace", space)
        out |= {"name": name if "." in name or not space else f"{space}.{name}", "namespace": space}
    for part in ("type", "items", "values"):
        if part in out:
            out[part] = inlined(out[part], named, space)
    if isinstance(fields := out.get("fields"), list):
        # A field has a name too, which is in no namespace.
        out["fields"] = [
            {**f, "type": inlined(f["type"], named, space)} if isinstance(f, dict) and "type" in f else f
            for f in fields
        ]
    return out


def definitions(schema: Any) -> Iterator[tuple[str, Any]]:
    """All named types that a result of `inlined` defines, by full name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from definitions(branch)
    elif isinstance(schema, dict):
        if "namespace" in schema and "name" in schema:
            yield schema["name"], schema
        for part in ("type", "items", "values", "fields"):
            yield from definitions(schema.get(part))
