"""Columns of a table, with random values and how connectors write them: a model of the connectors.

A value is what the database has: Python's int, float, str, bytes, Decimal, date, datetime (without a zone; of a
TIMESTAMP in UTC) or timedelta.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

__all__ = ["COLUMNS", "Column", "Raw", "Written", "dumped", "message", "rows_of"]

EPOCH = dt.datetime(1970, 1, 1)
CONNECT, TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
UTC = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Written:
    """How a connector writes a column in one of its modes.

    Parameters
    ----------
    json : callable
        The value in JSON.
    type, name : str
        Of the Connect schema.
    scale : int or None
        Parameter of a decimal.
    encoding : str
        For ``columnEncodings``; "" where the default is right.
    avro : callable or None
        The value for fastavro; None: that of JSON.
    """

    json: Callable[[Any], Any]
    type: str
    name: str = ""
    scale: int | None = None
    encoding: str = ""
    avro: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Column:
    """A column.

    Parameters
    ----------
    declared : pyarrow.DataType
    value : callable
        A random value.
    debezium : sequence of Written
    canal, maxwell : callable
        The value in their JSON.
    shown : callable
        The value as `pyarrow.array` takes it for the declared type.
    canal_encoding, maxwell_encoding : str
    """

    declared: pa.DataType
    value: Callable[[random.Random], Any]
    debezium: tuple[Written, ...]
    canal: Callable[[Any], Any]
    maxwell: Callable[[Any], Any]
    shown: Callable[[Any], Any] = lambda value: value
    canal_encoding: str = ""
    maxwell_encoding: str = ""


def same(value: Any) -> Any:
    return value


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def signed(number: int) -> bytes:
    return number.to_bytes((8 + (number + (number < 0)).bit_length()) // 8, "big", signed=True)


def unscaled(value: Decimal, scale: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert exponent == -scale
    number = int("".join(map(str, digits)))
    return signed(-number if sign else number)


def scaled(number: int, scale: int) -> Decimal:
    """Exact: `Decimal.scaleb` rounds to 28 digits."""
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def micros(value: dt.datetime) -> int:
    return (value - EPOCH) // dt.timedelta(microseconds=1)


def clock(value: dt.timedelta) -> str:
    total = value // dt.timedelta(microseconds=1)
    seconds, fraction = divmod(abs(total), 10**6)
    text = f"{'-' if total < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def text_value(chance: random.Random) -> str:
    letters = string.ascii_letters + string.digits + ' "\\/{}[]:,é漢😀\n\t' + "'"
    special = ["null", '{"old":null}', '"payload":', "", "0000-00-00", "NaN"]
    return chance.choice([*special, *("".join(chance.choices(letters, k=chance.randint(0, 12))) for _ in range(12))])


def moment(chance: random.Random, digits: int, low: int = 1900, high: int = 2200) -> dt.datetime:
    seconds = chance.randint(-(1970 - low) * 31_000_000, (high - 1970) * 31_000_000)
    step = 10 ** (6 - digits)
    return EPOCH + dt.timedelta(seconds=seconds, microseconds=chance.randrange(0, 10**6, step))


def number(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda chance: chance.choice([low, high, 0, 1, -1 if low < 0 else 2, chance.randint(low, high)])


def decimal(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    most = 10**precision - 1
    return lambda chance: scaled(chance.choice([0, most, -most, 1, -1, chance.randint(-most, most)]), scale)


def integer(bits: int, type: pa.DataType) -> Column:
    kind = {8: "int16", 16: "int16", 32: "int32", 64: "int64"}[bits]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return Column(type, number(low, high), (Written(same, kind),), str, same)


def decimals(precision: int, scale: int) -> Column:
    name = CONNECT + "Decimal"
    return Column(
        pa.decimal128(precision, scale), decimal(precision, scale),
        (
            Written(lambda v: b64(unscaled(v, scale)), "bytes", name, scale, avro=same),
            Written(lambda v: f"{v:f}", "string", encoding="number"),
        ),
        lambda v: f"{v:f}", lambda v: Raw(f"{v:f}"),
    )  # fmt: skip


def datetimes(digits: int, declared: pa.DataType) -> Column:
    modes = [Written(lambda v: micros(v), "int64", TIME + "MicroTimestamp", encoding="micros")]
    if digits <= 3:
        modes.append(Written(lambda v: micros(v) // 1000, "int64", TIME + "Timestamp", encoding="millis"))
        modes.append(Written(lambda v: micros(v) // 1000, "int64", CONNECT + "Timestamp", encoding="millis"))
    modes.append(Written(lambda v: micros(v) * 1000, "int64", TIME + "NanoTimestamp", encoding="nanos"))
    modes.append(Written(lambda v: v.isoformat() + "Z", "string", TIME + "IsoTimestamp", encoding="text"))

    def text(value: dt.datetime) -> str:
        return value.isoformat(" ")

    return Column(declared, lambda chance: moment(chance, digits), tuple(modes), text, text, shown=micros)


class Raw(str):
    """JSON text as it is."""

    __slots__ = ()


def dumped(value: Any) -> str:
    """JSON, in which `Raw` is written as it is."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{dumped(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumped, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def message(fields: dict[str, Any], chance: random.Random | None = None) -> bytes:
    """A record, with its fields in any order."""
    names = list(fields)
    if chance is not None and chance.random() < 0.3:
        chance.shuffle(names)
    return dumped({name: fields[name] for name in names}).encode()


COLUMNS: dict[str, Column] = {
    "tiny": integer(8, pa.int8()),
    "small": integer(16, pa.int16()),
    "id": integer(32, pa.int32()),
    "whole": integer(32, pa.int32()),
    "big": integer(64, pa.int64()),
    "unsigned": Column(
        pa.decimal128(20, 0), number(0, 2**64 - 1),
        (
            Written(lambda v: b64(signed(v)), "bytes", CONNECT + "Decimal", 0, "decimal", avro=Decimal),
            Written(same, "int64", encoding="number"),
        ),
        str, same, shown=Decimal,
    ),
    "flag": Column(
        pa.bool_(), lambda chance: chance.random() < 0.5,
        (Written(same, "boolean"), Written(int, "int16", encoding="number")), lambda v: str(int(v)), int,
    ),
    "ratio": Column(
        pa.float64(), lambda chance: chance.choice([0.0, 1.5, -2.25e10, chance.uniform(-1e6, 1e6)]),
        (Written(same, "double"),), repr, same,
    ),
    "price": decimals(12, 2),
    "wide": decimals(38, 10),
    "name": Column(pa.string(), text_value, (Written(same, "string"),), same, same),
    "code": Column(
        pa.binary(), lambda chance: chance.randbytes(chance.randint(0, 9)),
        (Written(b64, "bytes", avro=same), Written(b64, "string", encoding="base64"),
         Written(bytes.hex, "string", encoding="hex"),
         Written(lambda v: base64.urlsafe_b64encode(v).decode(), "string", encoding="base64url")),
        lambda v: v.decode("latin-1"), b64,
    ),
    "bits": Column(
        pa.int64(), number(0, 2**40 - 1),
        (Written(lambda v: b64(v.to_bytes(5, "little")), "bytes", "io.debezium.data.Bits", encoding="bits",
                 avro=lambda v: v.to_bytes(5, "little")),),
        str, same,
    ),
    "day": Column(
        pa.date32(), lambda chance: moment(chance, 0).date(),
        (Written(lambda v: (v - EPOCH.date()).days, "int32", TIME + "Date"),
         Written(lambda v: (v - EPOCH.date()).days, "int32", CONNECT + "Date", avro=same),
         Written(lambda v: f"{v}Z", "string", TIME + "IsoDate", encoding="text")),
        str, str,
    ),
    "at": datetimes(6, pa.timestamp("us")),
    "at_ms": datetimes(3, pa.timestamp("us")),
    "instant": Column(
        UTC, lambda chance: moment(chance, 6, 1970, 2037),
        (Written(lambda v: v.isoformat() + "Z", "string", TIME + "ZonedTimestamp"),),
        lambda v: v.isoformat(" "), lambda v: v.isoformat(" "), shown=micros,
    ),
    "span": Column(
        pa.string(), lambda chance: dt.timedelta(microseconds=chance.randint(-3_020_399_000_000, 3_020_399_000_000)),
        (Written(lambda v: v // dt.timedelta(microseconds=1), "int64", TIME + "MicroTime", encoding="time_micros"),
         Written(lambda v: v // dt.timedelta(microseconds=1) * 1000, "int64", TIME + "NanoTime",
                 encoding="time_nanos")),
        clock, clock, shown=clock,
    ),
    "daytime": Column(
        pa.time64("ns"), lambda chance: dt.timedelta(microseconds=chance.randrange(0, 86_400_000_000)),
        (Written(lambda v: v // dt.timedelta(microseconds=1), "int64", TIME + "MicroTime"),),
        clock, clock, shown=lambda v: v // dt.timedelta(microseconds=1) * 1000,
    ),
}  # fmt: skip


def rows_of(columns: list[str], rows: list[dict[str, Any] | None]) -> list[pa.Array]:
    """The expected columns. None: NULLs."""
    found = []
    for name in columns:
        column = COLUMNS[name]
        values = [None if row is None or row.get(name) is None else column.shown(row[name]) for row in rows]
        found.append(pa.array(values, column.declared))
    return found
