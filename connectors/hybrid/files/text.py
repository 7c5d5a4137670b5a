"""Reads JSON lines and CSV: cuts files into records, which a decoder turns into rows."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import pyarrow as pa

from backlog_spark.errors import BacklogError

from ..decode.csv_split import Splitter
from ..phases import DecoderOf
from .entries import DataFile, Piece
from .formats import BATCH_ROWS, Asked, Format, Rows, Unreadable
from .layouts import TextLayout
from .options import CsvOptions
from .records import csv_records, ends_by_return, line_records, lines

__all__ = ["CsvFormat", "JsonFormat"]

_log = logging.getLogger(__name__)
_CODECS = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "bz2": "bz2"}
# Known to Hadoop. Arrow reads them with another framing or not at all.
_REFUSED = ("deflate", "lz4", "snappy", "lzo", "xz", "zip")
_BINARY = {b"PAR1": "Parquet", b"ORC": "ORC", b"Obj\x01": "Avro"}
_SAMPLE_BYTES = 256 << 10
_SAMPLE_ROWS_BYTES = 4 << 20


class _TextFormat(Format):
    """Files of records.

    Attributes
    ----------
    decoder_of : callable or None
        Must be set before anything is read.
    """

    looks = 1

    def __init__(self) -> None:
        self.decoder_of: DecoderOf | None = None

    @property
    @abstractmethod
    def _splits(self) -> bool:
        """Whether every line is a record."""

    @property
    def _ends_by_return(self) -> Callable[[bytes], bool] | None:
        """See `lines`."""
        return None

    @abstractmethod
    def _records(
        self, blocks: Iterator[list[bytes]], name: str, begins_file: bool, record: pa.Schema
    ) -> Iterator[list[bytes]]: ...

    def schema(self, source: pa.NativeFile) -> None:
        _check_is_text(source)

    def layout(self, source: pa.NativeFile, file: DataFile) -> TextLayout:
        _check_is_text(source)
        codec = _codec(file.path)
        return TextLayout(file.size, _rows_per_byte(source, codec), self._splits and codec is None)

    def read(self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked) -> Iterator[Rows]:
        if self.decoder_of is None:
            raise BacklogError(f"No decoder was set for {self.name}.", "Set decoder_of before rows are read.")
        decoder = self.decoder_of(asked.record)
        indexes = [asked.record.names.index(column) for column in asked.wanted]
        codec = _codec(name)
        done = 0
        try:
            stream = source if codec is None else pa.CompressedInputStream(source, codec)
            blocks = lines(stream, piece.first, piece.end, ends_by_return=self._ends_by_return)
            for block in self._records(blocks, name, piece.first == 0, asked.record):
                for at in range(0, len(block), BATCH_ROWS):
                    values = block[at : at + BATCH_ROWS]
                    try:
                        decoded = decoder.decode(pa.array(values, pa.binary()))
                    except BacklogError as error:
                        where = f"{name}, after {done} records from byte {piece.first} on"
                        raise BacklogError(f"{where}: {error.problem}", error.hint) from None
                    done += len(values)
                    count = len(values) if decoded.kept is None else len(decoded.kept)
                    yield Rows(count, [decoded.columns[index] for index in indexes])
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None


class JsonFormat(_TextFormat):
    """One JSON object per line."""

    name = "json"
    _splits = True

    def _records(
        self, blocks: Iterator[list[bytes]], name: str, begins_file: bool, record: pa.Schema
    ) -> Iterator[list[bytes]]:
        return line_records(blocks)


class CsvFormat(_TextFormat):
    """Comma-separated values."""

    name = "csv"

    def __init__(self, options: CsvOptions) -> None:
        super().__init__()
        self._options = options

    @property
    def _splits(self) -> bool:
        return self._options.splits_at_lines

    @property
    def _ends_by_return(self) -> Callable[[bytes], bool] | None:
        return None if self._splits else partial(ends_by_return, options=self._options)

    def _records(
        self, blocks: Iterator[list[bytes]], name: str, begins_file: bool, record: pa.Schema
    ) -> Iterator[list[bytes]]:
        found = csv_records(blocks, self._options)
        if not (self._options.header and begins_file):
            return found
        first = next((block for block in found if block), None)
        if first is None:
            return iter(())
        self._compare(name, first[0], record.names)
        return chain([first[1:]], found)

    def _compare(self, name: str, header: bytes, declared: list[str]) -> None:
        """Warn if a header has other names than the columns that are read by position."""
        text = header.decode("utf-8", "replace")
        split = Splitter(self._options.sep, self._options.quote, self._options.escape)
        found = [column or "" for column in split(text)]
        # The column for malformed records is declared but never in a header.
        rest = iter(column.casefold() for column in declared)
        if not all(column.strip().casefold() in rest for column in found):
            _log.warning("%s: its header is %s, but its columns are read by position as %s", name, found, declared)


def _check_is_text(source: pa.NativeFile) -> None:
    """Refuse binary files. If malformed records are no error, a Parquet file would otherwise give rows of NULLs."""
    start = bytes(source.read(4))
    source.seek(0)
    kind = next((kind for mark, kind in _BINARY.items() if start.startswith(mark)), None)
    if kind:
        raise Unreadable(f"it is a file of {kind}")


def _codec(path: str) -> str | None:
    ending = path.rpartition("/")[2].rpartition(".")[2].lower()
    if ending in _REFUSED:
        raise BacklogError(
            f"{path}: files compressed as .{ending} cannot be read.",
            "Compress them as .gz, .zst or .bz2, or exclude them with pathGlobFilter.",
        )
    return _CODECS.get(ending)


def _rows_per_byte(source: pa.NativeFile, codec: str | None) -> float:
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
