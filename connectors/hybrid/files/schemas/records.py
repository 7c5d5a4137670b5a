"""Infers the columns of records of JSON and CSV (pure).

Source: Spark's JsonInferSchema and CSVInferSchema. Two differences from Spark: a malformed record of JSON counts for
nothing, and a time of day alone is text, as it is no timestamp here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce

import pyarrow as pa

from ...decode.base import text_of
from ...decode.json_scan import Array, Malformed, NonFinite, Number, Object, scan
from ...decode.numeric import parse_bool, parse_double, parse_integer
from ...decode.temporal import days_of, parse_timestamp
from ...decode.texts import Formats
from .types import merged_fields, of_csv, of_json

__all__ = ["CsvGuess", "JsonGuess", "json_type"]

Split = Callable[[str], "list[str | None]"]

_DECIMAL = re.compile(r"[+-]?0*([0-9]*)\.?", re.ASCII)
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
_MOST_DIGITS = 38
_FLOATS = ("NaN", "Inf", "-Inf")


def json_type(value: object) -> pa.DataType:
    """The type of a value in the tree of a record."""
    if value is None or value == "":
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, Number):
        return _number(value)
    if isinstance(value, NonFinite):
        return pa.float64()
    if isinstance(value, Array):
        return pa.list_(reduce(of_json, map(json_type, value.items), pa.null()))
    if isinstance(value, Object):
        return pa.struct(_sorted(pa.field(name, json_type(item)) for name, item in value.items))
    return pa.string()


def _sorted(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return sorted(merged_fields(fields, of_json) or [], key=lambda field: field.name)


def _number(text: str) -> pa.DataType:
    digits = text.lstrip("-")
    if not digits.isdecimal():
        return pa.float64()
    if len(digits) < 19 or -(2**63) <= int(text) < 2**63:
        return pa.int64()
    return pa.decimal128(len(digits), 0) if len(digits) <= _MOST_DIGITS else pa.float64()


class JsonGuess:
    """Columns of JSON, from records that are added one by one."""

    def __init__(self) -> None:
        self._found = pa.struct([])

    def add(self, record: bytes) -> None:
        """Add a record. A malformed one counts for nothing, and neither does one with hundreds of levels."""
        try:
            value = scan(text_of(record))
            made = None if value is None else json_type(value)
        except (Malformed, RecursionError):
            return
        if made is not None:
            self._found = made if not self._found.num_fields else of_json(self._found, made)

    @property
    def schema(self) -> pa.Schema:
        """The columns so far, sorted by name. Types that are not known are null."""
        return pa.schema(list(self._found))


class CsvGuess:
    """Columns of CSV, from records that are added one by one.

    Parameters
    ----------
    header : list of str or None
        Names of the columns. None: ``_c0``, ``_c1`` and so on, as in Spark.
    split : callable
        Splits a record into fields: `Splitter`.
    null_value : str
        Text that means NULL.
    formats : Formats
    """

    def __init__(self, header: list[str] | None, split: Split, null_value: str, formats: Formats) -> None:
        self._header = header
        self._split = split
        self._null_value = null_value
        self._formats = formats
        self._types: list[pa.DataType] = [pa.null() for _ in header or ()]

    def add(self, record: bytes) -> None:
        """Add a record."""
        fields = self._split(text_of(record))
        if self._header is None:
            self._types += [pa.null()] * (len(fields) - len(self._types))
        for index, field in enumerate(fields[: len(self._types)]):
            if field and field != self._null_value:
                self._types[index] = self._with(self._types[index], field)

    @property
    def schema(self) -> pa.Schema:
        """The columns so far. Types that are not known are null."""
        names = self._header or [f"_c{index}" for index in range(len(self._types))]
        return pa.schema(list(zip(names, self._types, strict=True)))

    def _with(self, kind: pa.DataType, text: str) -> pa.DataType:
        """The type of a column with one more value. Spark tries no narrower type than it has found before."""
        t = pa.types
        if t.is_string(kind):
            return kind
        tried = (
            0 if t.is_null(kind) or t.is_int32(kind) else 1 if t.is_integer(kind) else 2 if t.is_decimal(kind)
            else 3 if t.is_floating(kind) else 4 if t.is_date(kind) else 5 if t.is_timestamp(kind) else 6
        )  # fmt: skip
        return of_csv(kind, self._type(text, tried))

    def _type(self, text: str, first: int) -> pa.DataType:
        if first <= 0 and parse_integer(text, 32) is not None:
            return pa.int32()
        if first <= 1 and parse_integer(text, 64) is not None:
            return pa.int64()
        if first <= 2 and (digits := _DECIMAL.fullmatch(text)) and any(map(str.isdigit, text)):
            size = max(1, len(digits[1]))
            return pa.decimal128(size, 0) if size <= _MOST_DIGITS else pa.float64()
        if first <= 3 and (parse_double(text) is not None or text in _FLOATS):
            return pa.float64()
        if first <= 4 and self._is_date(text):
            return pa.date32()
        if first <= 5 and self._is_timestamp(text):
            return pa.timestamp("us", "UTC")
        return pa.bool_() if parse_bool(text) is not None else pa.string()

    def _is_date(self, text: str) -> bool:
        if self._formats.date:
            return self._formats.date.date(text) is not None
        found = _DATE.fullmatch(text)
        return bool(found) and days_of(int(found[1]), int(found[2]), int(found[3])) is not None  # type: ignore[index]

    def _is_timestamp(self, text: str) -> bool:
        pattern = self._formats.timestamp
        return (pattern.timestamp if pattern else parse_timestamp)(text, default=self._formats.zone) is not None
