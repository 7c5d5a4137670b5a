"""Decodes Protobuf records, bare or with the id of their schema in a registry.

Columns are matched by name. A column that the message lacks is NULL; a field that is not declared is skipped. A record
whose message has none of the columns is another type of record, and malformed. Types are those of Spark's
``from_protobuf``, see `protobuf_values`.

Differences from ``from_protobuf`` that remain: a key that a map has twice is there once, with its last value, and the
column for corrupt records, which ``from_protobuf`` does not have, contains the record in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from backlog_spark.errors import BacklogError
from backlog_spark.spi.schema_registry import NoSchema, Registry

from .avro_binary import Unreadable, long
from .avro_decoder import HEADER
from .base import Mode, Parsed, TwoPathDecoder, row_by_row
from .protobuf_files import MessageIndex, find_message, message_at
from .protobuf_values import Beyond, row_reader

__all__ = ["ProtobufDecoder", "message_index"]

_REASONS = {Unreadable: "", DecodeError: "it is no such Protobuf message", Beyond: "a time is out of range"}
# No file nests messages deeper.
_DEEPEST = 100


class ProtobufDecoder(TwoPathDecoder):
    """Decodes Protobuf records.

    Parameters
    ----------
    schema : pyarrow.Schema
        The declared data.
    mode, corrupt : str
        See `TwoPathDecoder`.
    source : Registry or list of bytes
        The registry with the records' schemas, or files of descriptors.
    message : str
        The message. With a registry: records of other messages are skipped; "" reads all.
    zeros : bool
        See `row_reader`.

    Raises
    ------
    BacklogError
        The one message does not fit.
    """

    def __init__(
        self, schema: pa.Schema, mode: Mode, corrupt: str, source: Registry | list[bytes], message: str, zeros: bool
    ) -> None:
        super().__init__(schema, mode, corrupt)
        self._arguments = (schema, mode, corrupt, source, message, zeros)
        self._message, self._zeros = message, zeros
        self._registry = source if isinstance(source, Registry) else None
        self._readers: dict[tuple[int, MessageIndex], _Reader | Unreadable] = {}
        self._only: _Reader | None = None
        if not isinstance(source, Registry):
            found = find_message(source, message)
            self._only = self._reader(found)
            if not self._fits(found):
                raise BacklogError(
                    f"the Protobuf message {found.full_name} has none of the columns {', '.join(self.schema.names)}.",
                    f"Declare some of {', '.join(found.fields_by_name)}.",
                )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self._arguments)

    def shown(self, record: bytes) -> str:
        """See `TwoPathDecoder`."""
        return base64.b64encode(record).decode()

    def skipped(self, values: pa.Array) -> np.ndarray | None:
        """See `TwoPathDecoder`."""
        if self._registry is None or not self._message:
            return None
        return np.array([self._is_other(record) for record in values.to_pylist()], bool)

    def _is_other(self, record: bytes) -> bool:
        try:
            reader = self._of_registry(record)[0]
        except Unreadable:
            return False
        return self._message not in (reader.full, reader.full.rpartition(".")[2])

    def fast(self, values: pa.Array) -> tuple[list[pa.Array], np.ndarray | None] | None:
        """See `TwoPathDecoder`."""
        parsed = self.exact(values.to_pylist())
        if not parsed.bad:
            return parsed.columns, None
        doubted = np.zeros(len(values), bool)
        doubted[list(parsed.bad)] = True
        return parsed.columns, doubted

    def exact(self, records: Sequence[bytes]) -> Parsed:
        """See `TwoPathDecoder`."""
        return row_by_row(self.schema, records, self._row, _REASONS)

    def _row(self, record: bytes) -> list[Any]:
        if self._only is not None:
            # No field has the number 0, so such a record has the header of a registry.
            return self._only.read(record[message_index(record)[1] :] if record[:1] == b"\0" else record)
        reader, start = self._of_registry(record)
        return reader.read(record[start:])

    def _of_registry(self, record: bytes) -> tuple[_Reader, int]:
        """How a record is read, and where its message begins."""
        index, start = message_index(record)
        id = int.from_bytes(record[1:HEADER], "big")
        if (id, index) not in self._readers:
            self._readers[id, index] = self._fetched(id, index)
        reader = self._readers[id, index]
        if isinstance(reader, Unreadable):
            raise reader
        return reader, start

    def _fetched(self, id: int, index: MessageIndex) -> _Reader | Unreadable:
        assert self._registry is not None
        try:
            files = self._registry.protobuf(id)
        except NoSchema as missing:
            return Unreadable(missing.problem.rstrip("."))
        try:
            found = message_at(files, index)
            if found is None:
                return Unreadable(f"schema {id} of the registry has no message {list(index)}")
            if self._message not in ("", found.full_name, found.name):
                return _Reader(found, _unread)
            if self._fits(found):
                return self._reader(found)
        except BacklogError as error:
            raise BacklogError(f"schema {id} of the registry: {error.problem}", error.hint) from None
        return Unreadable(
            f"its message is {found.full_name}, which has none of the columns; for a topic of several messages set "
            "protobufMessage"
        )

    def _fits(self, message: Descriptor) -> bool:
        return not set(message.fields_by_name).isdisjoint(self.schema.names)

    def _reader(self, message: Descriptor) -> _Reader:
        return _Reader(message, row_reader(message, list(self.schema), self._zeros))


def _unread(_: Any) -> list[Any]:
    raise AssertionError("records of this message are skipped")


class _Reader:
    """Reads records of one message."""

    def __init__(self, message: Descriptor, row: Callable[[Any], list[Any]]) -> None:
        self.full = message.full_name
        self._parse, self._row = GetMessageClass(message).FromString, row

    def read(self, record: bytes) -> list[Any]:
        message = self._parse(record)
        if not message.IsInitialized():
            raise Unreadable("a required field is missing")
        return self._row(message)


def message_index(record: bytes) -> tuple[MessageIndex, int]:
    """Which message of its schema a record of a registry has, and where it begins.

    Source: Confluent's documentation of the wire format. After a byte 0 and the schema's id come the number of indices
    and the indices, as zigzag numbers; 0 alone stands for the first message.

    Raises
    ------
    Unreadable
    """
    if record[:1] != b"\0" or len(record) < HEADER:
        raise Unreadable("it does not begin with a 0 byte and a schema id")
    index: list[int] = []
    try:
        count, at = long(record, HEADER)
        if not 0 <= count <= _DEEPEST:
            raise Unreadable("its message index is malformed")
        for _ in range(count):
            number, at = long(record, at)
            index.append(number)
    except IndexError:
        raise Unreadable("it ends within its message index") from None
    return tuple(index) or (0,), at
