"""Reads whole files as rows: path, time of the last change, length and content."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from .columnar import Selection
from .entries import DataFile, Piece
from .formats import Asked, Format, Rows, Unreadable
from .layouts import UnitLayout
from .metadata import spark_path

__all__ = ["BinaryFormat"]

_COLUMNS = pa.schema(
    [
        ("path", pa.string()),
        ("modificationTime", pa.timestamp("us", "UTC")),
        ("length", pa.int64()),
        ("content", pa.binary()),
    ]
)


class BinaryFormat(Format):
    """One row per file, as Spark's source ``binaryFile``."""

    name = "binaryFile"
    looks = 256

    def schema(self, source: pa.NativeFile) -> pa.Schema:
        return _COLUMNS

    def layout(self, source: pa.NativeFile, file: DataFile) -> UnitLayout:
        return UnitLayout(file.size, [1])

    def read(self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked) -> Iterator[Rows]:
        selection = Selection(name, _COLUMNS, asked)
        try:
            content = source.read() if "content" in selection.columns else None
            row = [spark_path(name), asked.modified_ms * 1000, piece.file.size, content]
            arrays = [pa.array([value], field.type) for value, field in zip(row, _COLUMNS, strict=True)]
            yield selection.rows(pa.RecordBatch.from_arrays(arrays, schema=_COLUMNS))
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None
