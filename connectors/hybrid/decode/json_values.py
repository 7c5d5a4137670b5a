"""Converts values in the tree of a JSON record to declared types (pure).

Source: Spark's JacksonParser. The readable part of a malformed record is kept as in Spark: of an object the fields that
fit; of an array or map nothing if an element does not fit, but everything if an element is an object that fits partly.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from backlog_spark.errors import BacklogError

from .json_scan import Array, NonFinite, Number, Object, Structure
from .numeric import parse_decimal, to_float
from .temporal import day_number
from .texts import Formats, Parse, Texts, is_readable

__all__ = ["FLOAT_WORDS", "Partial", "Read", "Unfit", "base64_bytes", "fields_reader", "value_reader"]

FLOAT_WORDS = {
    "NaN": float("nan"), "+INF": float("inf"), "+Infinity": float("inf"), "Infinity": float("inf"),
    "-INF": float("-inf"), "-Infinity": float("-inf"),
}  # fmt: skip
# Most seconds since the epoch that fit into 64 bits as microseconds. Spark wraps around beyond that.
_MOST_SECONDS = (2**63 - 1) // 1_000_000
# Base64 as Jackson accepts it: white space between groups, and padding at the end of any group.
_GROUPS = re.compile(r"(?:[\x00-\x20]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*[\x00-\x20]*")
_GROUP = re.compile(r"[A-Za-z0-9+/=]{4}")

Read = Callable[[Any], Any]


class Unfit(Exception):
    """A value that does not fit its column. The argument says why."""


class Partial(Unfit):
    """A value of which a part fits.

    Parameters
    ----------
    reason : str
        Why.
    value : object
        The part that fits.
    """

    def __init__(self, reason: str, value: Any) -> None:
        super().__init__(reason)
        self.value = value


def value_reader(type: pa.DataType, formats: Formats, *, non_finite: bool = True) -> Read:
    """A reader of a value in the tree that is not null, for a type.

    Parameters
    ----------
    type : pyarrow.DataType
        Type of the column.
    formats : Formats
        Formats of dates and timestamps.
    non_finite : bool
        Whether strings like ``"NaN"`` are floats.

    Returns
    -------
    callable
        Returns a value in the form that `pyarrow.array` takes for the type; raises `Unfit`.

    Raises
    ------
    BacklogError
        For a type that JSON cannot be decoded to.
    """
    if pa.types.is_struct(type) and type.num_fields:
        read = fields_reader(list(type), formats, non_finite=non_finite)
        names = [f.name for f in type]
        return lambda value: _struct(value, read, names)
    if pa.types.is_list(type):
        element = value_reader(type.value_type, formats, non_finite=non_finite)
        return lambda value: _elements(value, element)
    if pa.types.is_map(type) and pa.types.is_string(type.key_type):
        item = value_reader(type.item_type, formats, non_finite=non_finite)
        return lambda value: _entries(value, item)
    for fits, make in _SCALARS if is_readable(type) else ():
        if fits(type):
            return make(type, formats, non_finite)
    raise BacklogError(f"JSON cannot be decoded to {type}.", "Declare the column STRING and cast it in the query.")


def fields_reader(
    fields: Iterable[pa.Field], formats: Formats, *, non_finite: bool = True
) -> Callable[[Object], tuple[list[Any], str]]:
    """A reader of some fields of an object. Returns their values, and why some are missing, or "". Names have case."""
    readers = [(f.name, value_reader(f.type, formats, non_finite=non_finite)) for f in fields]
    indexed = {name: (i, read) for i, (name, read) in enumerate(readers)}
    if len(indexed) < len(readers):
        raise BacklogError(f"two fields have the same name: {', '.join(name for name, _ in readers)}.", "Rename one.")

    def read_fields(value: Object) -> tuple[list[Any], str]:
        row: list[Any] = [None] * len(readers)
        reason = ""
        for name, item in value.items:
            found = indexed.get(name)
            if found is None:
                continue
            index, read = found
            try:
                row[index] = None if item is None else read(item)
            except Unfit as unfit:
                if isinstance(unfit, Partial):
                    row[index] = unfit.value
                reason = reason or f"{name}: {unfit}"
        return row, reason

    return read_fields


def _struct(value: Any, read: Callable[[Object], tuple[list[Any], str]], names: list[str]) -> Any:
    if type(value) is not Object:
        raise Unfit(f"{_kind(value)} instead of an object")
    row, reason = read(value)
    fields = dict(zip(names, row, strict=True))
    if reason:
        raise Partial(reason, fields)
    return fields


def _elements(value: Any, read: Read) -> list[Any]:
    if type(value) is not Array:
        raise Unfit(f"{_kind(value)} instead of an array")
    found, reason = [], ""
    for item in value.items:
        try:
            found.append(None if item is None else read(item))
        except Partial as partial:
            found.append(partial.value)
            reason = reason or str(partial)
    if reason:
        raise Partial(reason, found)
    return found


def _entries(value: Any, read: Read) -> list[tuple[str, Any]]:
    if type(value) is not Object:
        raise Unfit(f"{_kind(value)} instead of an object")
    found, reason = [], ""
    for name, item in value.items:
        try:
            found.append((name, None if item is None else read(item)))
        except Partial as partial:
            found.append((name, partial.value))
            reason = reason or str(partial)
    if reason:
        raise Partial(reason, found)
    return found


def _kind(value: Any) -> str:
    if isinstance(value, Structure):
        return "an object" if isinstance(value, Object) else "an array"
    if isinstance(value, bool):
        return "a boolean"
    return "a number" if isinstance(value, Number | NonFinite) else "a string"


def _string(type: pa.DataType, formats: Formats, non_finite: bool) -> Read:
    def read(value: Any) -> Any:
        if isinstance(value, str):
            return str(value)
        if isinstance(value, Structure):
            return value.text
        return "true" if value else "false"

    return read


def _boolean(type: pa.DataType, formats: Formats, non_finite: bool) -> Read:
    def read(value: Any) -> Any:
        if isinstance(value, bool):
            return value
        raise Unfit(f"{_kind(value)} instead of a boolean")

    return read


def _integer(type: pa.DataType, formats: Formats, non_finite: bool) -> Read:
    low, high = -(1 << type.bit_width - 1), (1 << type.bit_width - 1) - 1
    # Jackson also accepts 128 to 255 as bytes; they become negative.
    highest = 255 if type.bit_width == 8 else high

    def read(value: Any) -> Any:
        if isinstance(value, Number) and value.lstrip("-").isdecimal():
            number = int(value) if len(value) <= 20 else high + 2**32
            if low <= number <= highest:
                return number if number <= high else number - 256
            raise Unfit(f"a number that does not fit into {type}")
        raise Unfit(f"{_kind(value)} instead of an integer")

    return read


def _floating(type: pa.DataType, formats: Formats, non_finite: bool) -> Read:
    convert = to_float if pa.types.is_float32(type) else float

    def read(value: Any) -> Any:
        if isinstance(value, Number):
            # An integer 0 has no sign.
            return 0.0 if value == "-0" else convert(value)
        if non_finite and isinstance(value, str) and value in FLOAT_WORDS:
            return FLOAT_WORDS[value]
        raise Unfit(f"{_kind(value)} instead of a number")

    return read


def _decimal(type: pa.DataType, formats: Formats, non_finite: bool) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or isinstance(value, NonFinite):
            raise Unfit(f"{_kind(value)} instead of a number")
        found = parse_decimal(value, type.precision, type.scale)
        if found is None:
            raise Unfit(f"{_kind(value)} that does not fit into {type}")
        return found

    return read


def _timestamp(type: pa.DataType, formats: Formats, non_finite: bool) -> Read:
    parse = Texts(type, formats).one

    def read(value: Any) -> Any:
        if isinstance(value, Number) and type.tz is not None and value.lstrip("-").isdecimal():
            if len(value) <= 20 and abs(int(value)) <= _MOST_SECONDS:
                return int(value) * 1_000_000
            raise Unfit("a number that is too large for seconds since the epoch")
        return _parsed(value, parse, "a timestamp")

    return read


def _date(type: pa.DataType, formats: Formats, non_finite: bool) -> Read:
    parse = Texts(type, formats).one
    if formats.date:
        return lambda value: _parsed(value, parse, "a date")

    def parse_any(text: str) -> int | None:
        days = parse(text)
        return day_number(text) if days is None else days

    return lambda value: _parsed(value, parse_any, "a date")


def _time(type: pa.DataType, formats: Formats, non_finite: bool) -> Read:
    parse = Texts(type, formats).one
    return lambda value: _parsed(value, parse, "a time of day")


def _binary(type: pa.DataType, formats: Formats, non_finite: bool) -> Read:
    return lambda value: _parsed(value, base64_bytes, "base64")


def _parsed(value: Any, parse: Parse, what: str) -> Any:
    if type(value) is not str:
        raise Unfit(f"{_kind(value)} instead of {what}")
    found = parse(value)
    if found is None:
        raise Unfit(f"a string that is not {what}")
    return found


def base64_bytes(text: str) -> bytes | None:
    """The bytes of padded base64; None if the text is not base64."""
    if not _GROUPS.fullmatch(text):
        return None
    if "=" not in text[:-2]:
        return binascii.a2b_base64(text)
    return b"".join(binascii.a2b_base64(group) for group in _GROUP.findall(text))


_SCALARS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Formats, bool], Read]]] = [
    (pa.types.is_string, _string),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, _date),
    (pa.types.is_time, _time),
    (pa.types.is_binary, _binary),
]
