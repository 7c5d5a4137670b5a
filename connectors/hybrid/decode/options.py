"""Parses and checks the options of decoding (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backlog_spark.errors import SettingError
from backlog_spark.spi.user_options import UserOptions

from .base import MODES, PERMISSIVE, Mode
from .patterns import Kind, Pattern
from .schema_registry import REGISTRY_OPTIONS, RegistryOptions
from .texts import Formats
from .zones import zone

__all__ = ["FORMATS", "OPTIONS", "DecodeOptions", "parse"]

FORMATS = ("json", "avro", "csv", "raw")

# In addition to the option for the format, such as valueFormat.
OPTIONS = (
    "mode", "columnNameOfCorruptRecord", "timeZone", "dateFormat", "timestampFormat", "timestampNTZFormat",
    "allowNonNumericNumbers", "sep", "delimiter", "quote", "escape", "nullValue", "avroSchema", "avroSchemaFile",
    *REGISTRY_OPTIONS,
)  # fmt: skip

_PATTERNS: dict[str, Kind] = {
    "dateFormat": "date",
    "timestampFormat": "timestamp",
    "timestampNTZFormat": "timestamp_ntz",
}


@dataclass(frozen=True)
class DecodeOptions:
    """How records are decoded.

    Parameters
    ----------
    format : str
        One of `FORMATS`.
    mode : str
        ``"PERMISSIVE"``, ``"DROPMALFORMED"`` or ``"FAILFAST"``.
    corrupt : str
        Name of the column for the text of malformed records, if the schema has it.
    formats : Formats
        Formats of dates and timestamps.
    non_finite : bool
        Whether JSON may contain ``NaN`` and infinities.
    sep, quote, escape, null_value : str
        For CSV. ``quote`` and ``escape`` are one character, or "" for none.
    avro_schema, avro_schema_file : str
        The writer schema of the records, as JSON or the path of a file with it; "" with ``registry``.
    registry : RegistryOptions or None
        The registry with the schemas of Avro records, if records have a schema id.
    """

    format: str
    mode: Mode = PERMISSIVE
    corrupt: str = "_corrupt_record"
    formats: Formats = field(default_factory=Formats)
    non_finite: bool = True
    sep: str = ","
    quote: str = '"'
    escape: str = "\\"
    null_value: str = ""
    avro_schema: str = ""
    avro_schema_file: str = ""
    registry: RegistryOptions | None = None


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
    format = given.choice(f"{prefix}Format", FORMATS)
    mode = given.choice("mode", MODES)
    corrupt = given.get("columnnameofcorruptrecord", "_corrupt_record")
    if not corrupt:
        raise SettingError("columnNameOfCorruptRecord", corrupt, "is empty.", "Name a column, or leave out the option.")
    if "sep" in given and "delimiter" in given:
        raise SettingError("delimiter", given["delimiter"], "is the same option as sep.", "Set one of them.")
    avro = [name for name in ("avroSchema", "avroSchemaFile", "schema.registry.url") if given.get(name.lower())]
    if format == "avro" and len(avro) != 1:
        raise SettingError(
            avro[1] if avro else "avroSchema",
            "***" if avro else None,
            f"is not needed with {avro[0]}." if avro else "Avro needs the writer schema of the records.",
            "Set one of avroSchema, avroSchemaFile and schema.registry.url.",
        )
    return DecodeOptions(
        format=format,
        mode=mode,
        corrupt=corrupt,
        formats=_formats(given),
        non_finite=given.flag("allowNonNumericNumbers", True),
        sep=_separator(given),
        quote=_character(given, "quote", '"'),
        escape=_character(given, "escape", "\\"),
        null_value=given.get("nullvalue", ""),
        avro_schema=given.get("avroschema", ""),
        avro_schema_file=given.get("avroschemafile", ""),
        registry=RegistryOptions.parse(given) if format == "avro" and avro == ["schema.registry.url"] else None,
    )


def _formats(given: Mapping[str, str]) -> Formats:
    name = given.get("timezone", "UTC")
    found = zone(name)
    if found is None:
        raise SettingError("timeZone", name, "is not a time zone.", "For example UTC, +02:00 or Europe/Berlin.")
    patterns = {
        option: Pattern(option, given[option.lower()], kind)
        for option, kind in _PATTERNS.items()
        if option.lower() in given
    }
    return Formats(found, *(patterns.get(option) for option in _PATTERNS))


def _separator(given: Mapping[str, str]) -> str:
    name = "delimiter" if "delimiter" in given else "sep"
    text = given.get(name, ",")
    text = "\t" if text == "\\t" else text
    if not text or "\n" in text or "\r" in text:
        raise SettingError(name, text, "is not a separator.", 'For example ";" or "\\t".')
    return text


def _character(given: Mapping[str, str], name: str, default: str) -> str:
    """One character; "" for none. Spark also takes U+0000 for none."""
    text = given.get(name, default)
    if len(text) > 1:
        raise SettingError(name, text, "is more than one character.", "Set one character, or none to switch it off.")
    return "" if text == "\0" else text
