"""Keeps the fields of JSON records that are not in the schema, or not of its types, as text (pure).

An object is taken apart: only its fields that do not fit are kept. An array or map is kept whole if a part of it does
not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from .json_scan import Array, NonFinite, Number, Object, Structure
from .json_values import Partial, Unfit, value_reader
from .texts import Formats

__all__ = ["fields_rescuer", "json_object", "json_text"]


def json_text(value: object) -> str:
    """The text of a value in the tree of a record, in strict JSON. With hundreds of levels it is one string."""
    try:
        return _text(value)
    except RecursionError:
        assert isinstance(value, Structure)
        return json.dumps(value.text, ensure_ascii=False)


def _text(value: object) -> str:
    if isinstance(value, Object):
        return json_object((name, _text(item)) for name, item in value.items)
    if isinstance(value, Array):
        return f"[{', '.join(map(_text, value.items))}]"
    if isinstance(value, Number):
        return str(value)
    return json.dumps(str(value) if isinstance(value, NonFinite) else value, ensure_ascii=False)


def json_object(fields: Iterable[tuple[str, str]]) -> str:
    """An object from names and texts in JSON."""
    return f"{{{', '.join(f'{json.dumps(name, ensure_ascii=False)}: {text}' for name, text in fields)}}}"


def fields_rescuer(
    fields: Iterable[pa.Field], formats: Formats, *, non_finite: bool = True
) -> Callable[[Object], tuple[list[Any], str | None]]:
    """A reader of some fields of an object, as `fields_reader`. Returns their values, and an object with the rest.

    Names have case. A field that is null is no rest. None: everything fits.
    """
    declared = list(fields)
    indexed = {field.name: index for index, field in enumerate(declared)}
    readers: list[Callable[[Any], tuple[Any, str | None]]] = [
        _rescuer(field.type, formats, non_finite) for field in declared
    ]

    def read_fields(value: Object) -> tuple[list[Any], str | None]:
        row: list[Any] = [None] * len(declared)
        rest: list[tuple[str, str]] = []
        for name, item in value.items:
            index = indexed.get(name)
            if item is None:
                if index is not None:
                    row[index] = None
            elif index is None:
                rest.append((name, json_text(item)))
            else:
                row[index], left = readers[index](item)
                if left is not None:
                    rest.append((name, left))
        return row, json_object(rest) if rest else None

    return read_fields


def _rescuer(type: pa.DataType, formats: Formats, non_finite: bool) -> Callable[[Any], tuple[Any, str | None]]:
    """A reader of a value that is not null: the value, and what does not fit in JSON."""
    if pa.types.is_struct(type) and type.num_fields:
        names = [field.name for field in type]
        inner = fields_rescuer(type, formats, non_finite=non_finite)

        def read_struct(value: Any) -> tuple[Any, str | None]:
            if not isinstance(value, Object):
                return None, json_text(value)
            row, rest = inner(value)
            return dict(zip(names, row, strict=True)), rest

        return read_struct
    read, loses = value_reader(type, formats, non_finite=non_finite), _loses(type)

    def read_value(value: Any) -> tuple[Any, str | None]:
        try:
            found = read(value)
        except Partial as partial:
            return partial.value, json_text(value)
        except Unfit:
            return None, json_text(value)
        return found, json_text(value) if loses is not None and loses(value) else None

    return read_value


def _loses(type: pa.DataType) -> Callable[[Any], bool] | None:
    """Whether a value that fits has fields that its type does not have; None if it cannot."""
    if pa.types.is_list(type):
        element = _loses(type.value_type)
        return None if element is None else lambda value: any(map(element, value.items))
    if pa.types.is_map(type):
        item = _loses(type.item_type)
        return None if item is None else lambda value: any(item(each) for _, each in value.items)
    if not pa.types.is_struct(type):
        return None
    inner = {field.name: _loses(field.type) for field in type}

    def loses(value: Any) -> bool:
        if not isinstance(value, Object):
            return False
        return any(
            each is not None and (name not in inner or ((of := inner[name]) is not None and of(each)))
            for name, each in value.items
        )

    return loses
