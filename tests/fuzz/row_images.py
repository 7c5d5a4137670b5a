"""Row images of all column types: written here as MySQL's documentation says, read by the decoder of the binary log."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Callable
from typing import Any

from backlog_spark.connectors.mysql_cdc.binlog.damaged import UNREADABLE
from backlog_spark.connectors.mysql_cdc.binlog.row_decoder import RowDecoder, TableMap
from backlog_spark.connectors.mysql_cdc.binlog.row_events import read_images
from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from tests.fuzz import json_documents
from tests.fuzz.kinds import ANY, Kind, Wrong, mutated_bytes, refused

__all__ = ["KINDS", "image", "length", "rows_event", "table_map"]

WRITE, UPDATE, DELETE, PARTIAL = 30, 31, 32, 39
HEADER = 20
Value = tuple[Any, bytes]
"""A storage value, and its bytes in an image."""


def length(number: int) -> bytes:
    """A length-encoded integer."""
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + number.to_bytes(2, "little")
    return b"\xfd" + number.to_bytes(3, "little") if number < 1 << 24 else b"\xfe" + number.to_bytes(8, "little")


def _integer(bits: int, *, unsigned: bool) -> Callable[[random.Random], Value]:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def make(chance: random.Random) -> Value:
        value = chance.choice((low, high, 0, 1, chance.randint(low, high)))
        return value, value.to_bytes(bits // 8, "little", signed=not unsigned)

    return make


def _float(form: str) -> Callable[[random.Random], Value]:
    def make(chance: random.Random) -> Value:
        data = struct.pack(form, chance.choice((0.0, -0.0, 1.5, chance.uniform(-1e30, 1e30))))
        return struct.unpack(form, data)[0], data

    return make


def _decimal(precision: int, scale: int) -> Callable[[random.Random], Value]:
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)

    def make(chance: random.Random) -> Value:
        most = 10**precision - 1
        unscaled = chance.choice((0, most, -most, 1, -1, chance.randint(-most, most)))
        digits = f"{abs(unscaled):0{precision}d}"
        whole, fraction = digits[: precision - scale], digits[precision - scale :]
        groups = [whole[: len(whole) % 9]] + [whole[i : i + 9] for i in range(len(whole) % 9, len(whole), 9)]
        groups += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
        data = bytearray(b"".join(int(g or 0).to_bytes(sizes[len(g)], "big") for g in groups))
        if unscaled < 0:
            data = bytearray(byte ^ 0xFF for byte in data)
        data[0] ^= 0x80
        value: Any = unscaled
        if precision > 38:
            value = ("-" if unscaled < 0 else "") + (whole.lstrip("0") or "0") + (f".{fraction}" if scale else "")
        return value, bytes(data)

    return make


_EPOCH = dt.datetime(1970, 1, 1)


def _moment(chance: random.Random) -> dt.datetime:
    seconds = chance.randrange(0, 2**31)
    return _EPOCH + dt.timedelta(seconds=max(1, seconds), microseconds=chance.randrange(10**6))


def _fraction(micros: int, digits: int) -> bytes:
    size = (digits + 1) // 2
    return (micros // 10 ** (6 - 2 * size)).to_bytes(size, "big") if size else b""


def _cut(at: dt.datetime, digits: int) -> dt.datetime:
    step = 10 ** (6 - digits)
    return at.replace(microsecond=at.microsecond // step * step)


def _micros(at: dt.datetime) -> int:
    return (at - _EPOCH) // dt.timedelta(microseconds=1)


def _date(chance: random.Random) -> Value:
    day = dt.date.fromordinal(chance.randint(1, dt.date(9999, 12, 31).toordinal()))
    return (day - _EPOCH.date()).days, (day.year << 9 | day.month << 5 | day.day).to_bytes(3, "little")


def _datetime(digits: int) -> Callable[[random.Random], Value]:
    def make(chance: random.Random) -> Value:
        at = _cut(_moment(chance).replace(year=chance.randint(1, 9999), day=chance.randint(1, 28)), digits)
        packed = ((at.year * 13 + at.month) << 5 | at.day) << 17 | at.hour << 12 | at.minute << 6 | at.second
        return _micros(at), (packed + 0x8000000000).to_bytes(5, "big") + _fraction(at.microsecond, digits)

    return make


def _timestamp(digits: int) -> Callable[[random.Random], Value]:
    def make(chance: random.Random) -> Value:
        at = _cut(_moment(chance), digits)
        return _micros(at), (_micros(at) // 10**6).to_bytes(4, "big") + _fraction(at.microsecond, digits)

    return make


def _time(digits: int) -> Callable[[random.Random], Value]:
    size, step = (digits + 1) // 2, 10 ** (6 - digits)

    def make(chance: random.Random) -> Value:
        sign, hours = chance.choice((1, -1)), chance.randint(0, 838)
        minutes, seconds, micros = chance.randrange(60), chance.randrange(60), chance.randrange(0, 10**6, step)
        clock = hours << 12 | minutes << 6 | seconds
        packed = sign * (clock << 8 * size | (micros // 10 ** (6 - 2 * size) if size else 0))
        text = f"{'-' if packed < 0 else ''}{hours:02d}:{minutes:02d}:{seconds:02d}"
        text += f".{micros:06d}"[: digits + 1] if digits else ""
        return text, (packed + (0x800000 << 8 * size)).to_bytes(3 + size, "big")

    return make


def _year(chance: random.Random) -> Value:
    year = chance.choice((0, chance.randint(1901, 2155)))
    return year, bytes([year - 1900 if year else 0])


def _bits(chance: random.Random) -> Value:
    number = chance.getrandbits(11)
    return number, number.to_bytes(2, "big")


def _letters(chance: random.Random, most: int, letters: str) -> str:
    return "".join(chance.choices(letters, k=chance.choice((0, 1, chance.randint(0, most)))))


def _text(codec: str, size: int, letters: str, most: int) -> Callable[[random.Random], Value]:
    def make(chance: random.Random) -> Value:
        value = _letters(chance, most, letters)
        data = value.encode(codec)
        return value, len(data).to_bytes(size, "little") + data

    return make


def _bytes(size: int, most: int, width: int = 0) -> Callable[[random.Random], Value]:
    def make(chance: random.Random) -> Value:
        data = chance.randbytes(chance.randint(0, most))
        if width:
            data = data.rstrip(b"\0")
        return data.ljust(width, b"\0"), len(data).to_bytes(size, "little") + data

    return make


def _json(chance: random.Random) -> Value:
    text, data = json_documents.document(chance)
    return text, len(data).to_bytes(4, "little") + data


def _enum(chance: random.Random) -> Value:
    at = chance.randrange(4)
    return ("", "a", "b'c", "é")[at], bytes([at])


def _set(chance: random.Random) -> Value:
    mask = chance.randrange(8)
    return ",".join(label for at, label in enumerate(("x", "y", "z")) if mask >> at & 1), bytes([mask])


def _uuid(chance: random.Random) -> Value:
    data = chance.randbytes(16)[:15] + b"\x01"
    digits = data.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}", b"\x10" + data


def _column(name: str, kind: str, **more: Any) -> Column:
    return Column(name, kind.split("(")[0].split(" ")[0], kind, **more)


_ALL = "aZ09 '\"\\\n\0é漢😀ß"
# A column with its type code, its metadata, and how a value is made.
TYPES: list[tuple[Column, int, int, Callable[[random.Random], Value]]] = [
    *(
        (_column(f"{kind}{sign}", kind + sign), code, 0, _integer(bits, unsigned=bool(sign)))
        for kind, code, bits in (
            ("tinyint", 1, 8),
            ("smallint", 2, 16),
            ("mediumint", 9, 24),
            ("int", 3, 32),
            ("bigint", 8, 64),
        )
        for sign in ("", " unsigned")
    ),
    (_column("f", "float"), 4, 4, _float("<f")),
    (_column("d", "double"), 5, 8, _float("<d")),
    *(
        (_column(f"n{p}_{s}", f"decimal({p},{s})", precision=p, scale=s), 246, p << 8 | s, _decimal(p, s))
        for p, s in ((1, 0), (5, 5), (12, 2), (18, 9), (38, 10), (65, 30))
    ),
    (_column("day", "date"), 10, 0, _date),
    *((_column(f"at{n}", f"datetime({n})" if n else "datetime"), 18, n, _datetime(n)) for n in (0, 1, 3, 6)),
    *((_column(f"ts{n}", f"timestamp({n})" if n else "timestamp"), 17, n, _timestamp(n)) for n in (0, 2, 5)),
    *((_column(f"t{n}", f"time({n})" if n else "time"), 19, n, _time(n)) for n in (0, 1, 4, 6)),
    (_column("y", "year"), 13, 0, _year),
    (_column("bits", "bit(11)"), 16, 1 << 8 | 3, _bits),
    (_column("v", "varchar(60)", charset="utf8mb4"), 15, 240, _text("utf-8", 1, _ALL, 30)),
    (_column("vv", "varchar(100)", charset="utf8mb4"), 15, 400, _text("utf-8", 2, _ALL, 90)),
    (_column("l1", "varchar(9)", charset="latin1"), 15, 9, _text("cp1252", 1, "aé€ ", 9)),
    (_column("u16", "varchar(9)", charset="utf16"), 15, 36, _text("utf-16-be", 1, _ALL, 9)),
    (_column("kanji", "varchar(9)", charset="sjis"), 15, 18, _text("cp932", 1, "aアの", 9)),
    (_column("c", "char(10)", charset="utf8mb4"), 254, 254 << 8 | 40, _text("utf-8", 1, "ab漢", 9)),
    (_column("cc", "char(255)", charset="utf8mb4"), 254, (254 ^ 0x30) << 8 | 0xFC, _text("utf-8", 2, "ab漢", 90)),
    (_column("b", "binary(8)", octet_length=8), 254, 254 << 8 | 8, _bytes(1, 8, 8)),
    (_column("vb", "varbinary(300)"), 15, 300, _bytes(2, 200)),
    *((_column(f"blob{n}", "blob"), 252, n, _bytes(n, 50)) for n in (1, 2, 3, 4)),
    (_column("text", "longtext", charset="utf8mb4"), 252, 4, _text("utf-8", 4, _ALL, 60)),
    (_column("j", "json"), 245, 4, _json),
    (_column("e", "enum('a','b''c','é')", charset="utf8mb4"), 254, 247 << 8 | 1, _enum),
    (_column("s", "set('x','y','z')", charset="utf8mb4"), 254, 248 << 8 | 1, _set),
    (_column("g", "geometry"), 255, 4, _bytes(4, 40)),
    (_column("u", "uuid"), 254, 254 << 8 | 16, _uuid),
]


def table_map(columns: list[tuple[Column, int, int]], *, named: bool = True) -> bytes:
    """The body of a table's TABLE_MAP event."""
    metadata = b""
    for _, code, meta in columns:
        if code in (254, 246):
            metadata += meta.to_bytes(2, "big")
        elif code in (15, 16):
            metadata += meta.to_bytes(2, "little")
        elif code in (4, 5, 17, 18, 19, 245, 252, 255):
            metadata += bytes([meta])
    names = b"".join(length(len(c.name.encode())) + c.name.encode() for c, _, _ in columns)
    body = (7).to_bytes(6, "little") + b"\1\0" + b"\1d\0" + b"\1t\0" + length(len(columns))
    body += bytes(code for _, code, _ in columns) + length(len(metadata)) + metadata + bytes((len(columns) + 7) // 8)
    return body + (b"\x04" + length(len(names)) + names if named else b"")


def rows_event(kind: int, columns: int, images: bytes) -> bytes:
    """A rows event after its OK byte and header, which have no meaning here."""
    bitmap = ((1 << columns) - 1).to_bytes((columns + 7) // 8, "little")
    head = (7).to_bytes(6, "little") + b"\0\0" + (2).to_bytes(2, "little") + length(columns)
    return bytes(HEADER) + head + bitmap * (2 if kind in (UPDATE, PARTIAL) else 1) + images


def image(chance: random.Random, columns: list[Any]) -> tuple[list[Any], bytes]:
    row: list[Any] = []
    nulls, data = 0, b""
    for at, (_, _, _, make) in enumerate(columns):
        if chance.random() < 0.15:
            nulls |= 1 << at
            row.append(None)
            continue
        value, encoded = make(chance)
        row.append(value)
        data += encoded
    return row, nulls.to_bytes((len(columns) + 7) // 8, "little") + data


def _valid(chance: random.Random) -> tuple[Any, Any]:
    columns = chance.sample(TYPES, chance.choice((1, 3, 8, len(TYPES))))
    kind = chance.choice((WRITE, UPDATE, DELETE))
    rows, images = [], b""
    for _ in range(chance.choice((1, 2, 5))):
        before, data = image(chance, columns)
        images += data
        after = None
        if kind == UPDATE:
            after, data = image(chance, columns)
            images += data
        rows.append((None, before) if kind == WRITE else (before, after))
    described = table_map([(c, code, meta) for c, code, meta, _ in columns], named=chance.random() < 0.5)
    return (columns, kind, described, rows_event(kind, len(columns), images)), rows


def _same(found: Any, told: Any) -> bool:
    return repr(found) == repr(told)


def _judge(found: Any, told: Any) -> None:
    columns, kind, described, event = found
    schema = TableSchema("d", "t", tuple(c for c, _, _, _ in columns), ())
    with refused(*UNREADABLE):  # `Events` converts them
        decoder = RowDecoder(schema, TableMap.parse(described))
        counted = read_images(decoder, event, kind, len(event), 0, counts=True) if told is not ANY else []
        rows = read_images(decoder, event, kind, len(event), 0)
    made = [(before, after) for _, before, after in rows]
    if told is not ANY and not _same(made, told):
        raise Wrong(f"{made} for {told}")
    if told is not ANY and [n for n, _, _ in counted] != [n for n, _, _ in rows]:
        raise Wrong("the counted rows are others")
    for _, before, after in rows:
        for row in (before, after):
            if row is not None and len(row) != len(columns):
                raise Wrong(f"a row of {len(row)} values for {len(columns)} columns")


def _mutate(chance: random.Random, found: Any, other: Any) -> Any:
    columns, kind, described, event = found
    if chance.random() < 0.3:
        described = mutated_bytes(chance, described, other[2])
    if chance.random() < 0.8:
        event = event[:HEADER] + mutated_bytes(chance, event[HEADER:], other[3][HEADER:])
    return columns, chance.choice((kind, kind, kind, WRITE, UPDATE, DELETE, PARTIAL)), described, event


KINDS = [Kind("row images", _valid, _judge, _mutate)]
