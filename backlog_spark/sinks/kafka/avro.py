"""Writes keys and images as Avro, with the schema's id in a registry before them.

Source: Confluent's documentation of the wire format; ``SchemaConverters`` of spark-avro for the types.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.common.requirements import require
from backlog_spark.errors import BacklogError
from backlog_spark.spi.schema_registry import Registry, RegistryOptions
from backlog_spark.spi.user_options import UserOptions

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

__all__ = ["AvroFormat", "avro_schema", "registry_of"]

_NAMESPACE: Final = "backlog_spark"
_PLAIN: Final[dict[str, Any]] = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}


def registry_of(options: Mapping[str, str]) -> Registry:
    """The registry that options ``schema.registry.*`` name.

    Raises
    ------
    SettingError
        For a missing or malformed option.
    """
    require("KafkaSink with format='avro'", "fastavro")
    given = {name: str(value) for name, value in options.items() if not name.startswith("kafka.")}
    return Registry(RegistryOptions.parse(UserOptions(given)))


class AvroFormat:
    """Encodes keys and images of one topic. Only schemas and ids are pickled.

    Parameters
    ----------
    registry : Registry
        Gets both schemas, under the subjects ``<topic>-key`` and ``<topic>-value``.
    topic : str
    fields : sequence of StructField
        The stored columns.
    keys : sequence of str
        Key columns, some of the stored ones.

    Raises
    ------
    BacklogError
        Avro has no type for a column, or the registry does not take a schema.
    """

    def __init__(self, registry: Registry, topic: str, fields: Sequence[StructField], keys: Sequence[str]) -> None:
        self._keys = tuple(keys)
        import fastavro

        by_name = {field.name: field for field in fields}
        key, value = avro_schema("Key", [by_name[name] for name in keys]), avro_schema("Value", fields)
        self._key_head, self._value_head = (
            b"\0" + registry.register(f"{topic}-{part}", schema).to_bytes(4, "big")
            for part, schema in (("key", key), ("value", value))
        )
        # A parsed schema is a plain dict, which the workers get.
        self._key, self._value = fastavro.parse_schema(key), fastavro.parse_schema(value)

    def key(self, image: Mapping[str, Any]) -> bytes:
        return self._key_head + _encoded(self._key, {name: image[name] for name in self._keys})

    def value(self, image: Mapping[str, Any]) -> bytes:
        return self._value_head + _encoded(self._value, image)


def avro_schema(name: str, fields: Sequence[StructField]) -> dict[str, Any]:
    """The Avro record of some columns, whose values may all be missing.

    Raises
    ------
    BacklogError
        Avro has no type for a column.
    """
    made = [
        {"name": _checked(field.name), "type": ["null", _type(f"{name}_{field.name}", field.dataType)], "default": None}
        for field in fields
    ]
    return {"type": "record", "name": name, "namespace": _NAMESPACE, "fields": made}


def _type(path: str, kind: DataType) -> Any:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        return avro_schema(path, kind.fields)
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": ["null", _type(path, kind.elementType)]}
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return {"type": "map", "values": ["null", _type(path, kind.valueType)]}
    if isinstance(kind, DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if isinstance(kind, StringType):
        return "string"
    found = _PLAIN.get(kind.simpleString())
    if found is None:
        raise BacklogError(
            f"KafkaSink: Avro has no type for {kind.simpleString()} ({path.partition('_')[2]}).",
            "Cast the column to a string before the sink, or set format='json'.",
        )
    return found


def _checked(name: str) -> str:
    if not name.isidentifier() or not name.isascii():
        raise BacklogError(
            f"KafkaSink: Avro takes no column with the name {name!r}.",
            "Rename the column to letters, digits and _, or set format='json'.",
        )
    return name


def _encoded(schema: Any, value: Mapping[str, Any]) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()
