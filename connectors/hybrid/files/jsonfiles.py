"""Reads files that are one JSON document each: an object, or an array of objects."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError

from ..decode.base import Decoder, text_of
from ..decode.json_scan import Malformed, scan
from .encodings import UTF_8, Transcoder
from .entries import Piece
from .formats import BATCH_ROWS, Asked, Rows, Unreadable
from .schemas.records import JsonGuess
from .schemas.types import of_json
from .text import RecordFormat, check_is_text, unpacked

__all__ = ["JsonDocuments", "elements"]

_STRING = rb"""\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"|'[^'\\]*+(?:\\.[^'\\]*+)*+'"""
# An object without another one inside is a single token.
_TOKEN = re.compile(rb"\{(?:[^\"'{}\[\]]++|%b)*+\}|%b|[\[\]{},]" % (_STRING, _STRING), re.DOTALL)
_MARK = b"\xef\xbb\xbf"


class JsonDocuments(RecordFormat):
    """JSON with the option ``multiLine``. One task reads a whole file, in memory."""

    name = "json"
    _splits = False

    def read(self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked) -> Iterator[Rows]:
        text = self._text(source, name)
        try:
            for columns in self._decoded(text, asked.record, rescues=asked.rescues):
                by_name = dict(zip(asked.record.names, columns, strict=False))
                rescued = columns[-1] if asked.rescues else None
                yield Rows(len(columns[0]), [by_name[column] for column in asked.wanted], rescued)
        except BacklogError as error:
            raise BacklogError(f"{name}: {error.problem}", error.hint) from None

    def merged(self, one: pa.DataType, other: pa.DataType) -> pa.DataType:
        return of_json(one, other)

    def sample(self, source: pa.NativeFile, name: str, most: int) -> pa.Schema:
        check_is_text(source)
        guess, taken = JsonGuess(), 0
        for record in elements(self._text(source, name)):  # a document has no beginning that can be read alone
            guess.add(record)
            taken += len(record)
            if taken >= most:
                break
        return guess.schema

    def _text(self, source: pa.NativeFile, name: str) -> bytes:
        try:
            stream = unpacked(source, name)
            text = bytes(stream.read()) if self._encoding == UTF_8 else Transcoder(stream, self._encoding).all()
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None
        return text.removeprefix(_MARK)

    def _decoded(self, text: bytes, record: pa.Schema, *, rescues: bool) -> list[list[pa.Array]]:
        """Columns of the rows. A document with a malformed record is malformed as a whole, as in Spark."""
        values = elements(text)
        decoder = self._decoder(record, rescues=rescues)
        corrupt = getattr(decoder, "corrupt", "")
        declared = record.get_field_index(corrupt)
        at = declared
        if corrupt and at < 0:
            at = len(record)
            decoder = self._decoder(record.append(pa.field(corrupt, pa.string())), rescues=rescues)
        found = []
        is_bad = False
        for first in range(0, len(values), BATCH_ROWS):
            some = values[first : first + BATCH_ROWS]
            decoded = decoder.decode(pa.array(some, pa.binary()))
            if decoded.kept is not None:
                return []
            found.append(decoded.columns)
            bad = decoded.columns[at].is_valid() if corrupt else pa.array([False])
            if pc.any(bad).as_py():
                is_bad = True
                if len(values) > 1 and any(_is_broken(some[i]) for i in pc.indices_nonzero(bad).to_pylist()):
                    return [_decode_one(decoder, text)]
        if is_bad and declared >= 0:
            for columns in found:
                columns[at] = pa.repeat(pa.scalar(text_of(text)), len(columns[at]))
        return found


def _decode_one(decoder: Decoder, text: bytes) -> list[pa.Array]:
    return decoder.decode(pa.array([text], pa.binary())).columns


def _is_broken(record: bytes) -> bool:
    """Whether a malformed record is not even JSON."""
    try:
        return scan(text_of(record)) is None
    except Malformed:
        return True


def elements(text: bytes) -> list[bytes]:
    """The elements of an array; the text itself if it is no array, or has no end. None for white space."""
    start = re.match(rb"\s*", text).end()  # type: ignore[union-attr]
    if start == len(text):
        return []
    if text[start : start + 1] != b"[":
        return [text.strip()]
    found: list[bytes] = []
    depth, begin = 0, start + 1
    for token in _TOKEN.finditer(text, start):
        word = token[0]
        if word in (b"[", b"{"):
            depth += 1
        elif word in (b"]", b"}") and depth > 1:
            depth -= 1
        elif word in (b",", b"]") and depth == 1:
            found.append(text[begin : token.start()].strip())
            begin = token.end()
            if word == b"]":
                return [] if found == [b""] else found if all(found) else [text]
    return [text]
