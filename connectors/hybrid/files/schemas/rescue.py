"""Values of files that do not fit the schema, as JSON, and the new columns among them.

Source: Databricks, "What is the rescued data column?".
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError

from ...decode.json_scan import Object, scan
from ...evolution import Evolution
from .fields import missing, names_of
from .stored import StoredSchema
from .types import complete, merged_fields, of_proposals

__all__ = ["Rescue", "narrow", "rescued_texts", "rest", "with_path"]

_PATH = "_file_path"


class Rescue:
    """What one task does with fields that the schema does not have.

    Parameters
    ----------
    evolution : Evolution
    data : pyarrow.Schema
        The schema, without the column for rescued data.
    type_of : callable
        The type of a value in the tree of a rescued text.
    never : str
        A name in rescued texts that is no column: of malformed records.
    """

    def __init__(
        self, evolution: Evolution, data: pa.Schema, type_of: Callable[[object], pa.DataType], never: str
    ) -> None:
        self._evolution = evolution
        self._data = data
        self._type_of = type_of
        self._never = never
        self._found: list[pa.Field] = []
        self._file = ""

    def declared(self, file: str, columns: pa.Schema) -> None:
        """Take the columns that a file declares.

        Raises
        ------
        BacklogError
            If one is new, and the mode is ``failOnNewColumns``.
        """
        if self._evolution.stops:
            self._take(file, missing(self._data, columns))

    def texts(self, file: str, rescued: pa.Array) -> None:
        """Take rescued values of a file whose format declares no columns. Raises as `declared`."""
        if not self._evolution.stops or rescued.null_count == len(rescued):
            return
        for text in rescued.drop_null().to_pylist():
            tree = scan(text)
            assert tree is not None, text
            try:
                fields = [pa.field(name, self._typed(value)) for name, value in tree.items if name != self._never]
            except RecursionError:  # hundreds of levels are no columns
                continue
            self._take(file, self._completed(missing(self._data, fields), self._data))

    def _typed(self, value: object) -> pa.DataType:
        if isinstance(value, Object):
            return pa.struct([(name, self._typed(item)) for name, item in value.items])
        return self._type_of(value)

    def _completed(self, new: Iterable[pa.Field], known: Iterable[pa.Field]) -> list[pa.Field]:
        """New fields with whole types; texts unless types are inferred. A struct without fields is no field yet."""
        own = {field.name.casefold(): field.type for field in known}
        made = []
        for field in new:
            kind = own.get(field.name.casefold())
            if kind is not None and pa.types.is_struct(kind):
                made.append(field.with_type(pa.struct(self._completed(field.type, kind))))
            elif (whole := complete(field.type)) is not None:
                is_text = kind is None and not self._evolution.infers_types
                made.append(field.with_type(pa.string() if is_text else whole))
        return made

    def _take(self, file: str, new: list[pa.Field]) -> None:
        if not new:
            return
        if self._evolution.mode == "failOnNewColumns":
            raise BacklogError(
                f"{file} has {_shown(new, self._data)} not in the schema, and schemaEvolutionMode=failOnNewColumns.",
                "Remove the file, declare the column if the schema is declared, or set another schemaEvolutionMode: "
                "addNewColumns takes it into an inferred schema, rescue keeps its values as rescued data.",
            )
        self._file = self._file or file
        self._found = merged_fields([*self._found, *new], of_proposals) or self._found

    def finish(self) -> None:
        """Store the new columns, if there are any, and stop the query.

        Raises
        ------
        BacklogError
        """
        if self._found:
            StoredSchema(self._evolution).propose(pa.schema(self._found))
            raise BacklogError(
                f"{self._file} has {_shown(self._found, self._data)} not in the schema. The new schema is stored.",
                "Start the query again: it reads the file with the new schema (schemaEvolutionMode=addNewColumns).",
            )


def _shown(new: list[pa.Field], data: pa.Schema) -> str:
    names = list(names_of(new, data))
    return f"the column{'s' if len(names) > 1 else ''} {', '.join(names)}"


def with_path(rescued: pa.Array, file: str) -> pa.Array:
    """Rescued texts, each an object of JSON, with the name of their file."""
    if rescued.null_count == len(rescued):
        return rescued
    end = f", {json.dumps(_PATH)}: {json.dumps(file, ensure_ascii=False)}}}"
    return pc.binary_join_element_wise(pc.utf8_slice_codeunits(rescued, 0, -1), end, "")


def rest(source: pa.DataType, target: pa.DataType) -> pa.DataType | None:
    """The part of a type that another one does not have; None if it has all. A list or map is one part."""
    t = pa.types
    if t.is_struct(source) and t.is_struct(target):
        own = {field.name: field.type for field in target}
        found = [(f.name, rest(f.type, own[f.name]) if f.name in own else f.type) for f in source]
        fields = [pa.field(name, kind) for name, kind in found if kind is not None]
        return pa.struct(fields) if fields else None
    pairs: list[tuple[pa.DataType, pa.DataType]] = []
    if t.is_list(source) and t.is_list(target):
        pairs = [(source.value_type, target.value_type)]
    elif t.is_map(source) and t.is_map(target):
        pairs = [(source.key_type, target.key_type), (source.item_type, target.item_type)]
    return source if any(rest(*pair) is not None for pair in pairs) else None


def narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array with the fields of structs in a type of `rest`."""
    if array.type == kind or not pa.types.is_struct(kind):
        return array
    children = [narrow(array.field(field.name), field.type) for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def rescued_texts(count: int, columns: Mapping[str, pa.Array]) -> pa.Array:
    """The values of some columns as one object of JSON per row; NULL where all are NULL."""
    columns = {name: array for name, array in columns.items() if array.null_count < len(array)}
    if not columns:
        return pa.nulls(count, pa.string())
    texts: list[str | None] = []
    for row in zip(*(array.to_pylist(maps_as_pydicts="lossy") for array in columns.values()), strict=True):
        found = {name: made for name, value in zip(columns, row, strict=True) if (made := _plain(value)) is not None}
        texts.append(json.dumps(found, ensure_ascii=False, default=_text) if found else None)
    return pa.array(texts, pa.string())


def _plain(value: Any) -> Any:
    """A value without fields that are NULL, and without numbers that JSON does not have."""
    if isinstance(value, dict):
        made = {name: inner for name, item in value.items() if (inner := _plain(item)) is not None}
        return made or None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else str(value)
