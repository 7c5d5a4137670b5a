"""Parses JSON text into a tree, with the leniencies of Spark's parser by default (pure).

Strings and names may be in single quotes, numbers may be ``NaN`` and infinities, and text after the record's object is
ignored. Everything else must follow RFC 8259.

Source: Jackson's ReaderBasedJsonParser under the features that Spark's JSONOptions sets.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

__all__ = ["Array", "Malformed", "NonFinite", "Number", "Object", "Structure", "scan"]

_DEEPEST = 1000  # StreamReadConstraints.DEFAULT_MAX_DEPTH

_SPACE = r"[ \t\r\n]*"
_PLAIN = r'[^"\\\x00-\x1f]*'
_VALUE = re.compile(
    rf'{_SPACE}(?:"({_PLAIN})"|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?![A-Za-z0-9_.+-])'
    r"|(true)|(false)|(null)|([\[{])|([\"'])|(NaN|[+-]?Infinity|[+-]INF))" + _SPACE
)
_NAME = re.compile(rf'{_SPACE}(?:"({_PLAIN})"|(["\'])|(}}))')
_COLON = re.compile(rf"{_SPACE}:")
_NEXT = re.compile(rf"{_SPACE}([,\]}}])")
_EMPTY = re.compile(rf"{_SPACE}\]")
_BLANK = re.compile(_SPACE)
_QUOTED = {
    '"': re.compile(r'((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)"'),
    "'": re.compile(r"((?:[^'\\\x00-\x1f]|\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4}))*)'"),
}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")


class Malformed(Exception):
    """The text is not JSON, or not an object."""


class Number(str):
    """A number as written."""

    __slots__ = ()


class NonFinite(str):
    """``NaN``, ``Infinity`` and the like, outside of quotes."""

    __slots__ = ()


class Structure:
    """An object or array. It knows its position, because a string column takes its text."""

    __slots__ = ("end", "items", "source", "start")
    closing: ClassVar[str]

    def __init__(self, source: str, start: int) -> None:
        self.items: list[Any] = []
        self.source, self.start, self.end = source, start, start

    @property
    def text(self) -> str:
        """Its text as written."""
        return self.source[self.start : self.end]


class Object(Structure):
    """Its items are pairs of name and value. A name may occur several times."""

    __slots__ = ()
    closing = "}"


class Array(Structure):
    """Its items are values: str, `Number`, `NonFinite`, bool, None, `Object`, `Array`."""

    __slots__ = ()
    closing = "]"


def scan(text: str, *, non_finite: bool = True) -> Object | None:
    """The object of a record; None if there is only white space.

    Parameters
    ----------
    text : str
        The record.
    non_finite : bool
        Whether `NonFinite` values are allowed.

    Raises
    ------
    Malformed
        If the text is anything else.
    """
    blank = _BLANK.match(text)
    at = blank.end() if blank else 0
    if at == len(text):
        return None
    if text[at] != "{":
        raise Malformed("it is not a JSON object")
    root = Object(text, at)
    stack: list[Structure] = []
    inside: Structure = root
    name = ""
    at += 1
    opened = True
    while True:
        # At the beginning of a structure, or after a comma.
        if type(inside) is Object:
            found = _NAME.match(text, at)
            if not found or (found[3] and not opened):
                raise Malformed(_error(text, at, "a name"))
            at = found.end()
            if found[3]:
                closes = True
            else:
                name = found[1]
                if name is None:
                    name, at = _string(text, at, found[2])
                colon = _COLON.match(text, at)
                if not colon:
                    raise Malformed(_error(text, at, "a colon"))
                at, closes = colon.end(), False
        else:
            empty = _EMPTY.match(text, at) if opened else None
            at, closes = (empty.end(), True) if empty else (at, False)
        opened = False
        if not closes:
            found = _VALUE.match(text, at)
            if not found:
                raise Malformed(_error(text, at, "a value"))
            at = found.end()
            kind = found.lastindex
            value: Any
            if kind == 1:
                value = found[1]
            elif kind == 2:
                value = Number(found[2])
            elif kind == 3:
                value = True
            elif kind == 4:
                value = False
            elif kind == 5:
                value = None
            elif kind == 6:
                start = found.start(6)
                value = Object(text, start) if found[6] == "{" else Array(text, start)
                _add(inside, name, value)
                stack.append(inside)
                if len(stack) >= _DEEPEST:
                    raise Malformed(f"it is nested deeper than {_DEEPEST} levels")
                inside, opened = value, True
                continue
            elif kind == 7:
                value, at = _string(text, found.end(7), found[7])
            elif non_finite:
                value = NonFinite(found[8])
            else:
                raise Malformed(_error(text, found.start(8), "a value"))
            _add(inside, name, value)
            after = _NEXT.match(text, at)
        # After a value: a comma, or the end of one or more structures.
        while True:
            if closes:
                inside.end = at
                if not stack:
                    return root
                inside = stack.pop()
                after = _NEXT.match(text, at)
            if not after:
                raise Malformed(_error(text, at, "a comma"))
            at = after.end()
            if after[1] == ",":
                break
            if after[1] != inside.closing:
                raise Malformed(_error(text, at - 1, f"a comma or {inside.closing}"))
            closes = True


def _add(inside: Structure, name: str, value: Any) -> None:
    inside.items.append((name, value) if type(inside) is Object else value)


def _string(text: str, at: int, quote: str) -> tuple[str, int]:
    """A string with escapes, or in single quotes, after its opening quote, and the index after it."""
    found = _QUOTED[quote].match(text, at)
    if not found:
        raise Malformed(_error(text, at, "the end of a string"))
    value = found[1]
    if "\\" in value:
        value = _ESCAPE.sub(_unescaped, value)
        value = _PAIR.sub(_joined, value)
        # Java writes a surrogate without its other half as "?".
        value = _LONE.sub("?", value)
    return value, found.end()


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2])


def _joined(found: re.Match[str]) -> str:
    high, low = found[0][0], found[0][1]
    return chr(0x10000 + (ord(high) - 0xD800 << 10) + ord(low) - 0xDC00)


def _error(text: str, at: int, expected: str) -> str:
    return f"it is not JSON: {expected} is missing after {at} of {len(text)} characters"
