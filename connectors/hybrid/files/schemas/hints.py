"""Types that the user gives for some columns of an inferred schema: the option ``schemaHints`` (pure).

Source: Databricks, "Configure schema inference and evolution in Auto Loader", on schema hints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from .fields import shown

__all__ = ["Hint", "Unfit", "hinted", "hints_text", "parse_hints"]

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`|[^\W\d]\w*|\d+)|([<>(),:.]))")
_PLAIN = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_DECIMALS = ("decimal", "dec", "numeric")
_TEXTS = ("varchar", "char")
# Steps of a path into lists and maps.
_ELEMENT, _KEY, _VALUE = "element", "key", "value"


class Unfit(Exception):
    """A hint is not understood, or does not fit the column. The argument says why."""


@dataclass(frozen=True)
class Hint:
    """The type of one column or field.

    Parameters
    ----------
    path : tuple of str
        Its name, after the names of the columns and fields that it is in. ``element``, ``key`` and ``value`` lead into
        lists and maps.
    type : pyarrow.DataType
    """

    path: tuple[str, ...]
    type: pa.DataType

    def __str__(self) -> str:
        return ".".join(self.path)


def hints_text(hints: Sequence[Hint]) -> str:
    """Hints as the user writes them."""
    return ", ".join(f"{hint} {shown(hint.type)}" for hint in hints)


def parse_hints(text: str) -> tuple[Hint, ...]:
    """Parse hints such as ``a INT, b.c DECIMAL(10,2), d.element STRUCT<e: DATE>``.

    Raises
    ------
    Unfit
    """
    at = _Tokens(text)
    found: list[Hint] = []
    while not at.is_over or found:
        path = [at.name("a column")]
        while at.has("."):
            path.append(at.name("a field"))
        found.append(Hint(tuple(path), _type(at)))
        if at.is_over:
            break
        at.need(",")
    for index, hint in enumerate(found):
        for other in found[:index]:
            if _folded(hint.path)[: len(other.path)] == _folded(other.path)[: len(hint.path)]:
                raise Unfit(f"{hint} and {other} are about the same column")
    return tuple(found)


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._text)

    def _next(self) -> tuple[str, bool]:
        """The next token, and whether it is a name or number; ("", False) at the end."""
        if self.is_over:
            return "", False
        found = _TOKEN.match(self._text, self._at)
        if not found:
            raise Unfit(f"character {self._at + 1} is not understood: {self._text[self._at :][:20]!r}")
        self._end = found.end()
        return found[1] or found[2], found[1] is not None

    def has(self, sign: str) -> bool:
        """Consume a sign if it is the next token."""
        found, is_word = self._next()
        if is_word or found != sign:
            return False
        self._at = self._end
        return True

    def need(self, sign: str) -> None:
        if not self.has(sign):
            raise Unfit(f"{sign!r} is missing before {self._text[self._at :].strip()[:20]!r}")

    def name(self, what: str) -> str:
        found, is_word = self._next()
        if not is_word or found.isdecimal():
            raise Unfit(f"{what} is missing before {self._text[self._at :].strip()[:20]!r}")
        self._at = self._end
        return found[1:-1].replace("``", "`") if found[0] == "`" else found

    def number(self) -> int:
        found, _ = self._next()
        if not found.isdecimal():
            raise Unfit(f"a number is missing before {self._text[self._at :].strip()[:20]!r}")
        self._at = self._end
        return int(found)


def _type(at: _Tokens) -> pa.DataType:
    word = at.name("a type")
    name = word.lower()
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _DECIMALS:
        precision, scale = 10, 0
        if at.has("("):
            precision = at.number()
            scale = at.number() if at.has(",") else 0
            at.need(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise Unfit(f"DECIMAL({precision},{scale}) has no 1 to 38 digits, or a larger scale")
        return pa.decimal128(precision, scale)
    if name in _TEXTS:
        at.need("(")
        at.number()
        at.need(")")
        return pa.string()
    if name in ("array", "map", "struct"):
        at.need("<")
        if name == "array":
            made = pa.list_(_type(at))
        elif name == "map":
            key = _type(at)
            at.need(",")
            made = pa.map_(key, _type(at))
        else:
            made = _struct(at)
        at.need(">")
        return made
    raise Unfit(f"{word} is not a type of Spark")


def _struct(at: _Tokens) -> pa.DataType:
    fields: list[pa.Field] = []
    while not fields or at.has(","):
        name = at.name("a field")
        at.has(":")
        fields.append(pa.field(name, _type(at)))
    return pa.struct(fields)


def _folded(path: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.casefold() for name in path)


def hinted(schema: pa.Schema, hints: Sequence[Hint]) -> pa.Schema:
    """A schema with the types of hints. Columns and fields that it does not have are added.

    Raises
    ------
    Unfit
        If a hint is about a field of a column that has none.
    """
    fields = list(schema)
    for hint in hints:
        fields = _with(fields, hint.path, hint)
    return pa.schema(fields)


def _with(fields: list[pa.Field], path: Sequence[str], hint: Hint) -> list[pa.Field]:
    names = [field.name.casefold() for field in fields]
    if path[0].casefold() not in names:
        made = hint.type
        for name in reversed(path[1:]):
            made = pa.struct([pa.field(name, made)])
        return [*fields, pa.field(path[0], made)]
    at = names.index(path[0].casefold())
    found = fields[at]
    return [*fields[:at], found.with_type(_typed(found.type, path[1:], hint)), *fields[at + 1 :]]


def _typed(kind: pa.DataType, path: Sequence[str], hint: Hint) -> pa.DataType:
    if not path:
        return hint.type
    step, rest = path[0].casefold(), path[1:]
    if pa.types.is_struct(kind):
        return pa.struct(_with(list(kind), path, hint))
    if pa.types.is_list(kind) and step == _ELEMENT:
        return pa.list_(_typed(kind.value_type, rest, hint))
    if pa.types.is_map(kind) and step == _KEY:
        return pa.map_(_typed(kind.key_type, rest, hint), kind.item_type)
    if pa.types.is_map(kind) and step == _VALUE:
        return pa.map_(kind.key_type, _typed(kind.item_type, rest, hint))
    raise Unfit(f"{hint} is a field of a column that was inferred as {shown(kind)}")
