"""How connectors write values: the type that a decoder reads them as, and their conversion to the declared type (pure).

Source: Debezium documentation, "Debezium connector for MySQL", "Data type mappings"; Kafka Connect's logical types.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError

from ..decode.blocks import either
from ..decode.texts import Formats, Texts, is_readable
from .integers import integers
from .options import ChangeOptions

__all__ = ["Converted", "Field", "Reader", "by_default", "named", "reader"]

Converted = tuple[pa.Array, np.ndarray | None]
_DAY_NS = 24 * 3600 * 10**9
_NOT_DATE = r"\A[+-]?[0-9]+\z"
_GEOMETRY = pa.struct([("wkb", pa.binary()), ("srid", pa.int32())])
_VARIABLE = pa.struct([("scale", pa.int32()), ("value", pa.binary())])
_SCALES = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}
_TIMES = {"time_millis": 10**6, "time_micros": 10**3, "time_nanos": 1}
_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
_BY_MEANING = {
    _CONNECT + "Date": "days", _CONNECT + "Timestamp": "millis", _CONNECT + "Time": "time_millis",
    _CONNECT + "Decimal": "decimal", _DEBEZIUM + "Date": "days", _DEBEZIUM + "Timestamp": "millis",
    _DEBEZIUM + "MicroTimestamp": "micros", _DEBEZIUM + "NanoTimestamp": "nanos", _DEBEZIUM + "Time": "time_millis",
    _DEBEZIUM + "MicroTime": "time_micros", _DEBEZIUM + "NanoTime": "time_nanos", "io.debezium.data.Bits": "bits",
    "io.debezium.data.VariableScaleDecimal": "variable",
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A column in the schema of a record.

    Parameters
    ----------
    type : str
        Kafka Connect's type, such as ``int64``.
    meaning : str
        Name of the Connect type; "" for none.
    scale : int
        Of a decimal.
    avro : pyarrow.DataType or None
        Its type in Avro. None: the record is JSON.
    """

    type: str
    meaning: str = ""
    scale: int = 0
    avro: pa.DataType | None = None


@dataclass(frozen=True)
class Reader:
    """How a column is read.

    Parameters
    ----------
    carrier : pyarrow.DataType
        The type that the format's decoder reads.
    convert : callable
        Makes the declared type of it. Also returns which values do not fit, if any; these are NULL.
    """

    carrier: pa.DataType
    convert: Callable[[pa.Array], Converted]


def by_default(type: pa.DataType, o: ChangeOptions) -> str:
    """The encoding of a declared type in Debezium's JSON without schemas; "" for JSON's own types."""
    iso = o.times == "isostring"
    fine = {"microseconds": "micros", "nanoseconds": "nanos"}.get(o.times, "millis")
    if pa.types.is_date(type):
        return "text" if iso else "days"
    if pa.types.is_time(type):
        # Without more knowledge: adaptive has milliseconds only for up to three digits.
        coarse = o.times in ("adaptive", "connect")
        return "text" if iso else "time_nanos" if fine == "nanos" else "time_millis" if coarse else "time_micros"
    if pa.types.is_timestamp(type):
        return "text" if iso or type.tz is not None else fine
    if pa.types.is_decimal(type):
        return "decimal" if o.decimals == "precise" else ""
    return _of_bytes(o) if pa.types.is_binary(type) else ""


def named(field: Field, type: pa.DataType, o: ChangeOptions) -> str:
    """The encoding that a record's schema says; "" for JSON's own types."""
    if field.meaning in _BY_MEANING:
        return _BY_MEANING[field.meaning]
    if field.meaning.startswith("io.debezium.data.geometry."):
        return "geometry"
    if pa.types.is_binary(type) and field.type == "string":
        return _of_bytes(o)
    if field.type == "bytes":
        return "base64"
    return "text" if field.type == "string" and not pa.types.is_string(type) else ""


def _of_bytes(o: ChangeOptions) -> str:
    return {"base64-url-safe": "base64url", "hex": "hex"}.get(o.binaries, "base64")


def reader(name: str, type: pa.DataType, encoding: str, field: Field | None, formats: Formats) -> Reader:
    """How a column with an encoding is read as a declared type.

    Raises
    ------
    BacklogError
        The encoding cannot become the type.
    """
    found = _reader(type, encoding, field or Field(""), formats)
    if found is None:
        what = field.meaning or field.type if field else encoding
        raise BacklogError(
            f"the column {name} is {what} ({encoding}) in the records, but declared {type}.",
            "Declare it as in the database, or name its encoding in columnEncodings.",
        )
    return found


def _reader(type: pa.DataType, encoding: str, field: Field, formats: Formats) -> Reader | None:
    temporal = encoding in _SCALES or encoding in _TIMES or encoding == "days"
    if temporal and pa.types.is_integer(type):
        return Reader(pa.int64(), partial(_cast, type=type))
    if encoding in _SCALES and pa.types.is_timestamp(type):
        return Reader(pa.int64(), partial(_instants, type=type, scale=_SCALES[encoding]))
    if encoding in _TIMES and (pa.types.is_time(type) or pa.types.is_string(type)):
        return Reader(pa.int64(), partial(_clock, type=type, factor=_TIMES[encoding]))
    if encoding == "days" and pa.types.is_date(type):
        return Reader(pa.int32(), lambda found: (found.view(type), None))
    if encoding == "decimal" and pa.types.is_decimal(type):
        if field.avro is not None and pa.types.is_decimal(field.avro):
            return Reader(field.avro, partial(_cast, type=type))
        scale = field.scale if field.type else type.scale
        return Reader(pa.binary(), partial(_decimals, type=type, scale=scale))
    if encoding == "variable" and pa.types.is_decimal(type):
        return Reader(_VARIABLE, partial(_variable, type=type))
    if encoding == "bits":
        if pa.types.is_binary(type):
            return Reader(pa.binary(), _same)
        numeric = pa.types.is_integer(type) or pa.types.is_decimal(type) or pa.types.is_boolean(type)
        return Reader(pa.binary(), partial(_bits, type=type)) if numeric else None
    if encoding == "geometry" and pa.types.is_binary(type):
        return Reader(_GEOMETRY, _geometry)
    if encoding in _BYTES and pa.types.is_binary(type):
        is_text = field.avro is not None and pa.types.is_string(field.avro)
        if encoding == "base64" and not is_text:
            return Reader(pa.binary(), _same)  # JSON's decoder does it
        return Reader(pa.string(), partial(_each, type=type, make=_BYTES[encoding]))
    if encoding == "text":
        plain = pa.types.is_string(type) or pa.types.is_nested(type)
        return Reader(pa.string(), _Text(type, formats)) if not plain and is_readable(type) else _plain(type, field)
    if encoding == "number" and pa.types.is_boolean(type) and not field.type:
        field = Field("int8")
    return _plain(type, field) if encoding in ("", "number") else None


def _plain(type: pa.DataType, field: Field) -> Reader | None:
    """Values as JSON or Avro has them."""
    if field.avro is not None:
        fits = all(asked(type) == asked(field.avro) for asked in (pa.types.is_nested, pa.types.is_temporal))
        return Reader(field.avro, partial(_cast, type=type)) if fits else None
    if pa.types.is_boolean(type) and field.type.startswith("int"):
        return Reader(pa.int64(), partial(_cast, type=type))
    if field.type == "boolean" and pa.types.is_integer(type):
        return Reader(pa.bool_(), partial(_cast, type=type))
    # JSON has times as text; its decoder would take a number for seconds.
    return None if pa.types.is_temporal(type) or pa.types.is_binary(type) else Reader(type, _same)


def _same(found: pa.Array) -> Converted:
    return found, None


def _cast(found: pa.Array, type: pa.DataType) -> Converted:
    if found.type == type:
        return found, None
    try:
        return pc.cast(found, type), None
    except pa.ArrowInvalid:
        return _each(found, type, lambda value: pc.cast(pa.scalar(value, found.type), type).as_py())


def _each(found: pa.Array, type: pa.DataType, make: Callable[[Any], Any]) -> Converted:
    """Converts one value at a time."""
    bad = np.zeros(len(found), bool)
    values: list[Any] = found.to_pylist()
    for i, value in enumerate(values):
        if value is not None:
            try:
                values[i] = pa.scalar(make(value), type).as_py()
            except (ValueError, ArithmeticError):  # pa.ArrowInvalid is a ValueError
                values[i], bad[i] = None, True
    return pa.array(values, type), bad if bad.any() else None


class _Text:
    """Parses texts. MySQL's zero dates are NULL, and 1 and 0 are booleans."""

    def __init__(self, type: pa.DataType, formats: Formats) -> None:
        self._texts = Texts(type, formats)
        self._is_local = not (pa.types.is_timestamp(type) and type.tz is not None)
        self._is_temporal, self._is_boolean = pa.types.is_temporal(type), pa.types.is_boolean(type)

    def __call__(self, found: pa.Array) -> Converted:
        wrong: np.ndarray | None = None
        if self._is_boolean:
            found = pc.if_else(pc.equal(found, "1"), "true", pc.if_else(pc.equal(found, "0"), "false", found))
        if self._is_temporal:
            if self._is_local:
                found = pc.replace_substring_regex(found, r"Z\z", "")  # Debezium's isostring has it
            numbers = pc.match_substring_regex(found, _NOT_DATE)  # a number of days would be taken for a year
            zero = pc.starts_with(found, "0000-00-00")
            if pc.any(pc.or_(numbers, zero)).as_py():
                wrong = pc.fill_null(numbers, False).to_numpy(zero_copy_only=False)
                found = pc.if_else(pc.or_(numbers, zero), None, found)
        result, bad = self._texts.many(found)
        return result, either(bad, wrong)


def _numbers(found: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    return found.fill_null(0).to_numpy(), found.is_null().to_numpy(zero_copy_only=False)


def _instants(found: pa.Array, type: pa.DataType, scale: tuple[int, int]) -> Converted:
    numbers, nulls = _numbers(found)
    factor, divisor = scale
    bad = (numbers > (2**63 - 1) // factor) | (numbers < -(2**63 // factor))
    micros = np.where(bad, 0, numbers) * factor // divisor
    return pa.array(micros, mask=nulls | bad).view(type), bad if bad.any() else None


def _clock(found: pa.Array, type: pa.DataType, factor: int) -> Converted:
    if pa.types.is_string(type):
        return pa.array([None if v is None else _clock_text(v * factor // 1000) for v in found.to_pylist()], type), None
    numbers, nulls = _numbers(found)
    bad = (numbers < 0) | (numbers >= _DAY_NS // factor)
    nanos = np.where(bad, 0, numbers) * factor
    return pa.array(nanos, mask=nulls | bad).view(type), bad if bad.any() else None


def _clock_text(micros: int) -> str:
    """As MySQL prints a TIME; the fraction only if there is one."""
    seconds, fraction = divmod(abs(micros), 10**6)
    text = f"{'-' if micros < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def _decimals(found: pa.Array, type: pa.DataType, scale: int) -> Converted:
    """Of two's complement, the most significant byte first."""
    whole, bad = integers(found, little=False)
    scaled = pa.Array.from_buffers(pa.decimal128(38, scale), len(whole), whole.buffers(), whole.null_count)
    result, wrong = _cast(scaled, type)
    return result, either(bad, wrong)


def _bits(found: pa.Array, type: pa.DataType) -> Converted:
    whole, bad = integers(found, little=True)
    if pa.types.is_boolean(type):
        return pc.not_equal(whole, pa.scalar(Decimal(0), whole.type)), bad
    result, wrong = _cast(whole, type)
    return result, either(bad, wrong)


def _variable(found: pa.Array, type: pa.DataType) -> Converted:
    def make(value: Any) -> Decimal:
        number = int.from_bytes(value["value"], "big", signed=True)
        return Decimal((number < 0, tuple(map(int, str(abs(number)))), -value["scale"]))

    return _each(found, type, make)


def _geometry(found: pa.Array) -> Converted:
    """As MySQL has it: four bytes of the SRID, the least significant first, then WKB."""
    return _each(found, pa.binary(), lambda value: (value["srid"] or 0).to_bytes(4, "little") + value["wkb"])


def _base64url(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)


_BYTES: dict[str, Callable[[str], bytes]] = {
    "base64": lambda text: base64.b64decode(text, validate=True),
    "base64url": _base64url,
    "hex": lambda text: binascii.unhexlify(text.encode()),
    "latin1": lambda text: text.encode("latin-1"),
}
