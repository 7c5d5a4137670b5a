"""Protobuf messages of random types, each with random values, and the columns and rows that they give."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode.protobuf_files import find_message

__all__ = ["Messages", "messages"]

F = FieldDescriptorProto
OPTIONAL, REPEATED = F.LABEL_OPTIONAL, F.LABEL_REPEATED
NAMES = {0: "ZERO", 1: "ONE", -5: "LESS"}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")


def floats(width: int) -> st.SearchStrategy[float]:
    return st.floats(width=width)  # type: ignore[arg-type]


def signed(bits: int) -> Callable[[int], int]:
    return lambda value: value - 2**bits if value >= 2 ** (bits - 1) else value


def integers(bits: int, *, unsigned: bool = False) -> st.SearchStrategy[int]:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.sampled_from([0, 1, low, high]) | st.integers(low, high)


@dataclass(frozen=True)
class Kind:
    """A type of a field.

    Parameters
    ----------
    type : int
        In the descriptor.
    values : SearchStrategy
        As the drawn values.
    arrow : pyarrow.DataType
        The column's type by default.
    shown : callable
        What a drawn value is in a row.
    name : str
        Of a message or an enum.
    put : callable, optional
        Sets a message to a drawn value.
    other : (pyarrow.DataType, callable), optional
        Another type that the column may be declared as, and what a value is then.
    """

    type: int
    values: st.SearchStrategy[Any]
    arrow: pa.DataType
    shown: Callable[[Any], Any] = lambda value: value
    name: str = ""
    put: Callable[[Any, Any], None] | None = None
    other: tuple[pa.DataType, Callable[[Any], Any]] | None = None


def _put_time(message: Any, value: tuple[int, int]) -> None:
    message.seconds, message.nanos = value


def _put_inner(message: Any, value: tuple[int, str | None]) -> None:
    message.a = value[0]
    if value[1] is not None:
        message.b = value[1]


def _put_wrapped(message: Any, value: int) -> None:
    message.value = value


def _micros(value: tuple[int, int]) -> dt.timedelta:
    cut = abs(value[1]) // 1000  # towards zero
    return dt.timedelta(seconds=value[0], microseconds=-cut if value[1] < 0 else cut)


NARROW, WIDE = pa.int32(), pa.int64()
times = st.tuples(st.integers(-(10**9), 10**9), st.integers(-999_999_999, 999_999_999))
SCALARS = [
    Kind(F.TYPE_BOOL, st.booleans(), pa.bool_()),
    *(Kind(t, integers(32), NARROW, other=(WIDE, int)) for t in (F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32)),
    *(
        Kind(t, integers(32, unsigned=True), NARROW, signed(32), other=(WIDE, int))
        for t in (F.TYPE_UINT32, F.TYPE_FIXED32)
    ),
    *(Kind(t, integers(64), WIDE) for t in (F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64)),
    *(
        Kind(t, integers(64, unsigned=True), WIDE, signed(64), other=(pa.decimal128(20, 0), Decimal))
        for t in (F.TYPE_UINT64, F.TYPE_FIXED64)
    ),
    Kind(F.TYPE_STRING, st.text(max_size=3), pa.string()),
    Kind(F.TYPE_BYTES, st.binary(max_size=3), pa.binary()),
    Kind(F.TYPE_ENUM, st.sampled_from(list(NAMES)), pa.string(), NAMES.__getitem__, ".x.E", other=(NARROW, int)),
]
FLOATS = [
    Kind(F.TYPE_FLOAT, floats(32), pa.float32(), repr, other=(pa.float64(), repr)),
    Kind(F.TYPE_DOUBLE, floats(64), pa.float64(), repr),
]
MESSAGES = [
    Kind(
        F.TYPE_MESSAGE, st.tuples(integers(32), st.none() | st.text(max_size=2)),
        pa.struct([("a", NARROW), ("b", pa.string())]),
        lambda value: {"a": value[0] or None, "b": value[1]}, ".x.N", _put_inner,
    ),
    Kind(F.TYPE_MESSAGE, times, UTC, lambda value: EPOCH + _micros(value), ".google.protobuf.Timestamp", _put_time),
    Kind(F.TYPE_MESSAGE, times, pa.duration("us"), _micros, ".google.protobuf.Duration", _put_time),
    Kind(
        F.TYPE_MESSAGE, integers(64), pa.struct([("value", WIDE)]), lambda value: {"value": value or None},
        ".google.protobuf.Int64Value", _put_wrapped, (WIDE, lambda value: value or None),
    ),
]  # fmt: skip
LABELS = ["plain", "optional", "repeated", "map"]


@dataclass(frozen=True)
class Messages:
    """Records of one message.

    Parameters
    ----------
    files : list of bytes
        Descriptors. The message is ``x.M``.
    types : list of pyarrow.Field
        The columns by default.
    declared : pyarrow.Schema
        Columns with the same names, and perhaps other types.
    records : list of bytes
    rows : list of dict
        As declared. Floats are texts.
    zeros : bool
        Whether fields that are zero are not NULL.
    """

    files: list[bytes]
    types: list[pa.Field]
    declared: pa.Schema
    records: list[bytes]
    rows: list[dict[str, Any]]
    zeros: bool


def _file(syntax: str) -> tuple[FileDescriptorProto, Any]:
    file = FileDescriptorProto(name="m.proto", package="x", syntax=syntax)
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers"))
    enum = file.enum_type.add(name="E")
    for number, name in NAMES.items():
        enum.value.add(name=name, number=number)
    return file, file.message_type.add(name="M")


@st.composite
def messages(draw: st.DrawFn) -> Messages:
    """Random ones."""
    syntax, zeros = draw(st.sampled_from(["proto2", "proto3"])), draw(st.booleans())
    file, message = _file(syntax)
    inner = FileDescriptorProto(name="n.proto", package="x", syntax="proto3")
    nested = inner.message_type.add(name="N")
    nested.field.add(name="a", number=1, type=F.TYPE_INT32, label=OPTIONAL)
    nested.field.add(name="b", number=2, type=F.TYPE_STRING, label=OPTIONAL, proto3_optional=True, oneof_index=0)
    nested.oneof_decl.add(name="_b")
    file.dependency.append("n.proto")
    kinds = draw(st.lists(st.sampled_from([*SCALARS, *FLOATS, *MESSAGES]), min_size=1, max_size=5))
    labels = [draw(st.sampled_from(LABELS)) for _ in kinds]
    keys = [draw(st.sampled_from(SCALARS[:-2])) for _ in kinds]
    for i, (kind, label, key) in enumerate(zip(kinds, labels, keys, strict=True)):
        _add(message, i, kind, label, key, syntax)
    others = [kind.other is not None and draw(st.booleans()) for kind in kinds]
    values = [
        [draw(_values(kind, label, key)) for kind, label, key in zip(kinds, labels, keys, strict=True)]
        for _ in range(draw(st.integers(1, 3)))
    ]
    files = [inner.SerializeToString(), file.SerializeToString()]
    made = GetMessageClass(find_message(files, "x.M"))
    shown = [kind.other[1] if other and kind.other else kind.shown for kind, other in zip(kinds, others, strict=True)]
    types = [kind.other[0] if other and kind.other else kind.arrow for kind, other in zip(kinds, others, strict=True)]
    rows = [
        {
            f"f{i}": _expected(kind, label, key, value, show, syntax, zeros, other=other)
            for i, (kind, label, key, value, show, other) in enumerate(
                zip(kinds, labels, keys, row, shown, others, strict=True)
            )
        }
        for row in values
    ]
    return Messages(
        files,
        _columns([kind.arrow for kind in kinds], labels, keys),
        pa.schema(_columns(types, labels, keys)),
        [_record(made, kinds, labels, row) for row in values],
        rows,
        zeros,
    )


def _columns(types: list[pa.DataType], labels: list[str], keys: list[Kind]) -> list[pa.Field]:
    return [pa.field(f"f{i}", _whole(*each)) for i, each in enumerate(zip(types, labels, keys, strict=True))]


def _whole(kind: pa.DataType, label: str, key: Kind) -> pa.DataType:
    if label == "map":
        return pa.map_(key.arrow, kind)
    return pa.list_(pa.field("element", kind)) if label == "repeated" else kind


def _add(message: Any, i: int, kind: Kind, label: str, key: Kind, syntax: str) -> None:
    field = message.field.add(name=f"f{i}", number=i + 1, type=kind.type, type_name=kind.name or None, label=OPTIONAL)
    if label == "repeated":
        field.label = REPEATED
    if label == "optional" and syntax == "proto3":
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_f{i}")
    if label == "map":
        entry = message.nested_type.add(name=f"F{i}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=key.type, label=OPTIONAL)
        entry.field.add(name="value", number=2, type=kind.type, type_name=kind.name or None, label=OPTIONAL)
        field.type, field.type_name, field.label = F.TYPE_MESSAGE, f".x.M.F{i}Entry", REPEATED


def _values(kind: Kind, label: str, key: Kind) -> st.SearchStrategy[Any]:
    if label == "repeated":
        return st.lists(kind.values, max_size=3)
    if label == "map":
        return st.dictionaries(key.values, kind.values, max_size=3)
    return st.none() | kind.values


def _record(made: Any, kinds: list[Kind], labels: list[str], row: list[Any]) -> bytes:
    message = made()
    for i, (kind, label, value) in enumerate(zip(kinds, labels, row, strict=True)):
        name = f"f{i}"
        if value is None:
            continue
        if kind.put is None:
            if label == "repeated":
                getattr(message, name).extend(value)
            elif label == "map":
                getattr(message, name).update(value)
            else:
                setattr(message, name, value)
        elif label == "repeated":
            for item in value:
                kind.put(getattr(message, name).add(), item)
        elif label == "map":
            for key, item in value.items():
                kind.put(getattr(message, name)[key], item)
        else:
            getattr(message, name).SetInParent()
            kind.put(getattr(message, name), value)
    return bytes(message.SerializeToString())


def _expected(
    kind: Kind, label: str, key: Kind, value: Any, shown: Callable[[Any], Any], syntax: str, zeros: bool, *, other: bool
) -> Any:
    if zeros and kind.name == ".x.N":
        shown = partial(zip_, ("a", "b"))
    if zeros and kind.name.endswith("Int64Value"):
        shown = int if other else partial(zip_, ("value",))
    if label == "repeated":
        return [shown(item) for item in value]
    if label == "map":
        return sorted(((key.shown(k), shown(v)) for k, v in value.items()), key=repr)
    if label == "plain" and syntax == "proto3" and kind.put is None:
        zero = {F.TYPE_STRING: "", F.TYPE_BYTES: b"", F.TYPE_BOOL: False, F.TYPE_FLOAT: 0.0, F.TYPE_DOUBLE: 0.0}
        value = zero.get(kind.type, 0) if value is None else value
        if not zeros and not value and repr(value) != "-0.0":
            return None
    return None if value is None else shown(value)


def zip_(names: tuple[str, ...], value: Any) -> dict[str, Any]:
    return dict(zip(names, value if isinstance(value, tuple) else (value,), strict=True))
