"""Parses numbers and booleans like Java and Spark (pure).

Each function returns None for a text that is not such a value. The record is then malformed.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal

__all__ = ["parse_bool", "parse_decimal", "parse_double", "parse_float", "parse_integer", "to_float"]

# Any decimal digit of Unicode's basic plane, as Character.isDigit(char).
_DIGIT = r"(?:(?![\U00010000-\U0010ffff])\d)"
_INTEGER = re.compile(rf"[+-]?{_DIGIT}+")
_DECIMAL = re.compile(rf"[+-]?(?:{_DIGIT}+\.?{_DIGIT}*|\.{_DIGIT}+)(?:[eE]([+-]?{_DIGIT}{{1,10}}))?")
_FLOAT = re.compile(r"([+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|Infinity))[fFdD]?")
_HEX = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
_JAVA_TRIMMED = "".join(map(chr, range(33)))
_WORDS = {"true": True, "false": False}

# The digits that a decimal of 38 digits can have before and after rounding, and a few more.
_ROUNDING = Context(prec=100, rounding=ROUND_HALF_UP)
_MOST_DIGITS = 38
_INT32 = range(-(2**31) + 1, 2**31)


def parse_integer(text: str, bits: int) -> int | None:
    """Like ``Integer.parseInt`` and similar methods."""
    # Python refuses to read integers of more than 4300 digits.
    if not _INTEGER.fullmatch(text) or len(text) > 4000:
        return None
    value = int(text)
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def parse_double(text: str) -> float | None:
    """Like ``Double.parseDouble``: allows surrounding white space, a suffix, and hexadecimal numbers."""
    text = text.strip(_JAVA_TRIMMED)
    found = _FLOAT.fullmatch(text)
    if found:
        return float(found[1])
    hexadecimal = text[:-1] if text[-1:] in "fFdD" else text
    if not _HEX.fullmatch(hexadecimal):
        return None
    try:
        return float.fromhex(hexadecimal)
    except OverflowError:
        return -math.inf if text[0] == "-" else math.inf


def parse_float(text: str) -> float | None:
    """Like ``Float.parseFloat``. The result is exact in 32 bits."""
    value = parse_double(text)
    if value is None or not math.isfinite(value):
        return value
    found = _FLOAT.fullmatch(text.strip(_JAVA_TRIMMED))
    return to_float(found[1]) if found else _narrowed(value)


def to_float(number: str) -> float:
    """The nearest 32-bit number to a decimal number. Rounded once, not first to 64 bits."""
    value = float(number)
    if math.isfinite(value):
        exact, rounded = Decimal(number), Decimal(value)
        if exact != rounded and not struct.unpack("<Q", struct.pack("<d", value))[0] & 1:
            # Round to odd instead of to nearest: then the second rounding sees every digit.
            value = math.nextafter(value, math.inf if exact > rounded else -math.inf)
    return _narrowed(value)


def _narrowed(value: float) -> float:
    try:
        narrow: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return narrow


def parse_decimal(text: str, precision: int, scale: int) -> Decimal | None:
    """Like Spark: drops commas, parses a ``BigDecimal``, rounds half up. None if it does not fit."""
    text = text.replace(",", "")
    found = _DECIMAL.fullmatch(text)
    if not found or (found[1] and int(found[1]) not in _INT32):
        return None
    value = Decimal(text)
    # Otherwise rounding would write as many zeros as a hostile exponent asks for.
    if value and value.adjusted() >= _MOST_DIGITS:
        return None
    if value.adjusted() < -scale - 1:
        return Decimal((0, (0,), -scale))
    value = value.quantize(Decimal((0, (1,), -scale)), context=_ROUNDING)
    return value if not value or value.adjusted() < precision - scale else None


def parse_bool(text: str) -> bool | None:
    """``true`` or ``false``, in any case."""
    return _WORDS.get(text.lower())
