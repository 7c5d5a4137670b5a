"""Converts records to Arrow: with a decoder to the stream's data columns, or unchanged to those of Spark's source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError

from ..changes.base import ChangeDecoder
from ..decode.base import Decoded, Decoder, MalformedRecord
from ..decode.keys import KeyedDecoder
from ..phases import Columns, type_of
from .offsets import Partition, shown

if TYPE_CHECKING:
    from .confluent import Records

__all__ = ["RAW", "Shape", "raw_schema"]

RAW: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
}
"""The columns of Spark's Kafka source; ``headers`` with ``includeHeaders`` only."""

_METADATA = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_key": "key",
}


def raw_schema(include_headers: bool) -> pa.Schema:
    """Spark's columns."""
    return pa.schema([(name, kind) for name, kind in RAW.items() if name != "headers" or include_headers])


@dataclass(frozen=True)
class Shape:
    """Converts records to rows.

    Parameters
    ----------
    columns : Columns
        Of the stream.
    decoder : Decoder or None
        None: the data columns are among those of `RAW`.
    phase : str
        The value of ``_phase``.
    drop_tombstones : bool
        Whether a record without a value gives no row.
    include_headers : bool
        Whether ``headers`` is among the columns.
    """

    columns: Columns
    decoder: Decoder | None = None
    phase: str = ""
    drop_tombstones: bool = False
    include_headers: bool = False

    def check(self) -> None:
        """Raise `BacklogError` unless the columns can be made."""
        if self.decoder is not None:
            return
        there = raw_schema(self.include_headers)
        for wanted in self.columns.data:
            if wanted.name not in there.names:
                hint = "Set includeHeaders=true. " if wanted.name == "headers" else ""
                raise BacklogError(
                    f"With valueFormat=raw there is no column {wanted.name!r}.",
                    f"{hint}Columns: {', '.join(there.names)}; or set valueFormat to the format of the values.",
                )
            if not wanted.type.equals(there.field(wanted.name).type):
                kind = there.field(wanted.name).type
                raise BacklogError(
                    f"With valueFormat=raw the column {wanted.name!r} is {kind}, but the schema has {wanted.type}.",
                    "Correct the schema, and cast afterwards.",
                )

    def rows(self, records: Records, partition: Partition, also: str = "offset") -> tuple[pa.RecordBatch, pa.Array]:
        """The rows of some records, and for each row its record's value in another column of `RAW`."""
        made = _Columns(records, partition, self.phase)
        kept: pa.Array | None = None
        if self.drop_tombstones:
            values = made.get("value")
            if values.null_count:
                kept = pc.indices_nonzero(pc.is_valid(values)).cast(pa.int64())
        if self.decoder is None:
            names = [*self.columns.data.names, *self.columns.metadata]
            arrays = [_taken(made.get(_METADATA.get(name, name)), kept) for name in names]
        else:
            decoded = self._decoded(self.decoder, made, kept, partition)
            if decoded.kept is not None:
                kept = decoded.kept if kept is None else kept.take(decoded.kept)
            own = decoded.metadata
            metadata = [
                own[name] if name in own else _taken(made.get(_METADATA.get(name, name)), kept)
                for name in self.columns.metadata
            ]
            arrays = [*decoded.columns, *metadata]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.columns.arrow)
        return batch, _taken(made.get(also), kept)

    @staticmethod
    def _decoded(decoder: Decoder, made: _Columns, kept: pa.Array | None, partition: Partition) -> Decoded:
        try:
            values = _taken(made.get("value"), kept)
            if isinstance(decoder, ChangeDecoder | KeyedDecoder):
                offsets = _taken(made.get("offset"), kept).to_numpy()
                return decoder.decode_records(values, _taken(made.get("key"), kept), offsets)
            return decoder.decode(values)
        except BacklogError as error:
            offsets = _taken(made.get("offset"), kept)
            if isinstance(error, MalformedRecord):
                where = f"Offset {offsets[error.index]} of {shown(partition)} is malformed: {error.reason}."
            else:
                where = f"Offsets {offsets[0]} to {offsets[-1]} of {shown(partition)}: {error.problem}"
            raise BacklogError(where, error.hint) from None


class _Columns:
    """The columns of some records. Each is made once, when it is first needed."""

    def __init__(self, records: Records, partition: Partition, phase: str) -> None:
        self._records = records
        self._partition = partition
        self._phase = phase
        self._made: dict[str, pa.Array] = {}

    def get(self, name: str) -> pa.Array:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> pa.Array:
        records = self._records
        simple: dict[str, Callable[[], list[bytes | None] | list[int]]] = {
            "key": records.keys,
            "value": records.values,
            "offset": records.offsets,
        }
        constant = {"topic": self._partition[0], "partition": self._partition[1], "_phase": self._phase}
        if name in simple:
            return pa.array(simple[name](), RAW[name])
        if name in constant:
            return pa.repeat(pa.scalar(constant[name], RAW.get(name, pa.string())), len(records))
        if name == "headers":
            return _headers(records.headers())
        if name in ("timestamp", "timestampType"):
            times, kinds = records.timestamps()
            self._made["timestampType"] = pa.array(kinds, pa.int32())
            self._made["timestamp"] = pa.array(times, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(RAW["timestamp"])
            return self._made[name]
        return pa.nulls(len(records), type_of(name))  # a metadata column of another phase, such as _file


def _headers(found: list[list[tuple[str, bytes | None]]]) -> pa.Array:
    """NULL for a record without headers, as in Spark."""
    rows = [[{"key": key, "value": value} for key, value in headers] if headers else None for headers in found]
    return pa.array(rows, RAW["headers"])


def _taken(array: pa.Array, kept: pa.Array | None) -> pa.Array:
    return array if kept is None else array.take(kept)
