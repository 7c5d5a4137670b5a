"""Avro's binary encoding, one value at a time (pure).

A reader takes a record and an index in it, and returns the value and the index after it. It raises `Unreadable` for
invalid encodings, and IndexError if the record ends before the value does.

Source: the Avro specification 1.12, "Binary encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from .avro_schema import Avro

__all__ = ["PRIMITIVES", "Read", "Unreadable", "blocks", "enum", "fixed", "least", "long", "skipper", "string"]

Read = Callable[[bytes, int], tuple[Any, int]]

_INT32 = range(-(2**31), 2**31)
# Limit for items that take no bytes: a few bytes could claim any number of them.
_MOST_EMPTY_ITEMS = 100_000


class Unreadable(Exception):
    """A record does not match its schema. The argument says why."""


def long(data: bytes, at: int) -> tuple[int, int]:
    """A number in zigzag and base 128."""
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
    value, at = long(data, at)
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
    size, at = long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise Unreadable("a length is negative or beyond the record's end")
    return data[at:end], end


def string(data: bytes, at: int) -> tuple[str, int]:
    """Text, with its length before it."""
    found, at = _bytes(data, at)
    try:
        return found.decode(), at
    except UnicodeDecodeError:
        raise Unreadable("a string is not UTF-8") from None


PRIMITIVES: dict[str, Read] = {
    "boolean": _boolean,
    "int": _int,
    "long": long,
    "float": _number("<f"),
    "double": _number("<d"),
    "bytes": _bytes,
    "string": string,
}


def fixed(size: int) -> Read:
    """A reader of this number of bytes."""

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        if at + size > len(data):
            raise IndexError
        return data[at : at + size], at + size

    return read


def enum(symbols: tuple[str, ...]) -> Read:
    """A reader of symbols."""

    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _int(data, at)
        if not 0 <= index < len(symbols):
            raise Unreadable("an enum has no such symbol")
        return symbols[index], at

    return read


def blocks(item: Read, least: int) -> Read:
    """A reader of the items of an array or map. ``least``: minimum number of bytes per item."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = long(data, at)
            if count < 0:
                count = -count
                _, at = long(data, at)  # the block's size in bytes, for readers that skip it
            if not count:
                return found, at
            if least * count > len(data) or (not least and len(found) + count > _MOST_EMPTY_ITEMS):
                raise Unreadable("an array or map has more items than its bytes allow")
            for _ in range(count):
                value, at = item(data, at)
                found.append(value)

    return read


def least(avro: Avro) -> int:
    """The minimum number of bytes of a value."""
    if avro.kind == "record":
        return sum(least(child) for child in avro.children)
    return {"null": 0, "fixed": avro.size, "float": 4, "double": 8}.get(avro.kind, 1)


def skipper(avro: Avro) -> Read:
    """A reader that skips a value that no column needs."""
    if avro.kind == "null":
        return lambda data, at: (None, at)
    if avro.kind == "record":
        steps = [skipper(child) for child in avro.children]

        def skip(data: bytes, at: int) -> tuple[Any, int]:
            for step in steps:
                _, at = step(data, at)
            return None, at

        return skip
    if avro.kind == "union":
        return _skip_union([skipper(child) for child in avro.children])
    if avro.kind == "array":
        return blocks(skipper(avro.children[0]), least(avro.children[0]))
    if avro.kind == "map":
        value = skipper(avro.children[0])
        return blocks(lambda data, at: value(data, _bytes(data, at)[1]), 1)
    if avro.kind == "fixed":
        return fixed(avro.size)
    if avro.kind == "enum":
        return enum(avro.names)
    return _bytes if avro.kind == "string" else PRIMITIVES[avro.kind]


def _skip_union(branches: list[Read]) -> Read:
    def skip(data: bytes, at: int) -> tuple[Any, int]:
        index, at = long(data, at)
        if not 0 <= index < len(branches):
            raise Unreadable("a union has no such branch")
        return branches[index](data, at)

    return skip
