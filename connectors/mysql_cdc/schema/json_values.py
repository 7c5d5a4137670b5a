"""Converts MySQL's JSON to one canonical text, from the server's text and from its binary form (pure).

The text is the server's: keys in its order, ``", "`` and ``": "`` between them, and only control characters, quotes and
backslashes escaped. Only numbers with a fraction or an exponent are rewritten, without exponent and trailing zeros,
because the binary form holds them as doubles and decimals.

Source: MySQL source documentation, "JSON binary format" (sql/json_binary.h), and sql/json_dom.cc for dates and times.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal

from backlog_spark.errors import BacklogError

from ..binlog.row_code import Reader, as_reader
from .packed import packed_decimal, packed_size

__all__ = ["from_binary", "from_text", "varint"]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned integer with seven bits per byte, least significant first, and the index after it.

    Parameters
    ----------
    data : bytes
    at : int
        Index of its first byte.

    Raises
    ------
    IndexError
        If ``data`` ends before the integer does.
    """
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = 0, 1, 2, 3, 4
_DOUBLE, _STRING, _OPAQUE = 11, 12, 15
# From the type to the bytes, and the function that reads them.
_INTEGERS = {
    kind: (struct.calcsize(form), struct.Struct(form).unpack_from)
    for kind, form in ((5, "<h"), (6, "<H"), (7, "<i"), (8, "<I"), (9, "<q"), (10, "<Q"))
}
# A string of JSON. `json.dumps` makes an encoder for each call.
_quoted = json.encoder.encode_basestring
# Most characters of a text for each byte of a document: a double of 11 bytes has up to 327. More of them means that
# values of damaged bytes are shared, which may grow exponentially.
_MOST_CHARACTERS = 64
_DIGITS, _FRACTION_DIGITS = 65, 30  # of the server's DECIMAL
_PACKED_TIME = 8  # bytes
_LITERALS = {0: "null", 1: "true", 2: "false"}
# Type codes within opaque values.
_TIMESTAMP, _DATE, _TIME, _DATETIME, _DECIMAL = 7, 10, 11, 12, 246

# A string, which stays as it is, or a number.
_STRING_OR_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?')
_FRACTION = re.compile(r"\d[.eE]")


def from_text(text: str) -> str:
    """Convert the text of a SELECT."""
    if not _FRACTION.search(text):
        return text
    return _STRING_OR_NUMBER.sub(_token, text)


def _token(found: re.Match[str]) -> str:
    token = found.group()
    return token if token[0] == '"' or token.lstrip("-").isdecimal() else _number(Decimal(token))


def _number(value: Decimal) -> str:
    """Without exponent and trailing zeros. A whole number keeps one zero after the point, to stay a fraction."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text}.0" if "." not in text else text


def from_binary(data: bytes) -> str:
    """Convert the bytes of a row image.

    Raises
    ------
    BacklogError
        The bytes have a type that is not known.
    LookupError, ValueError, struct.error, RecursionError
        They are damaged: see `damaged`.
    """
    # An invalid value of a NOT NULL column is stored as no bytes at all.
    return _value(data[0], data, 1) if data else "null"


def _value(kind: int, data: bytes, at: int) -> str:
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY):
        return _container(kind, data, at)
    if kind == _STRING:
        size, at = varint(data, at)
        return _quoted(str(_within(data, at, size), "utf-8"))
    if kind in _INTEGERS:
        return str(_INTEGERS[kind][1](data, at)[0])
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind == _DOUBLE:
        number = struct.unpack_from("<d", data, at)[0]
        if not math.isfinite(number):
            raise ValueError(f"a JSON value is {number}")
        return _number(Decimal(repr(number)))
    if kind == _OPAQUE:
        size, start = varint(data, at + 1)
        return _opaque(data[at], _within(data, start, size))
    raise BacklogError(
        f"A JSON value in the binary log has the type {kind}, which mysql_cdc does not read.",
        "Please report it, with the server's version.",
    )


def _within(data: bytes, at: int, size: int) -> bytes:
    found = data[at : at + size]
    if len(found) != size:
        raise ValueError("a JSON value ends beyond its document")
    return found


def _container(kind: int, data: bytes, at: int) -> str:
    is_object, large = kind in (_SMALL_OBJECT, _LARGE_OBJECT), kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    width = 4 if large else 2

    def number(offset: int, size: int = width) -> int:
        return int.from_bytes(data[offset : offset + size], "little")

    count = number(at)
    entry = at + 2 * width
    if count * (1 + width) > len(data) - entry:
        raise ValueError("a JSON value has more items than bytes")
    keys = []
    if is_object:
        for _ in range(count):
            start, size = at + number(entry), number(entry + width, 2)
            keys.append(_quoted(str(_within(data, start, size), "utf-8")))
            entry += width + 2
    values = []
    left = _MOST_CHARACTERS * len(data)
    for _ in range(count):
        inner = data[entry]
        # A small value is in the entry itself.
        inlined = inner == _LITERAL or (inner in _INTEGERS and _INTEGERS[inner][0] <= width)
        text = _value(inner, data, entry + 1 if inlined else at + number(entry + 1))
        left -= len(text)
        if left < 0:
            raise ValueError("values of JSON share their bytes")
        values.append(text)
        entry += 1 + width
    if not is_object:
        return f"[{', '.join(values)}]"
    return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"


@functools.lru_cache(1_000)
def _decimal(precision: int, scale: int) -> Reader:
    return as_reader(packed_decimal(precision, scale))


def _opaque(kind: int, data: bytes) -> str:
    if kind == _DECIMAL:
        precision, scale = data[0], data[1]
        if precision > _DIGITS or scale > min(precision, _FRACTION_DIGITS):
            raise ValueError(f"a JSON value is a decimal({precision},{scale})")
        _within(data, 2, packed_size(precision, scale))
        unscaled = _decimal(precision, scale)(data, 2)[0]
        return _number(Decimal(f"{unscaled}e-{scale}")) if scale else str(unscaled)
    known: dict[int, Callable[[int], str]] = {
        _DATE: _date, _TIME: _time, _DATETIME: _datetime, _TIMESTAMP: _datetime
    }  # fmt: skip
    if kind in known:
        _within(data, 0, _PACKED_TIME)
        return f'"{known[kind](int.from_bytes(data, "little", signed=True))}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode()}"'


def _clock(seconds: int, micros: int) -> str:
    return f"{seconds >> 12:02d}:{seconds >> 6 & 63:02d}:{seconds & 63:02d}.{micros:06d}"


def _date(packed: int) -> str:
    days = packed >> 41
    months = days >> 5
    return f"{months // 13:04d}-{months % 13:02d}-{days & 31:02d}"


def _datetime(packed: int) -> str:
    return f"{_date(packed)} {_clock(packed >> 24 & 0x1FFFF, packed & 0xFFFFFF)}"


def _time(packed: int) -> str:
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    return sign + _clock(packed >> 24, packed & 0xFFFFFF)
