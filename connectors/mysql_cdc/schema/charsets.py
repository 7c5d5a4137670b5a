"""Character sets: converts the binary log's bytes of a text column to text (pure).

The text equals the server's own conversion to utf8mb4, with which the snapshot reads it. Bytes without a character
become ``?``: bytes that a set leaves undefined, and halves of surrogate pairs in ucs2 and utf32.
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Callable

from .charset_tables import DOUBLE_BYTE, SINGLE_BYTE

__all__ = ["CHARSETS", "LOSSY", "as_utf8", "text_decoder", "utf_codec"]

Decoder = Callable[[bytes], str]

_UTF = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "utf16": "utf-16-be", "utf16le": "utf-16-le"}
_FIXED = {"ucs2": ("utf-16-be", "H", 2), "utf32": ("utf-32-be", "I", 4)}
CHARSETS = (*_UTF, *_FIXED, *SINGLE_BYTE, *DOUBLE_BYTE)
"""The character sets that are read: all that the servers have."""

_UNDEFINED = "\ufffe"  # "undefined" to Python's charmap codec


def utf_codec(charset: str) -> str:
    """Python's codec for a character set that it decodes exactly as the server does; "" for others."""
    return _UTF.get(charset, "")


def text_decoder(charset: str, *, exact: bool = False) -> Decoder:
    """Decoder for a character set's bytes in the binary log.

    Parameters
    ----------
    exact : bool
        For keys: raise UnicodeDecodeError if other bytes would read as the same text. Not for the sets of
        `DOUBLE_BYTE`.
    """
    if charset in _UTF:
        codec = _UTF[charset]
        return lambda data: str(data, codec)
    if charset in _FIXED:
        return _fixed_width(*_FIXED[charset], exact)
    if charset in SINGLE_BYTE:
        table = _table(charset)
        if not exact:
            table = table.replace(_UNDEFINED, "?")
        return lambda data: codecs.charmap_decode(data, "strict", table)[0]
    return _double_byte(*DOUBLE_BYTE[charset])


def as_utf8(expression: str, charset: str, *, exact: bool = False) -> str:
    """SQL for a text in utf8mb4, equal to `text_decoder`. With ``exact`` it is NULL where the decoder raises."""
    # MySQL would end a text before a half of a surrogate pair, or make it NULL. Through utf16 the half becomes "?".
    text = f"CONVERT({expression} USING utf16)" if charset in _FIXED else expression
    text = f"CONVERT({text} USING utf8mb4)"
    if exact and charset in LOSSY:
        return f"IF(HEX(CONVERT({text} USING {charset})) = HEX({expression}), {text}, NULL)"
    return text


def _table(charset: str) -> str:
    """The characters of the 256 bytes; `_UNDEFINED` for bytes without one."""
    codec, runs = SINGLE_BYTE[charset]
    table = [bytes([byte]).decode(codec, "replace") for byte in range(256)]
    table = [_UNDEFINED if character == "\ufffd" else character for character in table]
    for first, characters in runs.items():
        table[first : first + len(characters)] = [_UNDEFINED if c == "?" else c for c in characters]
    return "".join(table)


def _fixed_width(codec: str, unit: str, size: int, exact: bool) -> Decoder:
    # The upper byte of either half of a surrogate pair. In ucs2 two halves are not one character.
    half = re.compile(rb"[\xd8-\xdf]")

    def decode(data: bytes) -> str:
        if exact or not half.search(data[size - 2 :: size]):
            return str(data, codec, "strict")
        units = struct.unpack(f">{len(data) // size}{unit}", data)
        return "".join("?" if 0xD800 <= u <= 0xDFFF else chr(u) for u in units)

    return decode


def _double_byte(codec: str, code: bytes, runs: dict[bytes, str]) -> Decoder:
    others = {
        first[:-1] + bytes([first[-1] + i]): character
        for first, characters in runs.items()
        for i, character in enumerate(characters)
    }
    known: dict[bytes, str] = {}
    split = re.compile(code + rb"|.", re.DOTALL)
    # It may also match the end of one code and the beginning of the next. Then decoding is slower, but still right.
    other = re.compile(b"|".join(map(re.escape, others)) or rb"(?!)")

    def one(data: bytes) -> str:
        character = others.get(data)
        if character is None:
            try:
                character = str(data, codec)
            except UnicodeDecodeError:
                character = "?"
        known[data] = character
        return character

    def decode(data: bytes) -> str:
        if not other.search(data):
            try:
                return str(data, codec)
            except UnicodeDecodeError:
                pass
        return "".join([known.get(found) or one(found) for found in split.findall(data)])

    return decode


def _is_lossy(charset: str) -> bool:
    return charset in _FIXED or (charset in SINGLE_BYTE and _UNDEFINED in _table(charset))


LOSSY = frozenset(c for c in CHARSETS if _is_lossy(c))
"""Sets in which different bytes may read as the same text, because they have no character; without `DOUBLE_BYTE`."""
