"""Reads JSON lines and CSV: cuts files into records, which a decoder turns into rows."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import pyarrow as pa

from backlog_spark.errors import BacklogError

from ..decode.base import Decoder
from ..decode.csv_split import Splitter
from ..decode.texts import Formats
from ..phases import DecoderOf
from .encodings import UTF_8, Transcoder, as_utf8, is_bytewise
from .entries import DataFile, Piece
from .formats import BATCH_ROWS, Asked, Format, Rows, Unreadable
from .headers import in_order_of
from .layouts import TextLayout
from .records import BLOCK_BYTES, csv_records, ends_by_return, line_records, lines
from .schemas.records import CsvGuess, JsonGuess
from .schemas.types import of_csv, of_json
from .textoptions import CsvOptions

__all__ = ["CsvFormat", "JsonFormat", "RecordFormat", "check_is_text", "codec_of", "rows_per_byte", "unpacked"]

_log = logging.getLogger(__name__)
_CODECS = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "bz2": "bz2"}
# Known to Hadoop. Arrow reads them with another framing or not at all.
_REFUSED = ("deflate", "lz4", "snappy", "lzo", "xz", "zip")
_BINARY = {b"PAR1": "Parquet", b"ORC": "ORC", b"Obj\x01": "Avro"}
_RESCUED = pa.field("\0", pa.string())
_SAMPLE_BYTES = 256 << 10
_SAMPLE_BLOCK = 4 << 10
_SAMPLE_ROWS_BYTES = 4 << 20
# A request to an object store takes as long for fewer.
_HEADER_BYTES = 64 << 10


class RecordFormat(Format):
    """Files of records, which a decoder turns into rows.

    Parameters
    ----------
    encoding : str
        From `known_encoding`.

    Attributes
    ----------
    decoder_of : callable or None
        Must be set before anything is read.
    """

    looks = 1
    has_bytes = True
    is_untyped = True

    def __init__(self, encoding: str = UTF_8) -> None:
        self.decoder_of: DecoderOf | None = None
        self._encoding = encoding

    @property
    @abstractmethod
    def _splits(self) -> bool:
        """Whether every line is a record."""

    def schema(self, source: pa.NativeFile) -> None:
        check_is_text(source)

    def layout(self, source: pa.NativeFile, file: DataFile) -> TextLayout:
        check_is_text(source)
        codec = codec_of(file.path)
        splits = self._splits and codec is None and is_bytewise(self._encoding)
        return TextLayout(file.size, rows_per_byte(source, codec), splits)

    def corrupt(self, columns: pa.Schema) -> str:
        """The column for malformed records, and their name in rescued data; "" without one."""
        return getattr(self._decoder(columns), "corrupt", "")

    def _decoder(self, columns: pa.Schema, *, rescues: bool = False) -> Decoder:
        """The decoder of some columns, and of one more at their end for what does not fit."""
        if self.decoder_of is None:
            raise BacklogError(f"No decoder was set for {self.name}.", "Set decoder_of before rows are read.")
        return self.decoder_of(columns.append(_RESCUED), _RESCUED.name) if rescues else self.decoder_of(columns)


class _LineFormat(RecordFormat):
    """Records that are cut at line ends."""

    @property
    def _ends_by_return(self) -> Callable[[bytes], bool] | None:
        """See `lines`."""
        return None

    @abstractmethod
    def _records(
        self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked
    ) -> tuple[Iterator[list[bytes]], pa.Schema]:
        """The records of a piece, and their columns: the declared ones in the order of the file, perhaps with more."""

    def read(self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked) -> Iterator[Rows]:
        done = 0
        try:
            records, columns = self._records(source, name, piece, asked)
            decoder = self._decoder(columns, rescues=asked.rescues)
            # A file may lack columns that were inferred from others.
            indexes = [columns.get_field_index(column) for column in asked.wanted]
            types = [asked.record.field(column).type for column in asked.wanted]
            for block in records:
                for at in range(0, len(block), BATCH_ROWS):
                    values = block[at : at + BATCH_ROWS]
                    try:
                        decoded = decoder.decode(pa.array(values, pa.binary()))
                    except BacklogError as error:
                        where = f"{name}, after {done} records from byte {piece.first} on"
                        raise BacklogError(f"{where}: {error.problem}", error.hint) from None
                    done += len(values)
                    count = len(values) if decoded.kept is None else len(decoded.kept)
                    found = [
                        decoded.columns[index] if index >= 0 else pa.nulls(count, kind)
                        for index, kind in zip(indexes, types, strict=True)
                    ]
                    yield Rows(count, found, decoded.columns[-1] if asked.rescues else None)
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None

    def _lines(
        self, source: pa.NativeFile, name: str, first: int = 0, end: int | None = None, block: int = BLOCK_BYTES
    ) -> Iterator[list[bytes]]:
        """Lines in UTF-8 (see `lines`)."""
        stream = unpacked(source, name)
        if self._encoding != UTF_8 and not (self._splits and is_bytewise(self._encoding)):
            return lines(Transcoder(stream, self._encoding), first, end, block, self._ends_by_return)
        found = lines(stream, first, end, block, self._ends_by_return)
        return found if self._encoding == UTF_8 else as_utf8(found, self._encoding)


class JsonFormat(_LineFormat):
    """One JSON object per line."""

    name = "json"
    _splits = True

    def merged(self, one: pa.DataType, other: pa.DataType) -> pa.DataType:
        return of_json(one, other)

    def sample(self, source: pa.NativeFile, name: str, most: int) -> pa.Schema:
        check_is_text(source)
        guess = JsonGuess()
        for record in _first(line_records(self._lines(source, name, block=_block(most))), most):
            guess.add(record)
        return guess.schema

    def _records(
        self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked
    ) -> tuple[Iterator[list[bytes]], pa.Schema]:
        return line_records(self._lines(source, name, piece.first, piece.end)), asked.record


class CsvFormat(_LineFormat):
    """Comma-separated values."""

    name = "csv"

    def __init__(self, options: CsvOptions, encoding: str = UTF_8) -> None:
        super().__init__(encoding)
        self._options = options

    @property
    def _splits(self) -> bool:
        return self._options.splits_at_lines

    @property
    def _ends_by_return(self) -> Callable[[bytes], bool] | None:
        return None if self._splits else partial(ends_by_return, options=self._options)

    def _records(
        self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked
    ) -> tuple[Iterator[list[bytes]], pa.Schema]:
        declared = asked.record
        found = csv_records(self._lines(source, name, piece.first, piece.end), self._options)
        if not self._options.header:
            return found, declared
        if piece.first == 0:
            beginning = next((block for block in found if block), None)
            found = found if beginning is None else chain([beginning[1:]], found)
        elif self._options.enforce_schema:
            return found, declared
        else:  # the lines of the piece are not read yet, and move to its beginning by themselves
            source.seek(0)
            above = csv_records(self._lines(source, name, block=_HEADER_BYTES), self._options)
            beginning = next((block for block in above if block), None)
        if beginning is None:
            return found, declared
        header = [column or "" for column in self._split(beginning[0].decode("utf-8", "replace"))]
        if self._options.enforce_schema:
            _compare(name, header, declared.names)
            return found, declared
        corrupt = self.corrupt(declared)
        return found, in_order_of(header, declared, corrupt, name, rescues=asked.rescues, may_lack=asked.may_lack)

    def merged(self, one: pa.DataType, other: pa.DataType) -> pa.DataType:
        return of_csv(one, other)

    def sample(self, source: pa.NativeFile, name: str, most: int) -> pa.Schema:
        check_is_text(source)
        block = _block(most)
        found = csv_records(self._lines(source, name, block=block), self._options)
        guess: CsvGuess | None = None
        for record in _first(found, most):
            if guess is None:
                header = self._header(name, record) if self._options.header else None
                guess = CsvGuess(header, self._split, self._options.null_value, self._formats)
                if header is not None:
                    continue
            guess.add(record)
        return guess.schema if guess is not None else pa.schema([])

    def _header(self, name: str, record: bytes) -> list[str]:
        found = self._split(record.decode("utf-8", "replace"))
        names = [(column or "").strip() or f"_c{index}" for index, column in enumerate(found)]
        for column in names:
            if sum(column.casefold() == other.casefold() for other in names) > 1:
                raise BacklogError(
                    f"{name}: the header has {column} more than once, also if case does not count.",
                    "Correct it, exclude the file, or set header=false.",
                )
        return names

    def type_of(self, value: object) -> pa.DataType:
        guess = CsvGuess(None, _whole, self._options.null_value, self._formats)
        guess.add(str(value).encode())
        return guess.schema.field(0).type

    @property
    def _split(self) -> Splitter:
        return Splitter(self._options.sep, self._options.quote, self._options.escape)

    @property
    def _formats(self) -> Formats:
        """Formats of dates and timestamps, which the decoder has."""
        options = getattr(self.decoder_of, "args", ())
        return options[0].formats if options else Formats()


def _block(most: int) -> int:
    """Bytes to read at once for a sample."""
    return min(BLOCK_BYTES, max(most, _SAMPLE_BLOCK))


def _whole(record: str) -> list[str | None]:
    return [record]


def _first(blocks: Iterator[list[bytes]], most: int) -> Iterator[bytes]:
    """Records up to a number of bytes. At least one."""
    taken = 0
    for block in blocks:
        for record in block:
            yield record
            taken += len(record) + 1
            if taken >= most:
                return


def _compare(name: str, header: list[str], declared: list[str]) -> None:
    """Warn if a header has other names than the columns that are read by position."""
    # The column for malformed records is declared but never in a header.
    rest = iter(column.casefold() for column in declared)
    if not all(column.strip().casefold() in rest for column in header):
        _log.warning("%s: its header is %s, but its columns are read by position as %s", name, header, declared)


def check_is_text(source: pa.NativeFile) -> None:
    """Refuse binary files. If malformed records are no error, a Parquet file would otherwise give rows of NULLs."""
    start = bytes(source.read(4))
    source.seek(0)
    kind = next((kind for mark, kind in _BINARY.items() if start.startswith(mark)), None)
    if kind:
        raise Unreadable(f"it is a file of {kind}")


def codec_of(path: str) -> str | None:
    ending = path.rpartition("/")[2].rpartition(".")[2].lower()
    if ending in _REFUSED:
        raise BacklogError(
            f"{path}: files compressed as .{ending} cannot be read.",
            "Compress them as .gz, .zst or .bz2, or exclude them with pathGlobFilter.",
        )
    return _CODECS.get(ending)


def unpacked(source: pa.NativeFile, name: str) -> pa.NativeFile:
    """The content of a file that may be compressed."""
    codec = codec_of(name)
    return source if codec is None else pa.CompressedInputStream(source, codec)


def rows_per_byte(source: pa.NativeFile, codec: str | None) -> float:
    """Lines per byte of a file, measured at its beginning."""
    raw: bytes = source.read(_SAMPLE_BYTES)
    if codec is None:
        return float(max(1, _line_ends(raw)) / max(1, len(raw)))
    inner = pa.BufferReader(raw)
    found = taken = 0
    try:
        stream = pa.CompressedInputStream(inner, codec)
        while taken < _SAMPLE_ROWS_BYTES and (data := stream.read(64 << 10)):
            found, taken = found + _line_ends(data), taken + len(data)
    except OSError:
        pass  # the part that was read ends within a compressed block: use what was decoded
    consumed: int = len(raw) if inner.closed else inner.tell()
    return max(1, found) / max(1, consumed)


def _line_ends(data: bytes) -> int:
    return max(data.count(b"\n"), data.count(b"\r"))
