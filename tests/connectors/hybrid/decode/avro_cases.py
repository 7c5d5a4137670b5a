"""Avro schemas, each with random values that fastavro can write."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from hypothesis import strategies as st

__all__ = ["Case", "records", "written"]

YEARS = {"min_value": datetime(1, 1, 2), "max_value": datetime(9999, 12, 30)}


@dataclass(frozen=True, repr=False)
class Case:
    """A type: its schema, values as fastavro takes them, what they become, and values as `pyarrow.array` takes them."""

    schema: Any
    values: st.SearchStrategy[Any]
    arrow: pa.DataType
    shown: Callable[[Any], Any] = lambda value: value

    def __repr__(self) -> str:
        return f"Case({self.schema})"


def millis(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _logical(base: str, name: str, values: st.SearchStrategy[Any], arrow: pa.DataType) -> Case:
    return Case({"type": base, "logicalType": name}, values, arrow)


UTC_TYPE = pa.timestamp("us", "UTC")
aware = st.datetimes(**YEARS, timezones=st.just(UTC))  # type: ignore[arg-type]
naive = st.datetimes(**YEARS)  # type: ignore[arg-type]


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))


def _decimal(precision: int, scale: int, size: int = 0) -> Case:
    more = {"logicalType": "decimal", "precision": precision, "scale": scale}
    schema = {"type": "fixed", "name": "N", "size": size, **more} if size else {"type": "bytes", **more}
    return Case(schema, decimals(precision, scale), pa.decimal128(precision, scale))


plain_types = st.sampled_from(
    [
        Case("boolean", st.booleans(), pa.bool_()),
        Case("int", st.integers(-(2**31), 2**31 - 1), pa.int32()),
        Case("long", st.integers(-(2**63), 2**63 - 1), pa.int64()),
        Case("float", st.floats(width=32), pa.float32()),
        Case("double", st.floats(), pa.float64()),
        Case("string", st.text(max_size=9), pa.string()),
        Case("bytes", st.binary(max_size=9), pa.binary()),
        _logical("int", "date", st.dates(), pa.date32()),
        _logical("long", "time-micros", st.times(), pa.time64("ns")),
        _logical("int", "time-millis", st.times().map(lambda t: t.replace(microsecond=0)), pa.time64("ns")),
        _logical("long", "timestamp-micros", aware, UTC_TYPE),
        _logical("long", "timestamp-millis", aware.map(millis), UTC_TYPE),
        _logical("long", "local-timestamp-micros", naive, pa.timestamp("us")),
        _logical("long", "local-timestamp-millis", naive.map(millis), pa.timestamp("us")),
        _logical("string", "uuid", st.uuids().map(str), pa.string()),
        _decimal(9, 2),
        _decimal(38, 10),
        _decimal(12, 0, 6),
        _decimal(38, 38, 17),
        _logical("string", "of-our-own", st.text(max_size=3), pa.string()),
    ]
)
named_types = st.sampled_from(
    [
        Case({"type": "enum", "name": "N", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC"), pa.string()),
        Case({"type": "fixed", "name": "N", "size": 5}, st.binary(min_size=5, max_size=5), pa.binary()),
    ]
)


def _nullable(case: Case, first: bool) -> Case:
    branches = ["null", case.schema] if first else [case.schema, "null"]

    def shown(value: Any) -> Any:
        return None if value is None else case.shown(value)

    return Case(branches, st.none() | case.values, case.arrow, shown)


def _array(case: Case) -> Case:
    return Case(
        {"type": "array", "items": case.schema}, st.lists(case.values, max_size=3),
        pa.list_(pa.field("element", case.arrow)), lambda values: [case.shown(v) for v in values],
    )  # fmt: skip


def _map(case: Case) -> Case:
    return Case(
        {"type": "map", "values": case.schema}, st.dictionaries(st.text(max_size=3), case.values, max_size=3),
        pa.map_(pa.string(), case.arrow), lambda values: [(k, case.shown(v)) for k, v in values.items()],
    )  # fmt: skip


def record(cases: list[Case]) -> Case:
    names = [f"f{i}" for i in range(len(cases))]
    fields = [{"name": n, "type": case.schema} for n, case in zip(names, cases, strict=True)]
    by_name = dict(zip(names, cases, strict=True))
    return Case(
        {"type": "record", "name": "N", "fields": fields},
        st.fixed_dictionaries({n: case.values for n, case in by_name.items()}),
        pa.struct([(n, case.arrow) for n, case in by_name.items()]),
        lambda value: {n: case.shown(value[n]) for n, case in by_name.items()},
    )


def _renamed(schema: Any, numbers: Iterator[int]) -> Any:
    """The schema with another name for each of its types, as some are there twice."""
    if isinstance(schema, list):
        return [_renamed(branch, numbers) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _renamed(value, numbers) for key, value in schema.items()}
    if schema.get("type") in ("record", "enum", "fixed"):
        found["name"] = f"N{next(numbers)}"
    return found


def _extended(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(record),
        inner.map(_array),
        inner.map(_map),
        # A union holds no union.
        inner.filter(lambda c: not isinstance(c.schema, list)).flatmap(
            lambda c: st.booleans().map(lambda first: _nullable(c, first))
        ),
    )


types = st.recursive(plain_types | named_types, _extended, max_leaves=4)
records = (
    st.lists(types, min_size=1, max_size=5)
    .map(record)
    .map(lambda case: replace(case, schema=_renamed(case.schema, itertools.count())))
)


def written(schema: Any, values: list[Any]) -> list[bytes]:
    """The values in Avro's binary form, each alone."""
    parsed = parse_schema(schema)
    found = []
    for value in values:
        stream = BytesIO()
        schemaless_writer(stream, parsed, value)
        found.append(stream.getvalue())
    return found
