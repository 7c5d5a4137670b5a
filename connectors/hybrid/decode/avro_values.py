"""Avro records one at a time: the exact road (pure).

A value is read by a closure, chosen once per schema and declared column: it takes the record and a place in it, and
gives the value as `pyarrow.array` takes it, and the place after it.

Source: the Avro specification 1.12, "Binary encoding" and "Schema resolution" (which types may become which).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from backlog_spark.errors import BacklogError

from .avro_schema import Avro, arrow_type

__all__ = ["PROMOTIONS", "Read", "Unreadable", "matched", "record_reader", "value_reader"]

Read = Callable[[bytes, int], tuple[Any, int]]

_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)
# Items that take no bytes, of which a few bytes may claim any number.
_MOST_EMPTY_ITEMS = 100_000

# What a declared column may be of a type without a logical type, beside the type's own.
PROMOTIONS: dict[str, tuple[pa.DataType, ...]] = {
    "int": (pa.int64(), pa.float32(), pa.float64()),
    "long": (pa.float32(), pa.float64()),
    "float": (pa.float64(),),
    "string": (pa.binary(),),
    "bytes": (pa.string(),),
}


class Unreadable(Exception):
    """A record that is not of its schema; the argument says why."""


def matched(avro: Avro, names: list[str]) -> list[int | None]:
    """For each name the field of a record, or None.

    Raises
    ------
    BacklogError
        If a name is another one's only in another case: the column would be NULL throughout.
    """
    places = {name: i for i, name in enumerate(avro.names)}
    lower = {name.lower(): name for name in avro.names}
    for name in names:
        if name not in places and name.lower() in lower:
            raise BacklogError(
                f"the column {name} is {lower[name.lower()]} in the Avro schema.", "Declare it with the same case."
            )
    return [places.get(name) for name in names]


def record_reader(avro: Avro, fields: list[pa.Field], path: str = "") -> Callable[[bytes, int], tuple[list[Any], int]]:
    """What reads declared fields of a record; those that it does not have are None.

    Raises
    ------
    BacklogError
        If a field's type cannot become the declared one.
    """
    slots = {place: i for i, place in enumerate(matched(avro, [f.name for f in fields])) if place is not None}
    steps: list[tuple[Read, int]] = []
    for place, child in enumerate(avro.children):
        slot = slots.get(place, -1)
        if slot < 0:
            steps.append((_skipper(child), -1))
        else:
            steps.append((value_reader(child, fields[slot].type, path + fields[slot].name), slot))
    count = len(fields)

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        row: list[Any] = [None] * count
        for step, slot in steps:
            value, at = step(data, at)
            if slot >= 0:
                row[slot] = value
        return row, at

    return read


def value_reader(avro: Avro, type: pa.DataType, path: str) -> Read:
    """What reads a value for a declared type; ``path`` names the column in errors."""
    if avro.kind == "union":
        return _union(avro, type, path)
    if avro.kind == "record" and pa.types.is_struct(type):
        names = [f.name for f in type]
        fields = record_reader(avro, list(type), f"{path}.")

        def read_struct(data: bytes, at: int) -> tuple[Any, int]:
            row, at = fields(data, at)
            return dict(zip(names, row, strict=True)), at

        return read_struct
    if avro.kind == "array" and pa.types.is_list(type):
        item = value_reader(avro.children[0], type.value_type, f"{path}[]")
        return _blocks(item, _least(avro.children[0]))
    if avro.kind == "map" and pa.types.is_map(type) and pa.types.is_string(type.key_type):
        value = value_reader(avro.children[0], type.item_type, f"{path}[]")

        def read_entry(data: bytes, at: int) -> tuple[Any, int]:
            key, at = _string(data, at)
            item, at = value(data, at)
            return (key, item), at

        return _blocks(read_entry, 1)
    if avro.kind not in ("record", "array", "map", "null"):
        found = _scalar(avro, type)
        if found:
            return found
    raise BacklogError(
        f"the column {path} is {avro} in the Avro schema and declared {type}.",
        f"Declare it {arrow_type(avro)}." if avro.kind != "null" else "Leave it out.",
    )


def _scalar(avro: Avro, type: pa.DataType) -> Read | None:
    """What reads a value without others in it; None if the type cannot become the declared one."""
    if avro.logical == "decimal":
        wider = pa.types.is_decimal128(type) and type.scale >= avro.scale
        return _decimal(avro) if wider and type.precision - type.scale >= avro.precision - avro.scale else None
    if avro.logical and type == arrow_type(avro):
        return _temporal(avro)
    if avro.kind == "enum":
        return _enum(avro.names) if pa.types.is_string(type) else None
    if avro.kind == "fixed":
        return _fixed(avro.size) if pa.types.is_binary(type) else None
    # The number that is behind a logical type may be declared too.
    plain = Avro(avro.kind)
    if type != arrow_type(plain) and (avro.logical or type not in PROMOTIONS.get(avro.kind, ())):
        wide = avro.logical and avro.kind == "int" and type == pa.int64()
        if not wide:
            return None
    if pa.types.is_binary(type):
        return _bytes
    if pa.types.is_string(type):
        return _string
    if pa.types.is_floating(type) and avro.kind in ("int", "long"):
        whole, narrow = _PRIMITIVES[avro.kind], pa.types.is_float32(type)

        def read_float(data: bytes, at: int) -> tuple[Any, int]:
            value, at = whole(data, at)
            return _rounded(value) if narrow else float(value), at

        return read_float
    return _PRIMITIVES[avro.kind]


def _rounded(value: int) -> float:
    """The nearest number of 32 bits. By way of 64 bits it would be rounded twice."""
    wide = float(value)
    if int(wide) != value and not struct.unpack("<Q", struct.pack("<d", wide))[0] & 1:
        bits = struct.unpack("<q", struct.pack("<d", wide))[0]
        away = (value > int(wide)) == (value > 0)
        wide = struct.unpack("<d", struct.pack("<q", bits + (1 if away else -1)))[0]
    narrow: float = struct.unpack("<f", struct.pack("<f", wide))[0]
    return narrow


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    found, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70 or found >> 64:
            raise Unreadable("a number has more than 64 bits")
    return found >> 1 ^ -(found & 1), at


def _int(data: bytes, at: int) -> tuple[int, int]:
    value, at = _long(data, at)
    if value not in _INT32:
        raise Unreadable("an int has more than 32 bits")
    return value, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise Unreadable("a boolean is neither 0 nor 1")
    return data[at] == 1, at + 1


def _number(format: str) -> Read:
    unpack, size = struct.Struct(format).unpack_from, struct.calcsize(format)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        if at + size > len(data):
            raise IndexError
        return unpack(data, at)[0], at + size

    return read


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise Unreadable("a length is negative or beyond the record's end")
    return data[at:end], end


def _string(data: bytes, at: int) -> tuple[str, int]:
    found, at = _bytes(data, at)
    try:
        return found.decode(), at
    except UnicodeDecodeError:
        raise Unreadable("a string is no UTF-8") from None


_PRIMITIVES: dict[str, Read] = {
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _number("<f"),
    "double": _number("<d"),
    "bytes": _bytes,
    "string": _string,
}


def _fixed(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        if at + size > len(data):
            raise IndexError
        return data[at : at + size], at + size

    return read


def _enum(symbols: tuple[str, ...]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _int(data, at)
        if not 0 <= index < len(symbols):
            raise Unreadable("an enum has no such symbol")
        return symbols[index], at

    return read


def _decimal(avro: Avro) -> Read:
    unscaled = _fixed(avro.size) if avro.kind == "fixed" else _bytes
    limit, scale = 10**avro.precision, avro.scale

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        found, at = unscaled(data, at)
        value = int.from_bytes(found, "big", signed=True)
        if abs(value) >= limit:
            raise Unreadable("a decimal has more digits than its type")
        return Decimal((value < 0, tuple(map(int, str(abs(value)))), -scale)), at

    return read


def _temporal(avro: Avro) -> Read:
    whole = _PRIMITIVES[avro.kind]
    if avro.logical == "date":
        return whole
    factor = 1000 if avro.logical.endswith("-millis") else 1
    time = avro.logical.startswith("time-")
    if time:
        factor *= 1000
    fits = range(24 * 3600 * 10**9) if time else _INT64

    def read(data: bytes, at: int) -> tuple[int, int]:
        value, at = whole(data, at)
        value *= factor
        if value not in fits:
            raise Unreadable(f"a {avro.logical} is out of range")
        return value, at

    return read


def _union(avro: Avro, type: pa.DataType, path: str) -> Read:
    others = [child for child in avro.children if child.kind != "null"]
    apart = len(others) > 1 and pa.types.is_struct(type) and type == arrow_type(avro)
    branches: list[Read] = []
    for child in avro.children:
        if child.kind == "null":
            branches.append(lambda data, at: (None, at))
        elif apart:
            name = f"member{others.index(child)}"
            branches.append(_member(value_reader(child, type.field(name).type, f"{path}.{name}"), name))
        else:
            branches.append(value_reader(child, type, path))

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(branches):
            raise Unreadable("a union has no such branch")
        return branches[index](data, at)

    return read


def _member(value: Read, name: str) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        found, at = value(data, at)
        return {name: found}, at

    return read


def _blocks(item: Read, least: int) -> Read:
    """Items of an array or map."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = _long(data, at)
            if count < 0:
                count = -count
                _, at = _long(data, at)  # the bytes that the block has, for those who skip it
            if not count:
                return found, at
            if least * count > len(data) or (not least and len(found) + count > _MOST_EMPTY_ITEMS):
                raise Unreadable("an array or map has more items than fit")
            for _ in range(count):
                value, at = item(data, at)
                found.append(value)

    return read


def _least(avro: Avro) -> int:
    """The fewest bytes that a value may have."""
    if avro.kind == "record":
        return sum(_least(child) for child in avro.children)
    return {"null": 0, "fixed": avro.size, "float": 4, "double": 8}.get(avro.kind, 1)


def _skipper(avro: Avro) -> Read:
    """What passes over a value that no column takes."""
    if avro.kind == "null":
        return lambda data, at: (None, at)
    if avro.kind == "record":
        steps = [_skipper(child) for child in avro.children]

        def skip(data: bytes, at: int) -> tuple[Any, int]:
            for step in steps:
                _, at = step(data, at)
            return None, at

        return skip
    if avro.kind == "union":
        return _skip_union([_skipper(child) for child in avro.children])
    if avro.kind == "array":
        return _blocks(_skipper(avro.children[0]), _least(avro.children[0]))
    if avro.kind == "map":
        value = _skipper(avro.children[0])
        return _blocks(lambda data, at: value(data, _bytes(data, at)[1]), 1)
    if avro.kind == "fixed":
        return _fixed(avro.size)
    if avro.kind == "enum":
        return _enum(avro.names)
    return _bytes if avro.kind == "string" else _PRIMITIVES[avro.kind]


def _skip_union(branches: list[Read]) -> Read:
    def skip(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(branches):
            raise Unreadable("a union has no such branch")
        return branches[index](data, at)

    return skip
