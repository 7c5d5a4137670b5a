"""The exact path for Avro: decodes one record at a time (pure).

A closure reads each value (see `avro_binary`). It is chosen once per schema and declared column, and returns the value
in the form that `pyarrow.array` takes.

Source: the Avro specification 1.12, "Schema resolution" (which types may become which).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from backlog_spark.errors import BacklogError

from .avro_binary import PRIMITIVES, Read, Unreadable, blocks, enum, fixed, least, long, skipper, string
from .avro_schema import Avro, arrow_type
from .numeric import to_float

__all__ = ["matched", "record_reader", "value_reader"]

_INT64 = range(-(2**63), 2**63)

# Types that a column may be declared as, in addition to the Avro type's own, for types without a logical type.
_PROMOTIONS: dict[str, tuple[pa.DataType, ...]] = {
    "int": (pa.int64(), pa.float32(), pa.float64()),
    "long": (pa.float32(), pa.float64()),
    "float": (pa.float64(),),
    "string": (pa.binary(),),
    "bytes": (pa.string(),),
}


def matched(avro: Avro, names: list[str]) -> list[int | None]:
    """For each name the index of the record's field, or None.

    Raises
    ------
    BacklogError
        If a name differs only in case from a field: the column would always be NULL.
    """
    indices = {name: i for i, name in enumerate(avro.names)}
    lower = {name.lower(): name for name in avro.names}
    for name in names:
        if name not in indices and name.lower() in lower:
            raise BacklogError(
                f"the column {name} is {lower[name.lower()]} in the Avro schema.", "Declare it with the same case."
            )
    return [indices.get(name) for name in names]


def record_reader(avro: Avro, fields: list[pa.Field], path: str = "") -> Callable[[bytes, int], tuple[list[Any], int]]:
    """A reader of the declared fields of a record. Fields that it lacks are None.

    Raises
    ------
    BacklogError
        If a field's type cannot be converted to the declared one.
    """
    slots = {index: i for i, index in enumerate(matched(avro, [f.name for f in fields])) if index is not None}
    steps: list[tuple[Read, int]] = []
    for index, child in enumerate(avro.children):
        slot = slots.get(index, -1)
        if slot < 0:
            steps.append((skipper(child), -1))
        else:
            steps.append((value_reader(child, fields[slot].type, path + fields[slot].name), slot))
    count = len(fields)

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        row: list[Any] = [None] * count
        for step, slot in steps:
            value, at = step(data, at)
            if slot >= 0:
                row[slot] = value
        return row, at

    return read


def value_reader(avro: Avro, type: pa.DataType, path: str) -> Read:
    """A reader of a value for a declared type. ``path``: the column's name in errors."""
    if avro.kind == "union":
        return _union(avro, type, path)
    if avro.kind == "record" and pa.types.is_struct(type):
        names = [f.name for f in type]
        fields = record_reader(avro, list(type), f"{path}.")

        def read_struct(data: bytes, at: int) -> tuple[Any, int]:
            row, at = fields(data, at)
            return dict(zip(names, row, strict=True)), at

        return read_struct
    if avro.kind == "array" and pa.types.is_list(type):
        item = value_reader(avro.children[0], type.value_type, f"{path}[]")
        return blocks(item, least(avro.children[0]))
    if avro.kind == "map" and pa.types.is_map(type) and pa.types.is_string(type.key_type):
        value = value_reader(avro.children[0], type.item_type, f"{path}[]")

        def read_entry(data: bytes, at: int) -> tuple[Any, int]:
            key, at = string(data, at)
            item, at = value(data, at)
            return (key, item), at

        return blocks(read_entry, 1)
    if avro.kind not in ("record", "array", "map", "null"):
        found = _scalar(avro, type)
        if found:
            return found
    raise BacklogError(
        f"the column {path} is {avro} in the Avro schema, but declared {type}.",
        f"Declare it {arrow_type(avro)}." if avro.kind != "null" else "Leave it out.",
    )


def _scalar(avro: Avro, type: pa.DataType) -> Read | None:
    """A reader of a value that is not nested; None if the type cannot be converted to the declared one."""
    if avro.logical == "decimal":
        wider = pa.types.is_decimal128(type) and type.scale >= avro.scale
        return _decimal(avro) if wider and type.precision - type.scale >= avro.precision - avro.scale else None
    if avro.logical and type == arrow_type(avro):
        return _temporal(avro)
    if avro.kind == "enum":
        return enum(avro.names) if pa.types.is_string(type) else None
    if avro.kind == "fixed":
        return fixed(avro.size) if pa.types.is_binary(type) else None
    # The number under a logical type may be declared too.
    plain = Avro(avro.kind)
    if type != arrow_type(plain) and (avro.logical or type not in _PROMOTIONS.get(avro.kind, ())):
        wide = avro.logical and avro.kind == "int" and type == pa.int64()
        if not wide:
            return None
    if pa.types.is_binary(type):
        return PRIMITIVES["bytes"]
    if pa.types.is_string(type):
        return string
    if pa.types.is_floating(type) and avro.kind in ("int", "long"):
        whole, narrow = PRIMITIVES[avro.kind], pa.types.is_float32(type)

        def read_float(data: bytes, at: int) -> tuple[Any, int]:
            value, at = whole(data, at)
            return to_float(str(value)) if narrow else float(value), at

        return read_float
    return PRIMITIVES[avro.kind]


def _decimal(avro: Avro) -> Read:
    unscaled = fixed(avro.size) if avro.kind == "fixed" else PRIMITIVES["bytes"]
    limit, scale = 10**avro.precision, avro.scale

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        found, at = unscaled(data, at)
        value = int.from_bytes(found, "big", signed=True)
        if abs(value) >= limit:
            raise Unreadable("a decimal has more digits than its type")
        return Decimal((value < 0, tuple(map(int, str(abs(value)))), -scale)), at

    return read


def _temporal(avro: Avro) -> Read:
    whole = PRIMITIVES[avro.kind]
    if avro.logical == "date":
        return whole
    factor = 1000 if avro.logical.endswith("-millis") else 1
    time = avro.logical.startswith("time-")
    if time:
        factor *= 1000
    fits = range(24 * 3600 * 10**9) if time else _INT64

    def read(data: bytes, at: int) -> tuple[int, int]:
        value, at = whole(data, at)
        value *= factor
        if value not in fits:
            raise Unreadable(f"a {avro.logical} is out of range")
        return value, at

    return read


def _union(avro: Avro, type: pa.DataType, path: str) -> Read:
    others = [child for child in avro.children if child.kind != "null"]
    apart = len(others) > 1 and pa.types.is_struct(type) and type == arrow_type(avro)
    branches: list[Read] = []
    for child in avro.children:
        if child.kind == "null":
            branches.append(lambda data, at: (None, at))
        elif apart:
            name = f"member{sum(branch.kind != 'null' for branch in avro.children[: len(branches)])}"
            branches.append(_member(value_reader(child, type.field(name).type, f"{path}.{name}"), name))
        else:
            branches.append(value_reader(child, type, path))

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = long(data, at)
        if not 0 <= index < len(branches):
            raise Unreadable("a union has no such branch")
        return branches[index](data, at)

    return read


def _member(value: Read, name: str) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        found, at = value(data, at)
        return {name: found}, at

    return read
