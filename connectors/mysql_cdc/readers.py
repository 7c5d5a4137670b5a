"""A reader for each column of a row image: from bytes and a place in them to a storage value (pure).

Storage values are described in `types`.

Source: MySQL source documentation, "Table_map_event" (libbinlogevents), for type codes and their metadata;
sql-common/my_time.cc for packed temporal values.
"""

from __future__ import annotations

import datetime
import functools
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from backlog_spark.errors import BacklogError

from .addresses import ADDRESS_BYTES, address_text
from .charsets import text_decoder
from .columns import Column
from .json_values import from_binary
from .keys import refuse_null
from .packed import Reader, decimal_text, packed_decimal, packed_size
from .schema import TableSchema, altered, zero_date

__all__ = ["converted", "fits", "of_key", "reader", "skipper", "without_zero_dates"]

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_ENUM, _SET = 247, 248


@functools.lru_cache(100_000)
def _days(year: int, month: int, day: int) -> int | None:
    """Days since 1970; None for zero, partial and impossible dates, as in the snapshot."""
    try:
        return datetime.date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


def converted(read: Reader, convert: Callable[[Any], object] | None) -> Reader:
    """Reads values, and turns those that are not NULL into others."""
    if convert is None:
        return read

    def both(data: bytes, at: int) -> tuple[object, int]:
        value, end = read(data, at)
        return (value if value is None else convert(value)), end

    return both


def of_key(column: Column, read: Reader) -> Reader:
    """Refuse a zero or partial date in a key: as NULL it would not tell its row."""
    if column.data_type not in ("date", "datetime", "timestamp"):
        return read

    def checked(data: bytes, at: int) -> tuple[object, int]:
        value, end = read(data, at)
        return (value, end) if value is not None else refuse_null(column)

    return checked


def without_zero_dates(schema: TableSchema, column: Column, code: int, read: Reader) -> Reader:
    """Refuse a zero, partial or impossible date, as ``zeroDate=error`` asks."""
    if code not in (10, 17, 18):
        return read

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


def _fixed(form: str) -> Reader:
    unpack = struct.Struct(form)
    get, size = unpack.unpack_from, unpack.size
    return lambda data, at: (get(data, at)[0], at + size)


def _int24(unsigned: bool) -> Reader:
    return lambda data, at: (int.from_bytes(data[at : at + 3], "little", signed=not unsigned), at + 3)


def _year(data: bytes, at: int) -> tuple[object, int]:
    return (1900 + data[at] if data[at] else 0), at + 1


def _date(data: bytes, at: int) -> tuple[object, int]:
    packed = data[at] | data[at + 1] << 8 | data[at + 2] << 16
    return _days(packed >> 9, packed >> 5 & 15, packed & 31), at + 3


def _datetime(digits: int) -> Reader:
    size = (digits + 1) // 2
    scale = 10 ** (6 - 2 * size)

    def read(data: bytes, at: int) -> tuple[object, int]:
        end = at + 5 + size
        packed = int.from_bytes(data[at : at + 5], "big") - 0x8000000000
        month = packed >> 22
        days = _days(month // 13, month % 13, packed >> 17 & 31)
        if days is None:
            return None, end
        seconds = (days * 24 + (packed >> 12 & 31)) * 3600 + (packed >> 6 & 63) * 60 + (packed & 63)
        fraction = int.from_bytes(data[at + 5 : end], "big") * scale if size else 0
        return seconds * 1_000_000 + fraction, end

    return read


def _timestamp(digits: int) -> Reader:
    size = (digits + 1) // 2
    scale = 10 ** (6 - 2 * size)

    def read(data: bytes, at: int) -> tuple[object, int]:
        end = at + 4 + size
        seconds = int.from_bytes(data[at : at + 4], "big")
        fraction = int.from_bytes(data[at + 4 : end], "big") * scale if size else 0
        # Second 0 is how '0000-00-00 00:00:00' is stored; 1970-01-01 00:00:00 itself is not a valid TIMESTAMP.
        return (seconds * 1_000_000 + fraction if seconds else None), end

    return read


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


def _bit(meta: int) -> Reader:
    size = (meta >> 8) + ((meta & 255) + 7) // 8
    return lambda data, at: (int.from_bytes(data[at : at + size], "big"), at + size)


def _prefixed(size: int, convert: Callable[[bytes], object] | None) -> Reader:
    """Bytes after a length of ``size`` bytes."""
    if size == 1:

        def read(data: bytes, at: int) -> tuple[object, int]:
            end = at + 1 + data[at]
            value = data[at + 1 : end]
            return (convert(value) if convert else value), end

    else:

        def read(data: bytes, at: int) -> tuple[object, int]:
            start = at + size
            end = start + int.from_bytes(data[at:start], "little")
            value = data[start:end]
            return (convert(value) if convert else value), end

    return read


def _labels(column: Column, size: int) -> Reader:
    """ENUM: an index from 1; 0 is the empty string that an invalid value became."""
    labels: Sequence[str] = ("", *column.labels)
    return lambda data, at: (labels[int.from_bytes(data[at : at + size], "little")], at + size)


def _set(column: Column, size: int) -> Reader:
    labels = column.labels

    def read(data: bytes, at: int) -> tuple[object, int]:
        mask = int.from_bytes(data[at : at + size], "little")
        return ",".join(label for i, label in enumerate(labels) if mask >> i & 1), at + size

    return read


def reader(schema: TableSchema, column: Column, code: int, meta: int, *, exact: bool = False) -> Reader:
    """Reads the column's values, given the type code and metadata under which the log has them.

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
            return _fixed("<B" if unsigned else "<b")
        case 2:
            return _fixed("<H" if unsigned else "<h")
        case 9:
            return _int24(unsigned)
        case 3:
            return _fixed("<I" if unsigned else "<i")
        case 8:
            return _fixed("<Q" if unsigned else "<q")
        case 4:
            return _fixed("<f")
        case 5:
            return _fixed("<d")
        case 10:
            return _date
        case 13:
            return _year
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
            return _as_text(read, scale) if column.is_wide_decimal else read
        case 255:
            return _prefixed(meta, None)
        case 252:
            return _prefixed(meta, text_decoder(column.charset, exact=exact) if column.charset else None)
        case 15 | 253:
            size = 1 if meta < 256 else 2
            return _prefixed(size, text_decoder(column.charset, exact=exact) if column.charset else None)
        case 254:
            return _string(column, meta, exact)
    raise BacklogError(f"Column {column.name!r} has binary log type code {code}, which mysql_cdc does not read.")


def _as_text(read: Reader, scale: int) -> Reader:
    def text(data: bytes, at: int) -> tuple[object, int]:
        unscaled, end = read(data, at)
        assert isinstance(unscaled, int)
        return decimal_text(unscaled, scale), end

    return text


def _real_type(meta: int) -> tuple[int, int]:
    """CHAR, BINARY, ENUM and SET share a code; the metadata tells the real one, and bytes at most."""
    first, length = meta >> 8, meta & 255
    if first & 0x30 != 0x30:  # the two upper bits of a length beyond 255 are kept inverted here
        length |= ((first & 0x30) ^ 0x30) << 4
        first |= 0x30
    return first, length


def _string(column: Column, meta: int, exact: bool) -> Reader:
    first, length = _real_type(meta)
    if first == _ENUM:
        return _labels(column, length)
    if first == _SET:
        return _set(column, length)
    size = 1 if length < 256 else 2
    if column.data_type in ADDRESS_BYTES:
        return _prefixed(size, address_text(column.data_type))
    if column.charset:
        return _prefixed(size, text_decoder(column.charset, exact=exact))
    width = column.octet_length  # BINARY(n): trailing zeros are not logged
    return _prefixed(size, lambda data: data.ljust(width, b"\0"))


_FIXED_BYTES = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8, 4: 4, 5: 8, 10: 3, 13: 1}
_CLOCK_BYTES = {17: 4, 18: 5, 19: 3}  # before the fraction


def skipper(name: str, code: int, meta: int) -> Reader:
    """Goes past a column's values, of which only the type code and metadata need be known; gives None for each.

    Raises
    ------
    BacklogError
        A type code whose values do not tell where they end.
    """
    match code:
        case 16:
            size = (meta >> 8) + ((meta & 255) + 7) // 8
        case 17 | 18 | 19:
            size = _CLOCK_BYTES[code] + (meta + 1) // 2
        case 246:
            size = packed_size(meta >> 8, meta & 255)
        case 140 | 245 | 252 | 255:
            return _past(meta)
        case 15 | 141 | 253:
            return _past(1 if meta < 256 else 2)
        case 254:
            real, size = _real_type(meta)
            if real not in (_ENUM, _SET):
                return _past(1 if size < 256 else 2)
        case _ if code in _FIXED_BYTES:
            size = _FIXED_BYTES[code]
        case _:
            raise BacklogError(f"Column {name!r} has binary log type code {code}, which mysql_cdc does not read.")
    return lambda data, at: (None, at + size)


def _past(size: int) -> Reader:
    """Past bytes after a length of ``size`` bytes."""
    return lambda data, at: (None, at + size + int.from_bytes(data[at : at + size], "little"))


def fits(column: Column, meta: int) -> bool:
    """Whether the log's metadata is that of a column of this definition, as far as it tells."""
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
