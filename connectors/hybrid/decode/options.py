"""The options of decoding, each declared once (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import Option, choice, flag, option, parsed, text, values
from backlog_spark.spi.schema_registry import RegistryOptions
from backlog_spark.spi.user_options import UserOptions

from ..changes.options import AVRO, CHANGE_FORMATS, ChangeOptions
from .base import FAILFAST, MODES, Mode
from .keys import KEY_FORMATS, KeyOptions
from .texts import Formats

__all__ = ["CSV", "FORMATS", "DecodeOptions", "parse", "separator"]

FORMATS = ("json", "avro", "protobuf", "csv", *CHANGE_FORMATS, "raw")
CSV = (
    Option("sep", shown=",", bounds="not empty", spark="sep, delimiter", doc="csv: field separator; also `delimiter`."),
    Option("delimiter", shown=",", bounds="not empty", spark="delimiter", doc="csv: the same as `sep`."),
    Option("quote", "character", '"', "one or none", spark="quote", doc="csv: quotes a field; empty for none."),
    Option(
        "escape",
        "character",
        "\\",
        "one or none",
        spark="escape",
        doc="csv: escapes a quote within quotes; empty for none.",
    ),
    Option("nullValue", shown='""', spark="nullValue", doc="csv: text that means NULL."),
)
"""The options of CSV, for records and for files."""
_SEP, _DELIMITER, _QUOTE, _ESCAPE, _NULL_VALUE = CSV


def separator(given: UserOptions) -> str:
    """What separates the fields of CSV, of records and files."""
    if given.has("sep") and given.has("delimiter") and given.text("sep") != given.text("delimiter"):
        raise SettingError("delimiter", given.text("delimiter"), "contradicts sep.", "Give one of them.")
    name = "sep" if given.has("sep") else "delimiter"
    found = given.text(name, ",")
    found = "\t" if found == "\\t" else found
    if not found or "\n" in found or "\r" in found:
        raise SettingError(name, found, "cannot separate fields.", 'Set it to a text such as "," or "\\t".')
    return found


def _character(given: UserOptions, name: str, default: str) -> str:
    """One character; "" for none. Spark also takes U+0000 for none."""
    found = given.text(name, default)
    if len(found) > 1:
        raise SettingError(name, found, "is more than one character.", "Set one character, or none to switch it off.")
    return "" if found == "\0" else found


def _names(given: UserOptions, name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in given.text(name).split(",") if part.strip())


@dataclass(frozen=True)
class DecodeOptions:
    """How records are decoded."""

    format: str = parsed(None, Option("valueFormat", shown="raw", choices=FORMATS))
    """Format of the values of Kafka's records; for files use `fileFormat`. raw: the columns of Spark's Kafka source.
    debezium, debezium-avro-confluent, canal, maxwell: [changes](change_topics.md) of a table."""
    mode: Mode = choice("mode", MODES, shown="PERMISSIVE; of changes FAILFAST", spark="mode")
    """What happens to a malformed record. PERMISSIVE: a row with the values that could be read; of changes a row of
    NULLs. DROPMALFORMED: no row.
    FAILFAST: an error with topic, partition and offset. A record whose schema id the registry does not know is
    malformed. If the registry does not answer, the request is repeated; then it is an error in each mode."""
    corrupt: str = text("columnNameOfCorruptRecord", "_corrupt_record", type="name", spark="columnNameOfCorruptRecord")
    """Text column for the text of malformed records, if the schema has it."""
    formats: Formats = parsed(lambda given: Formats(**values(Formats, given)), Formats, default=Formats())
    non_finite: bool = flag("allowNonNumericNumbers", True, spark="allowNonNumericNumbers")
    """json: NaN and infinities are numbers."""
    sep: str = parsed(separator, _SEP, _DELIMITER, default=",")
    quote: str = parsed(lambda given: _character(given, "quote", '"'), _QUOTE, default='"')
    escape: str = parsed(lambda given: _character(given, "escape", "\\"), _ESCAPE, default="\\")
    null_value: str = parsed(lambda given: given.text("nullValue"), _NULL_VALUE, default="")
    avro_schema: str = text("avroSchema", type="JSON", shown="one of three")
    """avro: the writer schema of the records."""
    avro_schema_file: str = text("avroSchemaFile", type="path", shown="one of three")
    """avro: a file with the writer schema, readable by the driver."""
    record_names: tuple[str, ...] = option("avroRecordName", _names, (), type="names")
    """avro with a registry: full names of the records to read, such as `shop.Order`, for topics that mix types of
    records. Records of another name give no row. Without it all are read; a record that has none of the columns is
    malformed."""
    changes: ChangeOptions = parsed(
        lambda given: ChangeOptions(**values(ChangeOptions, given)), ChangeOptions, default=ChangeOptions()
    )
    registry: RegistryOptions | None = parsed(None, RegistryOptions, default=None)
    key: KeyOptions | None = parsed(None, KeyOptions, default=None)
    # How the keys are decoded, as values of their own.
    key_decode: DecodeOptions | None = None
    protobuf_file: str = text("protobufDescriptorFile", type="path", shown="one of two")
    """protobuf: a file of `protoc --include_imports --descriptor_set_out`, readable by the driver. Records may begin
    with a registry's header, which is not used."""
    protobuf_message: str = text("protobufMessage", type="name")
    """protobuf: the message, such as `shop.Order`; required with `protobufDescriptorFile`. With a registry: the message
    to read, for topics that mix messages. Records of another message give no row."""
    zeros: bool = flag("emit.default.values", spark="emit.default.values")
    """protobuf: false: a number, text, boolean or enum without `optional` that is 0 or empty is NULL, as with
    `from_protobuf`, since the record does not contain it. true: it is that value."""


def parse(options: Mapping[str, str]) -> DecodeOptions:
    """Parse the options of a stream; names in any case. Options about other things are ignored.

    Raises
    ------
    SettingError
        For an option that is missing or malformed.
    """
    given = UserOptions(options)
    key = KeyOptions(**values(KeyOptions, given))
    key.check(given)
    found = _parse(given, FORMATS, key.needs_registry)
    if key.format == "raw":
        return found
    if found.format in (*CHANGE_FORMATS, "raw"):
        raise SettingError(
            "keyFormat", key.format, f"is not possible with valueFormat={found.format}.",
            "Leave it out. The metadata column _key has the key.",
        )  # fmt: skip
    return replace(found, key=key, key_decode=_parse(UserOptions(key.of_value(options)), KEY_FORMATS))


def _parse(given: UserOptions, formats: Sequence[str], keys_need_registry: bool = False) -> DecodeOptions:
    given.required("valueFormat", f"Set it to one of {', '.join(formats)}.", "must be given.")
    found = DecodeOptions(given.choice("valueFormat", formats), **values(DecodeOptions, given))
    if not found.corrupt:
        raise SettingError("columnNameOfCorruptRecord", "", "is empty.", "Name a column, or leave out the option.")
    if found.format in CHANGE_FORMATS:
        mode = found.mode if given.has("mode") else FAILFAST
        found = replace(found, mode=mode, changes=found.changes.of(found.format))
    if found.format == AVRO:
        given.required("schema.registry.url", "Set it to the registry of the connector.", f"{AVRO} needs it.")
        return replace(found, registry=RegistryOptions.parse(given))
    if found.format == "protobuf":
        return _protobuf(found, given, keys_need_registry)
    if found.format != "avro":
        return found
    avro = [name for name in ("avroSchema", "avroSchemaFile", "schema.registry.url") if given.text(name)]
    if keys_need_registry and len(avro) > 1:
        avro.remove("schema.registry.url")
    if len(avro) != 1:
        raise SettingError(
            avro[1] if avro else "avroSchema",
            "***" if avro else None,
            f"is not needed with {avro[0]}." if avro else "Avro needs the writer schema of the records.",
            "Set one of avroSchema, avroSchemaFile and schema.registry.url.",
        )
    return replace(found, registry=RegistryOptions.parse(given) if avro == ["schema.registry.url"] else None)


def _protobuf(found: DecodeOptions, given: UserOptions, keys_need_registry: bool) -> DecodeOptions:
    if found.protobuf_file:
        given.required("protobufMessage", "Set it to the name of the records' message.", "is needed with a file.")
        if given.text("schema.registry.url") and not keys_need_registry:
            raise SettingError(
                "schema.registry.url", "***", "is not needed with protobufDescriptorFile.", "Give one of them."
            )
        return found
    given.required(
        "schema.registry.url", "Set it, or protobufDescriptorFile.", "Protobuf needs the descriptors of the records."
    )
    return replace(found, registry=RegistryOptions.parse(given))
