"""Reads files of plain text: one row per line, or per file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from ..decode.base import text_of
from .columnar import Selection
from .encodings import UTF_8, Readable, Transcoder, as_utf8, is_bytewise
from .entries import DataFile, Piece
from .formats import BATCH_ROWS, Asked, Format, Rows, Unreadable
from .layouts import Layout, TextLayout, UnitLayout
from .records import BLOCK_BYTES, MAX_RECORD_BYTES
from .text import codec_of, rows_per_byte, unpacked
from .textoptions import TextOptions

__all__ = ["TextFormat", "exact_lines"]

_COLUMNS = pa.schema([("value", pa.string())])
_MARK = b"\xef\xbb\xbf"


class TextFormat(Format):
    """The column ``value``, as Spark's source ``text``."""

    name = "text"
    looks = 1
    has_bytes = True

    def __init__(self, options: TextOptions, encoding: str = UTF_8) -> None:
        self._options = options
        self._encoding = encoding
        self._end = options.line_sep.encode() or None
        # Lines are cut before they are decoded. Otherwise the whole file is decoded first, by one task.
        self._is_cut_raw = encoding == UTF_8 or (is_bytewise(encoding) and self._end is None)

    def schema(self, source: pa.NativeFile) -> pa.Schema:
        return _COLUMNS

    def layout(self, source: pa.NativeFile, file: DataFile) -> Layout:
        codec = codec_of(file.path)
        if self._options.whole:
            return UnitLayout(file.size, [1])
        # Where one of several bytes begins, only the beginning of the file tells.
        splits = codec is None and self._is_cut_raw and len(self._end or b"\n") == 1
        return TextLayout(file.size, rows_per_byte(source, codec), splits)

    def read(self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked) -> Iterator[Rows]:
        selection = Selection(name, _COLUMNS, asked)
        try:
            stream = unpacked(source, name)
            if self._options.whole:
                data = stream.read() if self._encoding == UTF_8 else Transcoder(stream, self._encoding).all()
                yield selection.rows(_batch([data]))
                return
            if self._is_cut_raw:
                found = exact_lines(stream, piece.first, piece.end, self._end)
                found = found if self._encoding == UTF_8 else as_utf8(found, self._encoding)
            else:
                found = exact_lines(Transcoder(stream, self._encoding), 0, None, self._end)
            for block in found:
                for at in range(0, len(block), BATCH_ROWS):
                    yield selection.rows(_batch(block[at : at + BATCH_ROWS]))
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None


def _batch(values: list[bytes]) -> pa.RecordBatch:
    try:
        column = pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # some bytes are not UTF-8
        column = pa.array([text_of(value) for value in values], pa.string())
    return pa.RecordBatch.from_arrays([column], schema=_COLUMNS)


def exact_lines(
    source: pa.NativeFile | Readable, first: int, end: int | None, ending: bytes | None, block: int = BLOCK_BYTES
) -> Iterator[list[bytes]]:
    r"""The lines that begin between two bytes of a file, without their ends. Empty lines count.

    Parameters
    ----------
    source : pyarrow.NativeFile or Readable
        The file, at its beginning.
    first, end : int, int or None
        Bytes; ``first`` is 0 if the ending has several.
    ending : bytes or None
        What ends a line. None: ``\n``, ``\r\n`` or ``\r``.
    block : int
        Bytes to read at once.

    Raises
    ------
    Unreadable
        For a line of more than `MAX_RECORD_BYTES`.
    """
    ends = re.compile(rb"\r\n|\r|\n" if ending is None else re.escape(ending))
    at, rest = first, b""  # the file is read up to this byte
    is_inside = first > 0  # the line of the piece before
    if is_inside:
        assert isinstance(source, pa.NativeFile)
        at -= 1
        source.seek(at)
    while data := bytes(source.read(block)):
        while ending is None and data.endswith(b"\r") and (following := bytes(source.read(1))):
            data += following
        at += len(data)
        rest += data.removeprefix(_MARK) if at == len(data) else data
        if is_inside:
            found = ends.search(rest)
            rest, is_inside = (b"", True) if found is None else (rest[found.end() :], False)
            if is_inside:
                continue
            if end is not None and at - len(rest) >= end:
                return
        if end is not None and at >= end:
            found = ends.search(rest, max(0, end - 1 - (at - len(rest))))
            if found is not None:
                yield _split(rest[: found.end()], ending)[:-1]
                return
        *whole, rest = _split(rest, ending)
        if whole:
            yield whole
        elif len(rest) > MAX_RECORD_BYTES:
            raise Unreadable(f"the line before byte {at} has more than {MAX_RECORD_BYTES} bytes")
    if rest and not is_inside:
        yield [rest]


def _split(data: bytes, ending: bytes | None) -> list[bytes]:
    if ending is not None:
        return data.split(ending)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data.split(b"\n")
