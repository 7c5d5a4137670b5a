"""Parses Avro schemas, and converts them to Arrow types (pure).

Source: the Avro specification 1.12, and Spark's SchemaConverters for the resulting types.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from backlog_spark.errors import BacklogError, SettingError

__all__ = ["Avro", "arrow_type", "load", "parse_schema", "schemaOf"]

_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_NAMED = {"record", "error", "enum", "fixed"}
_UTC = pa.timestamp("us", "UTC")
# By type and logical type. Unknown logical types, or ones with another type, are ignored.
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("ns"),
    ("long", "time-micros"): pa.time64("ns"),
    ("long", "timestamp-millis"): _UTC,
    ("long", "timestamp-micros"): _UTC,
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_WIDEST_DECIMAL = 38


@dataclass(frozen=True)
class Avro:
    """One type of a schema, with all names resolved.

    Parameters
    ----------
    kind : str
        ``"record"``, ``"array"``, ``"map"``, ``"union"``, ``"enum"``, ``"fixed"`` or a primitive type.
    logical : str
        The logical type; "" for none or an unknown one.
    children : tuple of Avro
        Types of a record's fields, an array's items, a map's values, or a union's branches.
    names : tuple of str
        Names of a record's fields, or an enum's symbols.
    size : int
        Bytes of a fixed type.
    precision, scale : int
        Of the logical type decimal.
    full : str
        Full name of a record.
    """

    kind: str
    logical: str = ""
    children: tuple[Avro, ...] = ()
    names: tuple[str, ...] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0
    full: str = ""

    @property
    def nullable(self) -> tuple[int, Avro] | None:
        """For a union of null and one other type: the index of null, and the other type. None for other types."""
        if self.kind != "union" or len(self.children) != 2:
            return None
        at = next((i for i, child in enumerate(self.children) if child.kind == "null"), None)
        return None if at is None else (at, self.children[1 - at])

    def __str__(self) -> str:
        if self.kind == "union":
            return f"a union of {', '.join(str(child) for child in self.children)}"
        return f"{self.kind} ({self.logical})" if self.logical else self.kind


def load(text: str, path: str) -> Any:
    """The parsed JSON of the option ``avroSchema`` or ``avroSchemaFile``. One of them is given.

    Raises
    ------
    SettingError
        If the file does not exist, or is not JSON.
    """
    name, shown = ("avroSchemaFile", path) if path else ("avroSchema", "…")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8") if path else text)
    except OSError as error:
        raise SettingError(name, shown, f"cannot be read: {error.strerror}.", "The driver needs the file.") from None
    except (ValueError, RecursionError) as error:
        raise SettingError(name, shown, f"is not JSON: {error}.", "Give the schema as in an .avsc file.") from None


def schemaOf(schema: Any) -> pa.Schema:
    """The Arrow schema of records with an Avro schema. Use it to declare a stream.

    Parameters
    ----------
    schema : str or parsed JSON
        The schema of a record.

    Raises
    ------
    BacklogError
        If the schema is malformed, recursive or not a record.
    """
    root = parse_schema(json.loads(schema) if isinstance(schema, str) and schema.lstrip()[:1] in '{["' else schema)
    return pa.schema([pa.field(n, arrow_type(child)) for n, child in zip(root.names, root.children, strict=True)])


def arrow_type(avro: Avro) -> pa.DataType:
    """The Arrow type of an Avro type.

    Raises
    ------
    BacklogError
        For the type null alone, which has no values.
    """
    if avro.kind == "record":
        fields = [pa.field(n, arrow_type(child)) for n, child in zip(avro.names, avro.children, strict=True)]
        return pa.struct(fields)
    if avro.kind == "array":
        return pa.list_(pa.field("element", arrow_type(avro.children[0])))
    if avro.kind == "map":
        return pa.map_(pa.string(), arrow_type(avro.children[0]))
    if avro.kind == "union":
        return _union_type([child for child in avro.children if child.kind != "null"])
    if avro.logical == "decimal":
        return pa.decimal128(avro.precision, avro.scale)
    if avro.logical:
        return _LOGICAL[avro.kind, avro.logical]
    if avro.kind == "null":
        raise BacklogError("an Avro field of the type null has no values.", "Leave it out of the declared schema.")
    return _PLAIN[avro.kind]


def _union_type(branches: list[Avro]) -> pa.DataType:
    """As in Spark: one branch is itself, two widths of a number give the wider one, others give one field each."""
    if len(branches) == 1:
        return arrow_type(branches[0])
    kinds = {branch.kind for branch in branches}
    for wider in ("long", "double"):
        if kinds == {{"long": "int", "double": "float"}[wider], wider} and not any(b.logical for b in branches):
            return _PLAIN[wider]
    return pa.struct([pa.field(f"member{i}", arrow_type(branch)) for i, branch in enumerate(branches)])


def parse_schema(schema: Any) -> Avro:
    """Parse the JSON of a record's schema.

    Raises
    ------
    BacklogError
        If it is malformed, recursive or not a record.
    """
    try:
        root = _Parser().type(schema, "")
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    if root.kind != "record":
        raise BacklogError(
            f"the Avro schema is {root}, not a record.", "Only records have columns; read the value raw."
        )
    return root


class _Parser:
    """Remembers the named types that were defined so far."""

    def __init__(self) -> None:
        self._named: dict[str, Avro | None] = {}  # None: its definition is not complete yet

    def type(self, schema: Any, space: str) -> Avro:
        """A type within a namespace."""
        if isinstance(schema, str):
            return Avro(schema) if schema in _PRIMITIVES else self._reference(schema, space)
        if isinstance(schema, list):
            branches = tuple(self.type(branch, space) for branch in schema)
            if not any(branch.kind != "null" for branch in branches):
                raise _malformed("a union has only the branch null")
            return Avro("union", children=branches)
        kind = _part(schema, "type")
        if isinstance(kind, dict | list):
            return self.type(kind, space)
        if kind in _NAMED:
            return self._define(kind, schema, space)
        if kind == "array":
            return Avro(kind, children=(self.type(_part(schema, "items"), space),))
        if kind == "map":
            return Avro(kind, children=(self.type(_part(schema, "values"), space),))
        if kind in _PRIMITIVES:
            return _logical(Avro(kind), schema)
        return self._reference(kind, space)

    def _reference(self, name: Any, space: str) -> Avro:
        full = name if not isinstance(name, str) or "." in name or not space else f"{space}.{name}"
        if full not in self._named and name in self._named:
            full = name
        if full not in self._named:
            raise _malformed(f"{name!r} is not a type")
        found = self._named[full]
        if found is None:
            raise BacklogError(
                f"the Avro type {full} contains itself, which no column can.",
                "Read the value raw, or flatten the schema.",
            )
        return found

    def _define(self, kind: str, schema: Any, space: str) -> Avro:
        name = str(_part(schema, "name"))
        if "." in name:
            space, full = name.rpartition(".")[0], name
        else:
            space = schema.get("namespace", space)
            full = f"{space}.{name}" if space else name
        self._named[full] = None
        if kind == "enum":
            found = Avro(kind, names=tuple(_part(schema, "symbols")))
        elif kind == "fixed":
            found = _logical(Avro(kind, size=int(_part(schema, "size"))), schema)
        else:
            fields = [(_part(field, "name"), _part(field, "type"), field) for field in _part(schema, "fields")]
            names = tuple(str(n) for n, _, _ in fields)
            if len(set(names)) < len(names):
                raise _malformed(f"{full} has two fields with the same name")
            found = Avro("record", children=tuple(self.type(t, space) for _, t, _ in fields), names=names, full=full)
        self._named[full] = found
        return found


def _logical(plain: Avro, schema: dict[str, Any]) -> Avro:
    """The type with its logical type, if it is known."""
    logical = schema.get("logicalType")
    if logical == "decimal" and plain.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision:
            if precision > _WIDEST_DECIMAL:
                raise BacklogError(
                    f"an Avro decimal of {precision} digits is wider than Spark's limit of {_WIDEST_DECIMAL}.",
                    "Read the value raw.",
                )
            if precision:
                return Avro(plain.kind, logical, size=plain.size, precision=precision, scale=scale)
    elif isinstance(logical, str) and (plain.kind, logical) in _LOGICAL:
        return Avro(plain.kind, logical)
    return plain


def _part(schema: Any, name: str) -> Any:
    if not isinstance(schema, dict) or name not in schema:
        raise _malformed(f"a {name!r} is missing")
    return schema[name]


def _malformed(why: str) -> BacklogError:
    return BacklogError(f"the Avro schema is malformed: {why}.", "Write the schema as in the Avro specification.")
