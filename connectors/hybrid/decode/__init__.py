"""Decodes records into columns: JSON, Avro, Protobuf, CSV, or raw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from backlog_spark.errors import SettingError
from backlog_spark.spi.schema_registry import Registry

from ..changes.canal import CanalDecoder
from ..changes.debezium import DebeziumDecoder
from ..changes.debezium_avro import DebeziumAvroDecoder
from ..changes.maxwell import MaxwellDecoder
from ..changes.options import CHANGE_FORMATS
from .avro_decoder import AvroDecoder
from .avro_schema import load, schemaOf
from .base import Decoded, Decoder, MalformedRecord
from .csv_decoder import CsvDecoder
from .json_decoder import JsonDecoder
from .keys import KeyedDecoder, KeyOptions, TextDecoder
from .options import FORMATS, DecodeOptions, parse

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


def decoder(options: DecodeOptions, schema: pa.Schema, rescued: str = "") -> Decoder:
    """The decoder of a format for a declared schema.

    Parameters
    ----------
    options : DecodeOptions
    schema : pyarrow.Schema
    rescued : str
        json, csv: the last column, for what does not fit the others. Default: there is none.

    Raises
    ------
    BacklogError
        If the format, or the Avro schema that the options give, cannot become the declared columns.
    SettingError
        If the options name a file that cannot be read, or the format is ``raw``, which needs no decoder.
    """
    o = options
    if o.key is not None and o.key_decode is not None:
        return _keyed(o, o.key, o.key_decode, schema)
    if o.format == "string":
        return TextDecoder(schema)
    if o.format == "json":
        return JsonDecoder(schema, o.mode, o.corrupt, o.formats, o.non_finite, rescued)
    if o.format == "csv":
        return CsvDecoder(schema, o.mode, o.corrupt, o.formats, o.sep, o.quote, o.escape, o.null_value, rescued)
    if o.format == "avro":
        source = Registry(o.registry) if o.registry else load(o.avro_schema, o.avro_schema_file)
        return AvroDecoder(schema, o.mode, o.corrupt, source, o.record_names)
    if o.format == "protobuf":
        from .protobuf_decoder import ProtobufDecoder  # other formats need no Protobuf
        from .protobuf_files import load_descriptors

        files = Registry(o.registry) if o.registry else load_descriptors(o.protobuf_file)
        return ProtobufDecoder(schema, o.mode, o.corrupt, files, o.protobuf_message, o.zeros)
    if o.format in CHANGE_FORMATS:
        return _of_changes(o, schema)
    raise SettingError(
        "valueFormat", o.format, "needs no decoder.", f"Set one of {', '.join(f for f in FORMATS if f != 'raw')}."
    )


def _keyed(o: DecodeOptions, key: KeyOptions, of_key: DecodeOptions, schema: pa.Schema) -> Decoder:
    names = key.columns(schema)
    fields = [f.with_name(f.name.removeprefix(key.prefix)) for f in schema if f.name in names]
    rest = pa.schema([f for f in schema if f.name not in names])
    if of_key.format != "string" and o.corrupt in rest.names:
        fields.append(rest.field(o.corrupt))
    value = decoder(replace(o, key=None), rest)
    return KeyedDecoder(schema, names, decoder(of_key, pa.schema(fields)), value, o.corrupt)


def _of_changes(o: DecodeOptions, schema: pa.Schema) -> Decoder:
    if o.registry is not None:
        registry = Registry(o.registry)
        return DebeziumAvroDecoder(schema, o.mode, o.corrupt, o.formats, o.changes, registry)
    kinds: dict[str, Any] = {"debezium": DebeziumDecoder, "canal": CanalDecoder, "maxwell": MaxwellDecoder}
    found: Decoder = kinds[o.format](schema, o.mode, o.corrupt, o.formats, o.changes)
    return found
