"""Records' bytes into columns: JSON, Avro, CSV, or as they are."""

from __future__ import annotations

import pyarrow as pa

from backlog_spark.errors import SettingError

from .csv_decoder import CsvDecoder
from .decoder import Decoded, Decoder, MalformedRecord
from .json_decoder import JsonDecoder
from .options import FORMATS, OPTIONS, DecodeOptions, parse

__all__ = ["FORMATS", "OPTIONS", "DecodeOptions", "Decoded", "Decoder", "MalformedRecord", "decoder", "parse"]


def decoder(options: DecodeOptions, schema: pa.Schema) -> Decoder:
    """The decoder of a format for a declared schema."""
    o = options
    if o.format == "json":
        return JsonDecoder(schema, o.mode, o.corrupt, o.formats, o.non_finite)
    if o.format == "csv":
        return CsvDecoder(schema, o.mode, o.corrupt, o.formats, o.sep, o.quote, o.escape, o.null_value)
    raise SettingError("valueFormat", o.format, "needs no decoder.")
