"""The JSON schema of a pipeline's file, for editors (pure)."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from backlog_spark.pipelines.parsing import FORMATS
from backlog_spark.pipelines.sections import SINKS, Lookup, PipelineSection, Route, Source, Transform
from backlog_spark.spi.options import Option
from backlog_spark.spi.registry import documented_options

__all__ = ["pipeline_schema"]

# Prefixes whose options are passed on, such as kafka.bootstrap.servers.
_FAMILIES = {"hybrid": "^(kafka|fs|phase)\\.", "mysql_cdc": "^fs\\."}
_LITERALS = {"true": True, "false": False, "null": None}
_SCALAR = ["string", "number", "boolean", "null"]


def pipeline_schema() -> dict[str, Any]:
    """The schema, from the classes of the sections and from the connectors' tables of options."""
    definitions: dict[str, Any] = {}

    def section(kind: Any) -> dict[str, Any]:
        made: dict[str, Any] = TypeAdapter(kind).json_schema(by_alias=True, ref_template="#/$defs/{model}")
        definitions.update(made.pop("$defs", {}))
        name = str(made["title"])
        definitions[name] = _plain(made)
        return {"$ref": f"#/$defs/{name}"}

    section(Source)
    of_lookup = section(Lookup)
    base = definitions.pop("Source")
    sources = [_source(base, name, documented_options(name)) for name in ("mysql_cdc", "hybrid", "datagen")]
    sources.append(_source(base, FORMATS, ()))
    definitions["source"] = {"oneOf": sources}
    definitions["sink"] = {"oneOf": [section(kind) for kind in SINKS.values()]}
    del definitions["SinkSection"]
    for kind in SINKS.values():
        definitions[kind.__name__]["properties"]["sideOutputs"]["additionalProperties"] = {"$ref": "#/$defs/sink"}
    of_source, of_sink = {"$ref": "#/$defs/source"}, {"$ref": "#/$defs/sink"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of backlog_spark",
        "type": "object",
        "additionalProperties": False,
        "required": ["source", "sink", "pipeline"],
        "properties": {
            "source": {"anyOf": [of_source, {"type": "array", "minItems": 1, "items": of_source}]},
            "lookup": {"anyOf": [of_lookup, {"type": "array", "items": of_lookup}]},
            "transform": {"type": "array", "items": section(Transform)},
            "route": {"type": "array", "items": section(Route)},
            "sink": {"anyOf": [of_sink, {"type": "array", "minItems": 1, "items": of_sink}]},
            "pipeline": section(PipelineSection),
        },
        "$defs": dict(sorted(definitions.items())),
    }


def _source(base: dict[str, Any], types: str | tuple[str, ...], options: tuple[Option, ...]) -> dict[str, Any]:
    """A source of one type with its options, or of Spark's own formats, whose options are not known."""
    names = [types] if isinstance(types, str) else list(types)
    known = {o.name: _option(o) for o in options if "*" not in o.name}
    made = {
        **base,
        "title": " or ".join(names),
        "properties": {**known, **base["properties"], "type": {**base["properties"]["type"], "enum": names}},
        "additionalProperties": not options,
    }
    family = _FAMILIES.get(names[0])
    return {**made, "patternProperties": {family: {"type": _SCALAR}}} if family else made


def _option(option: Option) -> dict[str, Any]:
    found: dict[str, Any] = {"description": option.doc}
    if option.choices:
        # Unquoted, YAML reads these words as values of other types.
        values = [_LITERALS[word] for word in option.choices if word in _LITERALS]
        return {**found, "enum": [*option.choices, *values]}
    return {**found, "type": [*_SCALAR, "array"]}


def _plain(schema: Any) -> Any:
    """Numbers may stand for texts, as in the file. Titles of properties only repeat their names."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _plain(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if made.get("type") == "string" and "const" not in made and "enum" not in made:
        made["type"] = ["string", "number", "boolean"]
    return made
