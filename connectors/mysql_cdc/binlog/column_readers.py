"""A reader for each column of a row image: from bytes and an offset to a storage value (pure).

`types` describes storage values.

Source: MySQL source documentation, "Table_map_event" (libbinlogevents), for type codes and their metadata;
sql-common/my_time.cc for packed temporal values.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

from backlog_spark.errors import BacklogError

from ..schema.addresses import ADDRESS_BYTES, address_text
from ..schema.charsets import text_decoder, utf_codec
from ..schema.columns import Column
from ..schema.json_values import from_binary
from ..schema.keys import refuse_null
from ..schema.packed import decimal_text, packed_decimal, packed_size
from ..schema.table import TableSchema, altered, zero_date
from .row_code import Code, Reader, as_reader

__all__ = ["UNREAD", "converted", "fits", "of_key", "reader", "skipper", "value_bytes", "without_zero_dates"]

UNREAD = "Leave the column out with columns.exclude, or report it with the server's version and the table's definition."
"""What to do about something in the log that is not known."""

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_ENUM, _SET = 247, 248


class _Days(dict[int, int | None]):
    """Days since 1970 by a date's packed number. None for zero, partial and impossible dates, as in the snapshot."""

    def __init__(self, parts: Callable[[int], tuple[int, int, int]]) -> None:
        self._parts = parts  # year, month and day

    def __missing__(self, packed: int) -> int | None:
        try:
            found = datetime.date(*self._parts(packed)).toordinal() - _EPOCH_DAY
        except ValueError:
            found = None
        if len(self) < _MOST_DAYS:
            self[packed] = found
        return found


_MOST_DAYS = 100_000
_DAYS_OF_DATE = _Days(lambda packed: (packed >> 9, packed >> 5 & 15, packed & 31))
_DAYS_OF_DATETIME = _Days(lambda packed: (packed // 416, packed // 32 % 13, packed & 31))


def converted(code: Code | Reader, convert: Callable[[Any], object] | None) -> Code | Reader:
    """Reads values, and converts those that are not NULL."""
    if convert is None:
        return code
    read = as_reader(code)

    def both(data: bytes, at: int) -> tuple[object, int]:
        value, end = read(data, at)
        return (value if value is None else convert(value)), end

    return both


def of_key(column: Column, code: Code | Reader) -> Code | Reader:
    """Refuse a zero or partial date in a key: as NULL it would not identify its row."""
    if column.data_type not in ("date", "datetime", "timestamp"):
        return code
    read = as_reader(code)

    def checked(data: bytes, at: int) -> tuple[object, int]:
        value, end = read(data, at)
        return (value, end) if value is not None else refuse_null(column)

    return checked


def without_zero_dates(schema: TableSchema, column: Column, code: int, given: Code | Reader) -> Code | Reader:
    """Refuse a zero, partial or impossible date, as ``zeroDate=error`` asks."""
    if code not in (10, 17, 18):
        return given
    read = as_reader(given)

    def checked(data: bytes, at: int) -> tuple[object, int]:
        value, end = read(data, at)
        if value is None:
            raise zero_date(schema, column, _written(code, data, at))
        return value, end

    return checked


def _written(code: int, data: bytes, at: int) -> str:
    """A date as the server prints it, without the time."""
    if code == 10:
        packed = int.from_bytes(data[at : at + 3], "little")
        year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
    elif code == 18:
        packed = int.from_bytes(data[at : at + 5], "big") - 0x8000000000 >> 17
        year, month, day = packed // (13 * 32), packed // 32 % 13, packed % 32
    else:
        year = month = day = 0
    return f"{year:04d}-{month:02d}-{day:02d}"


def _int24(unsigned: bool) -> Code:
    return Code((f"{{v}} = from_bytes(data[at:at + 3], 'little', signed={not unsigned})", "at += 3"))


_YEAR = Code(("{v} = 1900 + data[at] if data[at] else 0", "at += 1"))
_DATE = Code(("{v} = {v}days[data[at] | data[at + 1] << 8 | data[at + 2] << 16]", "at += 3"), {"days": _DAYS_OF_DATE})


def _fraction(at: int, digits: int) -> tuple[str, int]:
    """Python for the microseconds that begin ``at`` bytes after the value's offset, and the bytes up to their end."""
    size = (digits + 1) // 2
    if not size:
        return "", at
    return f" + from_bytes(data[at + {at}:at + {at + size}], 'big') * {10 ** (6 - 2 * size)}", at + size


def _datetime(digits: int) -> Code:
    fraction, size = _fraction(5, digits)
    clock = "(({v}p >> 12 & 31) * 3600 + ({v}p >> 6 & 63) * 60 + ({v}p & 63)) * 1_000_000"
    lines = (
        "{v}p = from_bytes(data[at:at + 5], 'big') - 0x8000000000",
        "{v} = {v}days[{v}p >> 17]",
        "if {v} is not None:",
        f"  {{v}} = {{v}} * 86_400_000_000 + {clock}{fraction}",
        f"at += {size}",
    )
    return Code(lines, {"days": _DAYS_OF_DATETIME})


def _timestamp(digits: int) -> Code:
    fraction, size = _fraction(4, digits)
    # Second 0 is how '0000-00-00 00:00:00' is stored; 1970-01-01 00:00:00 itself is not a valid TIMESTAMP.
    lines = (
        "{v} = from_bytes(data[at:at + 4], 'big')",
        f"{{v}} = {{v}} * 1_000_000{fraction} if {{v}} else None",
        f"at += {size}",
    )
    return Code(lines)


def _time(digits: int) -> Reader:
    size = (digits + 1) // 2
    zero, mask, scale = 0x800000 << 8 * size, (1 << 8 * size) - 1, 10 ** (6 - 2 * size)

    def read(data: bytes, at: int) -> tuple[object, int]:
        end = at + 3 + size
        packed = int.from_bytes(data[at:end], "big") - zero
        sign = "-" if packed < 0 else ""
        packed = abs(packed)
        clock = packed >> 8 * size
        text = f"{sign}{clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
        if digits:
            text += "." + f"{(packed & mask) * scale:06d}"[:digits]
        return text, end

    return read


def _bit(meta: int) -> Code:
    size = (meta >> 8) + ((meta & 255) + 7) // 8
    return Code((f"{{v}} = from_bytes(data[at:at + {size}], 'big')", f"at += {size}"))


def _prefixed(size: int, convert: Callable[[bytes], object] | None, value: str = "") -> Code:
    """Bytes after a length of ``size`` bytes. ``value`` is Python that converts ``{x}``; it saves a call."""
    length = "data[at]" if size == 1 else f"from_bytes(data[at:at + {size}], 'little')"
    made = value or ("{v}convert({x})" if convert else "{x}")
    lines = (
        f"{{v}}end = at + {size} + {length}",
        "{v} = " + made.replace("{x}", f"data[at + {size}:{{v}}end]"),
        "at = {v}end",
    )
    return Code(lines, {"convert": convert} if convert and not value else {})


def _text(size: int, column: Column, exact: bool) -> Code:
    """Text, or bytes if the column has no character set."""
    codec = utf_codec(column.charset)
    value = f"str({{x}}, {codec!r})" if codec else ""
    return _prefixed(size, text_decoder(column.charset, exact=exact) if column.charset else None, value)


def _labels(column: Column, size: int) -> Code:
    """ENUM: an index from 1; 0 is the empty string that an invalid value became."""
    line = f"{{v}} = {{v}}labels[from_bytes(data[at:at + {size}], 'little')]"
    return Code((line, f"at += {size}"), {"labels": ("", *column.labels)})


def _set(column: Column, size: int) -> Reader:
    labels = column.labels

    def read(data: bytes, at: int) -> tuple[object, int]:
        mask = int.from_bytes(data[at : at + size], "little")
        return ",".join(label for i, label in enumerate(labels) if mask >> i & 1), at + size

    return read


def reader(schema: TableSchema, column: Column, code: int, meta: int, *, exact: bool = False) -> Code | Reader:
    """A reader of the column's values, for the type code and metadata that the log gives.

    ``exact``: raise UnicodeDecodeError for a text that other bytes may read as.

    Raises
    ------
    SchemaChanged
        A decimal of other digits.
    BacklogError
        A type code that is not read.
    """
    unsigned = column.unsigned
    match code:
        case 1:
            return Code(form="B" if unsigned else "b")
        case 2:
            return Code(form="H" if unsigned else "h")
        case 9:
            return _int24(unsigned)
        case 3:
            return Code(form="I" if unsigned else "i")
        case 8:
            return Code(form="Q" if unsigned else "q")
        case 4:
            return Code(form="f")
        case 5:
            return Code(form="d")
        case 10:
            return _DATE
        case 13:
            return _YEAR
        case 16:
            return _bit(meta)
        case 17:
            return _timestamp(meta)
        case 18:
            return _datetime(meta)
        case 19:
            return _time(meta)
        case 245:
            return _prefixed(meta, from_binary)
        case 246:
            precision, scale = meta >> 8, meta & 255
            if (precision, scale) != (column.precision, column.scale):
                raise altered(schema, f"decimal({precision},{scale}) for {column.name}, {column.column_type}")
            read = packed_decimal(precision, scale)
            return _as_text(as_reader(read), scale) if column.is_wide_decimal else read
        case 255:
            return _prefixed(meta, None)
        case 252:
            return _text(meta, column, exact)
        case 15 | 253:
            return _text(1 if meta < 256 else 2, column, exact)
        case 254:
            return _string(column, meta, exact)
    raise BacklogError(
        f"Column {column.name!r} has binary log type code {code}, which mysql_cdc does not read.", UNREAD
    )


def _as_text(read: Reader, scale: int) -> Reader:
    def text(data: bytes, at: int) -> tuple[object, int]:
        unscaled, end = read(data, at)
        assert isinstance(unscaled, int)
        return decimal_text(unscaled, scale), end

    return text


def _real_type(meta: int) -> tuple[int, int]:
    """CHAR, BINARY, ENUM and SET share a code. The metadata has the real one, and the most bytes."""
    first, length = meta >> 8, meta & 255
    if first & 0x30 != 0x30:  # the two upper bits of a length beyond 255 are kept inverted here
        length |= ((first & 0x30) ^ 0x30) << 4
        first |= 0x30
    return first, length


def _string(column: Column, meta: int, exact: bool) -> Code | Reader:
    first, length = _real_type(meta)
    if first == _ENUM:
        return _labels(column, length)
    if first == _SET:
        return _set(column, length)
    size = 1 if length < 256 else 2
    if column.data_type in ADDRESS_BYTES:
        return _prefixed(size, address_text(column.data_type))
    if column.charset:
        return _text(size, column, exact)
    width = column.octet_length  # BINARY(n): trailing zeros are not logged
    return _prefixed(size, lambda data: data.ljust(width, b"\0"))


_FIXED_BYTES = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8, 4: 4, 5: 8, 10: 3, 13: 1}
_CLOCK_BYTES = {17: 4, 18: 5, 19: 3}  # before the fraction


def skipper(name: str, code: int, meta: int) -> Reader:
    """A reader that skips a column's values and returns None for each. It needs only type code and metadata.

    Raises
    ------
    BacklogError
        A type code whose values do not tell where they end.
    """
    size = value_bytes(name, code, meta)
    if size < 0:
        return lambda data, at: (None, at - size + int.from_bytes(data[at : at - size], "little"))
    return lambda data, at: (None, at + size)


def value_bytes(name: str, code: int, meta: int) -> int:
    """Bytes of a column's values. If they differ: minus the bytes of the length that precedes each.

    Raises
    ------
    BacklogError
        A type code whose values do not tell where they end.
    """
    match code:
        case 16:
            return (meta >> 8) + ((meta & 255) + 7) // 8
        case 17 | 18 | 19:
            return _CLOCK_BYTES[code] + (meta + 1) // 2
        case 246:
            return packed_size(meta >> 8, meta & 255)
        case 140 | 242 | 245 | 252 | 255:
            return -meta
        case 15 | 141 | 253:
            return -1 if meta < 256 else -2
        case 254:
            real, size = _real_type(meta)
            if real in (_ENUM, _SET):
                return size
            return -1 if size < 256 else -2
        case _ if code in _FIXED_BYTES:
            return _FIXED_BYTES[code]
        case _:
            raise BacklogError(
                f"Column {name!r} has binary log type code {code}, which mysql_cdc does not read.", UNREAD
            )


def fits(column: Column, meta: int) -> bool:
    """Whether the log's metadata can be that of a column with this definition."""
    numbers = [int(n) for n in re.findall(r"\d+", column.column_type.partition("(")[2].partition(")")[0])]
    match column.data_type:
        case "decimal":
            return meta == column.precision << 8 | column.scale
        case "bit":
            return (meta >> 8) * 8 + (meta & 255) == column.bits
        case "time" | "datetime" | "timestamp":
            return meta == (numbers[0] if numbers else 0)
        case "varbinary":
            return meta == numbers[0]
        case "varchar":  # bytes: up to four a character
            return meta in [n * numbers[0] for n in (1, 2, 3, 4)]
        case "enum":
            return _real_type(meta) == (_ENUM, 1 if len(column.labels) < 256 else 2)
        case "set":
            size = (len(column.labels) + 7) // 8
            return _real_type(meta) == (_SET, size if size < 5 else 8)
        case "char" | "binary":
            return _real_type(meta)[0] not in (_ENUM, _SET)
    return True
