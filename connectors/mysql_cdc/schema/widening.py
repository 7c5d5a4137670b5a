"""Converts a column's storage values to a wider definition, exactly as ALTER TABLE converts them (pure).

There is no conversion that may lose anything, or that depends on the session that ran the statement. How servers
convert existing rows was measured on MySQL 8.0 and MariaDB 11.4 and 10.11
(tests/connectors/mysql_cdc/schema/ddl/test_history_servers.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .columns import Column
from .packed import decimal_text
from .types import GEOMETRIES

__all__ = ["Convert", "as_is", "conversion", "same_definition"]

Convert = Callable[[Any], object]

_INT_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXT = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_DAY = 86_400_000_000  # microseconds
_EXACT_DOUBLE = 2**53
# Versions of a server write these differently: display widths, and the name of three-byte UTF-8.
_WIDTH = re.compile(r"(?<=int)\(\d+\)|(?<=year)\(4\)")


def same_definition(one: Column, other: Column) -> bool:
    """Whether type and character set are the same, so that values are the same too."""
    return _definition(one) == _definition(other)


def _definition(column: Column) -> tuple[str, str, str]:
    charset = "utf8mb3" if column.charset == "utf8" else column.charset
    return column.data_type, _WIDTH.sub("", column.column_type), charset


def as_is(value: Any) -> object:
    """The conversion that does nothing."""
    return value


def conversion(old: Column, new: Column) -> Convert | None:
    """Converts values of one definition to another. `as_is` if they are the same, None if they cannot be converted."""
    if same_definition(old, new):
        return as_is
    if new.data_type in _INT_BYTES:
        return as_is if _within(old, new) else None
    if new.data_type in _TEXT:
        return _text(old, new)
    if new.data_type in _BLOBS:
        return as_is if old.data_type in ("binary", *_BLOBS) else None
    rule = _RULES.get(new.data_type)
    return rule(old, new) if rule else None


def _whole(column: Column) -> tuple[int, int] | None:
    """Least and greatest value of an integer column."""
    if column.data_type in _INT_BYTES:
        values = 1 << 8 * _INT_BYTES[column.data_type]
        return (0, values - 1) if column.unsigned else (-values // 2, values // 2 - 1)
    if column.data_type == "bit":
        return 0, (1 << column.bits) - 1
    return (0, 2155) if column.data_type == "year" else None


def _within(old: Column, new: Column) -> bool:
    inner, outer = _whole(old), _whole(new)
    return bool(inner and outer and outer[0] <= inner[0] and inner[1] <= outer[1])


def _sign_fits(old: Column, new: Column) -> bool:
    whole = _whole(old)
    return not new.unsigned or old.unsigned or (whole is not None and whole[0] >= 0)


def _bit(old: Column, new: Column) -> Convert | None:
    return as_is if old.data_type == "bit" and old.bits <= new.bits else None


def _decimal(old: Column, new: Column) -> Convert | None:
    whole, digits = _whole(old), new.precision - new.scale
    if whole:
        fits, scale = max(-whole[0], whole[1]) < 10**digits, 0
    else:
        scale = old.scale
        fits = old.data_type == "decimal" and old.precision - scale <= digits and scale <= new.scale
    if not fits or not _sign_fits(old, new):
        return None
    more = new.scale - scale
    if old.is_wide_decimal:
        zeros = ("." if more and not scale else "") + "0" * more
        return (lambda text: text + zeros) if zeros else as_is
    power = 10**more
    if new.is_wide_decimal:
        return lambda unscaled: decimal_text(unscaled * power, new.scale)
    return (lambda unscaled: unscaled * power) if more else as_is


def _floating(old: Column, new: Column) -> Convert | None:
    if "(" in new.column_type or not _sign_fits(old, new):  # DOUBLE(m, d) rounds
        return None
    if old.data_type == new.data_type or (old.data_type, new.data_type) == ("float", "double"):
        return as_is
    whole = _whole(old)
    exact = whole is not None and max(-whole[0], whole[1]) <= _EXACT_DOUBLE
    return float if exact and new.data_type == "double" and old.data_type in _INT_BYTES else None


def _text(old: Column, new: Column) -> Convert | None:
    if old.data_type not in (*_TEXT, "enum", "set"):
        return None
    # CHAR drops blanks at a text's end.
    return (lambda text: text.rstrip(" ")) if new.data_type == "char" and old.data_type in _TEXT[1:] else as_is


def _enum(old: Column, new: Column) -> Convert | None:
    return as_is if old.data_type == "enum" and set(old.labels) <= set(new.labels) else None


def _set(old: Column, new: Column) -> Convert | None:
    rank = {label: i for i, label in enumerate(new.labels)}
    if old.data_type != "set" or not set(old.labels) <= rank.keys():
        return None
    if [*old.labels] == sorted(old.labels, key=rank.__getitem__):
        return as_is
    # Labels are in the order of the new definition.
    return lambda text: ",".join(sorted(text.split(","), key=rank.__getitem__)) if text else text


def _binary(old: Column, new: Column) -> Convert | None:
    if old.data_type not in ("binary", "varbinary") or _numbers(old) > _numbers(new):
        return None
    width = new.octet_length
    return lambda value: value.ljust(width, b"\0")


def _numbers(column: Column) -> list[int]:
    """Numbers in brackets: a length, digits of a fraction."""
    return [int(n) for n in re.findall(r"\d+", column.column_type)]


def _digits(column: Column) -> int:
    return (_numbers(column) or [0])[0]


def _time(old: Column, new: Column) -> Convert | None:
    have, want = _digits(old), _digits(new)
    if old.data_type != "time" or have > want:
        return None
    zeros = ("" if have else ".") + "0" * (want - have)
    return (lambda text: text + zeros) if want > have else as_is


def _moment(old: Column, new: Column) -> Convert | None:
    if old.data_type == "date" and new.data_type == "datetime":
        return lambda days: days * _DAY
    # Not between DATETIME and TIMESTAMP: that depends on the session's time zone.
    return as_is if old.data_type == new.data_type and _digits(old) <= _digits(new) else None


def _geometry(old: Column, new: Column) -> Convert | None:
    return as_is if old.data_type in GEOMETRIES else None


_RULES: dict[str, Callable[[Column, Column], Convert | None]] = {
    "bit": _bit,
    "decimal": _decimal,
    "float": _floating,
    "double": _floating,
    "enum": _enum,
    "set": _set,
    "binary": _binary,
    "time": _time,
    "datetime": _moment,
    "timestamp": _moment,
    "geometry": _geometry,
}
