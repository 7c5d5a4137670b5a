"""The options of decoding, each declared once (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import Option, choice, flag, parsed, text, values
from backlog_spark.spi.user_options import UserOptions

from .base import MODES, Mode
from .schema_registry import RegistryOptions
from .texts import Formats

__all__ = ["CSV", "FORMATS", "DecodeOptions", "parse"]

FORMATS = ("json", "avro", "csv", "raw")
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


def _separator(given: UserOptions) -> str:
    if given.has("sep") and given.has("delimiter"):
        raise SettingError("delimiter", given["delimiter"], "is the same option as sep.", "Set one of them.")
    name = "delimiter" if given.has("delimiter") else "sep"
    found = given.text(name, ",")
    found = "\t" if found == "\\t" else found
    if not found or "\n" in found or "\r" in found:
        raise SettingError(name, found, "is not a separator.", 'For example ";" or "\\t".')
    return found


def _character(given: UserOptions, name: str, default: str) -> str:
    """One character; "" for none. Spark also takes U+0000 for none."""
    found = given.text(name, default)
    if len(found) > 1:
        raise SettingError(name, found, "is more than one character.", "Set one character, or none to switch it off.")
    return "" if found == "\0" else found


@dataclass(frozen=True)
class DecodeOptions:
    """How records are decoded."""

    format: str = parsed(None, Option("valueFormat", shown="raw", choices=FORMATS))
    """Format of the values of Kafka's records; for files use `fileFormat`. raw: the columns of Spark's Kafka source."""
    mode: Mode = choice("mode", MODES, spark="mode")
    """What happens to a malformed record. PERMISSIVE: a row with the values that could be read. DROPMALFORMED: no row.
    FAILFAST: an error with topic, partition and offset. A record whose schema id the registry does not know is
    malformed. If the registry does not answer, the request is repeated; then it is an error in each mode."""
    corrupt: str = text("columnNameOfCorruptRecord", "_corrupt_record", type="name", spark="columnNameOfCorruptRecord")
    """Text column for the text of malformed records, if the schema has it."""
    formats: Formats = parsed(lambda given: Formats(**values(Formats, given)), Formats, default=Formats())
    non_finite: bool = flag("allowNonNumericNumbers", True, spark="allowNonNumericNumbers")
    """json: NaN and infinities are numbers."""
    sep: str = parsed(_separator, _SEP, _DELIMITER, default=",")
    quote: str = parsed(lambda given: _character(given, "quote", '"'), _QUOTE, default='"')
    escape: str = parsed(lambda given: _character(given, "escape", "\\"), _ESCAPE, default="\\")
    null_value: str = parsed(lambda given: given.text("nullValue"), _NULL_VALUE, default="")
    avro_schema: str = text("avroSchema", type="JSON", shown="one of three")
    """avro: the writer schema of the records."""
    avro_schema_file: str = text("avroSchemaFile", type="path", shown="one of three")
    """avro: a file with the writer schema, readable by the driver."""
    registry: RegistryOptions | None = parsed(None, RegistryOptions, default=None)


def parse(options: Mapping[str, str], prefix: str = "value") -> DecodeOptions:
    """Parse the options of a stream; names in any case. Options about other things are ignored.

    Parameters
    ----------
    options : mapping of str to str
        As given by the user.
    prefix : str
        Prefix of the format's option: ``"value"`` for ``valueFormat``. The other options have no prefix.

    Raises
    ------
    SettingError
        For an option that is missing or malformed.
    """
    given = UserOptions(options)
    given.required(f"{prefix}Format", f"Set it to one of {', '.join(FORMATS)}.", "must be given.")
    found = DecodeOptions(given.choice(f"{prefix}Format", FORMATS), **values(DecodeOptions, given))
    if not found.corrupt:
        raise SettingError("columnNameOfCorruptRecord", "", "is empty.", "Name a column, or leave out the option.")
    if found.format != "avro":
        return found
    avro = [name for name in ("avroSchema", "avroSchemaFile", "schema.registry.url") if given.text(name)]
    if len(avro) != 1:
        raise SettingError(
            avro[1] if avro else "avroSchema",
            "***" if avro else None,
            f"is not needed with {avro[0]}." if avro else "Avro needs the writer schema of the records.",
            "Set one of avroSchema, avroSchemaFile and schema.registry.url.",
        )
    return replace(found, registry=RegistryOptions.parse(given) if avro == ["schema.registry.url"] else None)
