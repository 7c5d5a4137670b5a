"""Row images of the binary log: from an event's bytes to storage values (pure).

A table's decoder is a list of closures, one a column, chosen once per TABLE_MAP event; each takes the buffer and
an offset and returns the value and the offset after it. Storage values are described in `types`.

Source: MySQL source documentation, "Rows_event" and "Table_map_event" (libbinlogevents), for formats;
sql-common/my_time.cc for packed temporal values.
"""

from __future__ import annotations

import datetime
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backlog_spark.errors import BacklogError

from .addresses import ADDRESS_BYTES, address_text
from .charsets import text_decoder
from .json_values import from_binary
from .keys import refuse_null
from .packed import Reader, decimal_text, packed_decimal
from .schema import TableSchema
from .types import Column, kind_of

__all__ = ["RowDecoder", "SchemaChanged", "TableMap"]

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_STRING, _ENUM, _SET = 254, 247, 248
# Bytes of metadata per type code in a TABLE_MAP event; types not named here have none.
_METADATA_BYTES = {4: 1, 5: 1, 15: 2, 16: 2, 17: 1, 18: 1, 19: 1, 245: 1, 246: 2, 252: 1, 253: 2, 254: 2, 255: 1}
_COLUMN_NAMES = 4  # optional metadata, written when binlog_row_metadata=FULL


class SchemaChanged(BacklogError):
    """The binary log describes the table otherwise than information_schema did when the query started."""


def read_length(data: bytes, offset: int) -> tuple[int, int]:
    """A length-encoded integer and the offset after it."""
    first = data[offset]
    if first < 251:
        return first, offset + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[offset + 1 : offset + 1 + size], "little"), offset + 1 + size


@dataclass(frozen=True)
class TableMap:
    """A TABLE_MAP event: what the row events after it look like."""

    table_id: int
    database: str
    table: str
    types: bytes
    metadata: tuple[int, ...]
    names: tuple[str, ...]

    @staticmethod
    def table_name(body: bytes) -> tuple[int, str, str]:
        """Only the table's id, database and name, to skip other tables without reading on."""
        size = body[8]
        database = body[9 : 9 + size]
        start = 9 + size + 2
        table = body[start : start + body[start - 1]]
        return int.from_bytes(body[:6], "little"), database.decode(), table.decode()

    @classmethod
    def parse(cls, body: bytes) -> TableMap:
        """From an event's bytes after the header, without the checksum."""
        table_id, database, table = cls.table_name(body)
        offset = 9 + body[8] + 1
        offset += 1 + body[offset] + 1
        count, offset = read_length(body, offset)
        types = body[offset : offset + count]
        offset += count
        _, offset = read_length(body, offset)
        metadata = []
        for code in types:
            size = _METADATA_BYTES.get(code, 0)
            # Two forms: strings and decimals carry two separate bytes, the rest one little-endian number.
            order = "big" if code in (_STRING, 246) else "little"
            metadata.append(int.from_bytes(body[offset : offset + size], order))  # type: ignore[arg-type]
            offset += size
        offset += (count + 7) // 8  # nullability
        names: list[str] = []
        while offset < len(body):
            kind = body[offset]
            size, offset = read_length(body, offset + 1)
            if kind == _COLUMN_NAMES:
                at = offset
                while at < offset + size:
                    length, at = read_length(body, at)
                    names.append(body[at : at + length].decode())
                    at += length
            offset += size
        return cls(table_id, database, table, types, tuple(metadata), tuple(names))


class RowDecoder:
    """Decodes the row images of one table.

    Parameters
    ----------
    schema : TableSchema
        The table as the query knows it.
    table_map : TableMap
        How the following row events are laid out.

    Raises
    ------
    SchemaChanged
        When the two differ in the number, order or type of columns, or, where the log carries them, in names.
    """

    def __init__(self, schema: TableSchema, table_map: TableMap) -> None:
        self.schema = schema
        columns = schema.columns
        if len(columns) != len(table_map.types):
            raise _changed(schema, f"{len(table_map.types)} columns instead of {len(columns)}")
        expected = tuple(c.name for c in columns)
        if table_map.names and table_map.names != expected:
            raise _changed(schema, f"columns {', '.join(table_map.names)} instead of {', '.join(expected)}")
        self.readers: list[Reader] = []
        for column, code, meta in zip(columns, table_map.types, table_map.metadata, strict=True):
            if code not in kind_of(column).binlog:
                raise _changed(schema, f"type code {code} for column {column.name}, which is {column.column_type}")
            read = _reader(schema, column, code, meta)
            keyed = column.name in schema.key or column.name in schema.chunk_key
            self.readers.append(_of_key(column, read) if keyed and not column.nullable else read)
        self.count = len(columns)
        self._null_bytes = (self.count + 7) // 8
        self._all_present = (1 << self.count) - 1
        self._table = f"{schema.database}.{schema.table}"

    def check_present(self, bitmap: bytes) -> None:
        """Refuse row images that leave columns out (``binlog_row_image`` other than FULL)."""
        if int.from_bytes(bitmap, "little") & self._all_present != self._all_present:
            raise BacklogError(
                f"A change of {self._table} was logged without all columns: a session ran with "
                "binlog_row_image other than FULL.",
                "Set binlog_row_image=FULL globally and start with a new checkpoint.",
            )

    def read_row(self, data: bytes, offset: int) -> tuple[list[object], int]:
        """One row image at ``offset``; returns its storage values and the offset after it."""
        end = offset + self._null_bytes
        nulls = int.from_bytes(data[offset:end], "little")
        offset = end
        row: list[object] = []
        if nulls:
            for read in self.readers:
                if nulls & 1:
                    row.append(None)
                else:
                    value, offset = read(data, offset)
                    row.append(value)
                nulls >>= 1
        else:
            for read in self.readers:
                value, offset = read(data, offset)
                row.append(value)
        return row, offset


def _changed(schema: TableSchema, what: str) -> SchemaChanged:
    return SchemaChanged(
        f"The table {schema.database}.{schema.table} was altered: the binary log has {what}.",
        "Start the query again with a new checkpoint, so that the snapshot is taken with the present columns.",
    )


@functools.lru_cache(100_000)
def _days(year: int, month: int, day: int) -> int | None:
    """Days since 1970; None for zero, partial and impossible dates, as in the snapshot."""
    try:
        return datetime.date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


def _of_key(column: Column, read: Reader) -> Reader:
    """Refuse a zero or partial date in a key: as NULL it would not tell its row."""
    if column.data_type not in ("date", "datetime", "timestamp"):
        return read

    def checked(data: bytes, at: int) -> tuple[object, int]:
        value, end = read(data, at)
        return (value, end) if value is not None else refuse_null(column)

    return checked


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


def _reader(schema: TableSchema, column: Column, code: int, meta: int) -> Reader:
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
                raise _changed(schema, f"decimal({precision},{scale}) for {column.name}, {column.column_type}")
            read = packed_decimal(precision, scale)
            return _as_text(read, scale) if column.is_wide_decimal else read
        case 255:
            return _prefixed(meta, None)
        case 252:
            return _prefixed(meta, text_decoder(column.charset) if column.charset else None)
        case 15 | 253:
            return _prefixed(1 if meta < 256 else 2, text_decoder(column.charset) if column.charset else None)
        case 254:
            return _string(column, meta)
    raise BacklogError(f"Column {column.name!r} has binary log type code {code}, which mysql_cdc does not read.")


def _as_text(read: Reader, scale: int) -> Reader:
    def text(data: bytes, at: int) -> tuple[object, int]:
        unscaled, end = read(data, at)
        assert isinstance(unscaled, int)
        return decimal_text(unscaled, scale), end

    return text


def _string(column: Column, meta: int) -> Reader:
    """CHAR, BINARY, ENUM and SET share a code; the metadata's first byte tells them apart."""
    first, length = meta >> 8, meta & 255
    if first & 0x30 != 0x30:  # the two upper bits of a length beyond 255 are kept inverted here
        length |= ((first & 0x30) ^ 0x30) << 4
        first |= 0x30
    if first == _ENUM:
        return _labels(column, length)
    if first == _SET:
        return _set(column, length)
    size = 1 if length < 256 else 2
    if column.data_type in ADDRESS_BYTES:
        return _prefixed(size, address_text(column.data_type))
    if column.charset:
        return _prefixed(size, text_decoder(column.charset))
    width = column.octet_length  # BINARY(n): trailing zeros are not logged
    return _prefixed(size, lambda data: data.ljust(width, b"\0"))
