"""Converts Protobuf's messages to the values that ``pyarrow.array`` takes (pure).

Source: ``SchemaConverters`` and ``ProtobufDeserializer`` of spark-protobuf. Where Spark has an option for a type, the
declared type decides: a number or a text for an enum, a wider number for an unsigned one, a struct or its only value
for a wrapper such as Int32Value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from backlog_spark.errors import BacklogError

from .base import text_of

__all__ = ["Beyond", "arrow_type", "arrow_types", "row_reader"]

_INT64 = range(-(2**63), 2**63)
_UTC, _INTERVAL = pa.timestamp("us", "UTC"), pa.duration("us")
_UNSIGNED_64 = pa.decimal128(20, 0)
_PLAIN: dict[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.int64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
# Other types that a column may be declared as.
_WIDER: dict[int, tuple[pa.DataType, ...]] = {
    FieldDescriptor.CPPTYPE_INT32: (pa.int64(),),
    FieldDescriptor.CPPTYPE_UINT32: (pa.int64(),),
    FieldDescriptor.CPPTYPE_UINT64: (_UNSIGNED_64,),
    FieldDescriptor.CPPTYPE_FLOAT: (pa.float64(),),
    FieldDescriptor.CPPTYPE_ENUM: (pa.int32(),),
}
_TIMES = {"Timestamp": _UTC, "Duration": _INTERVAL}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Int32", "UInt32", "Int64", "UInt64", "Float", "Double", "String", "Bytes")
}

_Convert = Callable[[Any], Any]


class Beyond(Exception):
    """A time of a record is beyond the range of its type."""


def arrow_types(message: Descriptor, within: tuple[str, ...] = ()) -> list[pa.Field]:
    """The columns of a message, as ``from_protobuf`` gives them by default.

    Raises
    ------
    BacklogError
        It contains itself.
    """
    if message.full_name in within:
        raise BacklogError(
            f"the Protobuf message {message.full_name} contains itself.",
            "Declare its columns, as deep as you need them.",
        )
    found = [pa.field(f.name, arrow_type(f, (*within, message.full_name))) for f in message.fields]
    return [f for f in found if f.type != pa.struct([])]  # Spark has no struct without fields


def arrow_type(field: FieldDescriptor, within: tuple[str, ...] = ()) -> pa.DataType:
    """The type of a field, as ``from_protobuf`` gives it by default."""
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(arrow_type(key), arrow_type(value, within))
    if field.message_type is None:
        found = pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else _PLAIN[field.cpp_type]
    else:
        found = _time(field.message_type) or pa.struct(arrow_types(field.message_type, within))
    return pa.list_(pa.field("element", found)) if field.is_repeated else found


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _time(message: Descriptor) -> pa.DataType | None:
    """Spark goes by the names, in any package."""
    return _TIMES.get(message.name) if [f.name for f in message.fields] == ["seconds", "nanos"] else None


def row_reader(
    message: Descriptor, fields: Sequence[pa.Field], zeros: bool, path: str = ""
) -> Callable[[Any], list[Any]]:
    """A function that takes a message and returns the values of declared fields. Those that it lacks are None.

    Parameters
    ----------
    zeros : bool
        Whether a number, text or enum that is 0 or empty, and so is not in the record, is that and not None.

    Raises
    ------
    BacklogError
        A field cannot become the declared type, or its name differs in case.
    """
    lower = {name.lower(): name for name in message.fields_by_name}
    getters: list[_Convert] = []
    for field in fields:
        found = message.fields_by_name.get(field.name)
        if found is not None:
            getters.append(_getter(found, field.type, zeros, path + field.name))
        elif field.name.lower() in lower:
            raise BacklogError(
                f"the column {path}{field.name} is {lower[field.name.lower()]} in the Protobuf message.",
                "Declare it with the same case.",
            )
        else:
            getters.append(lambda _: None)
    return lambda value: [get(value) for get in getters]


def _getter(field: FieldDescriptor, type: pa.DataType, zeros: bool, path: str) -> _Convert:
    """A function that takes a message and returns the value of its field."""
    get, name = attrgetter(field.name), field.name
    if _is_map(field) and pa.types.is_map(type):
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        of_key = _converter(key, type.key_type, zeros, f"{path}[]")
        of_value = _converter(value, type.item_type, zeros, f"{path}[]")
        return lambda m: [(of_key(k), of_value(v)) for k, v in get(m).items()]
    if field.is_repeated and pa.types.is_list(type) and not _is_map(field):
        item = _converter(field, type.value_type, zeros, f"{path}[]")
        return lambda m: [item(value) for value in get(m)]
    if field.is_repeated or pa.types.is_list(type) or pa.types.is_map(type):
        raise _misfit(field, type, path)
    convert = _converter(field, type, zeros, path)
    if field.has_presence and not field.has_default_value:
        return lambda m: convert(get(m)) if m.HasField(name) else None
    if field.has_presence or zeros:
        return lambda m: convert(get(m))
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return lambda m: convert(v) if (v := get(m)) or math.copysign(1, v) < 0 else None  # -0.0 is in the record
    return lambda m: convert(v) if (v := get(m)) else None


def _converter(field: FieldDescriptor, type: pa.DataType, zeros: bool, path: str) -> _Convert:
    """A function for one value of a field, which may be an element of a list."""
    if field.message_type is not None:
        return _of_message(field, type, zeros, path)
    if field.type == FieldDescriptor.TYPE_BYTES:
        if pa.types.is_binary(type):
            return lambda value: value
        raise _misfit(field, type, path)
    kind = field.cpp_type
    if type not in (_PLAIN[kind], *_WIDER.get(kind, ())):
        raise _misfit(field, type, path)
    if kind == FieldDescriptor.CPPTYPE_ENUM and pa.types.is_string(type):
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        unknown = f"UNKNOWN_ENUM_VALUE_{field.enum_type.name}_"
        return lambda value: names.get(value) or f"{unknown}{value}"
    if kind == FieldDescriptor.CPPTYPE_UINT32 and type == pa.int32():
        return lambda value: value - 2**32 if value >= 2**31 else value
    if kind == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal if type == _UNSIGNED_64 else lambda value: value - 2**64 if value >= 2**63 else value
    if kind == FieldDescriptor.CPPTYPE_STRING:
        # Bytes: of proto2, whose texts need not be UTF-8.
        return lambda value: text_of(value) if isinstance(value, bytes) else value
    return lambda value: value


def _of_message(field: FieldDescriptor, type: pa.DataType, zeros: bool, path: str) -> _Convert:
    message = field.message_type
    if pa.types.is_struct(type):
        names = [f.name for f in type]
        read = row_reader(message, list(type), zeros, f"{path}.")
        return lambda value: dict(zip(names, read(value), strict=True))
    if message.full_name in _WRAPPERS:
        return _getter(message.fields[0], type, zeros, path)
    if type == _time(message):
        return _micros
    raise _misfit(field, type, path)


def _micros(value: Any) -> int:
    # Nanoseconds are cut towards zero, as in Java.
    found: int = value.seconds * 1_000_000 + int(value.nanos / 1000)
    if found not in _INT64:
        raise Beyond
    return found


def _misfit(field: FieldDescriptor, type: pa.DataType, path: str) -> BacklogError:
    kind = field.message_type or field.enum_type
    what = kind.full_name if kind is not None else FieldDescriptorProto.Type.Name(field.type)[5:].lower()
    return BacklogError(
        f"the column {path} is {'repeated ' if field.is_repeated else ''}{what} in the Protobuf message, but declared "
        f"{type}.",
        f"Declare it {arrow_type(field)}.",
    )
