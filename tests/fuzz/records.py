"""Records of topics: JSON, CSV, Avro and Protobuf. Both roads of a decoder, alone and as a block, have to agree."""

from __future__ import annotations

import datetime as dt
import functools
import json
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

from backlog_spark.connectors.hybrid.decode import decoder, parse
from backlog_spark.connectors.hybrid.decode.avro_decoder import AvroDecoder
from backlog_spark.connectors.hybrid.decode.avro_schema import schemaOf
from backlog_spark.connectors.hybrid.decode.base import MalformedRecord
from backlog_spark.connectors.hybrid.decode.protobuf_decoder import ProtobufDecoder
from backlog_spark.connectors.hybrid.decode.protobuf_files import find_message
from tests.connectors.hybrid.decode.plain import plain
from tests.connectors.hybrid.decode.records import BROKEN, COLUMNS, CSV_COLUMNS, NUMBERS, TEXTS
from tests.fuzz.kinds import ANY, Kind, Refusal, Wrong, mutated_bytes, mutated_text

__all__ = ["KINDS", "mutated_records"]

EPOCH = dt.datetime(1970, 1, 1)


def judged_records(some: Any, records: Sequence[bytes], told: Any) -> None:
    """Judge a `TwoPathDecoder` in mode PERMISSIVE. ``told``: the columns."""
    values = pa.array(records, pa.binary())
    exact = some.exact(records)
    found = some.parsed(values)
    if found.bad.keys() != exact.bad.keys():
        raise Wrong(f"malformed are {exact.bad} by the exact path, {found.bad} otherwise")
    whole = some.decode(values).columns
    if some.corrupt_at >= 0:
        texts = whole.pop(some.corrupt_at)
        if [i for i, text in enumerate(texts.to_pylist()) if text is not None] != sorted(exact.bad):
            raise Wrong("the column for corrupt records names others")
    for field, one, two, three in zip(some.schema, exact.columns, found.columns, whole, strict=True):
        for column in (one, two, three):
            column.validate(full=True)
            if column.type != field.type or len(column) != len(records):
                raise Wrong(f"{field.name}: {len(column)} of {column.type}")
        if not plain(one) == plain(two) == plain(three):
            raise Wrong(f"{field.name}: {plain(one)} by the exact path, {plain(two)} otherwise")
    if told is not ANY:
        if exact.bad:
            raise Wrong(f"malformed: {exact.bad}")
        for field, column, expected in zip(some.schema, whole, told, strict=True):
            if plain(column) != plain(pa.array(expected, field.type)):
                raise Wrong(f"{field.name}: {plain(column)} for {expected}")
    if exact.bad:
        raise Refusal(next(iter(exact.bad.values())))


def mutated_records(
    chance: random.Random, records: list[bytes], other: list[bytes], texts: Sequence[str] = ()
) -> list[bytes]:
    """Some of the records mutated, as bytes or as text with the format's odd parts."""
    records = list(records)
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(len(records))
        one, two = records[at], chance.choice(other)
        if texts and chance.random() < 0.7:
            text = one.decode("utf-8", "replace")
            if chance.random() < 0.5:
                place = chance.randrange(len(text) + 1)
                text = text[:place] + chance.choice(texts) + text[place + chance.choice((0, 0, 1, 3, 6)) :]
            else:
                text = mutated_text(chance, text, two.decode("utf-8", "replace"))
            records[at] = text.encode("utf-8", "replace")
        else:
            records[at] = mutated_bytes(chance, one, two)
    return records


def _count(chance: random.Random) -> int:
    return chance.choice((1, 1, 2, 5, 12))


# -- JSON and CSV -------------------------------------------------------------------------------------------------

_CORRUPT = pa.field("_corrupt_record", pa.string())


@functools.cache
def _of_text(format: str) -> Any:
    schema = COLUMNS if format == "json" else CSV_COLUMNS
    return decoder(parse({"valueFormat": format, "mode": "PERMISSIVE"}), schema.append(_CORRUPT))


def _scalar(type: pa.DataType, chance: random.Random) -> tuple[Any, Any]:
    """A value as `pyarrow.array` takes it, and as JSON."""
    if pa.types.is_boolean(type):
        return (value := chance.random() < 0.5), value
    if pa.types.is_integer(type):
        low = -(2 ** (type.bit_width - 1))
        return (value := chance.choice((low, -low - 1, 0, chance.randint(low, -low - 1)))), value
    if pa.types.is_floating(type):
        return (value := chance.choice((0.0, 1.5, -2.25, float(chance.randint(-(2**20), 2**20))))), value
    if pa.types.is_decimal(type):
        most = 10**type.precision - 1
        number = chance.choice((0, most, -most, chance.randint(-most, most)))
        value = Decimal((number < 0, tuple(map(int, str(abs(number)))), -type.scale))
        return value, f"{value:f}"
    if pa.types.is_date(type):
        value = dt.date.fromordinal(chance.randint(1, 3_000_000))
        return value, str(value)
    if pa.types.is_timestamp(type):
        micros = chance.randint(-60 * 10**15, 200 * 10**15)
        at = EPOCH + dt.timedelta(microseconds=micros)
        return micros, at.isoformat() + ("Z" if type.tz else "")
    if pa.types.is_time(type):
        micros = chance.randrange(86_400 * 10**6)
        return micros * 1000, str((EPOCH + dt.timedelta(microseconds=micros)).time())
    text = "".join(chance.choices('aB é漢😀"\\\n', k=chance.choice((0, 1, 6))))
    if pa.types.is_binary(type):
        import base64

        return text.encode(), base64.b64encode(text.encode()).decode()
    return text, text


def _value(type: pa.DataType, chance: random.Random) -> tuple[Any, Any]:
    if chance.random() < 0.1:
        return None, None
    if pa.types.is_struct(type):
        fields = {f.name: _value(f.type, chance) for f in type}
        return {n: v[0] for n, v in fields.items()}, {n: v[1] for n, v in fields.items()}
    if pa.types.is_map(type):
        items = {key: _value(type.item_type, chance) for key in chance.sample("klm", chance.randint(0, 3))}
        return [(k, v[0]) for k, v in items.items()], {k: v[1] for k, v in items.items()}
    if pa.types.is_list(type):
        found = [_value(type.value_type, chance) for _ in range(chance.randint(0, 3))]
        return [v[0] for v in found], [v[1] for v in found]
    return _scalar(type, chance)


def _valid_json(chance: random.Random) -> tuple[list[bytes], Any]:
    records, rows = [], []
    for _ in range(_count(chance)):
        fields = {f.name: _value(f.type, chance) for f in COLUMNS if chance.random() < 0.5}
        rows.append([fields[n][0] if n in fields else None for n in COLUMNS.names])
        names = chance.sample(list(fields), len(fields))
        text = json.dumps({n: fields[n][1] for n in names}, ensure_ascii=chance.random() < 0.5)
        records.append(text.encode())
    return records, list(zip(*rows, strict=True))


def _valid_csv(chance: random.Random) -> tuple[list[bytes], Any]:
    records, rows = [], []
    for _ in range(_count(chance)):
        row, written = [], []
        for field in CSV_COLUMNS:
            value, text = _scalar(field.type, chance)
            if isinstance(text, str):
                text = text.replace("\n", " ")
                value = value.replace("\n", " ") if isinstance(value, str) else value
            shown = str(text).lower() if isinstance(text, bool) else str(text)
            if value == "":
                value, shown = None, ""
            elif isinstance(value, str):
                shown = '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
            row.append(value)
            written.append(shown)
        rows.append(row)
        records.append(",".join(written).encode())
    return records, list(zip(*rows, strict=True))


# -- Avro ---------------------------------------------------------------------------------------------------------


def _field(name: str, type: Any, logical: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": {"type": type, "logicalType": logical, **more} if logical else type}


_INNER = {"type": "record", "name": "Inner", "fields": [_field("a", "int"), _field("b", ["null", "string"])]}
_FAST = [
    _field("i", "int"),
    _field("l", "long"),
    _field("s", "string"),
    _field("b", "bytes"),
    _field("o", ["null", "long"]),
    _field("f", "float"),
    _field("d", "double"),
    _field("t", "boolean"),
    _field("day", "int", "date"),
    _field("at", "long", "timestamp-micros"),
    _field("price", "bytes", "decimal", precision=20, scale=3),
    _field("e", {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}),
    _field("inner", _INNER),
    _field("fix", {"type": "fixed", "name": "Fix", "size": 5}),
    _field("unread", ["string", "null"]),
]
_SLOW = [
    *_FAST,
    _field("list", {"type": "array", "items": "string"}),
    _field("map", {"type": "map", "values": "long"}),
    _field("nulls", {"type": "array", "items": "null"}),
    _field("u", ["null", "int", "string"]),
    _field("deep", {"type": "array", "items": {"type": "array", "items": "int"}}),
    _field("nothing", {"type": "array", "items": {"type": "record", "name": "Nothing", "fields": []}}),
]
_SCHEMAS = [{"type": "record", "name": "R", "fields": fields} for fields in (_FAST, _SLOW)]
_UNREAD = ("unread", "nulls", "nothing")


@functools.cache
def _avro(at: int) -> AvroDecoder:
    fields = [f for f in _SCHEMAS[at]["fields"] if f["name"] not in _UNREAD]
    schema = schemaOf({**_SCHEMAS[at], "fields": fields})
    return AvroDecoder(schema.append(_CORRUPT), "PERMISSIVE", _CORRUPT.name, _SCHEMAS[at])


@functools.cache
def _parsed_avro(at: int) -> Any:
    return fastavro.parse_schema(_SCHEMAS[at])


def _avro_row(chance: random.Random, at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row as fastavro takes it, and as it is read."""
    price = chance.choice((0, 10**20 - 1, -1, chance.randint(-(10**19), 10**19)))
    micros = chance.randint(-(10**15), 10**16)
    text = _scalar(pa.string(), chance)[0]
    row: dict[str, Any] = {
        "i": _scalar(pa.int32(), chance)[0],
        "l": _scalar(pa.int64(), chance)[0],
        "s": text,
        "b": text.encode(),
        "o": chance.choice((None, 7)),
        "f": 1.5,
        "d": _scalar(pa.float64(), chance)[0],
        "t": chance.random() < 0.5,
        "day": dt.date.fromordinal(chance.randint(1, 3_000_000)),
        "at": EPOCH.replace(tzinfo=dt.UTC) + dt.timedelta(microseconds=micros),
        "price": Decimal((price < 0, tuple(map(int, str(abs(price)))), -3)),
        "e": chance.choice("ABC"),
        "inner": {"a": chance.randint(-9, 9), "b": chance.choice((None, text))},
        "fix": chance.randbytes(5),
        "unread": chance.choice((None, "x" * 20)),
    }
    read = {**row, "at": micros}
    if at:
        number = chance.choice((None, 5, "five"))
        row |= {
            "list": [text] * chance.randint(0, 3),
            "map": {"k": 2**40},
            "nulls": [None] * chance.randint(0, 3),
            "u": number,
            "deep": [[1, 2], [], [-3]],
            "nothing": [{}] * chance.randint(0, 3),
        }
        struct = (
            None
            if number is None
            else {"member0": number if number == 5 else None, "member1": number if number == "five" else None}
        )
        read |= {"list": row["list"], "map": [("k", 2**40)], "u": struct, "deep": row["deep"]}
    return row, read


def _valid_avro(at: int) -> Callable[[random.Random], tuple[list[bytes], Any]]:
    def valid(chance: random.Random) -> tuple[list[bytes], Any]:
        records, rows = [], []
        for _ in range(_count(chance)):
            row, read = _avro_row(chance, at)
            out = BytesIO()
            fastavro.schemaless_writer(out, _parsed_avro(at), row)
            records.append(out.getvalue())
            rows.append([read[name] for name in _avro(at).schema.names])
        return records, list(zip(*rows, strict=True))

    return valid


def _judge_avro(at: int) -> Callable[[list[bytes], Any], None]:
    def judge(records: list[bytes], told: Any) -> None:
        judged_records(_avro(at), records, told)
        # What both accept has to be the same. fastavro accepts more.
        names = _avro(at).schema.names
        exact = _avro(at).exact(records)
        for number, record in enumerate(records):
            try:
                other = fastavro.schemaless_reader(BytesIO(record), _parsed_avro(at), None)
            except Exception:  # fastavro raises what it likes
                continue
            for name, column in zip(names, exact.columns, strict=True):
                if name in ("i", "l", "s", "b", "o", "t", "e", "fix", "inner", "list", "deep"):
                    value = column[number].as_py()
                    if number not in exact.bad and value != other[name]:
                        raise Wrong(f"{name}: {value}, and {other[name]} by fastavro")

    return judge


# -- Protobuf -----------------------------------------------------------------------------------------------------

F = FieldDescriptorProto


@functools.cache
def _protobuf() -> tuple[ProtobufDecoder, Any]:
    file = FileDescriptorProto(name="f.proto", package="x", syntax="proto3")
    inner = file.message_type.add(name="In")
    inner.field.add(name="a", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    inner.field.add(name="in", number=2, type=F.TYPE_MESSAGE, type_name=".x.In", label=F.LABEL_OPTIONAL)
    message = file.message_type.add(name="M")
    for number, (name, type_) in enumerate(
        (
            ("i", F.TYPE_INT32),
            ("l", F.TYPE_SINT64),
            ("s", F.TYPE_STRING),
            ("b", F.TYPE_BYTES),
            ("d", F.TYPE_DOUBLE),
            ("t", F.TYPE_BOOL),
            ("f", F.TYPE_FIXED32),
        ),
        1,
    ):
        message.field.add(name=name, number=number, type=type_, label=F.LABEL_OPTIONAL)
    message.field.add(name="r", number=20, type=F.TYPE_INT64, label=F.LABEL_REPEATED)
    message.field.add(name="m", number=21, type=F.TYPE_MESSAGE, type_name=".x.In", label=F.LABEL_OPTIONAL)
    files = [file.SerializeToString()]
    schema = pa.schema(
        [
            ("i", pa.int32()),
            ("l", pa.int64()),
            ("s", pa.string()),
            ("b", pa.binary()),
            ("d", pa.float64()),
            ("t", pa.bool_()),
            ("f", pa.int32()),
            ("r", pa.list_(pa.field("element", pa.int64()))),
            ("m", pa.struct([("a", pa.int32())])),
            _CORRUPT,
        ]
    )
    made = ProtobufDecoder(schema, "PERMISSIVE", _CORRUPT.name, files, "x.M", True)
    return made, GetMessageClass(find_message(files, "x.M"))


def _valid_protobuf(chance: random.Random) -> tuple[list[bytes], Any]:
    records, rows = [], []
    for _ in range(_count(chance)):
        text = _scalar(pa.string(), chance)[0]
        values = [
            _scalar(pa.int32(), chance)[0],
            _scalar(pa.int64(), chance)[0],
            text,
            text.encode(),
            1.5,
            chance.random() < 0.5,
            chance.randint(0, 2**31 - 1),
            [chance.getrandbits(60)] * chance.randint(0, 3),
        ]
        message = _protobuf()[1]()
        for name, value in zip("ilsbdtf", values, strict=False):
            setattr(message, name, value)
        message.r.extend(values[-1])
        there = chance.random() < 0.5
        if there:
            message.m.a = 5
        rows.append([*values, {"a": 5} if there else None])
        records.append(message.SerializeToString())
    return records, list(zip(*rows, strict=True))


def _in_every_mode(
    judge: Callable[[list[bytes], Any], None], some: Callable[[], Any]
) -> Callable[[list[bytes], Any], None]:
    """Judge in mode PERMISSIVE. In FAILFAST the first malformed record alone is an error."""

    def judged(records: list[bytes], told: Any) -> None:
        refused = ""
        try:
            judge(records, told)
        except Refusal as error:
            refused = str(error)
        strict = some()
        before, strict.mode = strict.mode, "FAILFAST"
        try:
            strict.decode(pa.array(records, pa.binary()))
        except MalformedRecord as error:
            if not refused:
                raise Wrong(f"only FAILFAST refuses: {error}") from None
            raise Refusal(refused) from None
        finally:
            strict.mode = before
        if refused:
            raise Wrong(f"FAILFAST accepts: {refused}")

    return judged


def _kind(name: str, valid: Any, some: Callable[[], Any], judge: Any = None, texts: Sequence[str] = ()) -> Kind:
    judge = judge or (lambda records, told: judged_records(some(), records, told))
    return Kind(name, valid, _in_every_mode(judge, some), lambda c, a, b: mutated_records(c, a, b, texts))


_ODD_JSON = [*NUMBERS, *map(json.dumps, TEXTS), *BROKEN]
KINDS = [
    _kind("JSON records", _valid_json, lambda: _of_text("json"), texts=_ODD_JSON),
    _kind("CSV records", _valid_csv, lambda: _of_text("csv"), texts=[*NUMBERS, *TEXTS, *BROKEN, ","]),
    _kind("Avro records", _valid_avro(0), lambda: _avro(0), _judge_avro(0)),
    _kind("nested Avro records", _valid_avro(1), lambda: _avro(1), _judge_avro(1)),
    _kind("Protobuf records", _valid_protobuf, lambda: _protobuf()[0]),
]
