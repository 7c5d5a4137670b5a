"""Decodes records into columns: JSON, Avro, CSV, or raw."""

from __future__ import annotations

import pyarrow as pa

from backlog_spark.errors import SettingError

from .avro_decoder import AvroDecoder
from .avro_schema import load, schemaOf
from .base import Decoded, Decoder, MalformedRecord
from .csv_decoder import CsvDecoder
from .json_decoder import JsonDecoder
from .options import FORMATS, DecodeOptions, parse
from .schema_registry import Registry

__all__ = [
    "FORMATS",
    "DecodeOptions",
    "Decoded",
    "Decoder",
    "MalformedRecord",
    "decoder",
    "parse",
    "schemaOf",
]


def decoder(options: DecodeOptions, schema: pa.Schema) -> Decoder:
    """The decoder of a format for a declared schema.

    Raises
    ------
    BacklogError
        If the format, or the Avro schema that the options give, cannot become the declared columns.
    SettingError
        If the options name a file that cannot be read, or the format is ``raw``, which needs no decoder.
    """
    o = options
    if o.format == "json":
        return JsonDecoder(schema, o.mode, o.corrupt, o.formats, o.non_finite)
    if o.format == "csv":
        return CsvDecoder(schema, o.mode, o.corrupt, o.formats, o.sep, o.quote, o.escape, o.null_value)
    if o.format == "avro":
        source = Registry(o.registry) if o.registry else load(o.avro_schema, o.avro_schema_file)
        return AvroDecoder(schema, o.mode, o.corrupt, source)
    raise SettingError(
        "valueFormat", o.format, "needs no decoder.", f"Set one of {', '.join(f for f in FORMATS if f != 'raw')}."
    )
