"""Formats changes as Debezium's JSON, column by column in Arrow (pure).

Values are as with Debezium's settings ``decimal.handling.mode=string``, ``binary.handling.mode=base64`` and
``time.precision.mode=adaptive_time_microseconds``. An unsigned ``bigint`` is a number, also beyond 2**63.

Source: Debezium documentation, "Debezium connector for MySQL", "Data change events" and "Data type mappings".
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..schema.columns import MASKED
from ..schema.table import TableSchema
from ..schema.types import GEOMETRIES, Column

__all__ = ["drop_event", "encoding", "envelopes", "key_json"]

_NEEDS_ESCAPES = r'[\x00-\x1f"\\\x7f]'
_MICROS_FROM_DIGITS = 4  # of a DATETIME's fraction
_SRID = 4  # bytes before the WKB
_WKB_POINT = 21


def key_json(schema: TableSchema, table: pa.Table) -> pa.Array:
    """Each row's primary key as a JSON object; NULL if the table has none."""
    if not schema.key:
        return pa.nulls(table.num_rows, pa.string())
    return _objects(schema, table, schema.key)


def envelopes(
    schema: TableSchema,
    before: pa.Table | None,
    after: pa.Table | None,
    ops: Sequence[str],
    at_ms: Sequence[int],
    origins: Sequence[Mapping[str, Any]],
) -> pa.Array:
    """An envelope for each row, as JSON.

    Parameters
    ----------
    before, after : pyarrow.Table or None
        The images. An image that the operation does not have is ignored.
    ops : sequence of str
        ``"r"`` (snapshot), ``"c"``, ``"u"``, ``"d"`` or ``"t"`` (truncate), which has no images.
    at_ms : sequence of int
        When the statement ran, milliseconds since 1970 (UTC). It is ``ts_ms`` in the envelope and in ``source``, so
        that a batch that is read again has the same content.
    origins : sequence of mapping
        ``file``, ``pos``, ``server_id`` and ``gtid`` of ``source``.
    """
    names = tuple(c.name for c in schema.read)
    images = []
    for table, without in ((before, "rct"), (after, "dt")):
        if table is None:
            images.append(pa.repeat(pa.scalar("null"), len(ops)))
            continue
        has = pa.array([op not in without for op in ops], pa.bool_())
        images.append(pc.if_else(has, _objects(schema, table, names), "null"))
    head = _source(schema)
    rest = [
        f',"source":{head},"ts_ms":{ms},"snapshot":"{"true" if op == "r" else "false"}",{_dumps(dict(origin))[1:-1]}'
        f'}},"op":"{op}","ts_ms":{ms},"transaction":null}}'
        for op, ms, origin in zip(ops, at_ms, origins, strict=True)
    ]
    return pc.binary_join_element_wise('{"before":', images[0], ',"after":', images[1], pa.array(rest, pa.string()), "")


def _source(schema: TableSchema) -> str:
    """The beginning of ``source``, which is the same for all changes of a table."""
    start = {
        "version": metadata.version("backlog_spark"),
        "connector": "mysql",
        "name": "mysql_cdc",
        "db": schema.database,
        "table": schema.table,
    }
    return _dumps(start)[:-1]


def drop_event(schema: TableSchema, statement: str, at_ms: int, origin: Mapping[str, Any]) -> tuple[str, str]:
    """Key and value of a DROP TABLE, as in Debezium's schema change topic."""
    source = f'{_source(schema)},"ts_ms":{at_ms},"snapshot":"false",{_dumps(dict(origin))[1:-1]}}}'
    change = {"type": "DROP", "id": f'"{schema.database}"."{schema.table}"', "table": None}
    rest = {
        "ts_ms": at_ms,
        "databaseName": schema.database,
        "schemaName": None,
        "ddl": statement,
        "tableChanges": [change],
    }
    return _dumps({"databaseName": schema.database}), f'{{"source":{source},{_dumps(rest)[1:]}'


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _objects(schema: TableSchema, table: pa.Table, names: Sequence[str]) -> pa.Array:
    columns = {c.name: c for c in schema.columns}
    parts: list[Any] = []
    for i, name in enumerate(names):
        parts += [("," if i else "{") + _dumps(name) + ":"]
        parts += [_values(columns[name])(columns[name], _whole(table.column(name)))]
    return pc.binary_join_element_wise(*parts, "}", "", null_handling="replace", null_replacement="null")


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


_Values = Callable[[Column, pa.Array], pa.Array]


def _number(column: Column, array: pa.Array) -> pa.Array:
    return pc.cast(array, pa.string())


def _quoted(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', array, '"', "")


def _decimal(column: Column, array: pa.Array) -> pa.Array:
    return _quoted(pc.cast(array, pa.string()))


def _text(column: Column, array: pa.Array) -> pa.Array:
    plain = _quoted(array)
    special = pc.match_substring_regex(array, _NEEDS_ESCAPES)
    if not pc.any(special).as_py():
        return plain
    escaped = [_dumps(v) if s else None for v, s in zip(array.to_pylist(), special.to_pylist(), strict=True)]
    return pc.if_else(special, pa.array(escaped, pa.string()), plain)


def _date(column: Column, array: pa.Array) -> pa.Array:
    return pc.cast(array.view(pa.int32()), pa.string())


def _fraction_digits(column: Column) -> int:
    found = re.search(r"\((\d)\)", column.column_type)
    return int(found.group(1)) if found else 0


def _datetime(column: Column, array: pa.Array) -> pa.Array:
    micros = array.view(pa.int64())
    if _fraction_digits(column) < _MICROS_FROM_DIGITS:
        micros = pa.array([None if v is None else v // 1000 for v in micros.to_pylist()], pa.int64())
    return pc.cast(micros, pa.string())


def _timestamp(column: Column, array: pa.Array) -> pa.Array:
    text = pc.strftime(array, format="%Y-%m-%dT%H:%M:%SZ")
    text = pc.replace_substring_regex(text, r"(\.\d*?)0+Z$", r"\1Z")
    return _quoted(pc.replace_substring_regex(text, r"\.Z$", "Z"))


def _time(column: Column, array: pa.Array) -> pa.Array:
    return pa.array([None if v is None else str(_time_micros(v)) for v in array.to_pylist()], pa.string())


def _time_micros(text: str) -> int:
    clock, _, fraction = text.lstrip("-").partition(".")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fraction.ljust(6, "0") or 0)
    return -micros if text.startswith("-") else micros


def _binary(column: Column, array: pa.Array) -> pa.Array:
    found = [None if v is None else f'"{base64.b64encode(v).decode()}"' for v in array.to_pylist()]
    return pa.array(found, pa.string())


def _bit(column: Column, array: pa.Array) -> pa.Array:
    if column.bits == 1:
        return pc.if_else(pc.equal(array, pa.scalar(1, array.type)), "true", "false")
    size = (column.bits + 7) // 8
    packed = [None if v is None else int(v).to_bytes(size, "little") for v in array.to_pylist()]
    return _binary(column, pa.array(packed, pa.binary()))


def _geometry(column: Column, array: pa.Array) -> pa.Array:
    return pa.array([None if v is None else _shape(v) for v in array.to_pylist()], pa.string())


def _shape(value: bytes) -> str:
    srid, wkb = int.from_bytes(value[:_SRID], "little"), value[_SRID:]
    shape: dict[str, Any] = {}
    if len(wkb) == _WKB_POINT:
        shape["x"], shape["y"] = struct.unpack("<dd" if wkb[0] else ">dd", wkb[5:])
    return _dumps({**shape, "wkb": base64.b64encode(wkb).decode(), "srid": srid or None})


_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "float", "double")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_BY_TYPE: dict[str, _Values] = {
    **dict.fromkeys(_INTEGERS, _number),
    **dict.fromkeys(_BYTES, _binary),
    **dict.fromkeys(GEOMETRIES, _geometry),
    "decimal": _decimal,
    "date": _date,
    "datetime": _datetime,
    "timestamp": _timestamp,
    "time": _time,
    "bit": _bit,
}


_ENCODINGS: dict[_Values, str] = {
    _number: "number",
    _decimal: "text",
    _text: "text",
    _timestamp: "text",
    _date: "days",
    _binary: "base64",
    _geometry: "geometry",
}


def encoding(column: Column) -> str:
    """How an envelope has a column's values.

    ``number`` and ``text``: as Spark casts them from text. ``days``: since 1970. ``millis``, ``micros``: since 1970, by
    the clock on the wall. ``time:N``: microseconds; the server prints N digits of their fraction. ``base64``. ``bit``:
    a boolean. ``bits``: base64 of the number, the least significant byte first. ``geometry``: an object with ``wkb`` in
    base64 and ``srid``.
    """
    values = _values(column)
    if values is _datetime:
        return "millis" if _fraction_digits(column) < _MICROS_FROM_DIGITS else "micros"
    if values is _time:
        return f"time:{_fraction_digits(column)}"
    if values is _bit:
        return "bit" if column.bits == 1 else "bits"
    return _ENCODINGS[values]


def _values(column: Column) -> _Values:
    if column.use == MASKED:
        return _text
    return _BY_TYPE.get(column.data_type, _text)
