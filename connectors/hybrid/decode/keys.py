"""Columns from a record's key, beside those of its value, as Flink's ``key.format`` and ``key.fields`` give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.options import choice, option, text
from backlog_spark.spi.user_options import UserOptions

from .base import Decoded, Decoder, MalformedRecord, text_of

__all__ = ["KEY_FORMATS", "KeyOptions", "KeyedDecoder", "TextDecoder"]

KEY_FORMATS = ("raw", "string", "json", "avro")


def _names(given: UserOptions, name: str) -> tuple[str, ...]:
    """Names, separated by commas, or by semicolons as in Flink."""
    return tuple(part.strip() for part in given.text(name).replace(";", ",").split(",") if part.strip())


@dataclass(frozen=True)
class KeyOptions:
    """How keys are decoded."""

    format: str = choice("keyFormat", KEY_FORMATS)
    """Format of the keys of Kafka's records. raw: a key is only in the metadata column `_key`. string: its text is one
    column. The other formats give a column for each field. Not with `valueFormat=raw` or changes."""
    names: tuple[str, ...] = option("keyFields", _names, (), type="names", shown="those with `keyFieldsPrefix`")
    """The columns that come from the key. All others come from the value."""
    prefix: str = text("keyFieldsPrefix")
    """What the names of these columns have before the names of the key's fields, so that they differ from the value's.
    """
    avro_schema: str = text("keyAvroSchema", type="JSON")
    """avro: the writer schema of the keys, if `schema.registry.url` does not have it."""
    avro_schema_file: str = text("keyAvroSchemaFile", type="path")
    """avro: a file with that schema, readable by the driver."""

    @property
    def needs_registry(self) -> bool:
        """Whether the schemas of the keys are in the registry."""
        return self.format == "avro" and not self.avro_schema and not self.avro_schema_file

    def check(self, given: UserOptions) -> None:
        """Refuse options that contradict each other.

        Raises
        ------
        SettingError
        """
        others = ("keyFields", "keyFieldsPrefix", "keyAvroSchema", "keyAvroSchemaFile")
        if self.format == "raw":
            for name in others:
                if given.has(name):
                    raise SettingError(name, "***", "has no meaning without keyFormat.", "Set keyFormat.")
            return
        for name in others[2:]:
            if given.text(name) and self.format != "avro":
                raise SettingError(name, "***", f"has no meaning with keyFormat={self.format}.", "Leave it out.")
        if self.avro_schema and self.avro_schema_file:
            raise SettingError("keyAvroSchemaFile", "***", "is not needed with keyAvroSchema.", "Give one of them.")
        if self.needs_registry and not given.text("schema.registry.url"):
            raise SettingError(
                "keyAvroSchema", None, "keyFormat=avro needs the writer schema of the keys.",
                "Set one of keyAvroSchema, keyAvroSchemaFile and schema.registry.url.",
            )  # fmt: skip
        if not self.names and not self.prefix:
            raise SettingError("keyFields", None, "keyFormat needs this, or keyFieldsPrefix.", "Name the columns.")
        for name in self.names:
            if not name.startswith(self.prefix) or name == self.prefix:
                raise SettingError(
                    "keyFields", name, f"does not begin with keyFieldsPrefix={self.prefix}.", "Write whole columns."
                )

    def of_value(self, options: Mapping[str, str]) -> dict[str, str]:
        """The options of a stream whose values would be these keys."""
        own = {
            "valueFormat": self.format,
            "avroSchema": self.avro_schema,
            "avroSchemaFile": self.avro_schema_file,
            "schema.registry.url": UserOptions(options).text("schema.registry.url") if self.needs_registry else "",
        }
        theirs = {name.lower() for name in (*own, "avroRecordName", "keyFormat", "keyFields", "keyFieldsPrefix")}
        theirs |= {"keyavroschema", "keyavroschemafile"}
        rest = {name: value for name, value in options.items() if name.lower() not in theirs}
        if not own["schema.registry.url"]:
            rest = {name: value for name, value in rest.items() if not name.lower().startswith("schema.registry.")}
        return {**rest, **{name: value for name, value in own.items() if value}}

    def columns(self, schema: pa.Schema) -> list[str]:
        """The columns that come from the key.

        Raises
        ------
        SettingError
            The schema lacks one, or all.
        """
        found = list(self.names) or [name for name in schema.names if name.startswith(self.prefix)]
        missing = [name for name in found if name not in schema.names]
        if missing or not found:
            option, value = ("keyFields", missing[0]) if missing else ("keyFieldsPrefix", self.prefix)
            raise SettingError(option, value, "the schema has no such column.", f"Columns: {', '.join(schema.names)}.")
        return found


class TextDecoder(Decoder):
    """The text of a record as its one column. Bytes that are not UTF-8 become U+FFFD, as in Java.

    Parameters
    ----------
    schema : pyarrow.Schema
        One string.

    Raises
    ------
    BacklogError
        The schema is another one.
    """

    def __init__(self, schema: pa.Schema) -> None:
        if len(schema) != 1 or not pa.types.is_string(schema.field(0).type):
            raise BacklogError(
                f"keyFormat=string gives one column of text, not {', '.join(f'{f.name} {f.type}' for f in schema)}.",
                "Name one column in keyFields, and declare it STRING.",
            )

    def decode(self, values: pa.Array) -> Decoded:
        """See `Decoder`."""
        try:
            return Decoded([values.cast(pa.string())])
        except pa.ArrowInvalid:
            return Decoded([pa.array([None if v is None else text_of(v) for v in values.to_pylist()], pa.string())])


class KeyedDecoder(Decoder):
    """Decodes keys and values. Columns that the key gives are not looked for in the value.

    Parameters
    ----------
    schema : pyarrow.Schema
        The declared data.
    names : sequence of str
        Columns that come from the key.
    key, value : Decoder
        For these columns, in the schema's order, and for the others.
    corrupt : str
        See `TwoPathDecoder`. This column is the last one of the key too. It has a key whose value is well-formed.
    """

    def __init__(self, schema: pa.Schema, names: Sequence[str], key: Decoder, value: Decoder, corrupt: str) -> None:
        self._names = schema.names
        self._of_key = [name for name in schema.names if name in names]
        self._of_value = [name for name in schema.names if name not in names]
        self._key, self._value = key, value
        self._corrupt = corrupt if corrupt in self._of_value else ""

    def decode(self, values: pa.Array) -> Decoded:
        """See `Decoder`. Without keys."""
        return self.decode_records(values, pa.nulls(len(values), pa.binary()))

    def decode_records(self, values: pa.Array, keys: pa.Array, offsets: np.ndarray | None = None) -> Decoded:
        """The rows of records.

        Parameters
        ----------
        values, keys : pyarrow.Array
            Binary.

        Raises
        ------
        MalformedRecord, BacklogError
            As of `Decoder.decode`.
        """
        value = self._value.decode(values)
        try:
            key = self._key.decode(keys)
        except MalformedRecord as error:
            raise MalformedRecord(error.index, f"its key: {error.reason}") from None
        kept = np.arange(len(values))
        for part in (value, key):
            if part.kept is not None:
                kept = np.intersect1d(kept, part.kept.to_numpy(), assume_unique=True)
        columns = dict(zip(self._of_value, _rows(value, kept), strict=True))
        of_key = _rows(key, kept)
        if self._corrupt and len(of_key) > len(self._of_key):
            columns[self._corrupt] = pc.coalesce(columns[self._corrupt], of_key.pop())
        columns.update(zip(self._of_key, of_key, strict=True))
        whole = len(kept) == len(values)
        return Decoded([columns[name] for name in self._names], None if whole else pa.array(kept, pa.int64()))


def _rows(part: Decoded, kept: np.ndarray) -> list[pa.Array]:
    """The columns of those records."""
    if part.kept is None:
        return [column.take(pa.array(kept)) if len(kept) < len(column) else column for column in part.columns]
    at = np.searchsorted(part.kept.to_numpy(), kept)
    return [column.take(pa.array(at)) for column in part.columns]
