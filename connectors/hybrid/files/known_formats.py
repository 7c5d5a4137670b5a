"""The formats of files. A new one is one module and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .avrofiles import AvroFormat
from .binaryfiles import BinaryFormat
from .columnar import ParquetFormat
from .formats import Format
from .jsonfiles import JsonDocuments
from .options import FileOptions
from .orcfiles import OrcFormat
from .text import CsvFormat, JsonFormat
from .textfiles import TextFormat

__all__ = ["format_of"]

_MADE: Mapping[str, Callable[[FileOptions], Format]] = {
    "parquet": lambda o: ParquetFormat(),
    "orc": lambda o: OrcFormat(o.time_zone),
    "json": lambda o: (JsonDocuments if o.csv.multi_line else JsonFormat)(o.encoding),
    "csv": lambda o: CsvFormat(o.csv, o.encoding),
    "avro": lambda o: AvroFormat(),
    "text": lambda o: TextFormat(o.plain, o.encoding),
    "binaryFile": lambda o: BinaryFormat(),
}


def format_of(options: FileOptions) -> Format:
    """The format that the options name."""
    return _MADE[options.format](options)
