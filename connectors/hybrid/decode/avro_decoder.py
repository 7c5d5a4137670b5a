"""Decodes Avro records, bare or with the id of their schema in a registry.

Columns are matched by name in the writer schema. A column that it lacks is NULL; a field that is not declared is
skipped. A record whose schema has none of the columns is another type of record, and malformed. Types are converted as
in Spark's ``from_avro``, or by schema resolution; see `value_reader`.

Differences from Spark's ``from_avro`` that remain:

* A record with bytes left over is malformed: it has another schema.
* A timestamp must be one in the schema. A long without a logical type is not taken as milliseconds.
* The column for corrupt records, which ``from_avro`` does not have, contains the record in base64.

fastavro is not used: it takes 4 to 6 microseconds for a record of six fields where this takes 1. It also accepts
negative indices of unions and enums, any byte as a boolean, and ints of any size.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.schema_registry import NoSchema, Registry

from .avro_binary import Unreadable
from .avro_block import Block
from .avro_columns import Column, column_readers
from .avro_schema import Avro, parse_schema
from .avro_values import record_reader
from .base import Mode, Parsed, TwoPathDecoder, row_by_row
from .blocks import content_of, offsets_of

__all__ = ["HEADER", "AvroDecoder", "schema_ids"]

_REASONS = {Unreadable: "", IndexError: "it ends before its last field"}
HEADER = 5
"""A byte 0, then the schema's id in four bytes."""


class AvroDecoder(TwoPathDecoder):
    """Decodes Avro records.

    Parameters
    ----------
    schema : pyarrow.Schema
        The declared data.
    mode, corrupt : str
        See `TwoPathDecoder`.
    source : Registry or parsed JSON
        The registry with the records' schemas, or the one schema of all records.
    record_names : collection of str
        Full names of the records to read; others are skipped. Empty: all.

    Raises
    ------
    BacklogError
        The one schema does not fit.
    """

    def __init__(
        self, schema: pa.Schema, mode: Mode, corrupt: str, source: Any, record_names: Collection[str] = ()
    ) -> None:
        super().__init__(schema, mode, corrupt)
        self._arguments = (schema, mode, corrupt, source, record_names)
        self._names = frozenset(record_names)
        self._registry = source if isinstance(source, Registry) else None
        self._plans: dict[int, _Plan | Unreadable] = {}
        if self._registry is None:
            plan = _plan_of(parse_schema(source), self.schema)
            if self._names and plan.full not in self._names:
                raise SettingError(
                    "avroRecordName", ", ".join(sorted(self._names)), f"the Avro schema is of {plan.full}.",
                    "Leave the option out: all records have this schema.",
                )  # fmt: skip
            if not plan.has_columns:
                raise BacklogError(
                    f"the Avro schema of {plan.full} has none of the columns {', '.join(self.schema.names)}.",
                    "Declare the columns that the records have.",
                )
            self._plans[0] = plan

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self._arguments)

    def shown(self, record: bytes) -> str:
        """See `TwoPathDecoder`."""
        return base64.b64encode(record).decode()

    def skipped(self, values: pa.Array) -> np.ndarray | None:
        """See `TwoPathDecoder`."""
        if self._registry is None or not self._names or not len(values):
            return None
        framed, ids = schema_ids(values)
        others = [id for id in np.unique(ids[framed]) if self._is_of_another_name(int(id))]
        return framed & np.isin(ids, others)

    def _is_of_another_name(self, id: int) -> bool:
        try:
            return self._plan(id).full not in self._names
        except Unreadable:
            return False

    def fast(self, values: pa.Array) -> tuple[list[pa.Array], np.ndarray | None] | None:
        """See `TwoPathDecoder`."""
        if self._registry is None:
            return self._plan(0).fast(values, 0)
        framed, ids = schema_ids(values)
        columns: list[list[pa.Array]] = []
        order, doubted = np.full(len(values), -1), np.ones(len(values), bool)
        before = 0
        for id in np.unique(ids[framed]):
            rows = np.flatnonzero(framed & (ids == id))
            some = values if len(rows) == len(values) else values.take(pa.array(rows))
            try:
                found = self._plan(int(id)).fast(some, HEADER)
            except Unreadable:
                continue
            if found is None:
                continue
            columns.append(found[0])
            order[rows] = before + np.arange(len(rows))
            doubted[rows] = found[1] if found[1] is not None else False
            before += len(rows)
        if not columns:
            return None
        if len(columns) == 1 and before == len(values):
            return columns[0], doubted
        taken = pa.array(order, mask=order < 0)
        return [pa.concat_arrays(parts).take(taken) for parts in zip(*columns, strict=True)], doubted

    def exact(self, records: Sequence[bytes]) -> Parsed:
        """See `TwoPathDecoder`."""
        return row_by_row(self.schema, records, self._row, _REASONS)

    def _row(self, record: bytes) -> list[Any]:
        start, id = 0, 0
        if self._registry is not None:
            if record[:1] != b"\0" or len(record) < HEADER:
                raise Unreadable("it does not begin with a 0 byte and a schema id")
            start, id = HEADER, int.from_bytes(record[1:HEADER], "big")
        row, end = self._plan(id).read(record, start)
        if end != len(record):
            raise Unreadable(f"{len(record) - end} bytes are left over, so it has another schema")
        return row

    def _plan(self, id: int) -> _Plan:
        """Raises `Unreadable` for an id without a fitting schema: the registry works, so the record is wrong."""
        if id not in self._plans:
            self._plans[id] = self._fetched(id)
        plan = self._plans[id]
        if isinstance(plan, Unreadable):
            raise plan
        return plan

    def _fetched(self, id: int) -> _Plan | Unreadable:
        assert self._registry is not None
        try:
            source = self._registry.schema(id)
        except NoSchema as missing:
            return Unreadable(missing.problem.rstrip("."))
        try:
            avro = parse_schema(source)
            if self._names and avro.full not in self._names:
                return _Plan(avro.full)
            plan = _plan_of(avro, self.schema)
        except BacklogError as error:
            raise BacklogError(f"schema {id} of the registry: {error.problem}", error.hint) from None
        if plan.has_columns:
            return plan
        return Unreadable(
            f"its schema {id} is of {avro.full}, which has none of the columns; for a topic of several types name the "
            "one to read in avroRecordName"
        )


def _unread(data: bytes, at: int) -> tuple[list[Any], int]:
    raise AssertionError("records of this name are skipped")


@dataclass(frozen=True)
class _Plan:
    """How records of one schema are decoded into the declared columns. With a name alone they are skipped."""

    full: str
    read: Callable[[bytes, int], tuple[list[Any], int]] = _unread
    columns: list[tuple[Column, int]] | None = None
    fields: Sequence[pa.Field] = ()
    has_columns: bool = True

    def fast(self, values: pa.Array, skipped: int) -> tuple[list[pa.Array], np.ndarray | None] | None:
        if self.columns is None:
            return None
        offsets = offsets_of(values)
        block = Block(content_of(values), offsets - offsets[0], skipped)
        rows = np.arange(len(values))
        columns = [pa.nulls(len(values), field.type) for field in self.fields]
        for column, slot in self.columns:
            found = column(block, rows)
            if slot >= 0:
                columns[slot] = found
        block.close()
        return columns, block.bad if block.bad.any() else None


def _plan_of(avro: Avro, schema: pa.Schema) -> _Plan:
    fields = list(schema)
    read, columns = record_reader(avro, fields), column_readers(avro, fields)
    return _Plan(avro.full, read, columns, fields, not set(avro.names).isdisjoint(schema.names))


def schema_ids(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Which records have a schema id, and the ids; 0 without one."""
    offsets = offsets_of(values)
    framed = np.array(pc.starts_with(values, b"\0").to_numpy(zero_copy_only=False))
    framed &= np.diff(offsets) >= HEADER
    data = np.frombuffer(content_of(values), np.uint8)
    ids = np.zeros(len(values), np.int64)
    starts = (offsets[:-1] - offsets[0])[framed]
    for k in range(1, HEADER):
        ids[framed] = ids[framed] << 8 | data[starts + k]
    return framed, ids
