"""Reads Avro's object container files.

The values of a record become columns as those of records of Kafka (see `decode.avro_decoder`).

Source: the Avro specification 1.12, "Object Container Files".
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from backlog_spark.errors import BacklogError

from ..decode.avro_binary import PRIMITIVES, blocks, long, string
from ..decode.avro_binary import Unreadable as UnreadableRecord
from ..decode.avro_schema import Avro, parse_schema, schemaOf
from ..decode.avro_values import record_reader
from .casting import Uncastable, find_field
from .columnar import Selection
from .entries import DataFile, Piece
from .formats import BATCH_ROWS, Asked, Format, Rows, Unreadable
from .layouts import TextLayout
from .sparktypes import spark_schema

__all__ = ["AvroFormat"]

_MAGIC = b"Obj\x01"
_SYNC = 16
# Two numbers of at most 10 bytes.
_COUNTS = 20
_BUFFER = 1 << 20
_MOST_HEADER_BYTES = 64 << 20


@dataclass(frozen=True)
class _Header:
    """The head of a file, of ``size`` bytes; ``sync`` ends it and each block."""

    schema: Any  # parsed JSON
    avro: Avro
    codec: str
    sync: bytes
    size: int


class AvroFormat(Format):
    """Avro. Each file has its own schema; columns match by name, in any case as in Spark."""

    name = "avro"
    looks = 1
    has_bytes = True

    def schema(self, source: pa.NativeFile) -> pa.Schema:
        return spark_schema("the first file", schemaOf(_header(source).schema))

    def layout(self, source: pa.NativeFile, file: DataFile) -> TextLayout:
        header = _header(source)
        source.seek(header.size)
        start = bytes(source.read(_COUNTS))
        rate = 1 / file.size
        if start:
            try:
                count, at = long(start, 0)
                size = long(start, at)[0]
            except (IndexError, UnreadableRecord):
                raise Unreadable("its first block is damaged") from None
            rate = max(1, count) / max(1, size + _SYNC)
        return TextLayout(file.size, rate, True)

    def read(self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked) -> Iterator[Rows]:
        header = _header(source)
        if asked.seen is not None:
            # All columns in their own types, from which the declared ones are cast.
            own = spark_schema(name, schemaOf(header.schema))
            asked.seen(own)
            selection = Selection(name, own, asked)
            for rows in self._rows(source, name, header, piece, list(own), Asked(own, tuple(own.names))):
                yield selection.rows(pa.RecordBatch.from_arrays(rows.columns, schema=own))
            return
        yield from self._rows(source, name, header, piece, _fields(name, header.avro, asked), asked)

    @staticmethod
    def _rows(
        source: pa.NativeFile, name: str, header: _Header, piece: Piece, fields: list[pa.Field | None], asked: Asked
    ) -> Iterator[Rows]:
        try:
            read = record_reader(header.avro, [field for field in fields if field is not None])
        except BacklogError as error:
            raise BacklogError(f"{name}: {error.problem}", error.hint) from None
        rows: list[list[Any]] = []
        try:
            for count, data in _blocks(source, header, piece.first, piece.end):
                at = 0
                for _ in range(count):
                    row, at = read(data, at)
                    rows.append(row)
                    if len(rows) == BATCH_ROWS:
                        yield _rows(rows, fields, asked)
                        rows = []
                if at != len(data):
                    raise Unreadable("a block has bytes left over after its records")
            if rows:
                yield _rows(rows, fields, asked)
        except IndexError:
            raise Unreadable("it ends within a record or block") from None
        except UnreadableRecord as error:
            raise Unreadable(str(error)) from None
        except (pa.ArrowException, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
            raise Unreadable(str(error)) from None


def _header(source: pa.NativeFile) -> _Header:
    size = _BUFFER // 16
    while True:
        source.seek(0)
        data = bytes(source.read(size))
        if not data.startswith(_MAGIC):
            raise Unreadable("it does not begin as an Avro file")
        try:
            pairs, at = blocks(_pair, 1)(data, len(_MAGIC))
            break
        except (IndexError, UnreadableRecord):  # perhaps it is longer
            if len(data) < size or size >= _MOST_HEADER_BYTES:
                raise Unreadable("its header is damaged") from None
            size *= 16
    found = dict(pairs)
    source.seek(at)
    sync = bytes(source.read(_SYNC))
    try:
        schema = json.loads(found["avro.schema"])
        avro = parse_schema(schema)
    except (KeyError, ValueError, RecursionError):
        raise Unreadable("its header has no schema") from None
    except BacklogError as error:
        raise Unreadable(error.problem.rstrip(".")) from None
    return _Header(schema, avro, found.get("avro.codec", b"null").decode("utf-8", "replace"), sync, at + _SYNC)


def _pair(data: bytes, at: int) -> tuple[tuple[str, bytes], int]:
    key, at = string(data, at)
    value, at = PRIMITIVES["bytes"](data, at)
    return (key, value), at


def _blocks(source: pa.NativeFile, header: _Header, first: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """The blocks that begin between two bytes: number of records and content."""
    total = source.size()
    source.seek(max(first, header.size) - _SYNC)
    stream = io.BufferedReader(source, _BUFFER)
    at = _after_sync(stream, max(first, header.size) - _SYNC, header.sync)
    while at is not None and (end is None or at < end):
        start = stream.peek(_COUNTS)[:_COUNTS]
        if len(start) < _COUNTS:  # the end of the buffer, or of the file
            start = stream.read(_COUNTS)
            stream.seek(at)
        if not start:
            return
        count, width = long(start, 0)
        size, width = long(start, width)
        stream.seek(at + width)
        data = stream.read(size) if 0 <= size < total else b""
        if count < 0 or len(data) != size or stream.read(_SYNC) != header.sync:
            raise Unreadable(f"the block at byte {at} is damaged")
        at += width + size + _SYNC
        yield count, _unpacked(data, header.codec)


def _after_sync(stream: io.BufferedReader, at: int, sync: bytes) -> int | None:
    """The byte after the next marker; None if there is none."""
    window = b""
    while data := stream.read(_BUFFER):
        window += data
        found = window.find(sync)
        if found >= 0:
            stream.seek(at + found + _SYNC)
            return at + found + _SYNC
        at += max(0, len(window) - _SYNC + 1)
        window = window[-_SYNC + 1 :]
    return None


def _unpacked(data: bytes, codec: str) -> bytes:
    if codec == "null":
        return data
    if codec == "deflate":
        return zlib.decompress(data, -15)
    if codec == "snappy":  # with a checksum behind
        size, shift = 0, 0
        for byte in data:
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found = bytes(pa.decompress(data[:-4], size, "snappy", asbytes=True))
        if zlib.crc32(found) != int.from_bytes(data[-4:], "big"):
            raise Unreadable("the checksum of a block is wrong")
        return found
    if codec == "zstandard":
        return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
    if codec == "bzip2":
        return bz2.decompress(data)
    if codec == "xz":
        return lzma.decompress(data)
    raise Unreadable(f"its codec {codec} is not known")


def _fields(name: str, avro: Avro, asked: Asked) -> list[pa.Field | None]:
    """For each wanted column its field under the name in the file; None if it is not read."""
    found: list[pa.Field | None] = []
    try:
        if (
            asked.record.names
            and not asked.may_lack
            and all(find_field(avro.names, column) is None for column in asked.record.names)
        ):
            raise BacklogError(
                f"{name} has none of the columns {', '.join(asked.record.names)}. It has {', '.join(avro.names)}.",
                "Declare the columns that the files have, or exclude the file.",
            )
        for column in asked.wanted:
            is_needed = asked.needed is None or column in asked.needed
            index = find_field(avro.names, column) if is_needed else None
            found.append(None if index is None else asked.record.field(column).with_name(avro.names[index]))
    except Uncastable as error:
        raise BacklogError(f"{name}: {error}.", "Rename one of them, or exclude the file.") from None
    return found


def _rows(rows: list[list[Any]], fields: list[pa.Field | None], asked: Asked) -> Rows:
    values = iter(zip(*rows, strict=True))
    columns = [
        pa.nulls(len(rows), asked.record.field(column).type) if field is None else pa.array(next(values), field.type)
        for column, field in zip(asked.wanted, fields, strict=True)
    ]
    return Rows(len(rows), columns)
